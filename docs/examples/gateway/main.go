// Command gateway shows how a gateway in Go uses hints: it sends one prompt to
// the engine that the server names, or to any, and tells the server what became
// of it. docs/gateway.md explains it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	rpc "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// hintTime is what a request waits for a hint at most; then it goes without.
const hintTime = 10 * time.Millisecond

type gateway struct {
	hints   rpc.InferenceCacheClient // one for the life of the process: it keeps its connections
	engines map[string]string        // base URL by replica id
}

// choose returns the replica for a prompt, and what ReportOutcome knows the
// prompt by. It has an answer whatever becomes of the hint.
func (g *gateway) choose(ctx context.Context, tokens []uint32) (replica, request string) {
	ctx, cancel := context.WithTimeout(ctx, hintTime)
	defer cancel()
	answer, err := g.hints.LookupRoute(ctx, &pb.LookupRouteRequest{TenantId: "demo", ModelId: "sim", HashScheme: "vllm", TokenIds: tokens})
	if err == nil {
		for _, named := range answer.GetReplicaScores() { // best first
			if _, ok := g.engines[named.GetReplicaId()]; ok {
				return named.GetReplicaId(), answer.GetRequestId()
			}
		}
	}
	return g.anyone(), answer.GetRequestId()
}

// anyone is how requests were routed before there were hints.
func (g *gateway) anyone() (replica string) {
	skip := rand.IntN(len(g.engines))
	for replica = range g.engines {
		if skip--; skip < 0 {
			break
		}
	}
	return replica
}

// report tells what the engine found in its cache. Nobody waits for it.
func (g *gateway) report(ctx context.Context, request, replica string, said usage) error {
	if request == "" || said.Details == nil {
		return nil // nothing was ranked, or the engine does not say: zero would count against the replica
	}
	_, err := g.hints.ReportOutcome(ctx, &pb.Outcome{
		RequestId: request, ReplicaId: replica, PromptTokens: said.PromptTokens, CachedTokens: said.Details.CachedTokens,
	})
	return err
}

// tokenize is the model's own tokenizer; that of simulated engines makes each
// byte a token.
func tokenize(prompt string) (tokens []uint32) {
	for _, b := range []byte(prompt) {
		tokens = append(tokens, uint32(b))
	}
	return tokens
}

// usage is what an engine says of the prompt that it has answered. vLLM fills
// in the details with --enable-prompt-tokens-details.
type usage struct {
	PromptTokens int32 `json:"prompt_tokens"`
	Details      *struct {
		CachedTokens int32 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func complete(ctx context.Context, engine, prompt string) (u usage, err error) {
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": prompt, "max_tokens": 8})
	if err != nil {
		return u, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, engine+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return u, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return u, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return u, fmt.Errorf("%s answers %s", engine, response.Status)
	}
	var completion struct {
		Usage usage `json:"usage"`
	}
	err = json.NewDecoder(response.Body).Decode(&completion)
	return completion.Usage, err
}

func main() {
	server := flag.String("server", "http://127.0.0.1:9090", "server to ask")
	engines := flag.String("engines", "sim-1=http://127.0.0.1:8101,sim-2=http://127.0.0.1:8102,sim-3=http://127.0.0.1:8103", "engines by replica id")
	flag.Parse()
	g := &gateway{hints: rpc.NewInferenceCacheClient(http.DefaultClient, *server), engines: map[string]string{}}
	for pair := range strings.SplitSeq(*engines, ",") {
		name, url, _ := strings.Cut(pair, "=")
		g.engines[name] = url
	}
	if err := g.serve(context.Background(), strings.Join(flag.Args(), " ")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (g *gateway) serve(ctx context.Context, prompt string) error {
	replica, request := g.choose(ctx, tokenize(prompt))
	said, err := complete(ctx, g.engines[replica], prompt)
	if err != nil {
		return err
	}
	cached := "an unknown part"
	if said.Details != nil {
		cached = fmt.Sprint(said.Details.CachedTokens)
	}
	fmt.Printf("%s had %s of %d tokens\n", replica, cached, said.PromptTokens)
	return g.report(ctx, request, replica, said)
}
