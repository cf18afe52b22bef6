package bridge

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

func TestSelfTestGoesThroughTheRPCPort(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		tester := NewTester(f.deps(""), f.client(true))
		f.start(tester.Run)
		after(0)
		s := tester.State().Servers
		if len(s) != 1 || s[0].Verdict != loops.Healthy || s[0].At.IsZero() {
			t.Fatalf("state %+v", s)
		}
		for _, path := range []string{
			inferencecachev1alpha1connect.InferenceCacheReportCacheStateProcedure,
			inferencecachev1alpha1connect.InferenceCacheLookupRouteProcedure, "/probe",
		} {
			if n := f.hosts["a"].called(path); n != 1 {
				t.Errorf("%s was called %d times", path, n)
			}
		}
		// Nobody sees anything of it.
		if snapshot := f.hosts["a"].Snapshot(); snapshot.TotalPrefixes != 0 || len(snapshot.Replicas) > 0 || len(snapshot.Tenants) > 0 {
			t.Errorf("it left %+v", snapshot)
		}
	})
}

func TestVerdictNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	wrong := func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"backend":"inferencecache.io/self-test","ingest":"ok","routing":"failed","t2":"skipped","errors":[{"stage":"routing","message":"ranked last"}]}`))
		return true
	}
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		tester := NewTester(f.deps(""), f.client(true))
		f.start(tester.Run)
		a := f.hosts["a"]
		for _, v := range []struct {
			name    string
			trouble func(http.ResponseWriter, *http.Request) bool
			verdict loops.Verdict
			stage   string
			says    string
		}{
			{"away from the start", hang, loops.Unknown, StageReport, "deadline"},
			{"works", nil, loops.Healthy, "", ""},
			{"away", hang, loops.Unknown, StageReport, "deadline"},
			{"ranks wrong", only("/probe", wrong), loops.Broken, StageIndex, "ranked last"},
			{"away after that", hang, loops.Broken, StageIndex, "ranked last"},
			{"answers no probe", only("/probe", answer(http.StatusOK, "{}")), loops.Broken, StageIndex, "ranked last"},
			{"works again", nil, loops.Healthy, "", ""},
			{"lost the method", only(inferencecachev1alpha1connect.InferenceCacheLookupRouteProcedure, answer(http.StatusNotFound, "")), loops.Broken, StageLookup, "lookup"},
		} {
			a.fail(v.trouble)
			after(probeHigh + requestTimeout + time.Second)
			s := tester.State().Servers[0]
			if s.Verdict != v.verdict || s.Stage != v.stage || !strings.Contains(s.Message, v.says) {
				t.Errorf("%s: %+v", v.name, s)
			}
		}
		if got := f.metric(`inferencecache_bridge_probes_total{result="failed",stage="index"}`); got == "0" || got == "absent" {
			t.Errorf("failures of the index: %s", got)
		}
		f.relist(errListing)
		after(time.Minute)
		if state := tester.State(); state.Problem == "" || state.Servers[0].Verdict != loops.Broken {
			t.Errorf("without a list: %+v", state)
		}
	})
}

// TestVerdictGoesWithItsServer: one of the same name later starts anew.
func TestVerdictGoesWithItsServer(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		f.hosts["a"].fail(only("/probe", answer(http.StatusOK, `{"backend":"inferencecache.io/self-test","ingest":"ok","routing":"failed","t2":"skipped"}`)))
		tester := NewTester(f.deps(""), f.client(true))
		f.start(tester.Run)
		after(0)
		if s := tester.State().Servers; len(s) != 1 || s[0].Verdict != loops.Broken {
			t.Fatalf("state %+v", s)
		}
		f.list()
		after(probeHigh + time.Second)
		if s := tester.State().Servers; len(s) != 0 {
			t.Errorf("it is gone, and known as %+v", s)
		}
		f.hosts["a"].fail(hang)
		f.list("a")
		after(probeHigh + requestTimeout + time.Second)
		if s := tester.State().Servers; len(s) != 1 || s[0].Verdict != loops.Unknown {
			t.Errorf("it is back and silent: %+v", s)
		}
	})
}
