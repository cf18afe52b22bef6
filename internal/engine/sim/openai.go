package sim

import (
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
	Model     string `json:"model"`
	MaxTokens *int   `json:"max_tokens"`
	Stream    bool   `json:"stream"`
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
	if !e.serves(w, g.Model) {
		return
	}
	if g.Stream {
		fail(w, http.StatusBadRequest, "stream", "the simulated engine does not stream: leave stream out or false")
		return
	}
	maxTokens := e.cfg.MaxTokens
	if g.MaxTokens != nil {
		maxTokens = *g.MaxTokens
	}
	if maxTokens < 1 || maxTokens > maxCompletion {
		fail(w, http.StatusBadRequest, "max_tokens",
			fmt.Sprintf("max_tokens must be from 1 to %d, got %d", maxCompletion, maxTokens))
		return
	}
	usage, err := e.Complete(r.Context(), tokens, maxTokens)
	if err != nil {
		failCompletion(w, err)
		return
	}
	reply(w, map[string]any{
		"id":      fmt.Sprintf("%s-%d", prefix, e.answers.Add(1)),
		"object":  object,
		"created": time.Now().Unix(),
		"model":   e.cfg.Model,
		"choices": []any{choice(strings.Repeat(filler, maxTokens/len(filler)+1)[:maxTokens])},
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

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	model := map[string]any{
		"id":            e.cfg.Model,
		"object":        "model",
		"created":       e.current().born.Unix(),
		"owned_by":      "inferencecache",
		"root":          e.cfg.Model,
		"parent":        nil,
		"max_model_len": e.cfg.contextLength(),
	}
	reply(w, map[string]any{"object": "list", "data": []any{model}})
}
