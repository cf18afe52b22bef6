package subscriber

import (
	"math"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	operationCost  = 128      // bytes of memory that an operation takes besides its hashes
	operationBytes = 64 << 10 // of packed hashes in one operation: 8,192 blocks
	updateBytes    = 256 << 10
	updateOps      = 4096
)

// operation is a Change on its way to a server, with its hashes packed.
type operation struct {
	kind      ChangeKind
	adapter   string
	tier      kv.Tier
	hashes    []byte // 8 bytes each, big-endian
	parent    kv.Hash
	hasParent bool
	tokens    int // before the first hash
	blockSize int
}

func (o *operation) cost() int { return operationCost + len(o.adapter) + len(o.hashes) }

// last is the last hash of an operation that has one.
func (o *operation) last() kv.Hash {
	h, ok := kv.ParseHash(o.hashes[len(o.hashes)-kv.HashSize:])
	if !ok {
		panic("bug: operation of partial hashes")
	}
	return h
}

// pending is the ordered list of operations that no message carries yet. It
// joins what can be joined: stores that continue the chain before them,
// removals that follow each other. A removal also takes back the end of a
// store just before it; the removal itself stays, since the server may hold
// the block from an earlier store. A clear makes everything before it moot.
type pending struct {
	operations []operation
	bytes      int       // cost of operations
	since      time.Time // when the oldest operation came; meaningless if there is none
	newest     time.Time // engine time of the newest change, see stream
}

func (p *pending) empty() bool { return len(p.operations) == 0 }

func (p *pending) reset() { *p = pending{} }

// add appends a change; now is the time of arrival and stamp the engine's.
func (p *pending) add(c Change, now, stamp time.Time) {
	if c.Kind == Clear {
		p.reset()
	}
	if p.empty() {
		p.since = now
	}
	if stamp.After(p.newest) {
		p.newest = stamp
	}
	switch c.Kind {
	case Clear:
		p.append(operation{kind: Clear})
	case Store:
		p.store(c)
	case Remove:
		p.remove(c)
	default:
		panic("bug: change of no kind")
	}
}

func (p *pending) store(c Change) {
	for len(c.Hashes) > 0 {
		var into *operation
		if n := len(p.operations); n > 0 && p.operations[n-1].continues(c) {
			into = &p.operations[n-1]
		} else {
			into = p.append(operation{
				kind: Store, adapter: c.Adapter, tier: c.Tier, parent: c.Parent, hasParent: c.HasParent,
				tokens: c.Tokens, blockSize: c.BlockSize,
			})
		}
		n := p.fill(into, c.Hashes)
		c.Parent, c.HasParent = c.Hashes[n-1], true
		c.Tokens += n * c.BlockSize
		c.Hashes = c.Hashes[n:]
	}
}

// continues reports whether store c is the same chain's next part.
func (o *operation) continues(c Change) bool {
	return o.kind == Store && o.adapter == c.Adapter && o.tier == c.Tier && o.blockSize == c.BlockSize &&
		c.HasParent && len(o.hashes) > 0 && len(o.hashes) < operationBytes && c.Parent == o.last() &&
		c.Tokens == o.tokens+len(o.hashes)/kv.HashSize*o.blockSize
}

func (p *pending) remove(c Change) {
	for _, h := range c.Hashes {
		p.takeBack(c.Adapter, h)
	}
	for len(c.Hashes) > 0 {
		var into *operation
		if n := len(p.operations); n > 0 && p.operations[n-1].removesToo(c.Adapter) {
			into = &p.operations[n-1]
		} else {
			into = p.append(operation{kind: Remove, adapter: c.Adapter})
		}
		c.Hashes = c.Hashes[p.fill(into, c.Hashes):]
	}
}

func (o *operation) removesToo(adapter string) bool {
	return o.kind == Remove && o.adapter == adapter && len(o.hashes) < operationBytes
}

// takeBack cuts h off the end of the last store if only removals follow it.
// Nothing in between can depend on the block, and nothing in the store comes
// after it. Engines evict a chain from its end, so this is the common case.
func (p *pending) takeBack(adapter string, h kv.Hash) {
	i := len(p.operations) - 1
	if i > 0 && p.operations[i].kind == Remove {
		i--
	}
	if i < 0 {
		return
	}
	o := &p.operations[i]
	if o.kind != Store || o.adapter != adapter || len(o.hashes) == 0 || o.last() != h {
		return
	}
	o.hashes = o.hashes[:len(o.hashes)-kv.HashSize]
	p.bytes -= kv.HashSize
}

// fill moves hashes into o, which is not full, and reports how many.
func (p *pending) fill(o *operation, hashes []kv.Hash) int {
	n := min(len(hashes), (operationBytes-len(o.hashes))/kv.HashSize)
	for _, h := range hashes[:n] {
		o.hashes = h.Append(o.hashes)
	}
	p.bytes += n * kv.HashSize
	return n
}

func (p *pending) append(o operation) *operation {
	p.operations = append(p.operations, o)
	p.bytes += o.cost()
	return &p.operations[len(p.operations)-1]
}

// take removes up to one update's worth from the front and returns it in wire
// form; nil if there is nothing. Stores that were taken back whole are left
// out.
func (p *pending) take() []*pb.CacheOperation {
	var wire []*pb.CacheOperation
	taken, bytes := 0, 0
	for taken < len(p.operations) && len(wire) < updateOps && bytes < updateBytes {
		o := &p.operations[taken]
		taken++
		p.bytes -= o.cost()
		if o.kind != Clear && len(o.hashes) == 0 {
			continue
		}
		bytes += o.cost()
		wire = append(wire, o.wire())
	}
	clear(p.operations[:taken])
	p.operations = p.operations[taken:]
	if p.empty() {
		p.operations = nil
	}
	return wire
}

func (o *operation) wire() *pb.CacheOperation {
	w := &pb.CacheOperation{PackedHashes: o.hashes, AdapterId: o.adapter}
	switch o.kind {
	case Clear:
		w.Kind = pb.CacheOperation_CLEAR
	case Remove:
		w.Kind = pb.CacheOperation_REMOVE
	case Store:
		w.Kind = pb.CacheOperation_STORE
		w.Tier = pb.CacheTier(o.tier)
		w.ParentTokens = int32(min(o.tokens, math.MaxInt32))
		w.BlockSize = int32(min(o.blockSize, math.MaxInt32))
		if o.hasParent {
			w.ParentHash = o.parent.Bytes()
		}
	}
	return w
}
