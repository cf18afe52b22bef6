package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// script reads random numbers off a byte string, and any behind its end.
type script struct {
	bytes []byte
	rest  rand.PCG
}

func (s *script) Uint64() uint64 {
	if len(s.bytes) == 0 {
		return s.rest.Uint64() // never one number for ever: rand rejects some
	}
	b := uint64(s.bytes[0])
	s.bytes = s.bytes[1:]
	return b * 0x0101010101010101 // small ranges are drawn by the high bits
}

// FuzzOperations drives index and oracle by a script: a byte for the flavour,
// then one for each choice.
func FuzzOperations(f *testing.F) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 0))
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(r.Uint64())
		}
		b[0] = byte(seed)
		f.Add(b)
	}
	names := make([]string, 0, len(flavours))
	for name := range flavours {
		names = append(names, name)
	}
	slices.Sort(names)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 4096 {
			return
		}
		fl := flavours[names[int(b[0])%len(names)]]
		fl.Defaults.MaxKeys = -1
		s := &script{bytes: b[1:]}
		p := newPair(t, rand.New(s), fl.Config, fl.limits)
		for range 40 {
			if len(s.bytes) == 0 {
				break
			}
			p.step(&fl)
		}
		p.sweep(1 << 40)
	})
}
