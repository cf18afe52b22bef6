package subscriber

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/kv"
)

// Document shows a person what one payload says and what it would do to an
// empty residency. It contains token ids, salts and multimodal ids: it is for
// the terminal of whoever holds the payload, never for a log.
type Document struct {
	Error          string              // why the payload cannot be read; then nothing else is set
	Batch          engine.Object       // ts and dp_rank
	Events         []engine.Object     // in wire order, fields under wire names, with index and verdict
	UnknownTags    []string            // in wire order
	RejectedEvents []int               // their indices
	PrefixHashes   map[string][]string // "event<index>": prefix hashes it is the first to bring in
	Resident       []ResidentBlock     // what is held after the batch
}

// ResidentBlock is a block of a Document: its prefix hash in hex, big-endian,
// its best tier ("T1"), and the tokens up to and including it.
type ResidentBlock struct {
	PrefixHash string `json:"prefix_hash"`
	Tier       string `json:"tier"`
	Adapter    string `json:"adapter"`
	Tokens     int    `json:"tokens"`
}

// MarshalJSON writes {"error"} or {"ts", "dp_rank", "events", "unknown",
// "rejected_events", "prefix_hashes", "resident"}, always in this order.
func (d Document) MarshalJSON() ([]byte, error) {
	if d.Error != "" {
		return json.Marshal(engine.Object{{Name: "error", Value: d.Error}})
	}
	return json.Marshal(append(slices.Clip(d.Batch), engine.Object{
		{Name: "events", Value: d.Events},
		{Name: "unknown", Value: d.UnknownTags},
		{Name: "rejected_events", Value: d.RejectedEvents},
		{Name: "prefix_hashes", Value: d.PrefixHashes},
		{Name: "resident", Value: d.Resident},
	}...))
}

// Inspect decodes a payload as the subscriber does and applies it, event by
// event, to an empty residency that takes any block size and knows no adapter
// ids.
func Inspect(dialect engine.Dialect, payload []byte) Document {
	batch, err := engine.Decode(dialect, payload, engine.DefaultLimits())
	if err != nil {
		return Document{Error: fmt.Sprintf("decode %s payload: %v", dialect.Name, err)}
	}
	doc := Document{
		Batch:          batch.EnvelopeDocument(),
		Events:         []engine.Object{},
		UnknownTags:    append([]string{}, batch.UnknownTags()...),
		RejectedEvents: []int{},
		PrefixHashes:   map[string][]string{},
		Resident:       []ResidentBlock{},
	}
	r := NewResidency(ResidencyConfig{})
	held := map[partitionHash]bool{}
	for i := range batch.Events {
		single := *batch
		single.Events = batch.Events[i : i+1]
		changes, tally := r.Apply(batch.Rank, &single)
		doc.add(&batch.Events[i], tally.Verdicts[0], newPrefixes(held, changes))
	}
	doc.Resident = append(doc.Resident, residentBlocks(r)...)
	return doc
}

func (d *Document) add(e *engine.Event, v engine.Verdict, prefixes []string) {
	d.Events = append(d.Events, append(e.Document(), engine.Member{Name: "verdict", Value: v}))
	if v.Status == engine.Rejected {
		d.RejectedEvents = append(d.RejectedEvents, e.Index)
	}
	if len(prefixes) > 0 {
		d.PrefixHashes[fmt.Sprintf("event%d", e.Index)] = prefixes
	}
}

type partitionHash struct {
	adapter string
	hash    kv.Hash
}

// newPrefixes brings held up to date and returns what came in, in chain order.
func newPrefixes(held map[partitionHash]bool, changes []Change) []string {
	var fresh []string
	for _, c := range changes {
		if c.Kind == Clear {
			clear(held)
		}
		for _, hash := range c.Hashes {
			name := partitionHash{c.Adapter, hash}
			if c.Kind == Store && !held[name] {
				fresh = append(fresh, hash.String())
			}
			held[name] = c.Kind == Store
		}
	}
	return fresh
}

// residentBlocks lists what r holds by adapter, length of prefix, and hash.
func residentBlocks(r *Residency) []ResidentBlock {
	var list []ResidentBlock
	r.Held(func(c Change) bool {
		for i, hash := range c.Hashes {
			list = append(list, ResidentBlock{
				PrefixHash: hash.String(),
				Tier:       c.Tier.String(),
				Adapter:    c.Adapter,
				Tokens:     c.Tokens + (i+1)*c.BlockSize,
			})
		}
		return true
	})
	slices.SortFunc(list, func(a, b ResidentBlock) int {
		return cmp.Or(
			cmp.Compare(a.Adapter, b.Adapter),
			cmp.Compare(a.Tokens, b.Tokens),
			cmp.Compare(a.PrefixHash, b.PrefixHash),
		)
	})
	return list
}
