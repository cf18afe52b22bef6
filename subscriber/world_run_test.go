package subscriber

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
)

// Whatever is lost, repeated, reordered and badly replayed, and whenever the
// engine restarts: the stream never holds what the engine does not, and what it
// calls exact is.
func TestStreamInventsNothing(t *testing.T) {
	t.Parallel()
	const worlds, length = 400, 600
	for seed := range uint64(worlds) {
		script := make([]byte, length)
		rng := rand.New(rand.NewPCG(seed, 4))
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runWorld(t, script, seed%4 != 3) })
	}
}

func runWorld(t *testing.T, script []byte, replays bool) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, script, replays)
		for len(w.script) > 0 {
			w.step()
		}
		w.settle()
	})
}

func FuzzStream(f *testing.F) {
	f.Add([]byte{}, true)
	f.Add([]byte("restart, replay, repeat: 0123456789 abcdefghijklmnopqrstuvwxyz"), true)
	f.Add([]byte("no replay at all \x0d\x0d\x0e\x0e\x0f\x0f\x00\x01\x02\x03\x04\x05\x06\x07"), false)
	f.Fuzz(func(t *testing.T, script []byte, replays bool) {
		if len(script) > 4096 {
			return
		}
		runWorld(t, script, replays)
	})
}
