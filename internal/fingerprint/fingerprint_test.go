package fingerprint

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"inferencecache.io/inferencecache/internal/kv"
)

func span(first, last uint32) (tokens []uint32) {
	for t := first; t <= last; t++ {
		tokens = append(tokens, t)
	}
	return tokens
}

func repeat(token uint32, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = token
	}
	return tokens
}

func parent(h kv.Hash) *kv.Hash { return &h }

// TestGoldenVectors holds every vector of the published specification.
func TestGoldenVectors(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name      string
		tokens    []uint32
		blockSize int
		parent    *kv.Hash
		want      string // wire bytes in hex, space separated
	}{
		{"single full block", span(1, 16), 16, nil, "ea06fc71a5ee6e88"},
		{"partial tail dropped", span(100, 119), 16, nil, "9633b31c7a2562c7"},
		{"two blocks", span(1, 32), 16, nil, "ea06fc71a5ee6e88 ad01835a37dd294c"},
		{"four blocks", span(0, 63), 16, nil, "d47a8f41c833328a bf15dffb16447f38 a4dda066f3c1e1a0 35f7c0d119848950"},
		{"parent", span(50, 81), 16, parent(0xDEADBEEF), "b6fb5360f18171bf 299c66dda1cb4505"},
		{"only a partial block", span(0, 9), 16, nil, ""},
		{"tokenizer golden", []uint32{14990, 1879}, 2, nil, "238f33c07c1d869e"},
		{"X1", span(0, 63), 32, nil, "4fe4b52e3d3d116c e72e765dbbb3fc6b"},
		{"X2", []uint32{4294967295, 0}, 1, nil, "2b26d3e8c52117e7 1c690dc9079ca801"},
		{"X3", repeat(4294967295, 16), 16, nil, "7d8b6f9b721bb4ad"},
		{"X4", repeat(0, 128), 64, nil, "d6d50d0ca8478ea1 527ef6137acbe067"},
		{"X5", span(0, 255), 64, nil, "304d910e689e42bf 23bd5ef232e90ecb d162d62e6cf437f2 df37f9ec76a257a5"},
		{"X6", span(0, 511), 256, nil, "bb79c83a0cdfbb76 a85c3e553a06b20d"},
		{"X7", span(0, 15), 16, parent(0), "cdd8222f77dddcaa"},
		{"no block size", span(0, 63), 0, nil, ""},
		{"negative block size", span(0, 63), -16, nil, ""},
		{"no tokens", nil, 16, nil, ""},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			var got []kv.Hash
			if v.parent == nil {
				got = Append(nil, v.tokens, v.blockSize)
			} else {
				got = AppendAfter(nil, *v.parent, v.tokens, v.blockSize)
			}
			if text := strings.Trim(fmt.Sprint(got), "[]"); text != v.want {
				t.Errorf("got %q, want %q", text, v.want)
			}
		})
	}
}

func TestWireFormIsBigEndian(t *testing.T) {
	t.Parallel()
	got := base64.StdEncoding.EncodeToString(Append(nil, span(1, 16), 16)[0].Bytes())
	if want := "6gb8caXubog="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSplitChainEqualsWholeChain(t *testing.T) {
	t.Parallel()
	// 600 is past the stack buffer: both paths must agree.
	for _, blockSize := range []int{1, 16, 256, 257, 600} {
		tokens := span(7, uint32(7+6*blockSize-1))
		whole := Append(nil, tokens, blockSize)
		split := Append(nil, tokens[:2*blockSize], blockSize)
		split = AppendAfter(split, split[1], tokens[2*blockSize:], blockSize)
		if fmt.Sprint(whole) != fmt.Sprint(split) || len(whole) != 6 {
			t.Errorf("block size %d: whole %v, split %v", blockSize, whole, split)
		}
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	tokens, dst := span(0, 16383), make([]kv.Hash, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { dst = Append(dst[:0], tokens, 16) }); n != 0 {
		t.Errorf("%v allocations for 1,024 blocks", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	tokens, dst := span(0, 16383), make([]kv.Hash, 0, 1024)
	b.SetBytes(4 * 16384)
	b.ReportAllocs()
	for b.Loop() {
		dst = Append(dst[:0], tokens, 16)
	}
}
