package trace

import (
	"math"
	"math/rand/v2"
	"time"
)

// What the Mooncake conversation trace shows, which Generate follows.
const (
	perHour   = 12031 // requests
	continued = 0.58  // share of requests that try to go on with an earlier prompt
	tiring    = 160   // blocks of a prompt that nobody goes on with
	maxBlocks = 250
)

// A curve is a distribution by its values at chances from 0 to 1; between them
// it is interpolated.
type curve []struct{ chance, value float64 }

var (
	// blocks of the first prompt of a conversation
	opening = curve{{0, 2}, {0.15, 2}, {0.25, 3}, {0.5, 11}, {0.75, 26}, {0.9, 50}, {0.97, 90}, {0.985, 165}, {1, 247}}
	// blocks that a later prompt does not share with the one before
	addition = curve{{0, 1}, {0.4, 1}, {0.5, 2}, {0.75, 6}, {0.9, 18}, {0.99, 53}, {1, 110}}
	// requests of all conversations since the one that is gone on with
	pause = curve{{0, 40}, {0.1, 170}, {0.5, 500}, {0.75, 1100}, {0.9, 1900}, {0.99, 5000}, {1, 9000}}
	// tokens of an answer
	answer = curve{{0, 1}, {0.1, 24}, {0.25, 140}, {0.5, 350}, {0.75, 480}, {0.9, 600}, {1, 2000}}
)

func (c curve) draw(r *rand.Rand) int {
	chance := r.Float64()
	i := 1
	for chance > c[i].chance {
		i++
	}
	low, high := c[i-1], c[i]
	part := (chance - low.chance) / (high.chance - low.chance)
	return int(math.Round(low.value + part*(high.value-low.value)))
}

// Generate makes n requests of the shape of the Mooncake conversation trace:
// 12,031 an hour, evenly; 24 blocks of 512 tokens on average, half of them up
// to 14, one in a hundred over 167; one first block that all share; two in
// five go on with an earlier prompt, of which they keep all but the last,
// partial block. Equal seeds give equal traces.
func Generate(seed uint64, n int) []Request {
	r := rand.New(rand.NewPCG(seed, 0))
	all := make([]Request, n)
	conversation := make([]int, n) // of each request
	latest := make([]int, 0, n)    // request of each conversation
	fresh := uint64(1)             // next new id; 0 is the shared first block
	for i := range all {
		prefix, length := []uint64{0}, 0
		if back := pause.draw(r); r.Float64() < continued && i > 0 {
			conversation[i] = conversation[max(0, i-back)]
			last := all[latest[conversation[i]]].Blocks
			if r.IntN(tiring) > len(last) {
				prefix = last[:max(1, len(last)-1)]
				length = len(prefix) + addition.draw(r)
			}
		}
		if length == 0 || length > maxBlocks {
			conversation[i] = len(latest)
			latest = append(latest, i)
			prefix, length = prefix[:1], opening.draw(r)
		}
		latest[conversation[i]] = i
		blocks := append(make([]uint64, 0, length), prefix...)
		for len(blocks) < length {
			blocks = append(blocks, fresh)
			fresh++
		}
		all[i] = Request{
			At:     time.Duration(i) * time.Hour / perHour,
			Input:  (length-1)*MooncakeBlock + 1 + r.IntN(MooncakeBlock),
			Output: answer.draw(r),
			Blocks: blocks,
		}
	}
	return all
}
