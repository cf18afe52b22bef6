package roles

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// newGain is `inferencecache gain`.
func newGain() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "gain",
		Short: "Say what routing by hints saves, or would save",
		Long: `gain sums up the outcomes that gateways reported since the server started. In
shadow mode it compares what engines found in their caches with what they would
have found had the hints been followed; else with what a replica drawn by lot
held. The range is the 95 % interval of the sum.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.check(); err != nil {
				return usage(err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), q.timeout)
			defer cancel()
			answer, err := q.client().GetGain(ctx, &pb.GetGainRequest{TenantId: q.tenant, ModelId: q.model})
			if err != nil {
				return fmt.Errorf("ask %s: %w", q.server, explainCall(err))
			}
			if q.output == "json" {
				return writeProto(cmd.OutOrStdout(), answer)
			}
			return writeGains(cmd.OutOrStdout(), answer.GetGains())
		},
	}
	q.connection(cmd.Flags())
	cmd.Flags().StringVar(&q.tenant, "tenant", "", "only this tenant")
	cmd.Flags().StringVar(&q.model, "model", "", "only this model")
	return cmd
}

func writeGains(w io.Writer, gains []*pb.Gain) error {
	if len(gains) == 0 {
		_, err := fmt.Fprintln(w, "no lookup has named or ranked a replica since the server started")
		return err
	}
	for _, g := range gains {
		how, baseline := "following hints saved", "a replica drawn by lot would have found"
		if g.GetShadow() {
			how, baseline = "following hints would have saved", "the hinted replicas would have found"
		}
		fmt.Fprintf(w, "%s / %s: %d lookups, outcomes of %d (%s)\n", g.GetTenantId(), g.GetModelId(), g.GetLookups(), g.GetOutcomes(), percent(g.GetOutcomes(), g.GetLookups()))
		if g.GetOutcomes() == 0 {
			fmt.Fprintln(w, "  nothing to compare: let the gateway call ReportOutcome with the cached tokens that engines return")
			continue
		}
		fmt.Fprintf(w, "  of %d prompt tokens engines found %d in their caches (%s); %s %d (%s)\n", g.GetPromptTokens(),
			g.GetCachedTokens(), percent(g.GetCachedTokens(), g.GetPromptTokens()), baseline, g.GetComparedTokens(), percent(g.GetComparedTokens(), g.GetPromptTokens()))
		fmt.Fprintf(w, "  %s %s tokens of prefill and %s s%s\n", how, between(g.GetSavedTokens(), g.GetSavedTokensMargin(), "%.0f"),
			between(g.GetSavedSeconds(), g.GetSavedSecondsMargin(), "%.2f"), verdict(g))
	}
	return nil
}

func percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

func between(v, margin float64, format string) string {
	if math.IsInf(margin, 0) {
		return fmt.Sprintf(format, v)
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", v, v-margin, v+margin)
}

func verdict(g *pb.Gain) string {
	switch {
	case math.IsInf(g.GetSavedTokensMargin(), 0):
		return "; one outcome says nothing about others"
	case g.GetSavedTokens() < g.GetSavedTokensMargin() && g.GetSavedTokens() > -g.GetSavedTokensMargin():
		return "; that may be chance: more outcomes are needed"
	}
	return ""
}
