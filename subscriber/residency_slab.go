package subscriber

const slabChunk = 1024

// slab is an array that never moves: its places are named by number, from 1,
// and are used again. It grows by a chunk, so it wastes at most one.
type slab[T any] struct {
	chunks []*[slabChunk]T
	spare  []uint32
	used   uint32 // places ever taken
}

// take finds a place; its value is zero.
func (s *slab[T]) take() uint32 {
	if n := len(s.spare); n > 0 {
		at := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return at
	}
	if int(s.used) == len(s.chunks)*slabChunk {
		s.chunks = append(s.chunks, new([slabChunk]T))
	}
	s.used++
	return s.used
}

// put gives a place back.
func (s *slab[T]) put(at uint32) {
	var zero T
	*s.at(at) = zero
	s.spare = append(s.spare, at)
}

func (s *slab[T]) at(at uint32) *T { return &s.chunks[(at-1)/slabChunk][(at-1)%slabChunk] }

// after is the place that follows at, going round; it may be a free one.
func (s *slab[T]) after(at uint32) uint32 { return at%s.used + 1 }

// len is the number of places taken.
func (s *slab[T]) len() int { return int(s.used) - len(s.spare) }

// Bounds of what names of adapters may cost. Engines load tens of adapters.
const (
	maxAdapters    = 1024
	maxAdapterName = 256 // bytes
)

// adapterTable numbers adapters.
type adapterTable struct {
	byName map[string]uint32
	list   []*adapter
}

type adapter struct {
	name    string
	blocks  int // of its partition
	orphans int // that name it
}

// id numbers name; ok is false if it is too long or there are too many. The
// number is good until the next call, or as long as blocks or orphans have it.
func (t *adapterTable) id(name string) (id uint32, ok bool) {
	if id, ok := t.byName[name]; ok {
		return id, true
	}
	if len(name) > maxAdapterName {
		return 0, false
	}
	fresh := &adapter{name: name}
	if len(t.list) < maxAdapters {
		t.list = append(t.list, fresh)
		id = uint32(len(t.list) - 1)
		t.byName[name] = id
		return id, true
	}
	for i, a := range t.list {
		if a.blocks == 0 && a.orphans == 0 {
			delete(t.byName, a.name)
			t.list[i], t.byName[name] = fresh, uint32(i)
			return uint32(i), true
		}
	}
	return 0, false
}
