package bridge

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/status"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// kept keeps every round.
type kept struct {
	mu  sync.Mutex // guards all
	all []loops.Pulled
}

func (k *kept) Receive(_ context.Context, pulled loops.Pulled) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, pulled)
}

func (k *kept) rounds() []loops.Pulled {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.all)
}

func (k *kept) last() loops.Pulled {
	all := k.rounds()
	return all[len(all)-1]
}

// report tells a server of blocks that a replica holds.
func (h *host) report(t *testing.T, replica string, blocks int) {
	t.Helper()
	hashes := make([]kv.Hash, blocks)
	for i := range hashes {
		hashes[i] = kv.Hash(i + 1)
	}
	stream, err := inferencecachev1alpha1connect.NewInferenceCacheClient(h.http2, "http://"+h.name, connect.WithGRPC()).ReportCacheState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.CacheStateUpdate{
		ReplicaId: replica, TenantId: "ns", ModelId: "m", HashScheme: "vllm",
		Operations: []*pb.CacheOperation{{Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(hashes), BlockSize: 16}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
}

func TestPullAsksEveryServerEvery25To30Seconds(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a", "b"}, func(t *testing.T, f *fleet) {
		f.hosts["a"].report(t, "pod", 3)
		f.hosts["b"].report(t, "pod", 7)
		k := &kept{}
		p := NewPuller(f.deps(""), k)
		f.start(p.Run)
		after(0)
		if len(k.rounds()) != 1 || !slices.Equal(k.last().Answered, []string{"a", "b"}) || k.last().Snapshot.TotalPrefixes != 7 {
			t.Fatalf("first round %+v", k.rounds())
		}
		started := k.last().At
		after(10 * time.Minute)
		for _, h := range f.hosts {
			if n := h.called("/snapshot"); n < 21 || n > 25 {
				t.Errorf("%s was asked %d times in ten minutes", h.name, n)
			}
		}
		waits := map[time.Duration]bool{}
		at := started
		for _, round := range k.rounds()[1:] {
			wait := round.At.Sub(at)
			if wait < pullLow || wait > pullHigh {
				t.Errorf("a round after %s", wait)
			}
			waits[wait], at = true, round.At
		}
		if len(waits) < 2 {
			t.Error("every wait is the same")
		}
		if state := p.State(); state.Complete != k.last().At || state.Problem != "" {
			t.Errorf("state %+v", state)
		}
	})
}

func TestServerThatIsAwayIsMissingFromARound(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a", "b"}, func(t *testing.T, f *fleet) {
		k := &kept{}
		p := NewPuller(f.deps(""), k)
		f.start(p.Run)
		after(0)
		for name, v := range map[string]struct {
			trouble func(http.ResponseWriter, *http.Request) bool
			says    string
			result  string
		}{
			"slow":     {hang, "deadline", resultUnreachable},
			"broken":   {answer(http.StatusInternalServerError, "oops"), "oops", resultRejected},
			"refusing": {answer(http.StatusForbidden, ""), "audience", resultRefused},
			"no JSON":  {answer(http.StatusOK, "<html>"), "decode", resultUnreadable},
		} {
			f.hosts["b"].fail(v.trouble)
			complete := p.State().Complete
			after(pullHigh + requestTimeout)
			if !slices.Equal(k.last().Missing, []string{"b"}) || !slices.Equal(k.last().Answered, []string{"a"}) {
				t.Errorf("%s: round %+v", name, k.last())
			}
			state := p.State()
			if !strings.Contains(state.Servers[1].Problem, v.says) || !state.Complete.Equal(complete) {
				t.Errorf("%s: state %+v", name, state)
			}
			if f.metric(`inferencecache_bridge_pulls_total{result="`+v.result+`"}`) == "0" {
				t.Errorf("%s: not counted as %s", name, v.result)
			}
			f.hosts["b"].fail(nil)
			after(pullHigh)
			if state := p.State(); state.Servers[1].Problem != "" {
				t.Errorf("%s: not healed: %+v", name, state)
			}
		}
	})
}

func TestSilenceOfAllServersIsNotAnEmptySnapshot(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		k := &kept{}
		p := NewPuller(f.deps(""), k)
		f.hosts["a"].fail(answer(http.StatusServiceUnavailable, ""))
		f.start(p.Run)
		after(5 * time.Minute)
		f.hosts["a"].fail(nil)
		f.list()
		after(5 * time.Minute)
		if len(k.rounds()) != 0 {
			t.Errorf("received %+v", k.rounds())
		}
		if got := f.metric("inferencecache_bridge_pull_age_seconds"); got != "-1" {
			t.Errorf("age %s", got)
		}
	})
}

func TestFailingListIsAskedAgainSoon(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		k := &kept{}
		p := NewPuller(f.deps(""), k)
		f.relist(errListing)
		f.start(p.Run)
		after(time.Second)
		if state := p.State(); !strings.Contains(state.Problem, errListing.Error()) {
			t.Errorf("state %+v", state)
		}
		f.mu.Lock()
		f.listed, f.err = []string{"a"}, nil // and nobody says that it changed
		f.mu.Unlock()
		after(relistAfter)
		if state := p.State(); state.Problem != "" || !slices.Equal(serverNames(state.Servers), []string{"a"}) || len(k.rounds()) != 1 {
			t.Errorf("state %+v after %d rounds", state, len(k.rounds()))
		}
	})
}

func TestMergeTrustsTheFullestAndTheLatest(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0).UTC() }
	old := status.Replica{ReplicaID: "r", Tenant: "t", HitRate: .1, PrefixCount: 9, LastUpdate: at(1), LastEventAt: at(8), T2HitTokens: 1}
	late := status.Replica{ReplicaID: "r", Tenant: "t", HitRate: .2, PrefixCount: 4, LastUpdate: at(2), LastEventAt: at(7), T2HitTokens: 2, StatsReported: true}
	other := status.Replica{ReplicaID: "r", Tenant: "s"}
	a := status.Snapshot{Replicas: []status.Replica{old}, TotalPrefixes: 9, Tenants: []status.Tenant{{TenantID: "t", IndexEntries: 9}}}
	b := status.Snapshot{Replicas: []status.Replica{other, late}, TotalPrefixes: 4, HotPrefixes: 1,
		Tenants: []status.Tenant{{TenantID: "s"}, {TenantID: "t", IndexEntries: 4, HitRate: .2, HitRateReported: true}}}
	want := status.Snapshot{
		Replicas: []status.Replica{other, {ReplicaID: "r", Tenant: "t", HitRate: .2, PrefixCount: 9, LastUpdate: at(2), LastEventAt: at(8), T2HitTokens: 2, StatsReported: true}},
		Tenants:  []status.Tenant{{TenantID: "s"}, {TenantID: "t", IndexEntries: 9, HitRate: .2, HitRateReported: true}}, TotalPrefixes: 9, HotPrefixes: 1,
	}
	for name, order := range map[string][]status.Snapshot{"forth": {a, b}, "back": {b, a}, "twice": {a, b, a}} {
		if diff := cmp.Diff(want, Merge(order)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
