package roles

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

const (
	gatewayTimeout = 30 * time.Second
	// elsewhere is the share of prompts that a gateway sends where it likes: here,
	// so that every engine gets some.
	elsewhere = 0.25
	// prefixRepeats makes shared prefixes of some 1,200 tokens of a byte each.
	prefixRepeats = 12
)

// gateway is one in miniature, for --sim-load: it asks who should get a prompt,
// sends it there, and reports what the engine found in its cache.
type gateway struct {
	tenant, model string
	engines       []string // base URLs, by number
	names         []string // replicas, likewise
	server        inferencecachev1alpha1connect.InferenceCacheClient
	http          *http.Client
	random        *rand.Rand
}

func newGateway(engines []attached, inside connect.HTTPClient, url string) *gateway {
	g := &gateway{
		server: inferencecachev1alpha1connect.NewInferenceCacheClient(inside, url),
		http:   &http.Client{Timeout: gatewayTimeout},
		random: rand.New(rand.NewPCG(rand.Uint64(), 0)),
	}
	for _, e := range engines {
		g.tenant, g.model = e.config.TenantID, e.config.ModelID
		g.engines, g.names = append(g.engines, e.config.EngineURL), append(g.names, e.config.ReplicaID)
	}
	return g
}

// run sends prompts at a rate until ctx ends, each while others are under way.
func (g *gateway) run(ctx context.Context, perSecond float64) error {
	const most = 64 // under way
	seats := make(chan struct{}, most)
	defer func() { // until the last is back
		for range most {
			seats <- struct{}{}
		}
		g.http.CloseIdleConnections()
	}()
	for {
		pause := time.Duration(g.random.ExpFloat64() / perSecond * float64(time.Second))
		prompt, stray := g.prompt(), -1
		if g.random.Float64() < elsewhere {
			stray = g.random.IntN(len(g.engines))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		select {
		case seats <- struct{}{}:
		default:
			continue // the engines do not keep up
		}
		go func() {
			defer func() { <-seats }()
			g.serve(ctx, prompt, stray)
		}()
	}
}

// prompt is one of a few system prompts, some often and some seldom, with a
// question of its own.
func (g *gateway) prompt() string {
	kind := min(g.random.IntN(6), g.random.IntN(6))
	system := strings.Repeat(fmt.Sprintf("You are assistant number %d of a travel agency. Name prices and days, and be brief about it. ", kind), prefixRepeats)
	return fmt.Sprintf("%sQuestion %d: where is it warm in month %d?", system, g.random.IntN(1000), g.random.IntN(12)+1)
}

// serve is one request from question to outcome. What fails is the engine's or
// the server's to show, so it is not said here.
func (g *gateway) serve(ctx context.Context, prompt string, stray int) {
	answer, err := g.server.LookupRoute(ctx, &pb.LookupRouteRequest{TenantId: g.tenant, ModelId: g.model, HashScheme: "vllm", PromptText: prompt})
	to := stray
	if err == nil && to < 0 {
		to = g.named(answer)
	}
	if to < 0 {
		to = rand.IntN(len(g.engines))
	}
	cached, ok := g.complete(ctx, g.engines[to], prompt)
	if err == nil && ok {
		_, _ = g.server.ReportOutcome(ctx, &pb.Outcome{RequestId: answer.GetRequestId(), ReplicaId: g.names[to], CachedTokens: cached})
	}
}

// named is the number of the engine that the answer puts first; -1: none.
func (g *gateway) named(answer *pb.LookupRouteResponse) int {
	for _, score := range answer.GetReplicaScores() {
		for i, name := range g.names {
			if name == score.GetReplicaId() {
				return i
			}
		}
	}
	return -1
}

// complete sends the prompt to an engine; cached is what it had of it, in tokens.
func (g *gateway) complete(ctx context.Context, engine, prompt string) (cached int32, ok bool) {
	body, err := json.Marshal(map[string]any{"model": g.model, "prompt": prompt, "max_tokens": 8})
	if err != nil {
		return 0, false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, engine+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, false
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := g.http.Do(request)
	if err != nil {
		return 0, false
	}
	defer response.Body.Close()
	var completion struct {
		Usage struct {
			Details struct {
				Cached int32 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if response.StatusCode != http.StatusOK || json.NewDecoder(response.Body).Decode(&completion) != nil {
		return 0, false
	}
	return completion.Usage.Details.Cached, true
}
