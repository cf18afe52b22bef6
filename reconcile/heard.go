package reconcile

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/status"
	"inferencecache.io/inferencecache/reconcile/judge"
)

// hitWindow is what the rate of the host tier is taken over.
const hitWindow = 10 * time.Minute

// Heard is the last round of snapshots, shared by the controllers that make
// status of it. Safe for concurrent use.
type Heard struct {
	wake []chan<- event.GenericEvent

	mu    sync.Mutex // guards what follows
	last  *loops.Pulled
	byNS  map[string]map[string]status.Replica // by tenant and replica
	rates map[types.NamespacedName][]sample
}

// sample is what host tiers of a backend counted since its engines started.
type sample struct {
	at            time.Time
	hits, queries int64
}

// NewHeard has heard nothing.
func NewHeard() *Heard { return &Heard{rates: map[types.NamespacedName][]sample{}} }

// Receive implements the bridge's Receiver.
func (h *Heard) Receive(_ context.Context, pulled loops.Pulled) {
	byNS := map[string]map[string]status.Replica{}
	for _, r := range pulled.Snapshot.Replicas {
		if byNS[r.Tenant] == nil {
			byNS[r.Tenant] = map[string]status.Replica{}
		}
		byNS[r.Tenant][r.ReplicaID] = r
	}
	h.mu.Lock()
	h.last, h.byNS = &pulled, byNS
	h.mu.Unlock()
	for _, wake := range h.wake {
		poke(wake)
	}
}

// Last is the newest round; nil: none yet. Nobody changes it.
func (h *Heard) Last() *loops.Pulled {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// Replicas of one tenant, by id; known: a server was asked.
func (h *Heard) Replicas(tenant string) (replicas map[string]status.Replica, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byNS[tenant], h.last != nil
}

// HitRate is what the host tiers of a backend served of what they were asked
// over the last minutes; nil: they were not asked. Counters that fell are of
// engines that restarted, or went away: they count from there.
func (h *Heard) HitRate(backend types.NamespacedName, p judge.Participation, now time.Time) *string {
	h.mu.Lock()
	defer h.mu.Unlock()
	samples := slices.DeleteFunc(h.rates[backend], func(s sample) bool { return now.Sub(s.at) > hitWindow })
	if n := len(samples); n > 0 && (p.Hits < samples[n-1].hits || p.Queries < samples[n-1].queries) {
		samples = nil
	}
	if n := len(samples); n == 0 || samples[n-1].at != now {
		samples = append(samples, sample{now, p.Hits, p.Queries})
	}
	h.rates[backend] = samples
	queries := p.Queries - samples[0].queries
	if queries <= 0 {
		return nil
	}
	text := "0"
	if hits := p.Hits - samples[0].hits; hits > 0 {
		text = strconv.FormatFloat(min(1, float64(hits)/float64(queries)), 'f', 2, 64)
	}
	return &text
}

// Keep forgets backends that are not in all.
func (h *Heard) Keep(all map[types.NamespacedName]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.rates, func(name types.NamespacedName, _ []sample) bool { return !all[name] })
}

// poke asks a controller of one key to run. A poke that waits stands for more.
func poke(wake chan<- event.GenericEvent) {
	select {
	case wake <- event.GenericEvent{Object: everything}:
	default:
	}
}
