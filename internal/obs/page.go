package obs

import (
	"io"
	"net/http"
	"net/http/pprof"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"
)

// Page serves /healthz, /readyz and /metrics. The process is ready when Ready
// was last told so and every check agrees.
type Page struct {
	ready  atomic.Bool
	checks []func() bool
	sets   []*metrics.Set
}

// NewPage shows the metrics of sets and of the Go runtime.
func NewPage(sets ...*metrics.Set) *Page { return &Page{sets: sets} }

// AddCheck adds a condition of readiness; call it before serving.
func (p *Page) AddCheck(ready func() bool) { p.checks = append(p.checks, ready) }

// SetReady says whether the process wants traffic. Safe for concurrent use.
func (p *Page) SetReady(ready bool) { p.ready.Store(ready) }

// Ready tells what /readyz answers.
func (p *Page) Ready() bool {
	for _, check := range p.checks {
		if !check() {
			return false
		}
	}
	return p.ready.Load()
}

// Mount adds the page's paths to mux.
func (p *Page) Mount(mux *http.ServeMux) {
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !p.Ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok")
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		for _, set := range p.sets {
			set.WritePrometheus(w)
		}
		metrics.WriteProcessMetrics(w)
	})
}

// MountProfiles adds Go's profiles below /debug/pprof/. They reveal memory:
// only for listeners that outsiders cannot reach.
func MountProfiles(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}
