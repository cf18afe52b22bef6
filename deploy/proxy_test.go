//go:build cluster

package deploy

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// witness stands between a controller and the API server, notes every write,
// and may end the controller at one of them.
type witness struct {
	kubeconfig string // that leads through it

	mu     sync.Mutex // guards what follows
	writes []string
	dieAt  int  // number of the write at which onWrite is called; 0: none
	before bool // it never arrives; else its answer is lost
	die    func()
}

func newWitness(t *testing.T, account string) *witness {
	t.Helper()
	w := &witness{kubeconfig: t.TempDir() + "/kubeconfig"}
	target, err := url.Parse(it.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	anonymous := rest.AnonymousClientConfig(it.Config)
	transport, err := rest.TransportFor(anonymous)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,                         // watches
		ErrorLog:      log.New(io.Discard, "", 0), // those who died hang up
	}
	// Without TLS clients would send no token.
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		lethal, before := w.note(r)
		if lethal && before {
			w.die()
			panic(http.ErrAbortHandler)
		}
		if lethal {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			w.die()
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.CloseClientConnections)
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: it.Token(t, home, account, "")}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}
	text, err := clientcmd.Write(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// note remembers a write and says whether it is the one to die at. Leases are
// not counted: a leader renews its own for ever.
func (w *witness) note(r *http.Request) (lethal, before bool) {
	if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/leases") {
		return false, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, fmt.Sprint(r.Method, " ", r.URL.Path))
	return w.dieAt > 0 && len(w.writes) == w.dieAt, w.before
}

// arm makes the n-th write from now on the last one of a process.
func (w *witness) arm(n int, before bool, die func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes, w.dieAt, w.before, w.die = nil, n, before, die
}

// wrote returns the writes since the last call.
func (w *witness) wrote() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	writes := slices.Clone(w.writes)
	w.writes = nil
	return writes
}
