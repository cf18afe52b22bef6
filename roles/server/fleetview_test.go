package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

func (r *rig) fleet(request *pb.GetFleetRequest) *pb.GetFleetResponse {
	r.t.Helper()
	answer, err := r.GetFleet(context.WithoutCancel(r.t.Context()), request)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer
}

// replica of the fleet by name.
func (r *rig) replica(name string) *pb.FleetReplica {
	r.t.Helper()
	for _, one := range r.fleet(&pb.GetFleetRequest{}).GetReplicas() {
		if one.GetReplicaId() == name {
			return one
		}
	}
	r.t.Fatalf("no replica %s", name)
	return nil
}

func TestFleetShowsWhatLookupsMakeOfReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 6)
		r.holds("r-2", 0, 640)
		stale := update("r-3")
		stale.StreamState = pb.StreamState_STREAM_STALE
		asleep := update("r-4")
		yes := true
		asleep.Stats = &pb.ReplicaStats{Asleep: &yes}
		r.holds("r-5", 0, 640)
		r.lies("r-5", 12)
		time.Sleep(40 * time.Second)
		for _, name := range []string{"r-1", "r-2", "r-5"} {
			r.busy(name, 3, 20)
		}
		r.report(stale)
		r.report(asleep)
		goodbye := update("r-6")
		goodbye.SourceEpoch, goodbye.Sequence, goodbye.Goodbye = 1, 1, true
		r.report(goodbye)
		time.Sleep(time.Second)

		answer := r.fleet(&pb.GetFleetRequest{})
		got := map[string]string{}
		for _, one := range answer.GetReplicas() {
			got[one.GetReplicaId()] = strings.TrimPrefix(one.GetState().String(), "REPLICA_")
			if (one.GetStateDetail() == "") != (one.GetState() == pb.ReplicaState_REPLICA_ALIVE) {
				t.Errorf("%s is %s: %q", one.GetReplicaId(), one.GetState(), one.GetStateDetail())
			}
		}
		want := map[string]string{"r-1": "ALIVE", "r-2": "ALIVE", "r-3": "SUSPECT", "r-4": "ASLEEP", "r-5": "QUARANTINED", "r-6": "DEAD"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		if answer.GetStates()["REPLICA_ALIVE"] != 2 || answer.GetStates()["REPLICA_DEAD"] != 1 {
			t.Errorf("counted %v", answer.GetStates())
		}
		one := r.replica("r-2")
		if one.GetStats().GetWaitingRequests() != 20 || one.GetLoadAgeMs() != 1000 || !one.GetLoadKnown() || one.GetBacklogMs() <= 0 {
			t.Errorf("load %v", one)
		}
		if one.GetIndexedBlocks() != 40 || one.GetChangedAgeMs() != 47_000 || one.GetHeardAgeMs() != 1000 || one.GetBlockSize() != 16 {
			t.Errorf("blocks %v", one)
		}
		if audit := r.replica("r-5").GetAudit(); audit.GetOutcomes() != 12 || audit.GetFoundTokens() != 0 || !audit.GetQuarantined() || audit.GetQuarantineAgeMs() < 40_000 {
			t.Errorf("audit %v", audit)
		}
		time.Sleep(2 * time.Minute)
		if one := r.replica("r-1"); one.GetState() != pb.ReplicaState_REPLICA_DEAD {
			t.Errorf("after silence %s", one.GetState())
		}
	})
}

func TestFleetComparesHeldWithIndexed(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 1)
	if one := r.replica("r-1"); one.GetHeld() != nil || one.GetHeldAgeMs() != -1 || one.GetChangedAgeMs() != -1 {
		t.Errorf("said nothing: %v", one)
	}
	p := r.producer("r-1")
	now := time.Now()
	p.send(now, storeChain)
	u := p.update(now)
	p.sequence++
	u.Sequence, u.Held = p.sequence, &pb.HeldBlocks{T1: 5, T2: 1, T3: -7}
	p.ingest(now, u)
	one := r.replica("r-1")
	if diff := cmp.Diff([]int64{4, 5, 1, 0}, []int64{one.GetIndexedBlocks(), one.GetHeld().GetT1(), one.GetHeld().GetT2(), one.GetHeld().GetT3()}); diff != "" {
		t.Errorf("indexed and held (-want +got):\n%s", diff)
	}
	if one.GetStreamState() != pb.StreamState_STREAM_EXACT || one.GetEngineUrl() != "http://engine" {
		t.Errorf("stream %v", one)
	}
	p.send(now, clearAll)
	if one := r.replica("r-1"); one.GetHeld() != nil || one.GetIndexedBlocks() != 0 {
		t.Errorf("after a clear: %v", one)
	}
}

func TestFleetIsBoundedAndKeepsTrouble(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 30)
	for _, name := range []string{"r-7", "r-30"} {
		u := update(name)
		u.StreamState = pb.StreamState_STREAM_STALE
		r.report(u)
	}
	other := update("r-1")
	other.ModelId, other.StreamState = "other", pb.StreamState_STREAM_EXACT
	r.report(other)
	names := func(request *pb.GetFleetRequest) (all []string) {
		for _, one := range r.fleet(request).GetReplicas() {
			all = append(all, one.GetModelId()+"/"+one.GetReplicaId())
		}
		return all
	}
	if diff := cmp.Diff([]string{"m/r-1", "m/r-30", "m/r-7"}, names(&pb.GetFleetRequest{MaxReplicas: 3})); diff != "" {
		t.Errorf("three of them (-want +got):\n%s", diff)
	}
	if got := r.fleet(&pb.GetFleetRequest{MaxReplicas: 3}).GetStates()["REPLICA_ALIVE"]; got != 29 {
		t.Errorf("%d alive", got)
	}
	for _, v := range []struct {
		request *pb.GetFleetRequest
		want    int
	}{
		{&pb.GetFleetRequest{}, 31},
		{&pb.GetFleetRequest{MaxReplicas: 1 << 30}, 31},
		{&pb.GetFleetRequest{ModelId: "other"}, 1},
		{&pb.GetFleetRequest{TenantId: "nobody"}, 0},
		{&pb.GetFleetRequest{HashScheme: "sglang"}, 0},
	} {
		if got := names(v.request); len(got) != v.want {
			t.Errorf("%v: %d replicas, want %d", v.request, len(got), v.want)
		}
	}
}

func TestFleetCountsHintsOfTheLastMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 1)
		hints := func() int64 { return r.replica("r-1").GetRecentHints() }
		for range 3 {
			r.first(packed(0, 640))
			time.Sleep(20 * time.Second)
			r.busy("r-1", 0, 0)
		}
		if got := hints(); got != 2 { // the first is a minute old
			t.Errorf("%d hints, two are younger than a minute", got)
		}
		time.Sleep(25 * time.Second)
		if got := hints(); got != 1 {
			t.Errorf("%d hints after 25 s, one is younger than a minute", got)
		}
		r.adopt("t", published())
		r.holds("r-1", 0, 640)
		r.ask(packed(0, 640))
		if got := hints(); got != 2 {
			t.Errorf("%d hints with one of profile Compat", got)
		}
		time.Sleep(time.Hour)
		r.busy("r-1", 0, 0)
		if got := hints(); got != 0 {
			t.Errorf("%d hints after an hour", got)
		}
	})
}

func TestHottestPrefixesAreWhatPromptsHaveInCommon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 3)
		r.holds("r-2", 0, 128)
		r.holds("r-3", 0, 128)
		ask := func(from int) {
			prompt := append(span(0, 128), span(from, 128)...)
			r.ask(func(q *pb.LookupRouteRequest) { q.TokenIds = prompt }, top(1))
		}
		for i := range 6 {
			ask(10_000 * (i + 1))
		}
		for range 3 {
			ask(90_000)
		}
		r.ask(func(q *pb.LookupRouteRequest) { q.TokenIds, q.SelfCheck = span(0, 640), true }) // no traffic
		answer := r.fleet(&pb.GetFleetRequest{})
		if answer.GetDecisions() != 9 || len(answer.GetHotPrefixes()) != 2 {
			t.Fatalf("%d decisions, %v", answer.GetDecisions(), answer.GetHotPrefixes())
		}
		common, special := answer.GetHotPrefixes()[0], answer.GetHotPrefixes()[1]
		if got, want := fmt.Sprintln(common.GetBlocks(), common.GetLookups(), common.GetHash(), common.GetHolderIds()), fmt.Sprintln(8, 9, chainOf(span(0, 128))[7], []string{"r-2", "r-3"}); got != want {
			t.Errorf("in common: %s, want %s", got, want)
		}
		if common.GetLookupsPerSecond() <= 0 || common.GetHolders() != 2 || common.GetMostHinted() == "" || common.GetMostShare() <= 0 || common.GetMostShare() > 1 {
			t.Errorf("in common: %v", common)
		}
		if special.GetBlocks() != 16 || special.GetLookups() != 3 || special.GetHolders() != 0 {
			t.Errorf("asked three times: %v", special)
		}
		if other := r.fleet(&pb.GetFleetRequest{TenantId: "nobody"}); other.GetDecisions() != 0 || len(other.GetHotPrefixes()) != 0 {
			t.Errorf("another tenant sees %v", other.GetHotPrefixes())
		}
	})
}

func TestFleetTellsOfTheServer(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 1, func(c *Config) { c.Version, c.MemoryBytes = "v1.2.3", 1<<30 })
	r.holds("r-1", 0, 640)
	r.ask(packed(0, 640))
	r.ask(packed(5000, 640))
	r.ask(tokens(0, 3))
	s := r.fleet(&pb.GetFleetRequest{}).GetServer()
	if s.GetVersion() != "v1.2.3" || s.GetEpoch() != r.epoch || s.GetUptimeMs() < 0 || s.GetUpdates() != 2 || s.GetPolicyAgeMs() != -1 {
		t.Errorf("server %v", s)
	}
	if s.GetIndexKeys() != 40 || s.GetIndexEntries() != 40 || s.GetIndexBytes() <= 0 || s.GetIndexBytesLimit() != 1<<30 {
		t.Errorf("index %v", s)
	}
	if diff := cmp.Diff(map[string]int64{prefixMatch: 1, affinityHint: 1, noHint: 1}, s.GetLookups()); diff != "" {
		t.Errorf("lookups (-want +got):\n%s", diff)
	}
}
