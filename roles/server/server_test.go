package server

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server and short words to talk to it.
type rig struct {
	*Server
	t   *testing.T
	set *metrics.Set
}

// configure sets c to the defaults of its flags.
func configure(c *Config) {
	c.Flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	c.InsecureDisableAuth = true
}

func defaults(t *testing.T) Config {
	t.Helper()
	var c Config
	configure(&c)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	c := defaults(t)
	c.Policy.Profile = policy.Compat // as published; tests of the cost say so
	for _, f := range change {
		f(&c)
	}
	set := metrics.NewSet()
	return &rig{New(c, slog.New(slog.DiscardHandler), set), t, set}
}

// noFloors lets every match through.
func noFloors(c *Config) { c.Policy.MinMatchedTokens, c.Policy.FloorScore = 0, 0 }

func span(first, n int) (tokens []uint32) {
	for i := range n {
		tokens = append(tokens, uint32(first+i))
	}
	return tokens
}

func chainOf(tokens []uint32) []kv.Hash { return fingerprint.Append(nil, tokens, 16) }

func wire(hashes []kv.Hash) (out [][]byte) {
	for _, h := range hashes {
		out = append(out, h.Bytes())
	}
	return out
}

func counts(n int, each int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = each
	}
	return out
}

// update is a report of replica in the usual scope (t, m, vllm).
func update(replica string, entries ...*pb.PrefixEntry) *pb.CacheStateUpdate {
	return &pb.CacheStateUpdate{ReplicaId: replica, TenantId: "t", ModelId: "m", HashScheme: "vllm", Prefixes: entries}
}

// chainEntry is the chain of n tokens counted from first.
func chainEntry(first, n int) *pb.PrefixEntry {
	hashes := chainOf(span(first, n))
	return &pb.PrefixEntry{BlockHashes: wire(hashes), BlockTokenCounts: counts(len(hashes), 16)}
}

func (r *rig) report(u *pb.CacheStateUpdate) { r.ingest(time.Now(), u) }

// holds makes replica hold the chain of n tokens counted from first.
func (r *rig) holds(replica string, first, n int) { r.report(update(replica, chainEntry(first, n))) }

// request asks in the usual scope.
func request(change ...func(*pb.LookupRouteRequest)) *pb.LookupRouteRequest {
	q := &pb.LookupRouteRequest{TenantId: "t", ModelId: "m", HashScheme: "vllm"}
	for _, f := range change {
		f(q)
	}
	return q
}

func tokens(first, n int) func(*pb.LookupRouteRequest) {
	return func(q *pb.LookupRouteRequest) { q.TokenIds = span(first, n) }
}

func chain(first, n int) func(*pb.LookupRouteRequest) {
	return func(q *pb.LookupRouteRequest) {
		q.BlockHashes = wire(chainOf(span(first, n)))
		q.BlockTokenCounts = counts(len(q.BlockHashes), 16)
	}
}

func packed(first, n int) func(*pb.LookupRouteRequest) {
	return func(q *pb.LookupRouteRequest) {
		q.PackedHashes, q.PackedBlockSize = kv.Pack(chainOf(span(first, n))), 16
	}
}

func exactKey(key []byte) func(*pb.LookupRouteRequest) {
	return func(q *pb.LookupRouteRequest) { q.PrefixHash = key }
}

func (r *rig) ask(change ...func(*pb.LookupRouteRequest)) *pb.LookupRouteResponse {
	r.t.Helper()
	answer, err := r.LookupRoute(context.WithoutCancel(r.t.Context()), request(change...))
	if err != nil {
		r.t.Fatalf("a lookup must never fail: %v", err)
	}
	return answer
}

// want checks the reason and the ranked replicas with their matched tokens, as
// "id:tokens".
func (r *rig) want(answer *pb.LookupRouteResponse, reason string, ranked ...string) {
	r.t.Helper()
	var got []string
	for _, s := range answer.GetReplicaScores() {
		got = append(got, fmt.Sprintf("%s:%d", s.GetReplicaId(), s.GetMatchedTokens()))
	}
	if answer.GetReasonCode() != reason || fmt.Sprint(got) != fmt.Sprint(ranked) {
		r.t.Errorf("got %s %v, want %s %v", answer.GetReasonCode(), got, reason, ranked)
	}
}

func (r *rig) adopt(tenant string, p policy.Policy) {
	r.AdoptPolicy(&policy.Set{Default: r.config.Policy, Policies: map[string]policy.Policy{tenant: p}, Version: 7})
}

func (r *rig) metric(series string) float64 {
	r.t.Helper()
	for _, m := range r.samples(time.Now(), nil) {
		name := m.GetName()
		if len(m.GetLabels()) > 0 {
			name += "{"
			for i, k := range sortedLabels(m.GetLabels()) {
				if i > 0 {
					name += ","
				}
				name += fmt.Sprintf("%s=%q", k, m.GetLabels()[k])
			}
			name += "}"
		}
		if name == series {
			return m.GetValue()
		}
	}
	return -1
}

func sortedLabels(labels map[string]string) []string {
	m := map[string]int64{}
	for k := range labels {
		m[k] = 0
	}
	return sortedKeys(m)
}

// published is a policy of defaults under the published profile.
func published() policy.Policy {
	p := policy.Defaults()
	p.Profile = policy.Compat
	return p
}
