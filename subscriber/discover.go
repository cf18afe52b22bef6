package subscriber

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

const (
	maxDiscoveryBytes = 1 << 20 // of an engine's answer
	maxEndpointText   = 512     // bytes of an endpoint and of a topic
)

// errNoDiscovery means that an engine does not tell where its ranks publish:
// an older version, or SGLang without KV events.
var errNoDiscovery = errors.New("engine does not tell its KV-event endpoints")

// discover asks an engine where its ranks publish and returns them in order of
// their rank. engineURL is the base of its HTTP API. The error is
// errNoDiscovery if the engine does not offer the answer.
func discover(ctx context.Context, client httpDoer, dialect, engineURL string) ([]endpoint, error) {
	ranks, err := askRanks(ctx, client, dialect, engineURL)
	if err != nil {
		return nil, fmt.Errorf("discover ranks: %w", err)
	}
	slices.SortFunc(ranks, func(a, b endpoint) int { return cmp.Compare(a.Rank, b.Rank) })
	for i := range ranks {
		if i > 0 && ranks[i].Rank == ranks[i-1].Rank {
			return nil, fmt.Errorf("discover ranks: rank %d is listed twice", ranks[i].Rank)
		}
		if len(ranks[i].Topic) > maxEndpointText {
			return nil, fmt.Errorf("discover ranks: topic of rank %d is above %d bytes", ranks[i].Rank, maxEndpointText)
		}
	}
	return ranks, nil
}

// askRanks picks the dialect's question. TensorRT-LLM has none: its rank r
// publishes on the configured port + r.
func askRanks(ctx context.Context, client httpDoer, dialect, engineURL string) ([]endpoint, error) {
	base, err := url.Parse(engineURL)
	if err != nil {
		return nil, err
	}
	if base.Hostname() == "" {
		return nil, fmt.Errorf("engine URL %q has no host", engineURL)
	}
	engineURL = strings.TrimRight(engineURL, "/")
	switch dialect {
	case vllm.Dialect.Name:
		var answer []vllmSource
		if err := getJSON(ctx, client, engineURL+"/kv_event_sources", &answer); err != nil {
			return nil, err
		}
		return vllmRanks(answer, base.Hostname())
	case sglang.Dialect.Name:
		var answer struct {
			Events *sglangEvents `json:"kv_events"`
		}
		if err := getJSON(ctx, client, engineURL+"/server_info", &answer); err != nil {
			return nil, err
		}
		return answer.Events.ranks(base.Hostname())
	}
	return nil, errNoDiscovery
}

// vllmSource is an element of vLLM's GET /kv_event_sources (pull request
// 55844): a bare array of the ranks that publish over ZeroMQ.
type vllmSource struct {
	Rank   *int   `json:"data_parallel_rank"`
	Events string `json:"endpoint"`
	Replay string `json:"replay_endpoint"` // null without replay
	Topic  string `json:"topic"`
}

func vllmRanks(sources []vllmSource, engineHost string) ([]endpoint, error) {
	if sources == nil {
		return nil, errNoDiscovery
	}
	if err := checkRanks(len(sources)); err != nil {
		return nil, err
	}
	ranks := make([]endpoint, 0, len(sources))
	for _, s := range sources {
		rank, err := dialledRank(s.Rank, s.Events, engineHost)
		if err != nil {
			return nil, err
		}
		rank.Topic = s.Topic
		if replay, err := dialable(s.Replay, engineHost); err == nil {
			rank.Replay = replay
		}
		ranks = append(ranks, rank)
	}
	return ranks, nil
}

// sglangEvents is kv_events of SGLang's GET /server_info (pull request 25844);
// it is null without KV events. Rank r publishes on PortBase + r of one host,
// unless Publishers (pull request 38032) names an endpoint for each rank, as
// it does when they live on several nodes. The replay port is not told.
type sglangEvents struct {
	Publisher  string `json:"publisher"`
	Host       string `json:"endpoint_host"`
	PortBase   int    `json:"endpoint_port_base"`
	Topic      string `json:"topic"`
	Ranks      *int   `json:"dp_size"` // absent: 1
	Publishers []struct {
		Rank   *int   `json:"dp_rank"`
		Events string `json:"endpoint"`
	} `json:"publishers"`
}

func (e *sglangEvents) ranks(engineHost string) ([]endpoint, error) {
	if e == nil {
		return nil, errNoDiscovery
	}
	if e.Publisher != "" && e.Publisher != "zmq" {
		return nil, fmt.Errorf("publisher %.100q is not known", e.Publisher)
	}
	if len(e.Publishers) == 0 {
		return e.consecutive(engineHost)
	}
	if err := checkRanks(len(e.Publishers)); err != nil {
		return nil, err
	}
	ranks := make([]endpoint, 0, len(e.Publishers))
	for _, p := range e.Publishers {
		rank, err := dialledRank(p.Rank, p.Events, engineHost)
		if err != nil {
			return nil, err
		}
		rank.Topic = e.Topic
		ranks = append(ranks, rank)
	}
	return ranks, nil
}

// consecutive are the ranks of one host, a port each.
func (e *sglangEvents) consecutive(engineHost string) ([]endpoint, error) {
	count := 1
	if e.Ranks != nil {
		count = *e.Ranks
	}
	if err := checkRanks(count); err != nil {
		return nil, err
	}
	host := strings.TrimSuffix(strings.TrimPrefix(e.Host, "["), "]")
	ranks := make([]endpoint, 0, count)
	for rank := range count {
		address, err := tcpEndpoint(host, e.PortBase+rank, engineHost)
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		ranks = append(ranks, endpoint{Rank: rank, Events: address, Topic: e.Topic})
	}
	return ranks, nil
}

func checkRanks(n int) error {
	if n < 1 {
		return errors.New("no rank publishes KV events")
	}
	if n > maxRanks {
		return fmt.Errorf("%d ranks, above %d", n, maxRanks)
	}
	return nil
}

// dialledRank is a rank with an endpoint as an engine names it.
func dialledRank(rank *int, events, engineHost string) (endpoint, error) {
	if rank == nil || *rank < 0 || *rank > maxRank {
		return endpoint{}, errors.New("an endpoint has no rank that can be")
	}
	address, err := dialable(events, engineHost)
	if err != nil {
		return endpoint{}, fmt.Errorf("rank %d: %w", *rank, err)
	}
	return endpoint{Rank: *rank, Events: address}, nil
}

// dialable turns tcp://host:port, which may be one to bind, into one to dial.
func dialable(address, engineHost string) (string, error) {
	if len(address) > maxEndpointText {
		return "", fmt.Errorf("endpoint is above %d bytes", maxEndpointText)
	}
	rest, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return "", fmt.Errorf("endpoint %q is not tcp://host:port", address)
	}
	host, portText, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", address, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", address, err)
	}
	return tcpEndpoint(host, port, engineHost)
}

// tcpEndpoint joins host and port; a host that stands for all of the engine's
// addresses becomes engineHost.
func tcpEndpoint(host string, port int, engineHost string) (string, error) {
	if port < 1 || port > 65535 {
		return "", fmt.Errorf("port %d is not one of 1 to 65535", port)
	}
	if slices.Contains([]string{"", "*", "0.0.0.0", "::"}, host) {
		host = engineHost
	}
	if strings.ContainsFunc(host, notInHost) {
		return "", fmt.Errorf("%.100q is not a host", host)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// notInHost reports whether r is in no name and no address, with its zone.
func notInHost(r rune) bool {
	letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	return !letter && !strings.ContainsRune(".-_:%", r)
}

// getJSON reads the answer to a GET into answer. Statuses that mean an unknown
// path are errNoDiscovery.
func getJSON(ctx context.Context, client httpDoer, address string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return errNoDiscovery
	default:
		return fmt.Errorf("%s: status %s", address, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDiscoveryBytes+1))
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	if len(body) > maxDiscoveryBytes {
		return fmt.Errorf("%s: answer above %d bytes", address, maxDiscoveryBytes)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s: %.200s", address, err) // the error may quote the answer
	}
	return nil
}
