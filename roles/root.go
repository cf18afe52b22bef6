// Package roles is the command line: it reads settings, builds stations and
// runs them. It decides nothing that a station or machine could decide.
package roles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // something went wrong while running
	exitUsage  = 2 // told wrongly: a flag, a file, a missing permission to be open
)

// usageError is a mistake of whoever wrote the command line or settings.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// Main runs the command line args until it is done or ctx ends, and returns
// the exit code.
func Main(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if findings := errFindings(0); errors.As(err, &findings) {
		return int(findings) // they have been printed
	}
	fmt.Fprintln(os.Stderr, "inferencecache:", err)
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "inferencecache",
		Short: "Tells gateways which replica already holds a prompt's prefix",
		Long: `inferencecache hears from language-model engines which KV blocks they hold and
answers which replica should get a prompt.

Settings come from flags, then INFERENCECACHE_* environment variables (--index-memory
is INFERENCECACHE_INDEX_MEMORY), then the YAML file of --config, then defaults.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") { // a plugin of kubectl
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl inferencecache"}
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.PersistentFlags().String("config", "", "YAML file of settings, keys named like flags")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return usage(loadSettings(cmd)) }
	root.AddCommand(newRun(), newLookup(), newExplain(), newOutcome(), newGain(), newTop(), newEvents(), newDecode(), newSim(), newBench(), newDoctor(), newReplay(), newJournal(), newManifests(), newConfig(), newVersion())
	for _, cmd := range root.Commands() {
		if args := cmd.Args; args != nil {
			cmd.Args = func(cmd *cobra.Command, given []string) error { return usage(args(cmd, given)) }
		}
	}
	return root
}
