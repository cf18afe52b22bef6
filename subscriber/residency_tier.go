package subscriber

import (
	"strings"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/kv"
)

// tierOf places an event's blocks. Engines write GPU or nothing for their own
// memory, CPU, CPU_PINNED, CPU_TIER1, CPU_TIER2, DISK and STORAGE for what is
// near, EXTERNAL and SHARED_STORAGE for what others reach too. A locality other
// than LOCAL means the latter whatever the medium. What is not understood is
// put far away, so that it is never credited to the replica's own memory.
func tierOf(e *engine.Event) kv.Tier {
	if e.Locality != "" && e.Locality != "LOCAL" {
		return kv.T3
	}
	switch e.Medium {
	case "", "GPU":
		return kv.T1
	case "CPU", "CPU_PINNED", "DISK", "STORAGE":
		return kv.T2
	case "EXTERNAL", "SHARED_STORAGE":
		return kv.T3
	}
	switch medium := strings.ToUpper(e.Medium); {
	case strings.HasPrefix(medium, "GPU"), strings.HasPrefix(medium, "CUDA"):
		return kv.T1
	case strings.Contains(medium, "CPU"): // also the text of a torch device, from old LMCache
		return kv.T2
	case medium == "DISK", medium == "STORAGE":
		return kv.T2
	}
	return kv.T3
}

// witness takes note of the tiers a stream reports. From the first lower one on
// the engine's word counts, and copies that were only assumed are taken back.
func (r *Residency) witness(rs *rankState, t kv.Tier) {
	if t == kv.T1 || rs.lowerTier {
		return
	}
	rs.lowerTier = true
	if rs.assumed == 0 {
		return
	}
	for _, g := range rs.order {
		r.each(g, func(at uint32) {
			h := r.holdings.at(at)
			if h.assumed {
				c := h.copies
				c[slot(kv.T2)] = 0
				r.setCopies(at, c)
			}
		})
	}
}
