package reconcile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/reconcile/render"
	"inferencecache.io/inferencecache/webhook/inject"
)

// Config is what the operator's administrator decides.
type Config struct {
	Namespace           string   // of the operator and its servers
	ServerService       string   // Service of the servers, in that namespace
	LMCacheImage        string   // of LMCache servers whose backend names none
	RedisImage          string   // of Managed storage whose backend names none
	SubscriberImage     string   // of this program; "": no subscribers
	SubscriberServers   []string // what subscribers report to
	NodeLocalNamespaces []string // that may have servers on nodes
	Workers             int      // backends reconciled at a time
}

// Flags registers the settings with their defaults.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Namespace, "operator-namespace", "inference-cache-system", "controller: namespace of the operator and its servers")
	fs.StringVar(&c.ServerService, "server-service", "inference-cache-server", "controller: Service of the servers in that namespace; every endpoint of it gets policies")
	fs.StringVar(&c.LMCacheImage, "lmcache-image", "", "controller: image of LMCache servers whose CacheBackend names none (empty: beside an engine the engine's own, which has LMCache too; NodeLocal backends must name one)")
	fs.StringVar(&c.RedisImage, "redis-image", render.DefaultRedisImage, "controller: image of Managed remote storage whose CacheBackend names none")
	fs.StringVar(&c.SubscriberImage, "subscriber-image", "", "controller: image of this program, for subscriber sidecars (empty: none are injected)")
	fs.StringSliceVar(&c.SubscriberServers, "subscriber-server", nil, "controller: server that injected subscribers report to, may be repeated (empty: that of --server-service)")
	fs.StringSliceVar(&c.NodeLocalNamespaces, "node-local-namespaces", []string{"*"}, "controller: namespaces whose CacheBackends may run LMCache servers with the network and memory of nodes; * is all")
	fs.IntVar(&c.Workers, "reconcile-workers", 2, "controller: CacheBackends reconciled at a time")
}

// Validate returns every problem.
func (c *Config) Validate() error {
	var errs []error
	if c.Namespace == "" {
		errs = append(errs, errors.New("--operator-namespace must not be empty"))
	}
	if c.ServerService == "" {
		errs = append(errs, errors.New("--server-service must not be empty"))
	}
	if c.Workers < 1 || c.Workers > 64 {
		errs = append(errs, fmt.Errorf("--reconcile-workers %d: want 1 to 64", c.Workers))
	}
	return errors.Join(errs...)
}

// Inject is what the pod webhook and the reconcilers must agree on: pods are
// outdated when these differ from what they were wired with.
func (c *Config) Inject() inject.Options {
	servers := c.SubscriberServers
	if len(servers) == 0 {
		servers = []string{fmt.Sprintf("http://%s.%s.svc:9090", c.ServerService, c.Namespace)}
	}
	return inject.Options{LMCacheImage: c.LMCacheImage, SubscriberImage: c.SubscriberImage, Servers: servers}
}

func (c *Config) render() render.Options {
	return render.Options{RedisImage: c.RedisImage, Inject: c.Inject()}
}

func (c *Config) allowsNodeLocal(namespace string) bool {
	return slices.Contains(c.NodeLocalNamespaces, "*") || slices.Contains(c.NodeLocalNamespaces, namespace)
}
