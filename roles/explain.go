package roles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// newExplain is `inferencecache explain`.
func newExplain() *cobra.Command {
	var q question
	var id string
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Say why a prompt would go, or went, to a replica",
		Long: `explain asks a server why it ranks the replicas for a prompt as it does: what each
holds, where its run of blocks ends and why, each term of its expected finish, and
what would change the choice. With --request it says so of an answer given before.
It changes nothing in the server.`,
		Example: `  inferencecache explain --tenant demo --model sim --text "You are a helpful assistant. ..."
  inferencecache explain --request 2kemp7h0gau49`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &pb.ExplainRequest{RequestId: id}
			if id == "" {
				lookup, err := q.request(cmd.InOrStdin())
				if err != nil {
					return usage(err)
				}
				request.Lookup = lookup
			} else if err := q.check(); err != nil {
				return usage(err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), q.timeout)
			defer cancel()
			answer, err := q.client().Explain(ctx, request)
			if err != nil {
				return fmt.Errorf("ask %s: %w", q.server, explainCall(err))
			}
			if q.output == "json" {
				return writeProto(cmd.OutOrStdout(), answer)
			}
			if err := writeExplanation(cmd.OutOrStdout(), answer); err != nil {
				return err
			}
			if answer.GetError() != "" && id != "" {
				return errors.New("nothing to explain")
			}
			return nil
		},
	}
	q.flags(cmd.Flags())
	cmd.Flags().StringVar(&id, "request", "", "request id of an answer that the server may still remember")
	return cmd
}

func writeProto(w io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// writeExplanation prints an explanation for people.
func writeExplanation(w io.Writer, e *pb.ExplainResponse) error {
	code := e.GetAnswer().GetReasonCode()
	if code != "" {
		fmt.Fprintf(w, "%s: %s\n", code, meaning[code])
	}
	if e.GetError() != "" {
		_, err := fmt.Fprintf(w, "%s\n", e.GetError())
		return err
	}
	fmt.Fprintf(w, "%s\n", e.GetSummary())
	for _, change := range e.GetWouldChange() {
		fmt.Fprintf(w, "  %s\n", change)
	}
	fmt.Fprintf(w, "\ntenant %s, model %s, scheme %s%s; prompt of %d tokens in %d blocks; profile %s, a miss costs %.0f %% more\n\n",
		e.GetTenantId(), e.GetModelId(), e.GetHashScheme(), adapterText(e.GetAdapterId()), e.GetPromptTokens(), e.GetPromptBlocks(),
		e.GetProfile(), 100*e.GetMissPrice())
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "replica\theld\tT1+T2+T3\tsoon\twaiting\tprefill\tmiss\tload\tpenalty\tgain\tfinish\tthe run ends\t")
	for _, c := range e.GetConsidered() {
		if c.GetExcluded() {
			fmt.Fprintf(table, "%s\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t%s\t\n", c.GetReplicaId(), runText(c))
			continue
		}
		fmt.Fprintf(table, "%s\t%d\t%d+%d+%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.GetReplicaId(), c.GetHeldTokens(),
			c.GetT1Tokens(), c.GetT2Tokens(), c.GetT3Tokens(), c.GetSoonTokens(), waitText(c), ms(c.GetPrefillMs()), ms(c.GetMissMs()),
			ms(c.GetLoadMs()), ms(c.GetPenaltyMs()), ms(-c.GetGainMs()), ms(c.GetFinishMs()), runText(c))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\ntimes in ms; decided %s\n", time.UnixMicro(e.GetDecidedAtUs()).Format(time.RFC3339))
	return err
}

func adapterText(adapter string) string {
	if adapter == "" {
		return ""
	}
	return ", adapter " + adapter
}

func ms(v float64) string {
	if math.Abs(v) < 0.05 {
		return "0"
	}
	return fmt.Sprintf("%.1f", v)
}

// waitText marks a wait that no load report is behind.
func waitText(c *pb.Considered) string {
	if c.GetLoadKnown() {
		return ms(c.GetBacklogMs())
	}
	return ms(c.GetBacklogMs()) + "?"
}

// runText says where a run ends, and what else is wrong with the replica.
func runText(c *pb.Considered) string {
	var all []string
	if c.GetExcluded() {
		all = append(all, "no candidate: "+c.GetExcludedReason())
	}
	if end := c.GetRunEnd(); end != pb.RunEnd_RUN_END_UNSPECIFIED {
		all = append(all, strings.TrimPrefix(end.String(), "RUN_")+": "+c.GetRunDetail())
	}
	for _, note := range []struct {
		set  bool
		text string
	}{
		{c.GetBelowFloor(), "below the floor of matched tokens"},
		{c.GetLate(), "too late for the wanted time to first token"},
		{c.GetOverShare(), "had more than its share of hints"},
		{c.GetSuspect(), "suspect: silent, or it cannot see its engine"},
		{c.GetQuarantined(), fmt.Sprintf("not believed: %.0f %% of what it promised was found", 100*c.GetTruth())},
	} {
		if note.set {
			all = append(all, note.text)
		}
	}
	return strings.Join(all, "; ")
}
