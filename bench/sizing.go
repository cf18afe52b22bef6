package bench

import (
	"fmt"
	"io"
	"math"
)

// Sizing is what an index needs for a number of engines.
type Sizing struct {
	Engines       int     `json:"engines"`
	Blocks        int     `json:"blocksPerEngine"` // that an engine can hold
	Holders       int     `json:"holders"`         // engines that hold a block, on average
	BytesPerBlock float64 `json:"bytesPerHolderBlock"`
	IndexMemory   int64   `json:"indexMemory"` // bytes, for --index-memory
	PodMemory     int64   `json:"podMemory"`   // bytes, for the container's limit
}

// NewSizing works out memory from bytes a holder-block, as measured: rounded
// up, a quarter of room, whole MiB. An index takes half of its container's
// limit unless it is told otherwise.
func NewSizing(engines, blocks, holders int, bytes float64) Sizing {
	const mib = 1 << 20
	need := float64(engines) * float64(blocks) * math.Ceil(bytes) * 1.25
	memory := int64(math.Ceil(need/mib)) * mib
	return Sizing{
		Engines: engines, Blocks: blocks, Holders: holders, BytesPerBlock: bytes,
		IndexMemory: memory, PodMemory: 2 * memory,
	}
}

// Print writes what to set.
func (s Sizing) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%d engines x %d blocks = %s holder-blocks, each block in %d engines: %.1f bytes each, measured here
  --index-memory=%d      %d MiB, with a quarter of room
  memory limit of the pod   %dMi, of which the index takes half unless --index-memory is set
`,
		s.Engines, s.Blocks, count(float64(s.Engines)*float64(s.Blocks)), s.Holders, s.BytesPerBlock,
		s.IndexMemory, s.IndexMemory>>20, s.PodMemory>>20)
	return err
}
