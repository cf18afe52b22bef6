package roles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"inferencecache.io/inferencecache/bridge"
	"inferencecache.io/inferencecache/internal/life"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/reconcile"
	"inferencecache.io/inferencecache/webhook"
	"inferencecache.io/inferencecache/webhook/certs"
)

const leaderLock = "inference-cache-controller-leader-lock"

// controllerConfig is what only --role=controller has, besides the settings of
// its reconcilers.
type controllerConfig struct {
	kubeconfig      string
	leaderElect     bool
	controllerToken string
	policyToken     string
	serverCA        string
	serverTLS       bool // of the servers' control listeners
	webhookListen   string
	webhookCertDir  string // of a certificate that others keep; "": our own
	reconcile       reconcile.Config
}

func (c *controllerConfig) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "controller, server: file that says how to reach the API server (empty: the pod's service account); with --role=all it adds the controller")
	fs.BoolVar(&c.leaderElect, "leader-elect", true, "controller: let one of several replicas do the work")
	fs.StringVar(&c.controllerToken, "controller-token-file", "/var/run/secrets/inferencecache.io/controller-token/token", "controller: token for the servers' /snapshot and /probe, read for every request")
	fs.StringVar(&c.policyToken, "policy-token-file", "/var/run/secrets/inferencecache.io/policy-token/token", "controller: token for the servers' /policy, read for every request")
	fs.StringVar(&c.serverCA, "servers-ca-file", "", "controller: CA of the servers' certificates; given, their data listeners are reached by TLS")
	fs.BoolVar(&c.serverTLS, "servers-control-tls", false, "controller: reach the servers' control listeners by TLS too")
	fs.StringVar(&c.webhookListen, "webhook-listen", ":9443", "controller: address that the API server calls the webhooks on")
	fs.StringVar(&c.webhookCertDir, "webhook-cert-dir", "", "controller: folder with tls.crt and tls.key that cert-manager or others keep (empty: a certificate of its own, renewed by itself)")
	c.reconcile.Flags(fs)
}

func (c *controllerConfig) validate() error {
	var errs []error
	if c.serverTLS && c.serverCA == "" {
		errs = append(errs, errors.New("--servers-control-tls needs --servers-ca-file"))
	}
	return errors.Join(append(errs, c.reconcile.Validate())...)
}

// cluster is how to reach the API server.
func (c *controllerConfig) cluster() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if c.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server (give --kubeconfig outside a cluster): %w", err)
	}
	// Leases and Events besides reconciling: the client's own limit of 5 a
	// second is made for people at a terminal.
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "inferencecache/" + Version
	return config, nil
}

func (p *process) runController(ctx context.Context) error {
	p.open()
	if err := p.addController(nil); err != nil {
		return err
	}
	data, err := p.addDoors(nil, nil)
	if err != nil {
		return err
	}
	p.log.Info("startup", "version", Version, "commit", commit(), "pages", data.addresses(), "namespace", p.controller.reconcile.Namespace)
	return p.run(ctx)
}

// addController adds the manager with its controllers and the loops over
// servers: those of endpoints, or of the Service if nil.
func (p *process) addController(endpoints bridge.Endpoints) error {
	logger := logr.FromSlogHandler(p.log.Handler())
	ctrl.SetLogger(logger)
	klog.SetLogger(logger) // of leader election and informers
	config, err := p.controller.cluster()
	if err != nil {
		return err
	}
	c := p.controller.reconcile
	grace := stopGrace - time.Second
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: reconcile.NewScheme(), Cache: reconcile.CacheOptions(c), Client: reconcile.ClientOptions(), Logger: logger,
		LeaderElection: p.controller.leaderElect && p.role == roleController, LeaderElectionID: leaderLock, LeaderElectionNamespace: c.Namespace,
		LeaderElectionReleaseOnCancel: true,
		// Both are on the pages that every role has.
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		return fmt.Errorf("prepare the controllers: %w", err)
	}
	if err := p.addLoops(mgr, endpoints); err != nil {
		return err
	}
	if p.role == roleController { // an API server reaches no laptop
		if err := p.addWebhooks(mgr); err != nil {
			return fmt.Errorf("prepare the webhooks: %w", err)
		}
	}
	p.checkSynced(mgr)
	p.set.RegisterMetricsWriter(writeControllerMetrics)
	p.add(life.Hands, "controllers", mgr.Start)
	return nil
}

// addWebhooks adds what the API server asks before it stores objects. The process
// is ready only once it can answer.
func (p *process) addWebhooks(mgr ctrl.Manager) error {
	c := p.controller
	keep := certs.Options{Dir: c.webhookCertDir}
	if c.webhookCertDir == "" {
		keep = certs.InNamespace(c.reconcile.Namespace)
	}
	host, port, err := splitPort(c.webhookListen)
	if err != nil {
		return usage(fmt.Errorf("--webhook-listen: %w", err))
	}
	return webhook.Setup(mgr, webhook.Options{
		Inject: c.reconcile.Inject(), Host: host, Port: port, Certs: keep, Metrics: p.set, Log: p.log,
		AddCheck: func(_ string, check healthz.Checker) error {
			p.page.AddCheck(func() bool { return check(nil) == nil })
			return nil
		},
	})
}

// addLoops connects the bridge's three loops with the controllers. They run
// where the controllers do: on the leader.
func (p *process) addLoops(mgr ctrl.Manager, endpoints bridge.Endpoints) error {
	control, rpc, schemes, err := p.controller.clients()
	if err != nil {
		return err
	}
	servers := reconcile.NewServers(mgr.GetClient(), p.controller.reconcile, schemes)
	if endpoints == nil {
		endpoints = servers
	}
	deps := func(token string) bridge.Deps {
		return bridge.Deps{Endpoints: endpoints, HTTP: control, TokenFile: token, Log: p.log, Metrics: p.set}
	}
	heard := reconcile.NewHeard()
	acknowledged, acknowledge := reconcile.NewWake()
	pusher := bridge.NewPusher(deps(p.controller.policyToken), acknowledge)
	puller := bridge.NewPuller(deps(p.controller.controllerToken), heard)
	tester := bridge.NewTester(deps(p.controller.controllerToken), rpc)
	for _, run := range []func(context.Context) error{pusher.Run, puller.Run, tester.Run} {
		if err := mgr.Add(manager.RunnableFunc(run)); err != nil {
			return err
		}
	}
	return reconcile.Setup(mgr, reconcile.Deps{
		Config: p.controller.reconcile, Heard: heard, Servers: servers, Pusher: pusher,
		Loops: reconcile.Loops{Pull: puller, Probe: tester}, Log: p.log, Metrics: p.set, Acknowledged: acknowledged,
	})
}

// clients reach the servers' control and data listeners.
func (c *controllerConfig) clients() (control, rpc *http.Client, schemes reconcile.Schemes, err error) {
	schemes = reconcile.Schemes{Control: "http", RPC: "http"}
	var config *tls.Config
	if c.serverCA != "" {
		pem, err := os.ReadFile(c.serverCA)
		if err != nil {
			return nil, nil, schemes, fmt.Errorf("read --servers-ca-file: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, nil, schemes, fmt.Errorf("read --servers-ca-file: %s holds no certificate", c.serverCA)
		}
		// Servers are dialled by address; their certificates name the Service.
		config = &tls.Config{RootCAs: roots, ServerName: c.reconcile.ServerService + "." + c.reconcile.Namespace + ".svc", MinVersion: tls.VersionTLS12}
		schemes.RPC = "https"
		if c.serverTLS {
			schemes.Control = "https"
		}
	}
	http2 := new(http.Protocols)
	http2.SetUnencryptedHTTP2(true)
	http2.SetHTTP2(true)
	control = &http.Client{Transport: &http.Transport{TLSClientConfig: config, IdleConnTimeout: time.Minute}}
	rpc = &http.Client{Transport: &http.Transport{TLSClientConfig: config, Protocols: http2, IdleConnTimeout: time.Minute}}
	return control, rpc, schemes, nil
}

// checkSynced makes the process ready once the caches are: what is started
// without being leader is started after them.
func (p *process) checkSynced(mgr ctrl.Manager) {
	var synced atomic.Bool
	p.page.AddCheck(synced.Load)
	err := mgr.Add(everywhere(func(ctx context.Context) error {
		synced.Store(true)
		<-ctx.Done()
		return nil
	}))
	if err != nil {
		panic("bug: a manager that does not run takes no more: " + err.Error())
	}
}

// everywhere runs on every replica, leader or not.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// writeControllerMetrics adds controller-runtime's metrics to our page, but for
// those of Go and the process, which are there already.
func writeControllerMetrics(w io.Writer) {
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		fmt.Fprintf(w, "# controller-runtime: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	for _, family := range families {
		if name := family.GetName(); strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return // the reader went away
		}
	}
}

// thisServer is the only server of --role=all.
type thisServer loops.Server

// Endpoints implements bridge.Endpoints.
func (s thisServer) Endpoints(context.Context) ([]loops.Server, error) {
	return []loops.Server{loops.Server(s)}, nil
}

// Changed implements bridge.Endpoints.
func (s thisServer) Changed() <-chan struct{} { return nil }
