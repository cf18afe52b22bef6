package subscriber

import (
	"encoding/json"
	"net/http"
	"time"
)

// DebugState is what GET /debug/state shows of one replica: counts and
// addresses, no tokens, no salts, no hashes.
type DebugState struct {
	Replica    string               `json:"replica"`
	Tenant     string               `json:"tenant"`
	Model      string               `json:"model"`
	Engine     string               `json:"engine_url"` // base URL of its API; "": unknown
	Uptime     float64              `json:"uptime_seconds"`
	State      string               `json:"state"`
	Conditions map[Condition]Advice `json:"conditions"`
	Sources    []DebugSource        `json:"sources"`
	Servers    []DebugServer        `json:"servers"`
	Held       map[string]int       `json:"held_blocks"` // by best tier
	EngineHeld int                  `json:"engine_blocks"`
	Separate   int                  `json:"separate_blocks"` // out of reach of plain lookups
	Multiple   int                  `json:"multiple_copies"`
	Orphans    int                  `json:"orphan_blocks"`
	Evicted    uint64               `json:"evicted_blocks"` // to keep --max-blocks
}

// Advice says what holds and what to do.
type Advice struct {
	Detail string `json:"detail"`
	Do     string `json:"do"`
}

// DebugSource is one event stream.
type DebugSource struct {
	Rank       int               `json:"rank"`
	Endpoint   string            `json:"endpoint"`
	Replay     string            `json:"replay,omitempty"`
	Topic      string            `json:"topic"`
	State      string            `json:"state"`
	Batches    uint64            `json:"batches"`
	Next       uint64            `json:"next_sequence"`
	Since      uint64            `json:"known_since"`      // first batch of those known without a gap
	Age        float64           `json:"last_age_seconds"` // of the last batch; -1: none
	Stores     uint64            `json:"stores"`
	Applied    uint64            `json:"stores_applied"`
	Refused    map[string]uint64 `json:"stores_refused,omitempty"` // by reason
	QueueSize  int               `json:"queue_batches"`
	QueueBytes int               `json:"queue_bytes"`
}

// DebugServer is the way to one server.
type DebugServer struct {
	Server     string `json:"server"`
	Settled    bool   `json:"settled"` // it was told everything
	Operations int    `json:"outbox_operations"`
	Bytes      int    `json:"outbox_bytes"`
}

// Debug gathers the state.
func (s *Subscriber) Debug() DebugState {
	now := time.Now()
	stats := s.replica.stats()
	d := DebugState{
		Replica: s.config.ReplicaID, Tenant: s.config.TenantID, Model: s.config.ModelID, Engine: s.config.engineURL(),
		Uptime: now.Sub(s.sentinel.started).Seconds(), State: s.State().String(), Conditions: map[Condition]Advice{},
		Held:       map[string]int{"T1": stats.Held[0], "T2": stats.Held[1], "T3": stats.Held[2]},
		EngineHeld: stats.Holdings, Separate: stats.Separate, Multiple: stats.Multiple, Orphans: stats.Orphans, Evicted: stats.Evicted,
		Sources: []DebugSource{}, Servers: []DebugServer{},
	}
	for name, detail := range s.conditions.list() {
		d.Conditions[name] = Advice{detail, advice[name]}
	}
	for _, one := range s.sources.list() {
		d.Sources = append(d.Sources, one.debug(now))
	}
	for _, o := range s.replica.all() {
		operations, bytes := o.size()
		d.Servers = append(d.Servers, DebugServer{o.server, o.settled(now), operations, bytes})
	}
	return d
}

func (s *source) debug(now time.Time) DebugSource {
	l := s.stream.account.read()
	d := DebugSource{
		Rank: s.Rank, Endpoint: s.Events, Replay: s.Replay, Topic: s.Topic, State: s.state.now().String(),
		Batches: l.Batches, Next: l.Next, Since: l.Since, Age: -1, Stores: l.Stores, Applied: l.Applied, Refused: map[string]uint64{},
	}
	d.QueueSize, d.QueueBytes = s.queue.size()
	if l.Batches > 0 {
		d.Age = now.Sub(l.Last).Seconds()
	}
	for reason, n := range l.Refused {
		d.Refused[string(reason)] = n
	}
	return d
}

// DebugPage serves the states of the subscribers of a process as JSON.
func DebugPage(all func() []*Subscriber) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		states := []DebugState{}
		for _, s := range all() {
			states = append(states, s.Debug())
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(states) // the client is gone if this fails
	})
}
