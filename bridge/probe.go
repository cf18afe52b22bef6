package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/status"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

const (
	probeLow  = 27 * time.Second
	probeHigh = 30 * time.Second
	probeName = "inferencecache.io/self-test"
	// probeModel is what the contract names the model of self-tests.
	probeModel   = "functional-self-test"
	probeScheme  = "vllm"
	probeBlock   = 16
	maxProbeBack = 64 << 10 // bytes
)

// Stages of the self-test, in order.
const (
	StageReport = "report" // the RPC port takes a report
	StageLookup = "lookup" // the RPC port answers a question
	StageIndex  = "index"  // a block stored is found and ranked first
)

// Tester runs one self-test of the control plane on every server, every 30 s,
// by the way that gateways and engines take: through the RPC port. It writes
// nothing that anybody could see there.
type Tester struct {
	endpoints Endpoints
	caller    caller
	rpc       connect.HTTPClient
	log       *slog.Logger
	results   map[string]*results // by stage

	mu    sync.Mutex // guards state
	state loops.ProbeState
}

// NewTester reaches the data listeners by rpc, over HTTP/2. The token is for
// the controller's audience.
func NewTester(d Deps, rpc connect.HTTPClient) *Tester {
	t := &Tester{endpoints: d.Endpoints, caller: newCaller(d.HTTP, d.TokenFile), rpc: rpc, log: d.Log, results: map[string]*results{}}
	for _, stage := range []string{StageReport, StageLookup, StageIndex} {
		t.results[stage] = newStageResults(d.Metrics, "inferencecache_bridge_probes_total", stage)
	}
	return t
}

// Run tests until ctx ends.
func (t *Tester) Run(ctx context.Context) error {
	rounds(ctx, t.endpoints, probeLow, probeHigh, t.round)
	return nil
}

// State is safe for concurrent use.
func (t *Tester) State() loops.ProbeState {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.state
	state.Servers = slices.Clone(state.Servers)
	return state
}

func (t *Tester) round(ctx context.Context, servers []loops.Server, err error) {
	before := t.State()
	if err != nil {
		before.Problem = "list the servers: " + err.Error()
		t.set(before)
		return
	}
	next := loops.ProbeState{Servers: make([]loops.ProbedServer, len(servers))}
	var group sync.WaitGroup
	for i, s := range servers {
		group.Go(func() {
			stage, err := t.test(ctx, s)
			next.Servers[i] = judge(s.Name, verdictOn(before, s.Name), stage, err, time.Now())
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return
	}
	for _, s := range next.Servers {
		if was := verdictOn(before, s.Name); (was.Verdict == loops.Broken) != (s.Verdict == loops.Broken) {
			logChange(t.log, "self-test", s.Name, s.Message)
		}
	}
	slices.SortFunc(next.Servers, func(a, b loops.ProbedServer) int { return cmp.Compare(a.Name, b.Name) })
	t.set(next)
}

func (t *Tester) set(state loops.ProbeState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state = state
}

func verdictOn(state loops.ProbeState, name string) loops.ProbedServer {
	for _, s := range state.Servers {
		if s.Name == name {
			return s
		}
	}
	return loops.ProbedServer{Name: name, Verdict: loops.Unknown}
}

// judge decides what the outcome of one test says of a server.
func judge(name string, before loops.ProbedServer, stage string, err error, now time.Time) loops.ProbedServer {
	switch {
	case err == nil:
		return loops.ProbedServer{Name: name, Verdict: loops.Healthy, At: now}
	case resultOf(err) == resultFailed:
		return loops.ProbedServer{Name: name, Verdict: loops.Broken, Stage: stage, Message: err.Error(), At: now}
	case before.Verdict == loops.Broken:
		return before
	}
	return loops.ProbedServer{Name: name, Verdict: loops.Unknown, Stage: stage, Message: err.Error(), At: now}
}

// test runs the stages up to the first that fails, and names it.
func (t *Tester) test(ctx context.Context, s loops.Server) (stage string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := inferencecachev1alpha1connect.NewInferenceCacheClient(t.rpc, s.RPC, connect.WithGRPC())
	for _, step := range []struct {
		stage string
		run   func() error
	}{
		{StageReport, func() error { return testReport(ctx, client) }},
		{StageLookup, func() error { return testLookup(ctx, client) }},
		{StageIndex, func() error { return t.testIndex(ctx, s) }},
	} {
		err := step.run()
		t.results[step.stage].count(resultOf(err))
		if err != nil {
			return step.stage, fmt.Errorf("%s: %w", step.stage, err)
		}
	}
	return "", nil
}

func failed(format string, args ...any) error {
	return &callError{resultFailed, fmt.Errorf(format, args...)}
}

// rpcError tells a server that cannot be reached from one that answers wrong.
func rpcError(err error) error {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return &callError{resultUnreachable, err}
	}
	return &callError{resultFailed, err}
}

// testReport opens a stream of reports and ends it without one.
func testReport(ctx context.Context, client inferencecachev1alpha1connect.InferenceCacheClient) error {
	stream, err := client.ReportCacheState(ctx)
	if err != nil {
		return rpcError(err)
	}
	ack, err := stream.CloseAndReceive()
	if err != nil {
		return rpcError(err)
	}
	if !ack.GetAccepted() {
		return failed("an empty report is not accepted: %s", ack.GetReasonCode())
	}
	return nil
}

// testLookup asks for a prompt that nobody holds. The answer must be empty and
// say why.
func testLookup(ctx context.Context, client inferencecachev1alpha1connect.InferenceCacheClient) error {
	answer, err := client.LookupRoute(ctx, &pb.LookupRouteRequest{
		TenantId: probeName, ModelId: probeModel, HashScheme: probeScheme,
		PackedHashes: kv.Pack([]kv.Hash{1}), PackedBlockSize: probeBlock, SelfCheck: true,
	})
	if err != nil {
		return rpcError(err)
	}
	switch reason, n := answer.GetReasonCode(), len(answer.GetReplicaScores()); {
	case reason == "TIMEOUT":
		return &callError{resultUnreachable, errors.New("a lookup took longer than it may")}
	case n > 0 || reason == "":
		return failed("a prompt that nobody holds is answered with reason %q and %d replicas", reason, n)
	}
	return nil
}

// testIndex has the server store and rank a block in an index of its own.
func (t *Tester) testIndex(ctx context.Context, s loops.Server) error {
	body, err := json.Marshal(status.ProbeRequest{Backend: probeName, Model: probeModel, HashScheme: probeScheme})
	if err != nil {
		return err
	}
	answer, err := t.caller.call(ctx, http.MethodPost, s.Control+"/probe", body, http.StatusOK, maxProbeBack)
	if err != nil {
		return err
	}
	var result status.ProbeResult
	if err := json.Unmarshal(answer, &result); err != nil || result.Backend != probeName {
		return &callError{resultUnreadable, fmt.Errorf("the answer to /probe is not one: %s", firstLine(answer))}
	}
	if result.Ingest == status.OK && result.Routing == status.OK && result.T2 != status.Failed {
		return nil
	}
	errs := []error{fmt.Errorf("ingest %s, routing %s, t2 %s", result.Ingest, result.Routing, result.T2)}
	for _, e := range result.Errors {
		errs = append(errs, fmt.Errorf("%s: %s", e.Stage, e.Message))
	}
	return &callError{resultFailed, errors.Join(errs...)}
}
