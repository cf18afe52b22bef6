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

// fault is one kind of POST /sim/fault; it returns what to answer.
type fault struct {
	kind  string
	apply func(r *Rank, query url.Values) (map[string]any, error)
}

var faults = []fault{
	{"badframes", plain((*Rank).BadFrames)},
	{"clear", func(r *Rank, _ url.Values) (map[string]any, error) {
		return map[string]any{"success": r.Clear()}, nil
	}},
	{"drop", counted((*Rank).Drop)},
	{"duplicate", counted((*Rank).Duplicate)},
	{"empty", plain((*Rank).Empty)},
	{"evict", counting("evicted", (*Rank).Evict)},
	{"forget-cpu", func(r *Rank, _ url.Values) (map[string]any, error) {
		return map[string]any{"forgotten": r.ForgetCPU()}, nil
	}},
	{"garbage", plain((*Rank).Garbage)},
	{"hole", counted((*Rank).Hole)},
	{"late", counting("forgotten", (*Rank).Late)},
	{"offload", counting("offloaded", (*Rank).Offload)},
	{"refuse", counted((*Rank).Refuse)},
	{"reorder", plain((*Rank).Reorder)},
	{"restart", plain((*Rank).Restart)},
	{"seed", plain((*Rank).Reseed)},
	{"skip", counted((*Rank).Skip)},
	{"sleep", func(r *Rank, query url.Values) (map[string]any, error) {
		level, err := count(query)
		if err == nil && level > 2 {
			err = fmt.Errorf("n is the level of sleep, 1 or 2, got %d", level)
		}
		if err != nil {
			return nil, err
		}
		return map[string]any{"success": r.Sleep(level)}, nil
	}},
	{"snapshot-error", func(r *Rank, query url.Values) (map[string]any, error) {
		text := query.Get("text")
		if text == "" {
			text = "snapshot capture failed"
		}
		r.SnapshotError(text)
		return map[string]any{"text": text}, nil
	}},
	{"stall", func(r *Rank, query url.Values) (map[string]any, error) {
		d, err := stallTime(query)
		if err != nil {
			return nil, err
		}
		r.Stall(d)
		return map[string]any{"for": d.String()}, nil
	}},
	{"truncate", counted((*Rank).Truncate)},
	{"unknown", plain((*Rank).Unknown)},
	{"wake", plain((*Rank).Wake)},
}

// plain is a fault without parameters.
func plain(act func(*Rank)) func(*Rank, url.Values) (map[string]any, error) {
	return func(r *Rank, _ url.Values) (map[string]any, error) {
		act(r)
		return map[string]any{}, nil
	}
}

// counted is a fault with n=N, 1 if it is not given.
func counted(act func(*Rank, int)) func(*Rank, url.Values) (map[string]any, error) {
	return func(r *Rank, query url.Values) (map[string]any, error) {
		n, err := count(query)
		if err != nil {
			return nil, err
		}
		act(r, n)
		return map[string]any{"n": n}, nil
	}
}

// counting is counted that answers, under this name, how many it found.
func counting(name string, act func(*Rank, int) int) func(*Rank, url.Values) (map[string]any, error) {
	return func(r *Rank, query url.Values) (map[string]any, error) {
		n, err := count(query)
		if err != nil {
			return nil, err
		}
		return map[string]any{name: act(r, n)}, nil
	}
}

// FaultKinds are the kinds of POST /sim/fault.
func FaultKinds() []string {
	var kinds []string
	for _, f := range faults {
		kinds = append(kinds, f.kind)
	}
	return kinds
}

// serveFault is POST /sim/fault?kind=K, with rank=N (0), n=N where a number makes
// sense (1), for=D for stall (1s) and text=T for snapshot-error.
func (e *Engine) serveFault(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	kind := query.Get("kind")
	i := slices.IndexFunc(faults, func(f fault) bool { return f.kind == kind })
	if i < 0 {
		fail(w, http.StatusBadRequest, "kind",
			fmt.Sprintf("unknown kind %q: use one of %s", kind, strings.Join(FaultKinds(), ", ")))
		return
	}
	rank, err := e.rankOf(query)
	if err != nil {
		fail(w, http.StatusBadRequest, "rank", err.Error())
		return
	}
	answer, err := faults[i].apply(rank, query)
	if err != nil {
		fail(w, http.StatusBadRequest, "", err.Error())
		return
	}
	answer["kind"] = kind
	reply(w, answer)
}

// rankOf is the rank that rank=N names, or rank 0.
func (e *Engine) rankOf(query url.Values) (*Rank, error) {
	text := query.Get("rank")
	if text == "" {
		return e.Rank, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= len(e.ranks) {
		return nil, fmt.Errorf("rank must be a number from 0 to %d, got %q", len(e.ranks)-1, text)
	}
	return e.ranks[n], nil
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
