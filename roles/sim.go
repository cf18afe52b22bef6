package roles

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"inferencecache.io/inferencecache/internal/engine/sim"
	"inferencecache.io/inferencecache/internal/life"
)

// newSim is `inferencecache sim`: one simulated engine.
func newSim() *cobra.Command {
	var config sim.Config
	var logs logConfig
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run one simulated vLLM engine, for trying things out without a GPU",
		Long: `Run one simulated vLLM engine. Send it prompts at /v1/completions; it publishes the
KV events that vLLM would. It misbehaves at POST /sim/fault?kind=K (with n=N, for=D,
rank=N), where K is one of
  ` + strings.Join(sim.FaultKinds(), " ") + `.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.logger(cmd, "text")
			if err != nil {
				return usage(err)
			}
			if err := config.Validate(); err != nil {
				return usage(err)
			}
			engine := sim.New(config, log)
			if err := engine.Listen(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s serves model %s at %s\n", config.Name, config.Model, engine.URL())
			for _, r := range engine.Ranks() {
				fmt.Fprintf(cmd.OutOrStdout(), "  events %s\n  replay %s\n", r.EventsEndpoint(), cmp.Or(r.ReplayEndpoint(), "none"))
				if endpoint := r.SnapshotEndpoint(); endpoint != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "  snapshot %s\n", endpoint)
				}
			}
			return life.Run(cmd.Context(), stopGrace, log, life.Service{Name: "sim", Stage: life.Doors, Run: func(ctx context.Context) error {
				return engine.Run(ctx)
			}})
		},
	}
	config.Flags(cmd.Flags())
	logs.flags(cmd.Flags())
	return cmd
}
