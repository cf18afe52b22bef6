package roles

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/bridge"
	"inferencecache.io/inferencecache/internal/engine/sim"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	"inferencecache.io/inferencecache/internal/life"
	"inferencecache.io/inferencecache/internal/memhttp"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/reconcile/manifests"
	"inferencecache.io/inferencecache/roles/server"
	"inferencecache.io/inferencecache/subscriber"
)

// Who the engines of --role=all are, unless --tenant-id and --model-id say
// otherwise.
const (
	demoTenant = "demo"
	demoModel  = "sim"
)

// attached is one engine of --role=all, simulated or real.
type attached struct {
	config subscriber.Config
	where  string // for people: where to send prompts, or where events come from
}

// runAll is a whole system in one process: the handlers, encodings and sockets
// are those of production; only the way from subscriber to server is in memory.
func (p *process) runAll(ctx context.Context, flags *pflag.FlagSet) error {
	if !flags.Changed("tokenize-from-engines") {
		p.server.Tokenize = true
	}
	engines, err := p.attachEngines(flags)
	if err != nil {
		return err
	}
	p.open()
	s, err := p.addServer(ctx)
	if err != nil {
		return err
	}
	if err := p.addPolicies(s); err != nil {
		return err
	}
	inside := memhttp.New(p.mux)
	p.add(life.Doors, "in-memory listener", inside.Run)
	client := inside.Client(true)
	defer client.CloseIdleConnections()
	for _, e := range engines {
		if err := p.addSubscriber(e.config, func(string) connect.HTTPClient { return client }); err != nil {
			return usage(err)
		}
	}
	if load := p.load(); load > 0 && len(engines) > 0 {
		g := newGateway(engines, client, memhttp.URL)
		p.add(life.Hands, "load", func(ctx context.Context) error { return g.run(ctx, load) })
	}
	p.banner(engines)
	go func() { // ends with ctx, which outlives it
		<-ctx.Done()
		fmt.Fprintln(p.out, "\nstopping; Ctrl-C again quits at once")
	}()
	return p.run(ctx)
}

// addPolicies gives the server its policies: those of a cluster, or of a
// folder, through the same compiler and the same document.
func (p *process) addPolicies(s *server.Server) error {
	switch {
	case p.controller.kubeconfig != "":
		rpc := "http://"
		if p.server.TLSCertFile != "" {
			rpc = "https://"
		}
		return p.addController(thisServer{Name: "local", Control: "http://" + p.control, RPC: rpc + p.bound})
	case p.manifests != "":
		folder := &manifests.Folder{Dir: p.manifests, Log: p.log, Adopt: func(d policy.Document) error { return adopt(s, d) }}
		if err := folder.Load(); err != nil {
			return usage(err)
		}
		p.add(life.Hands, "manifests", folder.Run)
	}
	return nil
}

// adopt takes a document by the way that a server takes those pushed to it.
func adopt(s bridge.Adopter, d policy.Document) error {
	body, err := bridge.EncodePolicy(d)
	if err != nil {
		return err
	}
	set, err := bridge.DecodePolicy(body, s.PolicyDefaults())
	if err != nil {
		return err
	}
	s.AdoptPolicy(set)
	return nil
}

// attachEngines reads --engine, or starts simulated ones.
func (p *process) attachEngines(flags *pflag.FlagSet) ([]attached, error) {
	base := p.subscriber
	base.Servers = []string{memhttp.URL}
	if !flags.Changed("tenant-id") {
		base.TenantID = demoTenant
	}
	if !flags.Changed("model-id") {
		base.ModelID = demoModel
	}
	if len(p.engines) > 0 {
		return parseEngines(p.engines, base)
	}
	return p.startSims(base)
}

// parseEngines reads name=endpoint[,key=value...] specifications.
func parseEngines(specs []string, base subscriber.Config) ([]attached, error) {
	var all []attached
	var errs []error
	seen := map[string]bool{}
	for _, spec := range specs {
		config, err := parseEngine(spec, base)
		if err == nil {
			err = config.Validate()
		}
		if err == nil && seen[config.ReplicaID] {
			err = fmt.Errorf("the name %s is given twice", config.ReplicaID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--engine %q: %w", spec, err))
			continue
		}
		seen[config.ReplicaID] = true
		all = append(all, attached{config, "events " + config.EngineEndpoint})
	}
	return all, usage(errors.Join(errs...))
}

func parseEngine(spec string, base subscriber.Config) (subscriber.Config, error) {
	name, rest, ok := strings.Cut(spec, "=")
	if !ok || name == "" {
		return base, errors.New("want name=tcp://host:port[,metrics=URL]")
	}
	endpoint, rest, _ := strings.Cut(rest, ",")
	base.ReplicaID, base.EngineEndpoint, base.EngineMetricsURL = name, endpoint, ""
	for pair := range strings.SplitSeq(rest, ",") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "metrics":
			base.EngineMetricsURL = value
		case "replay":
			base.ReplayEndpoint = value
		case "url":
			base.EngineURL = value
		case "scheme":
			base.HashScheme = value
		case "model":
			base.ModelID = value
		case "tenant":
			base.TenantID = value
		default:
			return base, fmt.Errorf("%q is none of metrics, replay, url, scheme, model and tenant", key)
		}
	}
	return base, nil
}

func (p *process) startSims(base subscriber.Config) ([]attached, error) {
	host, first, err := splitPort(p.simListen)
	if err != nil {
		return nil, usage(fmt.Errorf("--sim-listen: %w", err))
	}
	if !isLoopback(p.simListen) && !p.server.InsecureDisableAuth {
		return nil, usage(fmt.Errorf("refusing to run simulated engines on %s, which other machines can reach", p.simListen))
	}
	if base.BlockSize == 0 {
		base.BlockSize = p.server.EngineBlockSize // what the server cannot match is refused where it shows
	}
	var all []attached
	for i := range p.sims {
		var fault *simFault
		if i == 0 {
			fault = p.fault
		}
		port := first
		if first != 0 {
			port += i
		}
		name := fmt.Sprintf("sim-%d", i+1)
		simulated := sim.Config{
			Name: name, Model: base.ModelID, BlockSize: p.server.EngineBlockSize,
			Listen: net.JoinHostPort(host, strconv.Itoa(port)),
		}
		fault.spoilEngine(&simulated)
		engine := sim.New(simulated, p.log.With("replica", name))
		if err := engine.Listen(); err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		p.add(life.Doors, name, engine.Run) // below the subscribers: stops after them
		config := base
		config.ReplicaID, config.HashScheme = name, vllm.Dialect.HashScheme
		config.EngineEndpoint, config.ReplayEndpoint, config.EngineURL = engine.EventsEndpoint(), engine.ReplayEndpoint(), engine.URL()
		config.EngineMetricsURL = engine.URL() + "/metrics"
		fault.spoilSubscriber(&config)
		p.keepSpoiling(fault, engine)
		all = append(all, attached{config, engine.URL()})
	}
	return all, nil
}

func splitPort(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q is not a port", text)
	}
	return host, port, nil
}

// banner tells in a few lines what runs where and what to try.
func (p *process) banner(engines []attached) {
	address := "http://" + p.bound
	if p.server.TLSCertFile != "" {
		address = "https://" + p.bound
	}
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "server\t%s\tgRPC, gRPC-Web, Connect and JSON; / is a page for you; /healthz /readyz /metrics\n", address)
	fmt.Fprintf(table, "control\thttp://%s\t/snapshot /policy /probe\n", p.control)
	for _, e := range engines {
		fmt.Fprintf(table, "%s\t%s\ttenant %s, model %s\n", e.config.ReplicaID, e.where, e.config.TenantID, e.config.ModelID)
	}
	_ = table.Flush()
	if len(p.engines) == 0 && len(engines) > 0 {
		p.suggest(engines[len(engines)/2])
	}
	fmt.Fprintln(p.out, "\nCtrl-C stops it.")
}

// demoPrompt is longer than the default floor of 64 matched tokens.
const demoPrompt = "You are a helpful assistant of a travel agency. Answer in one sentence and name a price. Where is it warm in November?"

func (p *process) suggest(e attached) {
	ask := fmt.Sprintf("bin/inferencecache lookup --tenant %s --model %s", e.config.TenantID, e.config.ModelID)
	if p.bound != "127.0.0.1:9090" {
		ask += " --server http://" + p.listen[0]
	}
	fmt.Fprintf(p.out, `
Try, in another terminal: give a prompt to %[1]s, then ask who should get it.
  PROMPT=%[4]q
  curl -s %[2]s/v1/completions -H 'Content-Type: application/json' -d "{\"model\":\"%[3]s\",\"prompt\":\"$PROMPT\"}"
  %[5]s --text "$PROMPT"
`, e.config.ReplicaID, e.where, e.config.ModelID, demoPrompt, ask)
}
