package server

import (
	"context"

	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/rank"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// input is what a request asks about: a chain of keys, one exact key, or
// nothing. Exactly one source of the request wins.
type input struct {
	keys   []kv.Hash
	chain  bool
	counts []int32  // tokens of each key of a chain; nil: step each
	step   int32    // tokens of each key where counts is nil
	wire   [][]byte // keys as the client sent them, if it sent them one by one
	tokens int64    // covered by the input, for the minimum-prefix gate
	echo   []uint32 // set when the server tokenized prompt_text itself
}

// Why an input was refused: the label of a metric, so a fixed set.
const (
	refusedMismatch  = "mismatched_chain"
	refusedEmptyKey  = "empty_key"
	refusedOversized = "oversized"
	refusedSubBlock  = "sub_block"
	refusedChainOff  = "chain_matching_disabled"
	refusedTokenizer = "tokenizer"
)

var refusals = []string{refusedMismatch, refusedEmptyKey, refusedOversized, refusedSubBlock, refusedChainOff, refusedTokenizer}

// covered is the number of tokens in the first blocks keys of a chain.
func (in *input) covered(blocks int) int32 {
	if in.counts == nil {
		return clampInt32(int64(blocks) * int64(in.step))
	}
	return clampInt32(sum(in.counts[:blocks]))
}

// last is the tokens of a chain's last block, which engines compute in any case:
// they need what follows it. 0 if there is no chain.
func (in *input) last() int32 {
	switch n := len(in.keys); {
	case !in.chain || n == 0:
		return 0
	case in.counts != nil:
		return in.counts[n-1]
	}
	return in.step
}

func sum(counts []int32) (total int64) {
	for _, c := range counts {
		total += int64(c)
	}
	return total
}

// seed is what an affinity pick hashes; the input is not empty.
func (in *input) seed() rank.Seed {
	seed := rank.NewSeed()
	switch {
	case in.chain && in.wire != nil:
		for _, key := range in.wire {
			seed.Key(key)
		}
	case in.chain:
		var key [kv.HashSize]byte
		for _, hash := range in.keys {
			seed.Key(hash.Append(key[:0]))
		}
	case in.wire != nil:
		seed.Raw(in.wire[0])
	default:
		seed.Raw(in.keys[0].Bytes())
	}
	return seed
}

// hasWireChain reports whether the request itself carries a well-formed chain.
func (l *lookup) hasWireChain() bool {
	r := l.request
	if packed := r.GetPackedHashes(); len(packed) > 0 {
		return len(packed)%kv.HashSize == 0 && r.GetPackedBlockSize() > 0 && len(r.GetBlockHashes()) == 0
	}
	return len(r.GetBlockHashes()) > 0 && len(r.GetBlockHashes()) == len(r.GetBlockTokenCounts())
}

// carriesChain reports whether any chain field is set, well-formed or not.
func carriesChain(r *pb.LookupRouteRequest) bool {
	return len(r.GetBlockHashes()) > 0 || len(r.GetBlockTokenCounts()) > 0 || len(r.GetPackedHashes()) > 0
}

// wantsTokenizing reports whether prompt_text will be the effective input.
func (l *lookup) wantsTokenizing() bool {
	r := l.request
	return r.GetPromptText() != "" && len(r.GetPrefixHash()) == 0 && len(r.GetTokenIds()) == 0 &&
		(!carriesChain(r) || !l.policy.ChainMatching)
}

// resolve fills l.input. It returns why the request cannot be used, or "".
func (l *lookup) resolve(ctx context.Context) (refused string) {
	r := l.request
	switch {
	case len(r.GetPrefixHash()) > 0 && (!carriesChain(r) || !l.policy.ChainMatching):
		l.exact(r.GetPrefixHash())
		return ""
	case carriesChain(r) && l.policy.ChainMatching:
		return l.wireChain()
	case len(r.GetTokenIds()) > 0:
		return l.fromTokens(r.GetTokenIds())
	case r.GetPromptText() != "":
		return l.fromText(ctx, r.GetPromptText())
	case carriesChain(r):
		return refusedChainOff
	}
	return ""
}

func (l *lookup) exact(key []byte) {
	l.keys = append(l.keys[:0], l.server.index.Key(key))
	l.input.keys = l.keys
	l.input.wire = [][]byte{key}
	l.input.tokens = int64(l.request.GetPrefixTokenCount())
}

func (l *lookup) wireChain() string {
	r, in := l.request, &l.input
	if packed := r.GetPackedHashes(); len(packed) > 0 {
		if !l.hasWireChain() || len(r.GetBlockTokenCounts()) > 0 {
			return refusedMismatch
		}
		if len(packed)/kv.HashSize > l.server.config.MaxBlocks {
			return refusedOversized
		}
		l.keys, _ = kv.Unpack(l.keys[:0], packed)
		in.keys, in.chain, in.step = l.keys, true, r.GetPackedBlockSize()
		in.tokens = int64(len(l.keys)) * int64(in.step)
		return ""
	}
	hashes, counts := r.GetBlockHashes(), r.GetBlockTokenCounts()
	if len(hashes) != len(counts) {
		return refusedMismatch
	}
	if len(hashes) > l.server.config.MaxBlocks {
		return refusedOversized
	}
	l.keys = l.keys[:0]
	for _, hash := range hashes {
		if len(hash) == 0 {
			return refusedEmptyKey
		}
		l.keys = append(l.keys, l.server.index.Key(hash))
	}
	in.keys, in.chain, in.counts, in.wire = l.keys, true, counts, hashes
	in.tokens = sum(counts)
	return ""
}

// fromTokens makes the chain that producers make of the same tokens. With
// chain matching off only its last key is asked for.
func (l *lookup) fromTokens(tokens []uint32) string {
	size := l.server.config.EngineBlockSize
	if len(tokens) > l.server.config.MaxTokens {
		return refusedOversized
	}
	l.keys = fingerprint.Append(l.keys[:0], tokens, size)
	if len(l.keys) == 0 {
		return refusedSubBlock
	}
	in := &l.input
	if !l.policy.ChainMatching {
		in.keys, in.tokens = l.keys[len(l.keys)-1:], int64(len(tokens))
		return ""
	}
	in.keys, in.chain, in.step = l.keys, true, int32(size)
	in.tokens = int64(len(l.keys)) * int64(size)
	return ""
}

func (l *lookup) fromText(ctx context.Context, text string) string {
	s := l.server
	if len(text) > s.config.MaxPromptBytes {
		return refusedOversized
	}
	if s.tokens == nil {
		return refusedTokenizer
	}
	tokens, err := s.tokens.tokenize(ctx, l.at.Tenant, l.at.Model, text)
	if err != nil || len(tokens) == 0 || len(tokens) > s.config.MaxTokens {
		return refusedTokenizer
	}
	l.input.echo = tokens
	return l.fromTokens(tokens)
}
