package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
)

// maxBody bounds a request body, in bytes.
const maxBody = 8 << 20

// Handler is the HTTP API: what vLLM has, and /sim for faults and state.
func (e *Engine) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", e.serveCompletion)
	mux.HandleFunc("POST /v1/chat/completions", e.serveChat)
	mux.HandleFunc("POST /tokenize", e.serveTokenize)
	mux.HandleFunc("GET /v1/models", e.serveModels)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /metrics", e.serveMetrics)
	mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		// vLLM asks every rank, and answers 200 even if one refuses.
		success := true
		for _, r := range e.ranks {
			success = r.Clear() && success
		}
		reply(w, map[string]bool{"success": success})
	})
	if !e.cfg.NoDiscovery && !e.cfg.NoEvents {
		mux.HandleFunc("GET /kv_event_sources", e.serveSources)
	}
	if e.cfg.Epoch {
		mux.HandleFunc("GET /server_info", e.serveServerInfo)
	}
	mux.HandleFunc("POST /sim/fault", e.serveFault)
	mux.HandleFunc("GET /sim/state", e.serveState)
	return mux
}

// serveState is GET /sim/state, with rank=N (0).
func (e *Engine) serveState(w http.ResponseWriter, r *http.Request) {
	rank, err := e.rankOf(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, "rank", err.Error())
		return
	}
	reply(w, rank.State())
}

// decode reads a JSON body into request; if it cannot, it answers and returns
// false. Fields that request does not have are ignored, as vLLM does.
func decode(w http.ResponseWriter, r *http.Request, request any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		fail(w, http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit))
		return false
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "", "cannot read the body: "+err.Error())
		return false
	}
	if err := json.Unmarshal(body, request); err != nil {
		fail(w, http.StatusBadRequest, "", "the body is not valid JSON for this request: "+err.Error())
		return false
	}
	return true
}

// serves answers 404 and returns false unless model is empty, the served one or
// an adapter.
func (e *Engine) serves(w http.ResponseWriter, model string) bool {
	if model == "" || model == e.cfg.Model || slices.Contains(e.cfg.LoRA, model) {
		return true
	}
	fail(w, http.StatusNotFound, "model", fmt.Sprintf("The model `%s` does not exist.", model))
	return false
}

// rankHeader names the rank that is to serve a request.
const rankHeader = "X-data-parallel-rank"

// rankFor is the rank that r names, or the least loaded one. Like vLLM it
// ignores what is no number and refuses a rank that does not exist: then it
// answers and returns nil.
func (e *Engine) rankFor(w http.ResponseWriter, r *http.Request) *Rank {
	n, err := strconv.Atoi(r.Header.Get(rankHeader))
	switch {
	case err != nil:
		return e.leastLoaded()
	case n < 0 || n >= len(e.ranks):
		fail(w, http.StatusBadRequest, "", fmt.Sprintf("data_parallel_rank %d is out of range [0, %d).", n, len(e.ranks)))
		return nil
	}
	return e.ranks[n]
}

// failCompletion maps an error of Serve to an answer.
func failCompletion(w http.ResponseWriter, err error) {
	prompt := (*PromptError)(nil)
	switch {
	case errors.As(err, &prompt):
		fail(w, http.StatusBadRequest, "prompt", err.Error())
	case errors.Is(err, ErrRestarted), errors.Is(err, ErrAsleep):
		fail(w, http.StatusServiceUnavailable, "", err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// The client is gone, or the engine stops; either way nobody may read it.
		fail(w, http.StatusServiceUnavailable, "", "the request was cancelled")
	default:
		fail(w, http.StatusInternalServerError, "", err.Error())
	}
}

// fail answers with an error in OpenAI's shape; param names what is wrong, or
// is empty.
func fail(w http.ResponseWriter, status int, param, message string) {
	kinds := map[int]string{
		http.StatusBadRequest:            "BadRequestError",
		http.StatusNotFound:              "NotFoundError",
		http.StatusRequestEntityTooLarge: "BadRequestError",
		http.StatusServiceUnavailable:    "ServiceUnavailableError",
	}
	kind, ok := kinds[status]
	if !ok {
		kind = "InternalServerError"
	}
	problem := map[string]any{"message": message, "type": kind, "param": nil, "code": status}
	if param != "" {
		problem["param"] = param
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": problem}) // the client is gone if this fails
}

func reply(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client is gone if this fails
}
