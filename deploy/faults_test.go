//go:build cluster

package deploy

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

func without(args []string, flag string) []string {
	return slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, flag+"=") })
}

// otherwise runs a server or a controller with other arguments meanwhile.
func (in *installed) otherwise(t *testing.T, p **process, change func(args []string) []string, meanwhile func()) {
	was := *p
	was.stop()
	defer func() { *p = was.again(in.t) }()
	odd := was.again(t, change)
	defer odd.stop()
	meanwhile()
}

// endsSoon puts a certificate of the webhooks, by the authority that the API
// server trusts, into a folder. It has two days left, as it would if nobody had
// renewed it.
func endsSoon(t *testing.T) (dir string) {
	t.Helper()
	var secret corev1.Secret
	if err := it.Client.Get(t.Context(), client.ObjectKey{Namespace: home, Name: "webhook-server-cert"}, &secret); err != nil {
		t.Fatal(err)
	}
	decode := func(name string) []byte {
		block, _ := pem.Decode(secret.Data[name])
		if block == nil {
			t.Fatalf("no PEM in %s of the webhooks' Secret", name)
		}
		return block.Bytes
	}
	authority, err := x509.ParseCertificate(decode("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := x509.ParseECPrivateKey(decode("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(decode("tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	leaf.NotAfter = time.Now().Add(48 * time.Hour)
	signed, err := x509.CreateCertificate(rand.Reader, leaf, authority, leaf.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, data := range map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		"tls.key": secret.Data["tls.key"],
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// refusePolicies listens at an address in front of a server's control port and
// lets everything through but policies, until it is closed.
func refusePolicies(t *testing.T, at, target string) (stop func()) {
	t.Helper()
	through := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	listener, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/policy" {
			http.Error(w, "no healthy upstream", http.StatusServiceUnavailable)
			return
		}
		through.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }
}

// desertedEndpoint adds ports to the servers' Service where nobody listens.
func desertedEndpoint(t *testing.T) client.Object {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	labels := map[string]string{discoveryv1.LabelServiceName: "inference-cache-servers"}
	if err := it.Client.List(t.Context(), &list, client.InNamespace(home), client.MatchingLabels(labels)); err != nil || len(list.Items) == 0 {
		t.Fatal(list.Items, err)
	}
	stale := list.Items[0].DeepCopy()
	stale.ObjectMeta = metav1.ObjectMeta{Namespace: home, Name: "stale", Labels: labels}
	for i := range stale.Ports {
		*stale.Ports[i].Port += 20_000
	}
	stale.Endpoints = stale.Endpoints[:1]
	stale.Endpoints[0].TargetRef = nil // no pod's: those count once
	if err := it.Client.Create(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	return stale
}

// nobodyLeads gives the lease to somebody who does nothing, as an instance of
// another name would have it that hangs. The leader ends, and is started again
// as by a kubelet.
func (in *installed) nobodyLeads(t *testing.T) {
	leader := slices.IndexFunc(in.controllers, (*process).leads)
	if leader < 0 {
		t.Fatal("nobody leads")
	}
	lease := &coordinationv1.Lease{}
	it.Eventually(t, "the lease to be another's", func(ctx context.Context) error {
		if err := it.Client.Get(ctx, client.ObjectKey{Namespace: home, Name: "inference-cache-controller-leader-lock"}, lease); err != nil {
			return err
		}
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = new("somebody"), new(int32(3600))
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		return it.Client.Update(ctx, lease)
	})
	p := in.controllers[leader]
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		t.Fatal("the leader goes on without a lease")
	}
	in.controllers[leader] = p.again(in.t)

	policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: it.Namespace(t), Name: "unheard"}}
	if err := it.Client.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	doctorComesToFind(t, "policy-unprogrammed")
	for _, o := range []client.Object{policy, lease} {
		if err := it.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	it.Eventually(t, "another leader", func(context.Context) error {
		if !slices.ContainsFunc(in.controllers, (*process).leads) {
			return errors.New("nobody leads")
		}
		return nil
	})
}
