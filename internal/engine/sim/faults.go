package sim

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxFaultCount = 1_000_000
	maxStall      = time.Hour
)

// Drop keeps the next n batches from the live stream. They still take their
// sequence numbers and can be replayed: what a subscriber sees is a gap.
func (e *Engine) Drop(n int) { e.current().feed.drop(n) }

// Restart replaces the process, as a crashed container is: requests fail with
// ErrRestarted, the cache and the replay buffer are empty, the sequence starts
// at 0, the hash seed is new unless it is configured, and every connection to
// the event sockets is closed. The addresses stay.
func (e *Engine) Restart() {
	e.restarting.Lock()
	defer e.restarting.Unlock()
	old := e.current()
	old.kill()
	e.live.disconnect()
	e.replay.disconnect()
	e.process.Store(newProcess(e.cfg, e.live))
	e.restarts.Add(1)
	close(old.feed.gone)
	e.log.Info("simulated engine restarted", "name", e.cfg.Name)
}

// Stall makes the event thread stand still for d: nothing is sent live or
// replayed, while the engine goes on serving and connections stay open.
func (e *Engine) Stall(d time.Duration) { e.current().feed.stall(d) }

// Truncate ends the next replay after n replies and without an end marker,
// which is what vLLM's ROUTER does to a client that reads slowly.
func (e *Engine) Truncate(n int) { e.current().feed.truncate(n) }

// Reseed gives future blocks another random hash seed. What is cached stays
// held under its old hashes but is never found again.
func (e *Engine) Reseed() {
	p := e.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.root = newRoot(0)
}

// Evict forgets the n least recently used blocks that no request uses, and
// publishes their removal in one batch. It returns how many there were.
func (e *Engine) Evict(n int) int {
	p := e.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	evicted := p.cache.evict(n)
	p.noteEvicted(evicted)
	p.flush()
	return len(evicted)
}

// Clear empties the cache and publishes AllBlocksCleared. Like vLLM's
// reset_prefix_cache it refuses, and returns false, while a block is in use.
func (e *Engine) Clear() bool {
	p := e.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cache.clear() {
		return false
	}
	p.events = append(p.events, event{kind: allBlocksCleared})
	p.flush()
	return true
}

// fault is one kind of POST /sim/fault; it returns what to answer.
type fault struct {
	kind  string
	apply func(e *Engine, query url.Values) (map[string]any, error)
}

var faults = []fault{
	{"clear", func(e *Engine, _ url.Values) (map[string]any, error) {
		return map[string]any{"success": e.Clear()}, nil
	}},
	{"drop", func(e *Engine, query url.Values) (map[string]any, error) {
		n, err := count(query)
		if err != nil {
			return nil, err
		}
		e.Drop(n)
		return map[string]any{"n": n}, nil
	}},
	{"evict", func(e *Engine, query url.Values) (map[string]any, error) {
		n, err := count(query)
		if err != nil {
			return nil, err
		}
		return map[string]any{"evicted": e.Evict(n)}, nil
	}},
	{"restart", func(e *Engine, _ url.Values) (map[string]any, error) {
		e.Restart()
		return map[string]any{}, nil
	}},
	{"seed", func(e *Engine, _ url.Values) (map[string]any, error) {
		e.Reseed()
		return map[string]any{}, nil
	}},
	{"stall", func(e *Engine, query url.Values) (map[string]any, error) {
		d, err := stallTime(query)
		if err != nil {
			return nil, err
		}
		e.Stall(d)
		return map[string]any{"for": d.String()}, nil
	}},
	{"truncate", func(e *Engine, query url.Values) (map[string]any, error) {
		n, err := count(query)
		if err != nil {
			return nil, err
		}
		e.Truncate(n)
		return map[string]any{"n": n}, nil
	}},
}

// serveFault is POST /sim/fault?kind=K, with n=N for drop, evict and truncate (1) and
// for=D for stall (1s).
func (e *Engine) serveFault(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	kind := query.Get("kind")
	i := slices.IndexFunc(faults, func(f fault) bool { return f.kind == kind })
	if i < 0 {
		var kinds []string
		for _, f := range faults {
			kinds = append(kinds, f.kind)
		}
		fail(w, http.StatusBadRequest, "kind", fmt.Sprintf("unknown kind %q: use one of %s", kind, strings.Join(kinds, ", ")))
		return
	}
	answer, err := faults[i].apply(e, query)
	if err != nil {
		fail(w, http.StatusBadRequest, "", err.Error())
		return
	}
	answer["kind"] = kind
	reply(w, answer)
}

func count(query url.Values) (int, error) {
	text := query.Get("n")
	if text == "" {
		return 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxFaultCount {
		return 0, fmt.Errorf("n must be a number from 1 to %d, got %q", maxFaultCount, text)
	}
	return n, nil
}

func stallTime(query url.Values) (time.Duration, error) {
	text := query.Get("for")
	if text == "" {
		return time.Second, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxStall {
		return 0, fmt.Errorf("for must be a duration up to %v, for instance 2s, got %q", maxStall, text)
	}
	return d, nil
}
