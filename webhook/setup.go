package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"

	"github.com/VictoriaMetrics/metrics"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/certs"
	"inferencecache.io/inferencecache/webhook/inject"
)

// Where the API server asks: the paths in the webhook configurations.
const (
	PathPod = "/mutate--v1-pod"

	PathDefaultBackend  = "/mutate-inferencecache-io-v1alpha1-cachebackend"
	PathDefaultPolicy   = "/mutate-inferencecache-io-v1alpha1-cachepolicy"
	PathDefaultTenant   = "/mutate-inferencecache-io-v1alpha1-cachetenant"
	PathValidateBackend = "/validate-inferencecache-io-v1alpha1-cachebackend"
	PathValidatePolicy  = "/validate-inferencecache-io-v1alpha1-cachepolicy"
	PathValidateTenant  = "/validate-inferencecache-io-v1alpha1-cachetenant"
)

// recorderName is who Events say they are from.
const recorderName = "inference-cache-webhook"

// Options of the webhooks of one process.
type Options struct {
	Inject inject.Options // what pods are wired with
	Host   string         // address to listen on; empty: all
	Port   int            // to listen on; 0: 9443
	Certs  certs.Options
	// AddCheck gets conditions of readiness; nil: they become the manager's.
	AddCheck func(name string, check healthz.Checker) error
	Metrics  *metrics.Set
	Log      *slog.Logger
}

// Setup adds the webhooks to a manager: they are served on every replica,
// leader or not, from the manager's start to its end. The manager's scheme
// must know the types of Kubernetes and of api/v1alpha1.
func Setup(mgr ctrl.Manager, o Options) error {
	addCheck := o.AddCheck
	if addCheck == nil {
		addCheck = mgr.AddReadyzCheck
	}
	server := webhook.Options{Host: o.Host, Port: o.Port, CertDir: o.Certs.Dir, TLSOpts: []func(*tls.Config){modern}}
	if o.Certs.Dir == "" {
		keeper, err := addKeeper(mgr, o)
		if err != nil {
			return err
		}
		server.TLSOpts = append(server.TLSOpts, func(c *tls.Config) { c.GetCertificate = keeper.GetCertificate })
		if err := addCheck("webhook-certificate", func(*http.Request) error { return keeper.Ready() }); err != nil {
			return err
		}
	}
	s := webhook.NewServer(server)
	register(s, mgr, o)
	return errors.Join(mgr.Add(s), mgr.Add(remembered{mgr.GetCache()}), addCheck("webhook", s.StartedChecker()))
}

// remembered has the cache know backends from the start, leader or not, so that
// they are there when the API server is not.
type remembered struct{ cache cache.Cache }

// Start implements manager.Runnable.
func (r remembered) Start(ctx context.Context) error {
	_, err := r.cache.GetInformer(ctx, &v1alpha1.CacheBackend{})
	return err
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (remembered) NeedLeaderElection() bool { return false }

// modern leaves out HTTP/2: API servers do not need it here, and its floods
// have no target then.
func modern(c *tls.Config) {
	c.MinVersion = tls.VersionTLS12
	c.NextProtos = []string{"http/1.1"}
}

// addKeeper adds what keeps the serving certificate.
func addKeeper(mgr ctrl.Manager, o Options) (*certs.Keeper, error) {
	// The manager's own client would start a cache of every Secret.
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, err
	}
	keeper := certs.New(certs.Cluster(direct, o.Certs), o.Certs.Names(), o.Log, o.Metrics)
	return keeper, mgr.Add(keeper)
}

// register puts every handler on its path.
func register(s webhook.Server, mgr ctrl.Manager, o Options) {
	reader, scheme := mgr.GetAPIReader(), mgr.GetScheme()
	s.Register(PathPod, &admission.Webhook{Handler: &linker{
		live: reader, cached: mgr.GetCache(), decoder: admission.NewDecoder(scheme), options: o.Inject,
		events: mgr.GetEventRecorder(recorderName), meters: newMeters(o.Metrics), log: o.Log,
	}})
	b, p, t := &backends{reader, o.Inject}, &policies{reader}, &tenants{reader}
	s.Register(PathDefaultBackend, admission.WithDefaulter(scheme, b))
	s.Register(PathDefaultPolicy, admission.WithDefaulter(scheme, p))
	s.Register(PathDefaultTenant, admission.WithDefaulter(scheme, t))
	s.Register(PathValidateBackend, admission.WithValidator(scheme, b))
	s.Register(PathValidatePolicy, admission.WithValidator(scheme, p))
	s.Register(PathValidateTenant, admission.WithValidator(scheme, t))
}
