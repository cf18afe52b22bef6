package subscriber

import (
	"slices"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
)

const (
	maxPromptTokens = 4096             // of the chain that is looked up
	maxRoots        = 64               // whose engine hashes are remembered
	promptEvery     = 10 * time.Second // longer than a prompt must be held to be looked up
)

// account is what a stream has seen, for the sentinel and for /debug/state. The
// stream writes, anybody reads.
type account struct {
	mu sync.Mutex
	ledger
	roots map[kv.Hash]uint64 // the engine's names of first blocks, over restarts
	taken time.Time
}

// ledger is a copy of the numbers in an account.
type ledger struct {
	Live    uint64    // messages, as they came
	Batches uint64    // applied, replayed ones too
	Last    time.Time // when the last one arrived
	Since   uint64    // first batch of those known without a gap
	Next    uint64    // number of the next batch
	Known   bool      // Since and Next mean something

	Stores  uint64                   // BlockStored events
	Applied uint64                   // of these
	Refused map[engine.Reason]uint64 // of the others, by reason
	Unknown uint64                   // events with an unknown tag

	// When each was last seen.
	UnknownAt, UnmappedAt, SeedAt, DriftAt time.Time

	Rank     int  // that the last batch said
	HasRank  bool // it said one
	NoReplay bool // the engine does not answer requests for replay

	prompt ownPrompt
}

// ownPrompt is the beginning of one that the engine has stored, to be looked up the
// way a gateway does. It is never logged.
type ownPrompt struct {
	adapter   string
	tokens    []uint32
	blockSize int
	at        time.Time
}

func newAccount() *account {
	return &account{ledger: ledger{Refused: map[engine.Reason]uint64{}}, roots: map[kv.Hash]uint64{}}
}

// read copies the numbers.
func (a *account) read() ledger {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.ledger
	l.Refused = make(map[engine.Reason]uint64, len(a.Refused))
	for reason, n := range a.Refused {
		l.Refused[reason] = n
	}
	return l
}

// heard takes down a live message.
func (a *account) heard() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Live++
}

// note takes down a batch and what residency made of it.
func (a *account) note(b *engine.Batch, tally Tally, at *position, arrived time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Batches++
	a.Last = arrived
	a.Since, a.Next, a.Known = at.since, at.next, at.known
	a.Rank, a.HasRank = b.Rank, b.HasRank
	for i := range b.Events {
		e, v := &b.Events[i], tally.Verdicts[i]
		switch {
		case v.Reason == engine.UnknownTag:
			a.Unknown++
			a.UnknownAt = arrived
		case e.Kind != engine.Stored:
		case v.Status == engine.Applied:
			a.Stores++
			a.Applied++
			if !e.Has(engine.ParentHash) && arrived.Sub(a.taken) >= promptEvery {
				a.takePromptLocked(e, arrived)
			}
		default:
			a.Stores++
			a.Refused[v.Reason]++
			if v.Reason == UnmappedAdapter {
				a.UnmappedAt = arrived
			}
		}
	}
}

// takePromptLocked keeps the beginning of a prompt that was stored from its
// first block on, and compares the engine's name for that block with earlier
// ones.
func (a *account) takePromptLocked(e *engine.Event, now time.Time) {
	size := e.BlockSize
	plain := e.FirstApart(e.LoraName)
	if size <= 0 || len(e.Tokens) < size || plain == 0 || e.Has(engine.LoraID) && e.LoraName == "" {
		return
	}
	a.taken = now
	n := min(len(e.Tokens), plain*size, max(size, maxPromptTokens/size*size))
	a.prompt = ownPrompt{adapter: e.LoraName, tokens: slices.Clone(e.Tokens[:n]), blockSize: size, at: now}
	if e.LoraName != "" {
		return
	}
	root := fingerprint.Append(nil, e.Tokens[:size], size)[0]
	switch name, known := a.roots[root]; {
	case known && name != e.Hashes[0].ID:
		a.SeedAt = now // names differ between two processes
		a.roots[root] = e.Hashes[0].ID
	case !known && len(a.roots) < maxRoots:
		a.roots[root] = e.Hashes[0].ID
	}
}

// first is the key of the prompt's first block.
func (p *ownPrompt) first() kv.Hash {
	return fingerprint.Append(nil, p.tokens[:p.blockSize], p.blockSize)[0]
}

// drifted notes that the stream had to start over.
func (a *account) drifted(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.DriftAt = now
}

// replays notes whether the engine answers requests for replay.
func (a *account) replays(does bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.NoReplay = !does
}
