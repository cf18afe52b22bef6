package journal

import (
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Bounds on what is recorded; longer names are cut, longer chains dropped.
const (
	MaxKeys = 1 << 20 // of one record
	maxName = 1024    // bytes
)

// Record is a Lookup, Outcome, Store, Remove or Clear. Times are kept to the
// microsecond.
type Record interface{ record() }

// Lookup is a question and its answer.
type Lookup struct {
	At          time.Time
	Partition   kv.Partition
	Keys        []kv.Hash // of whole blocks, from the start of the prompt
	BlockTokens int32     // of each key; 0: they differ, or Keys is no chain
	Tokens      int32     // of the prompt, as far as known
	RequestID   string    // "": no outcome can be told apart
	Chosen      string    // the first replica of the answer; "": no hint
	Reason      string    // reason code of the answer
}

// Outcome is what became of a request.
type Outcome struct {
	At           time.Time
	RequestID    string
	Replica      string // that served
	CachedTokens int32
	PromptTokens int32
	OutputTokens int32
}

// Store says that a replica holds Keys, a chain that goes on from Parent.
type Store struct {
	At        time.Time
	Scope     kv.Scope
	Adapter   string
	Replica   string
	Parent    kv.Hash // 0 without HasParent
	HasParent bool
	Keys      []kv.Hash
	Tier      kv.Tier
	Step      int32 // tokens of each key; 0: they differ
}

// Remove says that a replica does not hold Keys any more, in any tier.
type Remove struct {
	At      time.Time
	Scope   kv.Scope
	Adapter string
	Replica string
	Keys    []kv.Hash
}

// Clear says that a replica holds nothing of a scope, whatever the adapter.
type Clear struct {
	At      time.Time
	Scope   kv.Scope
	Replica string
}

func (Lookup) record()  {}
func (Outcome) record() {}
func (Store) record()   {}
func (Remove) record()  {}
func (Clear) record()   {}

type kind byte

const (
	start kind = 1 + iota
	lookup
	outcome
	store
	remove
	clearing
	kinds
)

// shape says which fields records of a kind have, in the order of the file.
type shape struct {
	partition, request, replica, reason bool
	numbers                             int
	tier, parent, keys                  bool
}

var shapes = [kinds]shape{
	start:    {},
	lookup:   {partition: true, request: true, replica: true, reason: true, numbers: 2, keys: true},
	outcome:  {request: true, replica: true, numbers: 3},
	store:    {partition: true, replica: true, numbers: 1, tier: true, parent: true, keys: true},
	remove:   {partition: true, replica: true, keys: true},
	clearing: {partition: true, replica: true},
}

// entry is any record on its way to or from a file: one shape for all kinds.
type entry struct {
	kind      kind
	at        int64 // microseconds since 1970
	partition kv.Partition
	request   string
	replica   string
	reason    string
	numbers   [3]int32
	tier      kv.Tier
	hasParent bool      // the first of keys is the parent
	keys      []kv.Hash // the entry's own
}

// Times outside the years 1 to 9999 are read as the nearest inside.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	lastTime  = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() - 1
)

func micros(t time.Time) int64 { return min(max(t.UnixMicro(), firstTime), lastTime) }

func cut(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.Clone(name[:maxName]) // does not keep the rest alive
}

func cutScope(s kv.Scope, adapter string) kv.Partition {
	return kv.Partition{Scope: kv.Scope{Tenant: cut(s.Tenant), Model: cut(s.Model), Scheme: cut(s.Scheme)}, Adapter: cut(adapter)}
}

// room is the most bytes that e takes in a file, its frame included.
func (e *entry) room() int64 {
	p := &e.partition
	names := len(p.Tenant) + len(p.Model) + len(p.Scheme) + len(p.Adapter) + len(e.request) + len(e.replica) + len(e.reason)
	return int64(128 + names + 9*len(e.keys)) // a key: at worst a raw run of one
}

// record is e as others see it; keys are not copied.
func (e *entry) record() Record {
	at, p, n := time.UnixMicro(e.at).UTC(), e.partition, e.numbers
	switch e.kind {
	case lookup:
		return Lookup{At: at, Partition: p, Keys: e.keys, Tokens: n[0], BlockTokens: n[1], RequestID: e.request, Chosen: e.replica, Reason: e.reason}
	case outcome:
		return Outcome{At: at, RequestID: e.request, Replica: e.replica, CachedTokens: n[0], PromptTokens: n[1], OutputTokens: n[2]}
	case store:
		s := Store{At: at, Scope: p.Scope, Adapter: p.Adapter, Replica: e.replica, Keys: e.keys, Tier: e.tier, Step: n[0]}
		if e.hasParent {
			s.Parent, s.HasParent, s.Keys = e.keys[0], true, e.keys[1:]
		}
		return s
	case remove:
		return Remove{At: at, Scope: p.Scope, Adapter: p.Adapter, Replica: e.replica, Keys: e.keys}
	case clearing:
		return Clear{At: at, Scope: p.Scope, Replica: e.replica}
	}
	panic("bug: an entry of no kind")
}
