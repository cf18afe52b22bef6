package roles

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"inferencecache.io/inferencecache/roles/doctor"
)

// settleTime is how long a system must have run before it is judged: the slowest
// faults to show are ranks that are missing.
const settleTime = 30 * time.Second

// errFindings ends doctor with the exit code of its summary.
type errFindings int

func (e errFindings) Error() string { return "the system needs attention" }

// examination is what `inferencecache doctor` looks at.
type examination struct {
	target            doctor.Local
	cluster           doctor.Cluster
	kubeconfig, where string // file, and the context in it
	local, noColour   bool
	byAddress         bool // one of addressFlags was given
	tokenFile, output string
	timeout, settle   time.Duration
}

func (e *examination) flags(fs *pflag.FlagSet) {
	fs.BoolVar(&e.local, "local", false, "look at a run --role=all on this machine (without it, engines at loopback addresses are not asked: those are of other machines)")
	fs.StringVar(&e.kubeconfig, "kubeconfig", "", "file that says how to reach the API server (empty: $KUBECONFIG, ~/.kube/config or the pod's service account)")
	fs.StringVar(&e.where, "context", "", "context of it to use (empty: the current one)")
	fs.StringVarP(&e.cluster.Namespace, "namespace", "n", "", "namespace to look at (empty: all)")
	fs.StringVar(&e.cluster.Home, "home", "", "namespace of the installation (empty: where the servers' Service is)")
	fs.BoolVar(&e.cluster.Direct, "direct", false, "dial pods by their addresses instead of forwarding ports: for a doctor that runs in the cluster")
	fs.BoolVar(&e.cluster.ObjectsOnly, "config-only", false, "look at Kubernetes objects alone, ask no pod")
	fs.IntVar(&e.cluster.MaxEngines, "max-engines", 20, "engines to ask themselves, those in trouble first")
	fs.StringVar(&e.target.Server, "server", "http://127.0.0.1:9090", "base URL of a server's port for gateways, to look at without a cluster")
	fs.StringVar(&e.target.Control, "control", "", "base URL of the server's port for the controller (default with --local: http://127.0.0.1:8081)")
	fs.StringVar(&e.tokenFile, "token-file", "", "file with a bearer token for --control")
	fs.StringSliceVar(&e.target.Subscribers, "subscriber", nil, "base URL of a process that follows engines, may be repeated (the server's own are always looked at)")
	fs.StringVar(&e.target.Gateway, "gateway-url", "", "base URL at which a gateway tokenizes (POST /tokenize), to compare with --engine-url")
	fs.StringVar(&e.target.Engine, "engine-url", "", "base URL of an engine, to compare with --gateway-url")
	fs.StringVarP(&e.output, "output", "o", "human", strings.Join(doctor.Formats, ", "))
	fs.BoolVar(&e.noColour, "no-color", false, "print human without colour")
	fs.DurationVar(&e.timeout, "timeout", 2*time.Minute, "longest time for everything")
	fs.DurationVar(&e.settle, "settle", settleTime, "a system that started later than that is watched until then: some faults take a while to show")
}

// newDoctor is `inferencecache doctor`.
func newDoctor() *cobra.Command {
	var e examination
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with a running system, and what to do",
		Long: `doctor reads what servers, subscribers and engines show of themselves and says what is
wrong: engines whose events never arrive, blocks that no prompt can match, servers that
cannot be reached. It looks at the installation in the cluster of your kubeconfig, at the
addresses that are given, or with --local at a run --role=all on this machine. It changes
nothing. It exits with 0 if nothing needs attention, with 1 if the worst is a warning, with
2 if something fails.`,
		Example: `  inferencecache doctor
  inferencecache doctor --local
  inferencecache doctor --server http://10.0.0.7:9090 --subscriber http://10.0.1.3:9090 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.byAddress = slices.ContainsFunc(addressFlags, cmd.Flags().Changed)
			return e.run(cmd)
		},
	}
	e.flags(cmd.Flags())
	for _, flag := range addressFlags {
		cmd.MarkFlagsMutuallyExclusive("kubeconfig", flag)
	}
	return cmd
}

// addressFlags say where to look without a cluster.
var addressFlags = []string{"local", "server", "control", "subscriber", "gateway-url", "engine-url"}

func (e *examination) run(cmd *cobra.Command) error {
	if err := e.complete(); err != nil {
		return usage(err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), e.timeout)
	defer cancel()
	look := e.target.Run
	if !e.byAddress {
		if err := e.findCluster(); err != nil {
			return usage(err)
		}
		look = e.cluster.Run
	}
	waits := false
	all, err := look(ctx, e.settle, func(left time.Duration) {
		if !waits {
			fmt.Fprintf(cmd.ErrOrStderr(), "the system has just started: watching it for another %s (--settle)\n", left.Round(time.Second))
		}
		waits = true
	})
	if err != nil {
		return fmt.Errorf("look at the system: %w", err)
	}
	if err := doctor.Write(cmd.OutOrStdout(), e.output, all, !e.noColour && isTerminal(cmd.OutOrStdout())); err != nil {
		return err
	}
	if code := doctor.Summarize(all).ExitCode; code != 0 {
		return errFindings(code)
	}
	return nil
}

// examineHome is `run --role=doctor`: in a pod of the installation, which may dial
// the others.
func examineHome(cmd *cobra.Command, kubeconfig, home string) error {
	var e examination
	e.flags(pflag.NewFlagSet("doctor", pflag.ContinueOnError)) // for the defaults
	e.kubeconfig, e.cluster.Home, e.cluster.Direct = kubeconfig, home, true
	return e.run(cmd)
}

// findCluster reads the kubeconfig as kubectl does.
func (e *examination) findCluster() error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = e.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: e.where}).ClientConfig()
	if err != nil {
		return fmt.Errorf("find a cluster (--local looks at a run --role=all on this machine, --server at addresses): %w", err)
	}
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "inferencecache-doctor/" + Version
	e.cluster.Config = config
	return nil
}

// complete fills in and checks what was given.
func (e *examination) complete() error {
	if !slices.Contains(doctor.Formats, e.output) {
		return fmt.Errorf("--output %q: want one of %s", e.output, strings.Join(doctor.Formats, ", "))
	}
	if e.cluster.MaxEngines < 0 {
		return fmt.Errorf("--max-engines %d: want 0 or more", e.cluster.MaxEngines)
	}
	e.target.Here = e.local
	if e.local && e.target.Control == "" {
		e.target.Control = "http://127.0.0.1:8081"
	}
	if (e.target.Gateway == "") != (e.target.Engine == "") {
		return errors.New("--gateway-url and --engine-url are compared with each other: give both")
	}
	if e.tokenFile != "" {
		token, err := os.ReadFile(e.tokenFile)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		e.target.Token = strings.TrimSpace(string(token))
	}
	for _, base := range []*string{&e.target.Server, &e.target.Control, &e.target.Gateway, &e.target.Engine} {
		*base = baseOf(*base)
	}
	for i, base := range e.target.Subscribers {
		e.target.Subscribers[i] = baseOf(base)
	}
	e.target.HTTP = &http.Client{}
	return nil
}

// baseOf is an address as a base URL.
func baseOf(address string) string {
	if address != "" && !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return strings.TrimRight(address, "/")
}
