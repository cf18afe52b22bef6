package roles

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// newOutcome is `inferencecache outcome`.
func newOutcome() *cobra.Command {
	var q question
	var o pb.Outcome
	cmd := &cobra.Command{
		Use:     "outcome",
		Short:   "Tell a server what became of a prompt that was looked up",
		Long:    "outcome does by hand what a gateway does after each answer of an engine, from the usage that it returns.",
		Example: `  inferencecache outcome --request 2kemp7h0gau49 --replica sim-2 --cached 112 --prompt 118`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.check(); err != nil {
				return usage(err)
			}
			if o.GetRequestId() == "" || o.GetReplicaId() == "" {
				return usage(errors.New("--request and --replica are required"))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), q.timeout)
			defer cancel()
			ack, err := q.client().ReportOutcome(ctx, &o)
			if err != nil {
				return fmt.Errorf("tell %s: %w", q.server, explainCall(err))
			}
			if q.output == "json" {
				return writeProto(cmd.OutOrStdout(), ack)
			}
			if !ack.GetAccepted() {
				return fmt.Errorf("not taken: %s", ack.GetReasonCode())
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "expected %d cached tokens, found %d\n", ack.GetExpectedCachedTokens(), o.GetCachedTokens())
			return err
		},
	}
	q.connection(cmd.Flags())
	fs := cmd.Flags()
	fs.StringVar(&o.RequestId, "request", "", "request id of the lookup's answer")
	fs.StringVar(&o.ReplicaId, "replica", "", "replica that served the prompt")
	fs.Int32Var(&o.CachedTokens, "cached", 0, "tokens of the prompt that the engine found in its cache")
	fs.Int32Var(&o.PromptTokens, "prompt", 0, "tokens of the prompt (0: not said)")
	fs.Int32Var(&o.OutputTokens, "output-tokens", 0, "tokens of the answer (0: not said)")
	return cmd
}
