package roles

import (
	"context"
	"fmt"

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
KV events that vLLM would. Faults: POST /sim/fault?kind=drop|restart|stall|seed|evict|clear.`,
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
			fmt.Fprintf(cmd.OutOrStdout(), "%s serves model %s at %s\n  events %s\n  replay %s\n",
				config.Name, config.Model, engine.URL(), engine.EventsEndpoint(), engine.ReplayEndpoint())
			return life.Run(cmd.Context(), stopGrace, log, life.Service{Name: "sim", Stage: life.Doors, Run: func(ctx context.Context) error {
				return engine.Run(ctx)
			}})
		},
	}
	config.Flags(cmd.Flags())
	logs.flags(cmd.Flags())
	return cmd
}
