package sim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// maxCompletion bounds max_tokens.
const maxCompletion = 1 << 17

// filler is what completions are cut from.
const filler = "the cache remembers what it has read. "

// Tokens is the tokenizer of every simulated engine: one token per byte of
// UTF-8, with the byte as its id.
func Tokens(text string) []uint32 {
	tokens := make([]uint32, len(text))
	for i := range len(text) {
		tokens[i] = uint32(text[i])
	}
	return tokens
}

// prompt is a text or a list of token ids, which may be any 32-bit numbers.
type prompt []uint32

func (p *prompt) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*p = Tokens(text)
		return nil
	}
	if json.Unmarshal(data, (*[]uint32)(p)) == nil {
		return nil
	}
	return errors.New("prompt must be one string or one list of token ids from 0 to 4294967295")
}

// content is a message's text: a string, or a list of text parts.
type content string

func (c *content) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*string)(c)) == nil {
		return nil
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal(data, &parts) != nil {
		return errors.New("content must be a string or a list of text parts")
	}
	for _, part := range parts {
		if part.Type != "text" {
			return fmt.Errorf("content part of type %q: only text is simulated", part.Type)
		}
		*c += content(part.Text)
	}
	return nil
}

type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// render is the chat template: the contents, end to end.
func render(messages []message) []uint32 {
	var text strings.Builder
	for _, m := range messages {
		text.WriteString(string(m.Content))
	}
	return Tokens(text.String())
}

// generation is what both kinds of completion request have in common.
type generation struct {
	Model     string  `json:"model"` // or an adapter
	MaxTokens *int    `json:"max_tokens"`
	Stream    bool    `json:"stream"`
	CacheSalt *string `json:"cache_salt"`
}

// request checks g and puts it together with its prompt; if it cannot, it
// answers and returns false.
func (e *Engine) request(w http.ResponseWriter, g generation, tokens []uint32) (request Request, ok bool) {
	if !e.serves(w, g.Model) {
		return Request{}, false
	}
	if g.Stream {
		fail(w, http.StatusBadRequest, "stream", "the simulated engine does not stream: leave stream out or false")
		return Request{}, false
	}
	request = Request{Tokens: tokens, MaxTokens: e.cfg.MaxTokens}
	if g.MaxTokens != nil {
		request.MaxTokens = *g.MaxTokens
	}
	if request.MaxTokens < 1 || request.MaxTokens > maxCompletion {
		fail(w, http.StatusBadRequest, "max_tokens",
			fmt.Sprintf("max_tokens must be from 1 to %d, got %d", maxCompletion, request.MaxTokens))
		return Request{}, false
	}
	if g.CacheSalt != nil {
		if request.Salt = *g.CacheSalt; request.Salt == "" {
			fail(w, http.StatusBadRequest, "cache_salt", "cache_salt must be a non-empty string if it is given")
			return Request{}, false
		}
	}
	if g.Model != e.cfg.Model {
		request.Adapter = g.Model
	}
	return request, true
}

func (e *Engine) serveCompletion(w http.ResponseWriter, r *http.Request) {
	var request struct {
		generation
		Prompt prompt `json:"prompt"`
	}
	if !decode(w, r, &request) {
		return
	}
	e.serveGeneration(w, r, request.generation, request.Prompt, "cmpl", "text_completion", func(text string) any {
		return map[string]any{"index": 0, "text": text, "logprobs": nil, "finish_reason": "length"}
	})
}

func (e *Engine) serveChat(w http.ResponseWriter, r *http.Request) {
	var request struct {
		generation
		MaxCompletionTokens *int      `json:"max_completion_tokens"`
		Messages            []message `json:"messages"`
	}
	if !decode(w, r, &request) {
		return
	}
	if request.MaxCompletionTokens != nil {
		request.MaxTokens = request.MaxCompletionTokens
	}
	e.serveGeneration(w, r, request.generation, render(request.Messages), "chatcmpl", "chat.completion", func(text string) any {
		reply := map[string]any{"role": "assistant", "content": text}
		return map[string]any{"index": 0, "message": reply, "logprobs": nil, "finish_reason": "length"}
	})
}

// serveGeneration runs a request and answers in vLLM's shape; choice wraps the
// generated text.
func (e *Engine) serveGeneration(w http.ResponseWriter, r *http.Request, g generation, tokens []uint32,
	prefix, object string, choice func(text string) any,
) {
	request, ok := e.request(w, g, tokens)
	if !ok {
		return
	}
	rank := e.rankFor(w, r)
	if rank == nil {
		return
	}
	usage, err := rank.Serve(r.Context(), request)
	if err != nil {
		failCompletion(w, err)
		return
	}
	reply(w, map[string]any{
		"id":      fmt.Sprintf("%s-%d", prefix, e.answers.Add(1)),
		"object":  object,
		"created": time.Now().Unix(),
		"model":   cmp.Or(request.Adapter, e.cfg.Model),
		"choices": []any{choice(strings.Repeat(filler, request.MaxTokens/len(filler)+1)[:request.MaxTokens])},
		"usage": map[string]any{
			"prompt_tokens":         usage.Prompt,
			"completion_tokens":     usage.Completion,
			"total_tokens":          usage.Prompt + usage.Completion,
			"prompt_tokens_details": map[string]int{"cached_tokens": usage.Cached},
		},
	})
}

// serveTokenize is POST /tokenize of vLLM. add_generation_prompt and
// add_special_tokens change nothing here: this tokenizer has neither.
func (e *Engine) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Model    string    `json:"model"`
		Prompt   *string   `json:"prompt"`
		Messages []message `json:"messages"`
	}
	if !decode(w, r, &request) || !e.serves(w, request.Model) {
		return
	}
	if (request.Prompt == nil) == (request.Messages == nil) {
		fail(w, http.StatusBadRequest, "", "give either prompt or messages")
		return
	}
	tokens := render(request.Messages)
	if request.Prompt != nil {
		tokens = Tokens(*request.Prompt)
	}
	reply(w, map[string]any{
		"tokens":        tokens,
		"count":         len(tokens),
		"max_model_len": e.cfg.contextLength(),
		"token_strs":    nil,
	})
}

// serveModels is GET /v1/models: the model, then its adapters.
func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	card := func(id string, parent, length any) any {
		return map[string]any{
			"id":            id,
			"object":        "model",
			"created":       e.current().born.Unix(),
			"owned_by":      "inferencecache",
			"root":          id,
			"parent":        parent,
			"max_model_len": length,
		}
	}
	cards := []any{card(e.cfg.Model, nil, e.cfg.contextLength())}
	for _, name := range e.cfg.LoRA {
		cards = append(cards, card(name, e.cfg.Model, nil))
	}
	reply(w, map[string]any{"object": "list", "data": cards})
}
