package server

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/bridge"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/status"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

func (r *rig) dropped(reason string) float64 {
	return r.metric(fmt.Sprintf("inferencecache_ingest_dropped_total{reason=%q}", reason))
}

func TestEmptyKeysAndReplicaIDsAreRefusedAndCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	r.report(update("", chainEntry(0, 64)))
	r.report(update("r-1", &pb.PrefixEntry{TokenCount: 64}))
	r.report(update("r-1", &pb.PrefixEntry{BlockHashes: [][]byte{nil}, BlockTokenCounts: []int32{16}}))
	event := &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "t", ModelId: "m", ReplicaId: "r-1"}
	r.applyEvent(time.Now(), event)
	event.ReplicaId = ""
	r.applyEvent(time.Now(), event)
	if n := r.index.Counts().Entries; n != 0 {
		t.Errorf("%d entries", n)
	}
	if got := r.dropped(dropNoReplica); got != 2 {
		t.Errorf("empty replicas: counted %v, want 2", got)
	}
	if got := r.dropped(dropEmptyKey); got != 3 {
		t.Errorf("empty keys: counted %v, want 3", got)
	}
	r.holds("r-1", 0, 64)
	r.want(r.ask(), noHint)
}

func TestMalformedOperationsCostNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	hashes := kv.Pack(chainOf(span(0, 64)))
	u := update("r-1")
	for _, o := range []*pb.CacheOperation{
		{Kind: pb.CacheOperation_STORE, PackedHashes: hashes[:7], BlockSize: 16},
		{Kind: pb.CacheOperation_STORE, BlockSize: 16},
		{Kind: pb.CacheOperation_STORE, PackedHashes: hashes},
		{Kind: pb.CacheOperation_STORE, PackedHashes: hashes, BlockSize: -1},
		{Kind: pb.CacheOperation_STORE, PackedHashes: hashes, BlockSize: 16, ParentTokens: -1},
		{Kind: pb.CacheOperation_STORE, PackedHashes: hashes, BlockSize: 16, ParentHash: []byte("odd")},
		{Kind: pb.CacheOperation_REMOVE},
		{Kind: 99, PackedHashes: hashes},
		{},
		{Kind: pb.CacheOperation_STORE, PackedHashes: hashes, BlockSize: 16, AdapterId: strings.Repeat("a", maxName+1)},
		{Kind: pb.CacheOperation_STORE, PackedHashes: hashes, BlockSize: 16}, // the good one
	} {
		u.Operations = append(u.Operations, o)
	}
	r.report(u)
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:64")
	for reason, want := range map[string]float64{dropBadOperation: 7, dropUnknownKind: 2, dropLongName: 1} {
		if got := r.dropped(reason); got != want {
			t.Errorf("%s: counted %v, want %v", reason, got, want)
		}
	}
}

func TestOrderedOperations(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	hashes := chainOf(span(0, 64))
	send := func(sequence uint64, operations ...*pb.CacheOperation) uint64 {
		u := update("r-1")
		u.SourceEpoch, u.Sequence, u.Operations = 7, sequence, operations
		return r.ingest(time.Now(), u).GetSequence()
	}
	store := &pb.CacheOperation{Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(hashes), BlockSize: 16}
	remove := &pb.CacheOperation{Kind: pb.CacheOperation_REMOVE, PackedHashes: kv.Pack(hashes[2:3])}
	clear := &pb.CacheOperation{Kind: pb.CacheOperation_CLEAR}

	if got := send(1, store); got != 1 {
		t.Errorf("acknowledged %d, want 1", got)
	}
	send(2, remove)
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:32") // a hole at block 2
	if got := send(1, store); got != 2 {
		t.Errorf("a repeated update acknowledged %d, want 2", got)
	}
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:32")
	if got := r.dropped(dropDuplicate); got != 1 {
		t.Errorf("counted %v duplicates, want 1", got)
	}
	send(3, store, clear, store)
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:64")
	send(4, clear)
	if answer := r.ask(chain(0, 64)); len(answer.GetReplicaScores()) != 0 {
		t.Errorf("after a clear: %v", answer)
	}

	u := update("r-1")
	u.SourceEpoch, u.Sequence, u.Operations = 8, 1, []*pb.CacheOperation{store} // the source restarted
	if got := r.ingest(time.Now(), u).GetSequence(); got != 1 {
		t.Errorf("new epoch acknowledged %d, want 1", got)
	}
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:64")
}

func TestBaseModelRemovalLeavesAdaptersAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	hashes := chainOf(span(0, 64))
	u := update("r-1")
	for _, adapter := range []string{"", "lora"} {
		u.Operations = append(u.Operations, &pb.CacheOperation{Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(hashes), BlockSize: 16, AdapterId: adapter})
	}
	u.Operations = append(u.Operations, &pb.CacheOperation{Kind: pb.CacheOperation_REMOVE, PackedHashes: kv.Pack(hashes)})
	r.report(u)
	lora := func(q *pb.LookupRouteRequest) { q.AdapterId = "lora" }
	r.want(r.ask(chain(0, 64), lora), prefixMatch, "r-1:64")
	r.want(r.ask(chain(0, 64)), affinityHint, "r-1:0")
	// The published event without an adapter means every adapter.
	for _, h := range hashes {
		r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "t", ModelId: "m", ReplicaId: "r-1", PrefixHash: h.Bytes()})
	}
	if n := r.index.Counts().Entries; n != 0 {
		t.Errorf("%d entries left", n)
	}
}

func TestProducersClocksAreClamped(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	future := update("future", chainEntry(0, 64))
	future.TimestampUs = time.Now().Add(100 * time.Hour).UnixMicro()
	r.report(future)
	past := update("past", chainEntry(0, 64))
	past.TimestampUs = time.Now().Add(-100 * time.Hour).UnixMicro()
	r.report(past)
	r.want(r.ask(chain(0, 64)), prefixMatch, "future:64")
	if got := r.dropped(dropStale); got != 4 {
		t.Errorf("counted %v stale entries, want 4", got)
	}
	if got := r.metric("inferencecache_ingest_age_seconds_sum"); got < 359_000 || got > 361_000 {
		t.Errorf("ages add up to %v s, want 100 h", got)
	}
	for _, replica := range r.index.Replicas() {
		if replica.Last.After(time.Now()) {
			t.Errorf("%s is stamped %s, in the future", replica.Replica, replica.Last)
		}
	}
}

func TestLateEventsDoNotUndoNewerReports(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	r.holds("r-1", 0, 64)
	stats := update("r-1")
	stats.Stats = &pb.ReplicaStats{HitRate: .5}
	r.report(stats)
	late := time.Now().Add(-time.Minute).UnixMicro()
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "t", ModelId: "m", ReplicaId: "r-1", TimestampUs: late})
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "t", ModelId: "m", ReplicaId: "r-1", TimestampUs: late, PrefixHash: chainOf(span(0, 16))[0].Bytes()})
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:64")
	if r.replicas.len() != 1 {
		t.Error("a late clear dropped newer stats")
	}
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "t", ModelId: "m", ReplicaId: "r-1"})
	if answer := r.ask(chain(0, 64)); len(answer.GetReplicaScores()) != 0 || r.replicas.len() != 0 {
		t.Errorf("after ALL_CLEARED: %v, %d rows", answer, r.replicas.len())
	}
}

func TestEventsThatMustChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	old := update("r-1", chainEntry(0, 64))
	old.TimestampUs = time.Now().Add(-20 * time.Minute).UnixMicro()
	old.Stats = &pb.ReplicaStats{HitRate: .9, Pressure: 1}
	r.report(old)
	before := r.ask(chain(0, 64)).GetReplicaScores()[0].GetEstimatedCacheHitProb()
	for _, kind := range []pb.CacheEvent_Type{pb.CacheEvent_PREFIX_ADDED, pb.CacheEvent_REPLICA_UPDATED, pb.CacheEvent_TYPE_UNSPECIFIED, 77} {
		r.applyEvent(time.Now(), &pb.CacheEvent{Type: kind, TenantId: "t", ModelId: "m", ReplicaId: "r-1", PrefixHash: chainOf(span(0, 16))[0].Bytes()})
		r.applyEvent(time.Now(), &pb.CacheEvent{Type: kind, TenantId: "t", ModelId: "m", ReplicaId: "r-new"})
	}
	after := r.ask(chain(0, 64)).GetReplicaScores()[0].GetEstimatedCacheHitProb()
	if math.Abs(float64(before-after)) > .01 {
		t.Errorf("freshness went from %v to %v", before, after)
	}
	if r.replicas.len() != 1 {
		t.Errorf("%d rows, want 1: an event must not make one", r.replicas.len())
	}
	r.want(r.ask(exactKey([]byte("unseen"))), affinityHint, "r-1:0") // liveness revives no warmth
}

func TestStatsAreTakenFromTheOuterReplicaAndMadeFinite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	u := update("r-1")
	u.Stats = &pb.ReplicaStats{ReplicaId: "forged", HitRate: float32(math.NaN()), Pressure: float32(math.Inf(1)), CacheMemoryBytes: 5, ClientVersion: "v", T2HitTokens: 3, T2QueryTokens: 4}
	r.report(u)
	r.report(update("r-2", chainEntry(0, 64)))
	got, err := r.GetCacheState(t.Context(), &pb.GetCacheStateRequest{TenantId: "t", ModelId: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetReplicas()) != 1 || got.GetSummary().GetTotalPrefixes() != 4 {
		t.Fatalf("state %v", got)
	}
	row := got.GetReplicas()[0]
	if row.GetReplicaId() != "r-1" || row.GetHitRate() != 0 || row.GetPressure() != 0 || row.GetCacheMemoryBytes() != 5 || row.GetT2HitTokens() != 3 || row.GetT2QueryTokens() != 4 {
		t.Errorf("row %v", row)
	}
}

func TestReplicasWithStatsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxReplicas = 10 })
	for i := range 100 {
		u := update(fmt.Sprint("r-", i))
		u.Stats = &pb.ReplicaStats{}
		u.SourceEpoch, u.Sequence = 1, 1
		u.Operations = []*pb.CacheOperation{{Kind: pb.CacheOperation_CLEAR}}
		r.report(u)
	}
	if r.replicas.len() != 10 || len(r.sources.by) > 10 {
		t.Errorf("%d rows, %d sources", r.replicas.len(), len(r.sources.by))
	}
	if got := r.dropped(dropTooMany); got != 90 {
		t.Errorf("counted %v, want 90", got)
	}
	r.sweep(time.Now().Add(time.Hour))
	if r.replicas.len() != 0 || len(r.sources.by) != 0 {
		t.Errorf("after the TTL: %d rows, %d sources", r.replicas.len(), len(r.sources.by))
	}
}

func TestModelLabelsThatCallersInventAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxModelLabels = 10 })
	for i := range 1000 {
		r.ask(func(q *pb.LookupRouteRequest) { q.ModelId = fmt.Sprint("model-", i) })
	}
	seen := map[string]bool{}
	for _, m := range r.samples(time.Now(), []string{"inferencecache_lookup_route_calls_total"}) {
		seen[m.GetLabels()["model"]] = true
	}
	if len(seen) != 11 {
		t.Errorf("%d model labels, want 10 and _other", len(seen))
	}
	if got := r.metric(`inferencecache_lookup_route_calls_total{hint_used="false",model="_other",reason_code="NO_HINT"}`); got != 990 {
		t.Errorf("_other counts %v, want 990", got)
	}
}

func TestEveryLookupIsCountedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.holds("r-1", 0, 64)
	r.ask(chain(0, 64))
	r.ask(chain(0, 64))
	r.ask(tokens(0, 3))
	if got := r.metric(`inferencecache_lookup_route_calls_total{hint_used="true",model="m",reason_code="PREFIX_MATCH"}`); got != 2 {
		t.Errorf("matches: %v", got)
	}
	if got := r.metric(`inferencecache_lookup_route_calls_total{hint_used="false",model="m",reason_code="NO_HINT"}`); got != 1 {
		t.Errorf("no hints: %v", got)
	}
	if got := r.metric(`inferencecache_lookup_route_latency_seconds_count{model="m"}`); got != 3 {
		t.Errorf("latencies: %v", got)
	}
	if got := r.metric(`inferencecache_index_entries{model="m"}`); got != 4 {
		t.Errorf("entries: %v", got)
	}
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "t", ModelId: "m", ReplicaId: "r-1"})
	r.sweep(time.Now())
	if got := r.metric(`inferencecache_index_entries{model="m"}`); got != 0 {
		t.Errorf("a drained model shows %v entries", got)
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	r.AdoptPolicy(&policy.Set{Default: r.config.Policy, Quotas: map[string]int64{"t": 2}})
	for i, name := range []string{"old", "middle", "new"} {
		u := update("r-1", &pb.PrefixEntry{PrefixHash: []byte(name), TokenCount: 64})
		u.TimestampUs = time.Now().Add(time.Duration(i-10) * time.Minute).UnixMicro()
		r.report(u)
	}
	for name, want := range map[string]string{"old": affinityHint, "middle": prefixMatch, "new": prefixMatch} {
		if got := r.ask(exactKey([]byte(name))).GetReasonCode(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := r.metric(`inferencecache_tenant_evictions_total{reason="over_entries",tenant_id="t"}`); got != 1 {
		t.Errorf("counted %v", got)
	}
	other := &pb.CacheStateUpdate{ReplicaId: "r-1", TenantId: "u", ModelId: "m", HashScheme: "vllm", Prefixes: []*pb.PrefixEntry{chainEntry(0, 256)}}
	r.report(other)
	if got := r.index.Keys("u", "m"); got != 16 {
		t.Errorf("another tenant keeps %d keys, want 16", got)
	}
}

func TestLFUKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	p := published()
	p.LFU, p.MinMatchedTokens, p.FloorScore = true, 0, 0
	r.AdoptPolicy(&policy.Set{Default: r.config.Policy, Policies: map[string]policy.Policy{"t": p}, Quotas: map[string]int64{"t": 2}})
	put := func(name string, age time.Duration) {
		u := update("r-1", &pb.PrefixEntry{PrefixHash: []byte(name), TokenCount: 64})
		u.TimestampUs = time.Now().Add(-age).UnixMicro()
		r.report(u)
	}
	put("hot", 10*time.Minute)
	r.want(r.ask(exactKey([]byte("hot"))), prefixMatch, "r-1:64")
	put("cold", 5*time.Minute)
	put("new", 0)
	for name, want := range map[string]string{"hot": prefixMatch, "cold": affinityHint, "new": prefixMatch} {
		if got := r.ask(exactKey([]byte(name))).GetReasonCode(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if got := r.Snapshot(); got.Replicas != nil || got.Tenants != nil {
		t.Errorf("an empty server shows %+v", got)
	}
	r.holds("r-2", 0, 64)
	r.holds("r-1", 0, 32)
	for i, model := range []string{"m", "n"} { // one replica, two models, same stamp
		u := update("r-1")
		u.ModelId, u.TimestampUs = model, time.Now().Add(-time.Second).Truncate(time.Second).UnixMicro()
		u.Stats = &pb.ReplicaStats{HitRate: .25 * float32(i+1), CacheMemoryBytes: int64(i + 1)}
		r.report(u)
	}
	got := r.Snapshot()
	for i := range got.Replicas {
		if got.Replicas[i].LastEventAt.IsZero() {
			t.Errorf("%s has no last event", got.Replicas[i].ReplicaID)
		}
		got.Replicas[i].LastEventAt, got.Replicas[i].LastUpdate = time.Time{}, time.Time{}
	}
	want := status.Snapshot{
		Replicas: []status.Replica{
			{ReplicaID: "r-1", Tenant: "t", CacheMemoryBytes: 1, HitRate: .25, PrefixCount: 2, StatsReported: true},
			{ReplicaID: "r-2", Tenant: "t", PrefixCount: 4},
		},
		Tenants:       []status.Tenant{{TenantID: "t", IndexEntries: 4, HitRate: .25, HitRateReported: true}},
		TotalPrefixes: 4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestProbe also holds the published probe keys.
func TestProbe(t *testing.T) {
	t.Parallel()
	for _, v := range []struct{ backend, model, scheme, key string }{
		{"cb-1", "m", "vllm", "8b0bcbe0332ff69cb6f82d07b0e9549c3507cc26942198ee1a7e69aa04167881"},
		{"ns/name", "functional-self-test", "vllm", "7cc21310b3d9bd86cdd2d1ec8955cca29a636e2e27a52df7a408f070db25436c"},
		{"ns/name", "functional-self-test", "sglang", "efaf810ef76026fa8af85fb888245ad0a2203134c75fc65b3400f391c253ed18"},
	} {
		if got := fmt.Sprintf("%x", probeKey(status.ProbeRequest{Backend: v.backend, Model: v.model, HashScheme: v.scheme})); got != v.key {
			t.Errorf("%+v: key %s", v, got)
		}
	}
	r := newRig(t)
	r.AdoptPolicy(&policy.Set{Default: r.config.Policy, Quotas: map[string]int64{kv.ProbeTenant: 0}})
	want := status.ProbeResult{Backend: "ns/a", Ingest: status.OK, Routing: status.OK, T2: status.Skipped}
	got := r.Probe(t.Context(), status.ProbeRequest{Backend: "ns/a", Model: "m", HashScheme: "vllm"})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := r.index.Counts().Entries + int64(len(r.Snapshot().Replicas)); n != 0 {
		t.Errorf("the probe left %d traces", n)
	}
	r.want(r.ask(chain(0, 64)), noHint)
}

func TestPolicyArrivesByTheBridge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.holds("r-1", 0, 48)
	r.want(r.ask(chain(0, 48)), affinityHint, "r-1:0")
	set, err := bridge.DecodePolicy([]byte(`{"version":7,"policies":[{"namespace":"t","routingFloorScore":0}],"tenants":[{"tenantID":"t","maxIndexEntries":100}]}`), r.PolicyDefaults())
	if err != nil {
		t.Fatal(err)
	}
	r.AdoptPolicy(set)
	r.want(r.ask(chain(0, 48)), prefixMatch, "r-1:48")
	if got := r.metric("inferencecache_policy_version"); got != 7 {
		t.Errorf("policy version %v", got)
	}
}
