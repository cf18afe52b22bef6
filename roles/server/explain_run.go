package server

import (
	"fmt"
	"slices"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// stored is what the index has of the blocks at which runs ended. It asks once
// for each, as many runs end at the same block.
type stored struct {
	*lookup
	others []kv.Partition // of the tenant, in order
	by     map[place][]index.Entry
}

type place struct {
	kv.Partition
	key kv.Hash
}

func (l *stored) entries(p kv.Partition, key kv.Hash) []index.Entry {
	at := place{p, key}
	list, ok := l.by[at]
	if !ok {
		list = l.server.index.Entries(l.now, p, key)
		l.by[at] = list
	}
	return list
}

// ended says where a replica's run of blocks ended and why, as far as known.
func (l *stored) ended(c *pb.Considered, k *acquaintance) {
	set := func(end pb.RunEnd, at time.Time, detail string) {
		c.RunEnd, c.RunDetail = end, detail
		if !at.IsZero() {
			c.EndedAtUs = at.UnixMicro()
		}
	}
	if int(c.HeldBlocks) >= len(l.input.keys) {
		set(pb.RunEnd_RUN_COMPLETE, time.Time{}, "it holds all blocks of the prompt")
		return
	}
	if k.excluded == causeSilence || k.excluded == causeGoodbye {
		set(pb.RunEnd_RUN_REPLICA_DEAD, k.gone, deathText[k.excluded])
		return
	}
	key := l.input.keys[c.HeldBlocks]
	if seen, ok := l.expired(k.name, key); ok {
		set(pb.RunEnd_RUN_EXPIRED, seen.Add(l.policy.TTL), fmt.Sprintf("last reported %s ago, and the policy forgets after %s", l.now.Sub(seen).Round(time.Second), l.policy.TTL))
		return
	}
	if at, ok := l.server.removals.when(source{l.at.Scope, k.name}, l.at.Adapter, key); ok {
		set(pb.RunEnd_RUN_EVICTED, at, fmt.Sprintf("its engine gave block %d up %s ago", c.HeldBlocks+1, l.now.Sub(at).Round(time.Millisecond)))
		return
	}
	if size := l.input.step; l.input.chain && c.HeldBlocks == 0 && size > 0 && k.blockSize > 0 && k.blockSize != size {
		set(pb.RunEnd_RUN_OTHER_BLOCK_SIZE, time.Time{}, fmt.Sprintf("its blocks have %d tokens, those of the prompt %d: make --engine-block-size of the server equal to the engine's", k.blockSize, size))
		return
	}
	if where, ok := l.elsewhere(k.name, key); ok {
		set(pb.RunEnd_RUN_OTHER_PARTITION, time.Time{}, where)
		return
	}
	if !k.cleared.IsZero() && l.now.Sub(k.cleared) < graveTime {
		set(pb.RunEnd_RUN_CLEARED, k.cleared, fmt.Sprintf("it dropped all it held %s ago and has not stored this block since", l.now.Sub(k.cleared).Round(time.Millisecond)))
		return
	}
	set(pb.RunEnd_RUN_NEVER_STORED, time.Time{}, fmt.Sprintf("it did not report block %d, or too long ago to remember", c.HeldBlocks+1))
}

var deathText = map[string]string{
	causeSilence: "nothing was heard of it for longer than --replica-dead-after",
	causeGoodbye: "it said that it ends",
}

// expired says when an entry was last reported that is too old to count.
func (l *stored) expired(replica string, key kv.Hash) (seen time.Time, ok bool) {
	for _, e := range l.entries(l.at, key) {
		if e.Replica == replica && e.Expired {
			return e.Seen, true
		}
	}
	return time.Time{}, false
}

// elsewhere looks for the block under the tenant's other names.
func (l *stored) elsewhere(replica string, key kv.Hash) (where string, ok bool) {
	for _, p := range l.others {
		if p == l.at {
			continue
		}
		for _, e := range l.entries(p, key) {
			if e.Replica == replica && !e.Expired {
				return "it holds the block under " + difference(l.at, p), true
			}
		}
	}
	return "", false
}

func comparePartitions(a, b kv.Partition) int {
	return slices.Compare([]string{a.Tenant, a.Model, a.Scheme, a.Adapter}, []string{b.Tenant, b.Model, b.Scheme, b.Adapter})
}

// difference names what b has that a has not.
func difference(a, b kv.Partition) string {
	switch {
	case a.Model != b.Model:
		return fmt.Sprintf("model %q, not %q: compare --model-id of its subscriber with the request's model_id", b.Model, a.Model)
	case a.Scheme != b.Scheme:
		return fmt.Sprintf("hash scheme %q, not %q: compare --hash-scheme of its subscriber with the request's hash_scheme", b.Scheme, a.Scheme)
	case b.Adapter == "":
		return fmt.Sprintf("the base model, not adapter %q", a.Adapter)
	}
	return fmt.Sprintf("adapter %q, not %q", b.Adapter, a.Adapter)
}
