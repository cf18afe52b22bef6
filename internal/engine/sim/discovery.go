package sim

import "net/http"

// kvEventSource is one element of vLLM's GET /kv_event_sources (PR 55844), a bare
// JSON array.
type kvEventSource struct {
	Rank     int     `json:"data_parallel_rank"`
	Endpoint string  `json:"endpoint"`
	Replay   *string `json:"replay_endpoint"`
	Topic    string  `json:"topic"`
}

func (e *Engine) serveSources(w http.ResponseWriter, _ *http.Request) {
	sources := make([]kvEventSource, 0, len(e.ranks))
	for _, r := range e.ranks {
		s := kvEventSource{Rank: r.number, Endpoint: r.EventsEndpoint(), Topic: e.cfg.Topic}
		if endpoint := r.ReplayEndpoint(); endpoint != "" {
			s.Replay = &endpoint
		}
		sources = append(sources, s)
	}
	reply(w, sources)
}

// serveServerInfo is GET /server_info of SGLang, as far as it is about events.
// It tells the port of rank 0 alone; the others follow it.
func (e *Engine) serveServerInfo(w http.ResponseWriter, _ *http.Request) {
	host, port := e.live.address()
	reply(w, map[string]any{"kv_events": map[string]any{
		"publisher":          "zmq",
		"endpoint_host":      host,
		"endpoint_port_base": port,
		"topic":              e.cfg.Topic,
		"block_size":         e.cfg.BlockSize,
		"dp_size":            len(e.ranks),
	}})
}
