// Package cluster starts a real Kubernetes control plane for tests: etcd, API
// server, controller manager and scheduler, with simulated nodes on which pods
// become Ready. The binaries are built from Go modules by testdata/cluster.
// Nothing of it is faked but the kubelet: kwok plays that role by the rules in
// stages.yaml. It is test support: only tests may import it.
//
// A package of tests starts one cluster and shares it; every test has a
// namespace of its own. Such tests carry the build tag `cluster` and run by
// `make test-cluster`:
//
//	var it = cluster.New(cluster.Options{})
//
//	func TestMain(m *testing.M) { os.Exit(it.Main(context.Background(), m)) }
//
// There is no kube-proxy: a Service has no address that answers. The API
// server itself reaches Services (webhooks) by their endpoints.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// startTimeout is how long each part may take to start on a busy machine.
const startTimeout = 2 * time.Minute

// Options of a cluster.
type Options struct {
	// CRDs are files or folders of CustomResourceDefinitions to install.
	CRDs []string
	// Scheme of the client; nil: the types of Kubernetes itself.
	Scheme *runtime.Scheme
	// Output gets what the parts print; nil: only files in the cluster's
	// folder, of which the last lines are shown when a part dies.
	Output io.Writer
}

// Cluster is one control plane. Its exported fields are set while it runs.
type Cluster struct {
	Config     *rest.Config // of an administrator, without limits on its rate
	Client     client.Client
	Kubeconfig string // a file with Config in it

	options Options
	dir     string // everything it writes
	env     *envtest.Environment
	daemons []*daemon
}

// New returns a cluster that does not run yet.
func New(options Options) *Cluster {
	if options.Scheme == nil {
		options.Scheme = scheme.Scheme
	}
	return &Cluster{options: options}
}

// Main runs the tests of a package on the cluster and returns what to exit
// with. Without binaries it builds them in CI, and elsewhere runs no test and
// says how to get them.
func (c *Cluster) Main(ctx context.Context, m *testing.M) int {
	if err := c.Start(ctx); errors.Is(err, errNoBinaries) {
		fmt.Fprintln(os.Stderr, "SKIP: no test of this package runs:", err)
		return 0
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: start a cluster:", err)
		return 1
	}
	code := m.Run()
	if err := c.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: stop the cluster:", err)
		code = max(code, 1)
	}
	return code
}

// Start returns when everything runs. After an error nothing does.
func (c *Cluster) Start(ctx context.Context) (err error) {
	bin, err := binaries(ctx)
	if err != nil {
		return err
	}
	ctrllog.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err := routePods(ctx); err != nil {
		return err
	}
	if c.dir, err = newDir(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	leashed, err := leash(bin, filepath.Join(c.dir, "bin"))
	if err != nil {
		return err
	}
	if err := c.startAPI(leashed); err != nil {
		return fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	if err := c.startDaemons(leashed); err != nil {
		return err
	}
	// The controller manager works once it has made this account.
	return poll(ctx, startTimeout, func(ctx context.Context) error {
		if err := c.died(); err != nil {
			return stopPolling{err}
		}
		return c.Client.Get(ctx, types.NamespacedName{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{})
	})
}

// startAPI starts etcd and the API server and installs the CRDs.
func (c *Cluster) startAPI(bin string) error {
	certs := filepath.Join(c.dir, "certs")
	data := filepath.Join(c.dir, "etcd")
	for _, dir := range []string{certs, data} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	api := &envtest.APIServer{Path: filepath.Join(bin, "kube-apiserver"), CertDir: certs}
	api.Configure().
		// envtest switches service accounts off, because nobody would make them.
		Disable("disable-admission-plugins").
		// Services that webhooks name are reached by their endpoints.
		Set("enable-aggregator-routing", "true")
	c.env = &envtest.Environment{
		ControlPlane: envtest.ControlPlane{
			APIServer:   api,
			Etcd:        &envtest.Etcd{Path: filepath.Join(bin, "etcd"), DataDir: data},
			KubectlPath: filepath.Join(bin, "kubectl"),
		},
		Scheme:                   c.options.Scheme,
		CRDDirectoryPaths:        c.options.CRDs,
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  startTimeout,
	}
	for name, out := range map[string]*io.Writer{"kube-apiserver": &api.Err, "etcd": &c.env.ControlPlane.Etcd.Err} {
		file, err := os.Create(filepath.Join(c.dir, name+".log"))
		if err != nil {
			return err
		}
		*out = file
		if c.options.Output != nil {
			*out = io.MultiWriter(file, c.options.Output)
		}
	}
	config, err := c.env.Start()
	if err != nil {
		return fmt.Errorf("%w\n%s\n%s", err, tail(filepath.Join(c.dir, "etcd.log")), tail(filepath.Join(c.dir, "kube-apiserver.log")))
	}
	c.Config = config
	c.Kubeconfig = filepath.Join(c.dir, "kubeconfig")
	if err := os.WriteFile(c.Kubeconfig, c.env.KubeConfig, 0o600); err != nil {
		return err
	}
	c.Client, err = client.New(config, client.Options{Scheme: c.options.Scheme})
	return err
}

// startDaemons starts what works on the API: controllers, scheduler, nodes.
func (c *Cluster) startDaemons(bin string) error {
	stages := filepath.Join(c.dir, "stages.yaml")
	ca := filepath.Join(c.dir, "ca.crt")
	for file, content := range map[string][]byte{stages: stagesYAML, ca: c.Config.CAData} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return err
		}
	}
	kubeconfig := []string{"--kubeconfig=" + c.Kubeconfig}
	// Port 0 serves nothing: these have no clients.
	single := append(kubeconfig, "--authentication-kubeconfig="+c.Kubeconfig, "--authorization-kubeconfig="+c.Kubeconfig,
		"--secure-port=0", "--leader-elect=false")
	for name, args := range map[string][]string{
		"kube-controller-manager": append(single,
			"--service-account-private-key-file="+filepath.Join(c.env.ControlPlane.APIServer.CertDir, "sa-signer.key"),
			"--root-ca-file="+ca, "--concurrent-gc-syncs=5"),
		"kube-scheduler": single,
		"kwok": append(kubeconfig, "--config="+stages, "--manage-nodes-with-annotation-selector="+nodeAnnotation+"=fake",
			"--cidr="+podCIDR, "--node-ip=127.0.0.1", "--node-lease-duration-seconds=40"),
	} {
		d, err := startDaemon(filepath.Join(bin, name), c.dir, c.options.Output, args)
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		c.daemons = append(c.daemons, d)
	}
	return nil
}

// Stop ends everything, waits for it and removes what it left on disk. It
// tells of a part that had ended by itself.
func (c *Cluster) Stop() error {
	errs := []error{c.died()}
	for _, d := range c.daemons {
		d.stop()
	}
	c.daemons = nil
	if c.env != nil {
		errs = append(errs, c.env.Stop())
		c.env = nil
	}
	errs = append(errs, os.RemoveAll(c.dir))
	return errors.Join(errs...)
}

// died tells which part has ended although nobody stopped it.
func (c *Cluster) died() error {
	var errs []error
	for _, d := range c.daemons {
		select {
		case <-d.done:
			errs = append(errs, fmt.Errorf("%s ended by itself: %v\n%s", d.name, d.err, tail(d.log)))
		default:
		}
	}
	return errors.Join(errs...)
}
