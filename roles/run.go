package roles

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/internal/obs"
	"inferencecache.io/inferencecache/internal/tracing"
	"inferencecache.io/inferencecache/roles/server"
	"inferencecache.io/inferencecache/subscriber"
)

const (
	roleAll        = "all"
	roleController = "controller"
	roleServer     = "server"
	roleSubscriber = "subscriber"
	roleDoctor     = "doctor"
)

var runnable = []string{roleAll, roleController, roleServer, roleSubscriber, roleDoctor}

// stopGrace is how long a process may take to stop.
const stopGrace = 4500 * time.Millisecond

// settings are all flags of `run`; which of them matter depends on the role.
type settings struct {
	role          string
	listen        []string
	controlListen string
	profileListen string
	drainDelay    time.Duration
	logs          logConfig
	server        server.Config
	tracing       tracing.Config
	subscriber    subscriber.Config
	sims          int
	simListen     string
	simLoad       float64
	simFault      string
	fault         *simFault // that simFault names; nil: none
	engines       []string
	manifests     string
	controller    controllerConfig
}

// logConfig is how a process logs, on standard error.
type logConfig struct{ format, level string }

func (c *logConfig) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.format, "log-format", "", "json or text (empty: text for --role=all and sim, else json)")
	fs.StringVar(&c.level, "log-level", "", "debug, info, warn or error (empty: warn for --role=all, else info)")
}

func (c *logConfig) logger(cmd *cobra.Command, format string) (*slog.Logger, error) {
	if c.format != "" {
		format = c.format
	}
	return obs.NewLogger(cmd.ErrOrStderr(), format, c.level)
}

// bindRun registers the flags of every role: they are settings of one binary.
func bindRun(fs *pflag.FlagSet) *settings {
	s := &settings{}
	fs.StringVar(&s.role, "role", roleAll, "what to be: all (a laptop: server, engines and subscribers in one), controller, server, subscriber, or doctor (looks once at the installation around it, and ends)")
	fs.StringSliceVar(&s.listen, "listen", nil, "address to serve on, may be repeated (default 127.0.0.1:9090 for all, :8080 for controller, :9090 otherwise)")
	fs.StringVar(&s.controlListen, "control-listen", "", "address for the controller (default 127.0.0.1:8081 for all, :8081 for server)")
	fs.StringVar(&s.profileListen, "profile-listen", "", "loopback address for Go's profiles below /debug/pprof/ (empty: off)")
	fs.DurationVar(&s.drainDelay, "drain-delay", 0, "how long to go on serving, as not ready, after being told to stop")
	s.logs.flags(fs)
	s.server.Flags(fs)
	s.tracing.Flags(fs)
	s.subscriber.Flags(fs)
	fs.IntVar(&s.sims, "sim", 3, "with --role=all and no --engine: simulated engines to run (0: none)")
	fs.StringVar(&s.simListen, "sim-listen", "127.0.0.1:8101", "HTTP address of the first simulated engine; the others take the ports after it")
	fs.Float64Var(&s.simLoad, "sim-load", 0, "prompts a second for the simulated engines, sent as a gateway would (0: none, or 4 with --sim-fault)")
	fs.StringVar(&s.simFault, "sim-fault", "", "what is wrong with the first simulated engine, by the id that `inferencecache doctor` gives it: events-off, for instance (empty: nothing)")
	fs.StringArrayVar(&s.engines, "engine", nil, "with --role=all: engine to attach, name=tcp://host:port[,replay=tcp://host:port][,metrics=URL][,url=URL][,scheme=vllm][,model=NAME][,tenant=NAME], may be repeated")
	fs.StringVar(&s.manifests, "manifests", "", "with --role=all: folder of CachePolicy and CacheTenant YAML to serve by, watched")
	s.controller.flags(fs)
	return s
}

// newRun is `inferencecache run`.
func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run one role, or all of them on a laptop",
		Args:  cobra.NoArgs,
	}
	s := bindRun(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.complete(); err != nil {
			return usage(err)
		}
		format := "json"
		if s.role == roleAll {
			format = "text"
			if s.logs.level == "" {
				s.logs.level = "warn"
			}
		}
		log, err := s.logs.logger(cmd, format)
		if err != nil {
			return usage(err)
		}
		p := &process{settings: s, log: log, out: cmd.OutOrStdout(), set: metrics.NewSet()}
		switch s.role {
		case roleSubscriber:
			limitSubscriber(s.subscriber.MaxBlocks, s.subscriber.QueueBytes)
		case roleServer, roleAll:
			limitMemory(s.server.MemoryBytes, int64(s.server.TokenCacheBytes))
		}
		switch s.role {
		case roleDoctor:
			return examineHome(cmd, s.controller.kubeconfig, s.controller.reconcile.Namespace)
		case roleController:
			return p.runController(cmd.Context())
		case roleServer:
			return p.runServer(cmd.Context())
		case roleSubscriber:
			return p.runSubscriber(cmd.Context())
		}
		return p.runAll(cmd.Context(), cmd.Flags())
	}
	return cmd
}

// complete fills in what depends on the role and refuses what must not be.
func (s *settings) complete() error {
	if !slices.Contains(runnable, s.role) {
		return fmt.Errorf("--role %q: want %s", s.role, strings.Join(runnable, ", "))
	}
	host, port := "", ":9090"
	switch s.role {
	case roleAll:
		host = "127.0.0.1"
	case roleController:
		port = ":8080"
	}
	if len(s.listen) == 0 {
		s.listen = []string{host + port}
	}
	if s.controlListen == "" {
		s.controlListen = host + ":8081"
	}
	if s.server.MemoryBytes == 0 {
		s.server.MemoryBytes = indexMemory()
	}
	var errs []error
	if s.profileListen != "" && !isLoopback(s.profileListen) {
		errs = append(errs, fmt.Errorf("--profile-listen %s: profiles show memory, so only a loopback address is allowed", s.profileListen))
	}
	if s.drainDelay < 0 {
		errs = append(errs, fmt.Errorf("--drain-delay %s: must not be negative", s.drainDelay))
	}
	switch s.role {
	case roleController:
		errs = append(errs, s.controller.validate())
	case roleServer:
		errs = append(errs, s.server.Validate(), s.tracing.Validate(), s.server.ValidateAuth())
	case roleSubscriber:
		errs = append(errs, s.subscriber.Validate())
	case roleAll:
		errs = append(errs, s.server.Validate(), s.tracing.Validate(), s.completeAll())
		if s.controller.kubeconfig != "" {
			errs = append(errs, s.controller.validate())
		}
	}
	if s.manifests != "" && (s.role != roleAll || s.controller.kubeconfig != "") {
		errs = append(errs, errors.New("--manifests is for --role=all without --kubeconfig: in a cluster policies come from the API server"))
	}
	return errors.Join(errs...)
}

// completeAll keeps a laptop's open doors on the laptop.
func (s *settings) completeAll() error {
	if s.server.AllowedControllerSA == "" && !s.server.InsecureDisableAuth {
		for _, address := range append(slices.Clone(s.listen), s.controlListen) {
			if !isLoopback(address) {
				return fmt.Errorf("refusing to listen on %s, which other machines can reach, without authentication: give --allowed-controller-sa, or --insecure-disable-auth if you mean it", address)
			}
		}
		s.server.InsecureDisableAuth = true
	}
	if s.sims < 0 || s.sims > 100 {
		return fmt.Errorf("--sim %d: want 0 to 100", s.sims)
	}
	if s.simLoad < 0 || s.simLoad > 1000 {
		return fmt.Errorf("--sim-load %v: want 0 to 1000 prompts a second", s.simLoad)
	}
	if len(s.engines) > 0 && (s.simLoad > 0 || s.simFault != "") {
		return errors.New("--sim-load and --sim-fault are for simulated engines, and --engine attaches others: give one of them")
	}
	fault, err := findSimFault(s.simFault)
	if err != nil {
		return err
	}
	s.fault = fault
	return s.server.ValidateAuth()
}
