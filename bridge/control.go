// Package bridge is the HTTP between controller and servers: status up (GET
// /snapshot), policy down (POST /policy) and the self-test (POST /probe). It
// knows nothing of Kubernetes and decides nothing about what it carries.
//
// The server's bank (control.go, policy.go) decodes, bounds and answers. It
// does not authenticate: the composer wraps each handler. The controller's
// bank are three loops, each over every server there is: Puller, Pusher and
// Prober. Each tells how it is doing by State, for conditions, and by metrics.
package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/status"
)

const (
	maxPolicyBody = 1 << 20 // bytes
	maxProbeBody  = 4 << 10
)

// Snapshotter tells the state that GET /snapshot shows.
type Snapshotter interface{ Snapshot() status.Snapshot }

// Adopter takes a whole new policy set; Defaults complete what it leaves out.
type Adopter interface {
	PolicyDefaults() policy.Policy
	AdoptPolicy(*policy.Set)
}

// Prober runs the functional self-test.
type Prober interface {
	Probe(context.Context, status.ProbeRequest) status.ProbeResult
}

// Guard stands before one path, for instance to authenticate.
type Guard func(http.Handler) http.Handler

// Guards of the three paths; nil lets everyone in.
type Guards struct{ Snapshot, Policy, Probe Guard }

// Mount adds the three paths to mux.
func Mount(mux *http.ServeMux, s Snapshotter, a Adopter, p Prober, g Guards) {
	guarded := func(guard Guard, h http.HandlerFunc) http.Handler {
		if guard == nil {
			return h
		}
		return guard(h)
	}
	mux.Handle("/snapshot", guarded(g.Snapshot, serveSnapshot(s)))
	mux.Handle("/policy", guarded(g.Policy, servePolicy(a)))
	mux.Handle("/probe", guarded(g.Probe, serveProbe(p)))
}

func serveSnapshot(s Snapshotter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			refuseMethod(w, "GET")
			return
		}
		writeJSON(w, s.Snapshot())
	}
}

func servePolicy(a Adopter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost && r.Method != http.MethodPut {
			refuseMethod(w, "POST, PUT")
			return
		}
		body, err := readBody(w, r, maxPolicyBody)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		set, err := DecodePolicy(body, a.PolicyDefaults())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.AdoptPolicy(set)
		w.WriteHeader(http.StatusNoContent)
	}
}

func serveProbe(p Prober) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			refuseMethod(w, "POST")
			return
		}
		body, err := readBody(w, r, maxProbeBody)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var request status.ProbeRequest
		if err := decodeStrict(body, &request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if request.Backend == "" || request.Model == "" || request.HashScheme == "" {
			http.Error(w, "backend, model and hashScheme are required", http.StatusBadRequest)
			return
		}
		writeJSON(w, p.Probe(r.Context(), request))
	}
}

func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return nil, errors.New("read body: " + err.Error())
	}
	return body, nil
}

func refuseMethod(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	http.Error(w, "method not allowed, use "+allow, http.StatusMethodNotAllowed)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client went away: nothing to do
}
