package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// call sends a request to e's handler and returns status and body.
func call(t *testing.T, e *Engine, method, path, body string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// answer is call for a JSON answer with status 200.
func answer[T any](t *testing.T, e *Engine, method, path, body string) (value T) {
	t.Helper()
	status, text := call(t, e, method, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%s %s: %v in %s", method, path, err, text)
	}
	return value
}

type usageAnswer struct {
	Object  string
	Choices []struct {
		Text    string
		Message struct{ Content string }
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func TestTextTokensAndMessagesAreTheSamePrompt(t *testing.T) {
	e := newTestEngine(quick())
	f := func(path, body string, prompt, cached, completion int) usageAnswer {
		t.Helper()
		got := answer[usageAnswer](t, e, "POST", path, body)
		u := got.Usage
		if u.Prompt != prompt || u.Details.Cached != cached || u.Completion != completion || u.Total != prompt+completion {
			t.Errorf("%s: usage %+v", body, u)
		}
		return got
	}
	half := strings.Repeat("a", 20)
	first := f("/v1/completions", `{"model":"sim","prompt":"`+half+half+`"}`, 40, 0, 16)
	if len(first.Choices) != 1 || len(first.Choices[0].Text) != 16 || first.Object != "text_completion" {
		t.Errorf("answer %+v", first)
	}
	ids, _ := json.Marshal(text('a', 40))
	f("/v1/completions", `{"prompt":`+string(ids)+`,"max_tokens":1}`, 40, 32, 1)
	chat := f("/v1/chat/completions", `{"messages":[{"role":"system","content":"`+half+`"},
		{"role":"user","content":[{"type":"text","text":"`+half+`"}]}],"max_completion_tokens":2}`, 40, 32, 2)
	if chat.Object != "chat.completion" || len(chat.Choices[0].Message.Content) != 2 {
		t.Errorf("answer %+v", chat)
	}
	if e.State().HeldBlocks != 2 {
		t.Errorf("holds %d blocks", e.State().HeldBlocks)
	}
}

func TestTokenizeAgreesWithTheChatTemplate(t *testing.T) {
	e := newTestEngine(quick())
	type tokenized struct {
		Tokens      []uint32
		Count       int
		MaxModelLen int `json:"max_model_len"`
		TokenStrs   any `json:"token_strs"`
	}
	want := tokenized{Tokens: []uint32{'h', 0xc3, 0xa9, '!'}, Count: 4, MaxModelLen: 4096 * 16}
	for _, body := range []string{
		`{"prompt":"hé!"}`,
		`{"model":"sim","messages":[{"role":"user","content":"h"},{"role":"user","content":"é!"}],"add_generation_prompt":true}`,
	} {
		if diff := cmp.Diff(want, answer[tokenized](t, e, "POST", "/tokenize", body)); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}

func TestBadRequestsAreExplained(t *testing.T) {
	small := quick()
	small.Blocks = 2
	e := newTestEngine(small)
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"/v1/completions", `{"model":"other","prompt":"x"}`, 404, "The model `other` does not exist."},
		{"/v1/completions", `{"prompt":`, 400, "not valid JSON"},
		{"/v1/completions", `{"prompt":["x","y"]}`, 400, "one string or one list of token ids"},
		{"/v1/completions", `{"prompt":[1,-2]}`, 400, "one string or one list of token ids"},
		{"/v1/completions", `{"prompt":""}`, 400, "the prompt is empty"},
		{"/v1/completions", `{}`, 400, "the prompt is empty"},
		{"/v1/completions", `{"prompt":"x","stream":true}`, 400, "does not stream"},
		{"/v1/completions", `{"prompt":"x","max_tokens":0}`, 400, "max_tokens must be from 1"},
		{"/v1/completions", `{"prompt":"` + strings.Repeat("x", 33) + `"}`, 400, "the prompt has 33 tokens, the cache holds 32 (2 blocks of 16)"},
		{"/v1/completions", `"` + strings.Repeat("x", maxBody) + `"`, 413, "larger than 8388608 bytes"},
		{"/v1/chat/completions", `{"messages":[{"content":[{"type":"image_url"}]}]}`, 400, `content part of type "image_url"`},
		{"/tokenize", `{}`, 400, "either prompt or messages"},
		{"/tokenize", `{"model":"other","prompt":"x"}`, 404, "does not exist"},
		{"/sim/fault?kind=flood", "", 400, "use one of badframes, clear, drop, duplicate"},
		{"/sim/fault?kind=drop&n=0", "", 400, "n must be a number from 1"},
		{"/sim/fault?kind=stall&for=soon", "", 400, "for must be a duration"},
	} {
		status, body := call(t, e, "POST", c.path, c.body)
		var problem struct {
			Error struct {
				Message string
				Code    int
			}
		}
		if err := json.Unmarshal([]byte(body), &problem); err != nil {
			t.Errorf("%s: %v in %s", c.path, err, body)
		}
		if status != c.status || problem.Error.Code != c.status || !strings.Contains(problem.Error.Message, c.says) {
			t.Errorf("%s %.60s: %d %s", c.path, c.body, status, body)
		}
	}
	if s := e.State(); s.HeldBlocks != 0 || s.NextSequence != 0 {
		t.Errorf("a bad request left its mark: %+v", s)
	}
}

func TestFaultsOverHTTP(t *testing.T) {
	e := newTestEngine(quick())
	_, _ = e.Complete(t.Context(), text('a', 64), 1)
	f := func(path, want string) {
		t.Helper()
		got := answer[any](t, e, "POST", path, "")
		var wanted any
		_ = json.Unmarshal([]byte(want), &wanted)
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	f("/sim/fault?kind=evict&n=3", `{"kind":"evict","evicted":3}`)
	f("/sim/fault?kind=evict&n=3", `{"kind":"evict","evicted":1}`)
	f("/sim/fault?kind=drop&n=2", `{"kind":"drop","n":2}`)
	f("/sim/fault?kind=drop", `{"kind":"drop","n":1}`)
	f("/sim/fault?kind=truncate&n=2", `{"kind":"truncate","n":2}`)
	f("/sim/fault?kind=stall&for=2s", `{"kind":"stall","for":"2s"}`)
	f("/sim/fault?kind=seed", `{"kind":"seed"}`)
	f("/sim/fault?kind=clear", `{"kind":"clear","success":true}`)
	f("/reset_prefix_cache", `{"success":true}`)
	want := []eventKind{blockStored, blockRemoved, blockRemoved, blockRemoved, blockRemoved, allBlocksCleared, allBlocksCleared}
	if e.current().feed.onLive.drop != 1 || !slices.Equal(kinds(published(e)), want) {
		t.Errorf("%d of 3 drops left after two batches", e.current().feed.onLive.drop)
	}
	f("/sim/fault?kind=restart", `{"kind":"restart"}`)
	if s := answer[State](t, e, "GET", "/sim/state", ""); s.Restarts != 1 || s.NextSequence != 0 || s.Name != "sim" {
		t.Errorf("state %+v", s)
	}
}

func TestEveryFaultHasAKind(t *testing.T) {
	e := newTestEngine(quick())
	kinds := FaultKinds()
	if !slices.IsSorted(kinds) || len(slices.Compact(slices.Clone(kinds))) != len(kinds) {
		t.Errorf("kinds %q", kinds)
	}
	for _, kind := range kinds {
		got := answer[map[string]any](t, e, "POST", "/sim/fault?n=2&for=1ms&text=busy&kind="+kind, "")
		if got["kind"] != kind {
			t.Errorf("%s answers %v", kind, got)
		}
		f := e.current().feed
		set := map[string]bool{
			"drop":           f.onLive.drop == 2,
			"duplicate":      f.onLive.duplicate > 0,
			"reorder":        f.onLive.reorder,
			"hole":           f.onReplay.hole == 2,
			"empty":          f.onReplay.empty,
			"refuse":         f.onReplay.refuse == 2,
			"truncate":       f.onReplay.cut && f.onReplay.keep == 2,
			"skip":           f.overflow == 2,
			"stall":          len(f.stalls) == 1,
			"snapshot-error": f.refusal == "busy",
			"restart":        e.State().Restarts == 1,
		}
		if done, ok := set[kind]; ok && !done {
			t.Errorf("%s did nothing", kind)
		}
	}
}

func TestMetricsHaveTheNamesOfVLLM(t *testing.T) {
	cfg := quick()
	cfg.Model, cfg.Blocks = `org/"sim"`, 10
	e := newTestEngine(cfg)
	for range 2 {
		_, _ = e.Complete(t.Context(), text('a', 40), 5)
	}
	l, _, _ := e.current().cache.allocate([]blockHash{7}, 2) // a request that runs
	defer e.current().cache.release(l)
	status, got := call(t, e, "GET", "/metrics", "")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	label := `{engine="0",model_name="org/\"sim\""}`
	for name, value := range map[string]string{
		"vllm:num_requests_running" + label:       "0",
		"vllm:num_requests_waiting" + label:       "0",
		"vllm:kv_cache_usage_perc" + label:        "0.2",
		"vllm:prefix_cache_queries_total" + label: "80",
		"vllm:prefix_cache_hits_total" + label:    "32",
		"vllm:prompt_tokens_total" + label:        "80",
		"vllm:generation_tokens_total" + label:    "10",
		`vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",model_name="org/\"sim\"",num_gpu_blocks="10"}`: "1.0",
		"process_start_time_seconds": fmt.Sprintf("%.3f", float64(e.current().born.UnixMilli())/1e3),
	} {
		if !strings.Contains(got, "\n"+name+" "+value+"\n") {
			t.Errorf("no %s %s in\n%s", name, value, got)
		}
	}
}

func TestServesOverTCP(t *testing.T) {
	e := start(t, quick())
	for _, path := range []string{"/health", "/v1/models", "/metrics", "/sim/state"} {
		response, err := http.Get(e.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %v", path, response.StatusCode, err)
		}
	}
}
