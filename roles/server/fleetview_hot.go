package server

import (
	"cmp"
	"slices"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	// maxCounted is how many of the latest decisions hot prefixes are counted in,
	// however many are remembered.
	maxCounted = 4096
	// maxHolderIDs are named of a prefix.
	maxHolderIDs = 8
)

// asked is a decision as far as hot prefixes need it.
type asked struct {
	where kv.Partition
	first string    // the replica that the prompt was sent to; "": none was named
	marks []kv.Hash // of the prompt after 1, 2, 4, ... blocks
}

// latest copies what was asked last, newest first. The copies share one piece of
// memory, so that lookups wait for little.
func (d *decisions) latest(fit func(kv.Scope) bool) (list []asked) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var marks []kv.Hash
	for i := range min(len(d.ring), maxCounted) {
		at := &d.ring[(d.next-1-i+len(d.ring))%len(d.ring)]
		if at.id == "" {
			break
		}
		if len(at.marks) == 0 || !fit(at.where.Scope) {
			continue
		}
		one := asked{where: at.where}
		if len(at.ranked) > 0 && !at.shadow {
			one.first = at.ranked[0].Scored.Replica
		}
		from := len(marks)
		marks = append(marks, at.marks...)
		one.marks = marks[from:len(marks):len(marks)]
		list = append(list, one)
	}
	return list
}

// beginning is what prompts have in common.
type beginning struct {
	where  kv.Partition
	key    kv.Hash
	blocks int32
	count  int64
}

// commonest counts the beginnings of prompts and returns the most frequent ones
// that at least two have, of equals the longest. One that always goes on in the
// same way is left out for the longer one.
func commonest(list []asked, most int) (hot []beginning) {
	seen := map[place]*beginning{}
	for i := range list {
		for depth, key := range list[i].marks {
			at := place{list[i].where, key}
			b := seen[at]
			if b == nil {
				b = &beginning{where: at.Partition, key: key, blocks: 1 << depth}
				seen[at] = b
			}
			b.count++
		}
	}
	for i := range list {
		marks := list[i].marks
		for depth := range len(marks) - 1 {
			shorter, longer := place{list[i].where, marks[depth]}, place{list[i].where, marks[depth+1]}
			if b := seen[shorter]; b != nil && seen[longer] != nil && b.count == seen[longer].count {
				delete(seen, shorter)
			}
		}
	}
	for _, b := range seen {
		if b.count > 1 {
			hot = append(hot, *b)
		}
	}
	slices.SortFunc(hot, func(a, b beginning) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(b.blocks, a.blocks), comparePartitions(a.where, b.where), cmp.Compare(a.key, b.key))
	})
	return hot[:min(len(hot), most)]
}

// hottest describes the beginnings that recent prompts have in common, and says
// in how many lookups it looked for them.
func (s *Server) hottest(now time.Time, r *pb.GetFleetRequest, most int) (hot []*pb.HotPrefix, counted int32) {
	list := s.decisions.latest(func(scope kv.Scope) bool { return fits(r, scope) })
	for _, b := range commonest(list, most) {
		p := &pb.HotPrefix{
			TenantId: b.where.Tenant, ModelId: b.where.Model, HashScheme: b.where.Scheme, AdapterId: b.where.Adapter,
			Hash: b.key.String(), Blocks: b.blocks, Lookups: b.count,
		}
		p.MostHinted, p.MostShare = favourite(list, b)
		if fl := s.fleets.of(b.where.Scope); fl != nil {
			p.LookupsPerSecond = s.guesses.rate(s.fleets.seconds(now), s.fleets.salt(fl, b.where.Adapter), b.key)
		}
		for _, e := range s.index.Entries(now, b.where, b.key) {
			if e.Expired {
				continue
			}
			p.Holders++
			if len(p.HolderIds) < maxHolderIDs {
				p.HolderIds = append(p.HolderIds, e.Replica)
			}
		}
		slices.Sort(p.HolderIds)
		hot = append(hot, p)
	}
	return hot, int32(len(list))
}

// favourite is the replica that most of the prompts with a beginning were sent
// to, and its share.
func favourite(list []asked, b beginning) (replica string, share float64) {
	sent, all := map[string]int{}, 0
	for i := range list {
		if list[i].first != "" && list[i].where == b.where && slices.Contains(list[i].marks, b.key) {
			sent[list[i].first]++
			all++
		}
	}
	for name, n := range sent {
		if n > sent[replica] || n == sent[replica] && name < replica {
			replica = name
		}
	}
	if all == 0 {
		return "", 0
	}
	return replica, float64(sent[replica]) / float64(all)
}
