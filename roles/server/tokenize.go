package server

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// tokenizer turns prompt_text into token ids by asking a live engine of the
// model: the engine's own tokenizer and chat template cannot disagree with
// what it serves. Answers are cached by text; nothing of them is logged.
type tokenizer struct {
	replicas *replicas
	client   *http.Client
	places   chan struct{} // bounds concurrency; a full house fails at once
	maxBody  int64

	mu     sync.Mutex // guards what follows
	size   int        // bytes held
	limit  int
	recent *list.List // of *tokenized, most recent first
	by     map[[sha256.Size]byte]*list.Element
}

type tokenized struct {
	key    [sha256.Size]byte
	tokens []uint32
}

// entryOverhead is what a cached prompt costs besides its tokens, in bytes.
const entryOverhead = 256

// maxEngines is how many engines are asked before a prompt is given up.
const maxEngines = 2

var (
	errSaturated = errors.New("too many prompts are being tokenized")
	errNoEngine  = errors.New("no engine of the model reported an address")
)

func newTokenizer(c Config, r *replicas) *tokenizer {
	return &tokenizer{
		replicas: r,
		client: &http.Client{
			Timeout: c.TokenizeTimeout,
			// An engine has no reason to send us elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		places:  make(chan struct{}, c.MaxTokenizations),
		maxBody: int64(c.MaxTokens)*12 + 1<<16, // digits and a comma each
		limit:   c.TokenCacheBytes,
		recent:  list.New(),
		by:      map[[sha256.Size]byte]*list.Element{},
	}
}

// tokenize returns the token ids of text as one user message with the
// generation prompt appended. The slice is shared: do not change it.
func (t *tokenizer) tokenize(ctx context.Context, tenant, model, text string) ([]uint32, error) {
	key := cacheKey(tenant, model, text)
	if tokens, ok := t.cached(key); ok {
		return tokens, nil
	}
	select {
	case t.places <- struct{}{}:
		defer func() { <-t.places }()
	default:
		return nil, errSaturated
	}
	err := errNoEngine
	for i, base := range t.replicas.engines(tenant, model) {
		if i == maxEngines || ctx.Err() != nil {
			break
		}
		var tokens []uint32
		if tokens, err = t.ask(ctx, base, model, text); err == nil {
			t.keep(key, tokens)
			return tokens, nil
		}
	}
	return nil, err
}

// cacheKey lays lengths between the parts, so that no two differ only in
// where one ends.
func cacheKey(parts ...string) (key [sha256.Size]byte) {
	hash := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(hash, "%d:", len(part))
		_, _ = io.WriteString(hash, part)
	}
	hash.Sum(key[:0])
	return key
}

// ask speaks vLLM's and SGLang's POST /tokenize. An SGLang too old to take
// messages answers with an error, and the lookup fails open.
func (t *tokenizer) ask(ctx context.Context, base, model, text string) ([]uint32, error) {
	address, err := url.Parse(base)
	if err != nil || address.Scheme != "http" && address.Scheme != "https" {
		return nil, fmt.Errorf("engine address %q is not an http URL", base)
	}
	body, err := json.Marshal(map[string]any{
		"model":                 model,
		"messages":              []map[string]string{{"role": "user", "content": text}},
		"add_generation_prompt": true,
	})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(base, "/")+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := t.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("engine %s answered /tokenize with %s", base, response.Status)
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, t.maxBody)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("decode /tokenize of %s: %w", base, err)
	}
	return answer.Tokens, nil
}

func (t *tokenizer) cached(key [sha256.Size]byte) ([]uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.by[key]
	if !ok {
		return nil, false
	}
	t.recent.MoveToFront(e)
	return e.Value.(*tokenized).tokens, true
}

func (t *tokenizer) keep(key [sha256.Size]byte, tokens []uint32) {
	cost := 4*len(tokens) + entryOverhead
	if cost > t.limit {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.by[key]; ok {
		return
	}
	for t.size+cost > t.limit {
		oldest := t.recent.Remove(t.recent.Back()).(*tokenized)
		delete(t.by, oldest.key)
		t.size -= 4*len(oldest.tokens) + entryOverhead
	}
	t.by[key] = t.recent.PushFront(&tokenized{key, tokens})
	t.size += cost
}

// close lets go of idle connections to engines.
func (t *tokenizer) close() { t.client.CloseIdleConnections() }
