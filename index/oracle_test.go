package index

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// oracle is the index done naively: one map, every rule spelled out.
type oracle struct {
	config  Config
	limits  map[string]Limits
	entries map[oracleKey]map[string]held
	clears  map[oracleReplica]tick
	vouches map[oracleReplica]tick
	exists  func(kv.Scope) bool         // clears of a scope nobody reported to are not remembered
	known   func(kv.Scope, string) bool // vouches of a replica that reported nothing are not either
}

type oracleKey struct {
	kv.Partition
	key kv.Hash
}

type oracleReplica struct {
	kv.Scope
	replica string
}

type held struct {
	seen   tick
	tier   kv.Tier
	tokens int32
	use    uint8
}

func (o *oracle) limitsOf(tenant string) Limits {
	l, ok := o.limits[tenant]
	if !ok {
		l = o.config.Defaults
	}
	if tenant == kv.ProbeTenant {
		l.MaxKeys = -1
	}
	return l.sane()
}

func (o *oracle) expired(now tick, tenant string) tick {
	return now - o.limitsOf(tenant).TTL.Milliseconds()
}

// expiredOf is what expired is for the holders of one replica.
func (o *oracle) expiredOf(now tick, s kv.Scope, replica string) tick {
	expired := o.expired(now, s.Tenant)
	if v, ok := o.vouches[oracleReplica{s, replica}]; ok && v > expired {
		return math.MinInt64
	}
	return expired
}

func (o *oracle) vouch(s kv.Scope, replica string, at tick) {
	r := oracleReplica{s, replica}
	if last, ok := o.vouches[r]; o.known(s, replica) && (!ok || at > last) {
		o.vouches[r] = at
	}
}

func (o *oracle) apply(now tick, b *Batch) (out Applied) {
	at := min(ticks(b.Seen), now)
	l, expired := o.limitsOf(b.Scope.Tenant), o.expired(now, b.Scope.Tenant)
	made := false
	for _, op := range b.Ops {
		p := kv.Partition{Scope: b.Scope, Adapter: op.Adapter}
		switch op.Kind {
		case Store:
			n := len(op.Keys)
			switch last, ok := o.clears[oracleReplica{b.Scope, b.Replica}]; {
			case n == 0:
				continue
			case at <= expired:
				out.Stale += n
				continue
			case l.MaxKeys == 0:
				out.Refused += n
				continue
			case ok && at < last:
				out.Stale += n
				continue
			}
			made = true
			alive := o.expiredOf(now, b.Scope, b.Replica)
			sum := int64(op.Tokens)
			for i, k := range op.Keys {
				if op.Counts != nil {
					sum += int64(op.Counts[i])
				} else {
					sum += int64(op.Step)
				}
				e := held{seen: at, tier: op.Tier, tokens: int32(min(max(sum, 0), math.MaxInt32))}
				key := oracleKey{p, k}
				old, ok := o.entries[key][b.Replica]
				switch {
				case ok && old.seen > alive && old.seen > at:
					out.Stale++
					continue
				case ok && old.seen > alive:
					e.use = old.use
					out.Refreshed++
				default:
					out.Added++
				}
				if o.entries[key] == nil {
					o.entries[key] = map[string]held{}
				}
				o.entries[key][b.Replica] = e
			}
		case Remove:
			for _, k := range op.Keys {
				o.remove(oracleKey{p, k}, b.Replica, at, o.expiredOf(now, b.Scope, b.Replica), &out)
			}
		case Clear:
			o.clear(func(s kv.Scope) bool { return s == b.Scope }, b.Replica, at)
			if made || o.exists(b.Scope) {
				o.remember(b.Scope, b.Replica, at)
			}
		}
	}
	o.enforce(now, b.Scope.Tenant, &out)
	return out
}

func (o *oracle) remember(s kv.Scope, replica string, at tick) {
	r := oracleReplica{s, replica}
	if last, ok := o.clears[r]; !ok || at > last {
		o.clears[r] = at
	}
}

func (o *oracle) remove(key oracleKey, replica string, at, expired tick, out *Applied) {
	e, ok := o.entries[key][replica]
	switch {
	case !ok:
		out.Unknown++
		return
	case e.seen <= expired:
		out.Unknown++
	case e.seen > at:
		out.Stale++
		return
	default:
		out.Removed++
	}
	o.drop(key, replica)
}

func (o *oracle) drop(key oracleKey, replica string) {
	delete(o.entries[key], replica)
	if len(o.entries[key]) == 0 {
		delete(o.entries, key)
	}
}

func (o *oracle) removeAll(now tick, tenant, model, replica, adapter string, key kv.Hash, at tick) (out Applied) {
	for k := range o.entries {
		if k.Tenant == tenant && k.Model == model && k.key == key && (adapter == "" || k.Adapter == adapter) {
			o.remove(k, replica, min(at, now), o.expiredOf(now, k.Scope, replica), &out)
		}
	}
	out.Unknown = 0
	if out.Removed+out.Stale == 0 {
		out.Unknown = 1
	}
	return out
}

func (o *oracle) clear(in func(kv.Scope) bool, replica string, at tick) {
	for key, holders := range o.entries {
		if e, ok := holders[replica]; ok && in(key.Scope) && e.seen <= at {
			o.drop(key, replica)
		}
	}
	for r, last := range o.vouches {
		if r.replica == replica && in(r.Scope) && last <= at {
			delete(o.vouches, r)
		}
	}
}

func (o *oracle) lookup(now tick, p kv.Partition, keys []kv.Hash) []Run {
	var runs []Run
	if len(keys) == 0 {
		return nil
	}
	for replica := range o.entries[oracleKey{p, keys[0]}] {
		r := Run{Replica: replica}
		oldest, expired := tick(math.MaxInt64), o.expiredOf(now, p.Scope, replica)
		for _, k := range keys {
			e, ok := o.entries[oracleKey{p, k}][replica]
			if !ok || e.seen <= expired {
				break
			}
			r.Blocks++
			r.Tier = max(r.Tier, e.tier)
			if r.Tier == kv.T1 {
				r.Warm[0] = r.Blocks
			}
			if r.Tier <= kv.T2 {
				r.Warm[1] = r.Blocks
			}
			r.Tokens = e.tokens
			oldest = min(oldest, e.seen)
		}
		r.Seen = time.UnixMilli(max(oldest, o.vouches[oracleReplica{p.Scope, replica}]))
		if r.Blocks > 0 {
			runs = append(runs, r)
		}
	}
	return runs
}

func (o *oracle) credit(p kv.Partition, replica string, keys []kv.Hash) {
	if !o.limitsOf(p.Tenant).LFU {
		return
	}
	for _, k := range keys {
		key := oracleKey{p, k}
		if e, ok := o.entries[key][replica]; ok && e.use < 255 {
			e.use++
			o.entries[key][replica] = e
		}
	}
}

func (o *oracle) sweep(now tick) (n int) {
	for key, holders := range o.entries {
		for replica, e := range holders {
			if e.seen <= o.expiredOf(now, key.Scope, replica) {
				o.drop(key, replica)
				n++
			}
		}
	}
	return n
}

// victim is something that may have to go, and all that it is ordered by.
type victim struct {
	key     oracleKey
	replica string
	live    bool
	held
}

func (o *oracle) before(a, b victim) int {
	if a.live != b.live {
		if a.live {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.use, b.use), cmp.Compare(a.seen, b.seen), cmp.Compare(b.tokens, a.tokens),
		strings.Compare(a.key.Tenant, b.key.Tenant), strings.Compare(a.key.Model, b.key.Model),
		strings.Compare(a.key.Scheme, b.key.Scheme), strings.Compare(a.key.Adapter, b.key.Adapter),
		cmp.Compare(a.key.key, b.key.key), strings.Compare(a.replica, b.replica))
}

func (o *oracle) enforce(now tick, tenant string, out *Applied) {
	if l := o.limitsOf(tenant); l.MaxKeys >= 0 {
		var keys []victim
		for key, holders := range o.entries {
			if key.Tenant != tenant {
				continue
			}
			v := victim{key: key, held: held{seen: math.MinInt64}}
			for replica, e := range holders {
				v.live = v.live || e.seen > o.expiredOf(now, key.Scope, replica)
				v.seen = max(v.seen, e.seen)
				v.tokens = max(v.tokens, e.tokens)
				if l.LFU {
					v.use = max(v.use, e.use)
				}
			}
			keys = append(keys, v)
		}
		slices.SortFunc(keys, o.before)
		for _, v := range keys[:max(0, len(keys)-int(l.MaxKeys))] {
			out.evict(Eviction{Tenant: tenant, LFU: l.LFU, Reason: OverKeys, Entries: len(o.entries[v.key]), Keys: 1})
			delete(o.entries, v.key)
		}
	}
	if o.config.MaxEntries > 0 {
		var all []victim
		for key, holders := range o.entries {
			if key.Tenant == kv.ProbeTenant {
				continue
			}
			for replica, e := range holders {
				if !o.limitsOf(key.Tenant).LFU {
					e.use = 0
				}
				all = append(all, victim{key, replica, e.seen > o.expiredOf(now, key.Scope, replica), e})
			}
		}
		slices.SortFunc(all, o.before)
		for _, v := range all[:max(0, len(all)-int(o.config.MaxEntries))] {
			keys := 0
			if len(o.entries[v.key]) == 1 {
				keys = 1
			}
			out.evict(Eviction{Tenant: v.key.Tenant, LFU: o.limitsOf(v.key.Tenant).LFU, Reason: OverCap, Entries: 1, Keys: keys})
			o.drop(v.key, v.replica)
		}
	}
}

func (a *Applied) evict(e Eviction) {
	for i, f := range a.Evicted {
		if f.Tenant == e.Tenant && f.LFU == e.LFU && f.Reason == e.Reason {
			a.Evicted[i].Entries += e.Entries
			a.Evicted[i].Keys += e.Keys
			return
		}
	}
	a.Evicted = append(a.Evicted, e)
}
