package bridge

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/policy"
)

// document is a set that a TTL tells from others.
func document(ttl time.Duration, generation int64) policy.Document {
	return policy.Document{
		Policies: []policy.Knobs{{Namespace: "ns", EvictionTTL: ttl}},
		Tenants:  []policy.Quota{{TenantID: "ns", MaxIndexEntries: 5}},
		Sources:  []policy.Source{{Kind: "CachePolicy", Namespace: "ns", Name: "p", Generation: generation}},
	}
}

func push(t *testing.T, p *Pusher, d policy.Document) {
	t.Helper()
	if err := p.Push(d); err != nil {
		t.Fatal(err)
	}
}

// acked are the generations that servers acknowledged; -1: none.
func acked(s loops.PushState) map[string]int64 {
	by := map[string]int64{}
	for _, server := range s.Servers {
		by[server.Name] = -1
		if len(server.Sources) > 0 {
			by[server.Name] = server.Sources[0].Generation
		}
	}
	return by
}

func TestEncodedPolicyIsReadAsItWasMeant(t *testing.T) {
	t.Parallel()
	floor, off, on, topK := float32(0), false, true, int32(3)
	body, err := EncodePolicy(policy.Document{
		Policies: []policy.Knobs{{Namespace: "ns", EvictionTTL: time.Minute, RoutingFloorScore: &floor, AffinityRouting: &off,
			Eviction: "lfu", LookupTimeoutMs: 20, Strategy: &policy.Strategy{EnableTenantHot: &off},
			Ranking: &policy.Ranking{Profile: "Compat", TopK: &topK}, Shadow: &on}},
		Tenants: []policy.Quota{{TenantID: "ns", MaxIndexEntries: 0}},
		Sources: []policy.Source{{Name: "secret-name"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(body), "secret-name") {
		t.Errorf("sources are on the wire: %s", body)
	}
	set, err := DecodePolicy(body, policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Policy{TTL: time.Minute, LFU: true, Timeout: 20 * time.Millisecond, ChainMatching: true,
		Profile: policy.Compat, TopK: 3, Shadow: true}
	if diff := cmp.Diff(map[string]policy.Policy{"ns": want}, set.Policies); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int64{"ns": 0}, set.Quotas); diff != "" {
		t.Error(diff)
	}
}

func TestPushReachesEveryServer(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a", "b"}, func(t *testing.T, f *fleet) {
		p := NewPusher(f.deps(""), nil)
		push(t, p, document(time.Minute, 1)) // before the start
		f.start(p.Run)
		after(0)
		for _, h := range f.hosts {
			if got := h.ttls(); !slices.Equal(got, []time.Duration{time.Minute}) {
				t.Errorf("%s adopted %v at the start", h.name, got)
			}
		}
		push(t, p, document(time.Hour, 2))
		after(0)
		for _, h := range f.hosts {
			if got := h.newest(); got != time.Hour {
				t.Errorf("%s has %v after a change", h.name, got)
			}
		}
		if diff := cmp.Diff(map[string]int64{"a": 2, "b": 2}, acked(p.State())); diff != "" {
			t.Error(diff)
		}
		if got := f.metric("inferencecache_bridge_servers_behind"); got != "0" {
			t.Errorf("behind: %s", got)
		}
	})
}

func TestNothingIsPushedBeforeThereIsASet(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		f.start(NewPusher(f.deps(""), nil).Run)
		after(5 * time.Minute)
		if n := f.hosts["a"].called("/policy"); n != 0 {
			t.Errorf("pushed %d times", n)
		}
	})
}

func TestRestartedServerGetsThePolicyWithin30Seconds(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		p := NewPusher(f.deps(""), nil)
		push(t, p, document(time.Minute, 1))
		f.start(p.Run)
		after(time.Second)
		restarted := f.add("a", Guards{})
		after(30 * time.Second)
		if got := restarted.newest(); got != time.Minute {
			t.Errorf("has %v", got)
		}
	})
}

// TestOlderSetThatArrivesLateDoesNotStay: a request that timed out here may
// still be taken there, behind a newer one.
func TestOlderSetThatArrivesLateDoesNotStay(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		p := NewPusher(f.deps(""), nil)
		f.start(p.Run)
		push(t, p, document(time.Minute, 1))
		after(0)
		a := f.hosts["a"]
		a.mu.Lock()
		older := a.adopted[0]
		a.mu.Unlock()
		push(t, p, document(time.Hour, 2))
		after(0)
		a.AdoptPolicy(older)
		if got := a.newest(); got != time.Minute {
			t.Fatalf("has %v", got)
		}
		after(30 * time.Second)
		if got := a.newest(); got != time.Hour {
			t.Errorf("still has %v", got)
		}
	})
}

func TestServerThatTakesNothingAnyMoreIsBehind(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a", "b"}, func(t *testing.T, f *fleet) {
		p := NewPusher(f.deps(""), nil)
		push(t, p, document(time.Minute, 1))
		f.start(p.Run)
		after(time.Second)
		f.hosts["a"].fail(answer(http.StatusServiceUnavailable, "no"))
		after(40 * time.Second)
		if diff := cmp.Diff(map[string]int64{"a": 1, "b": 1}, acked(p.State())); diff != "" {
			t.Errorf("after a moment of trouble: %s", diff)
		}
		after(time.Minute)
		if diff := cmp.Diff(map[string]int64{"a": -1, "b": 1}, acked(p.State())); diff != "" {
			t.Error(diff)
		}
		f.hosts["a"].fail(nil)
		after(time.Minute)
		if diff := cmp.Diff(map[string]int64{"a": 1, "b": 1}, acked(p.State())); diff != "" {
			t.Errorf("after it came back: %s", diff)
		}
	})
}

func TestServersComeAndGo(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		p := NewPusher(f.deps(""), nil)
		push(t, p, document(time.Minute, 1))
		f.start(p.Run)
		after(time.Second)
		b := f.add("b", Guards{})
		f.list("b")
		after(settle)
		if got := b.newest(); got != time.Minute {
			t.Errorf("the new server has %v", got)
		}
		before := f.hosts["a"].called("/policy")
		after(5 * time.Minute)
		if n := f.hosts["a"].called("/policy"); n != before {
			t.Errorf("the server that is gone was called %d times", n-before)
		}
		if diff := cmp.Diff(map[string]int64{"b": 1}, acked(p.State())); diff != "" {
			t.Error(diff)
		}

		// A list that fails changes nothing for those known.
		f.relist(errListing)
		push(t, p, document(time.Hour, 2))
		after(time.Minute)
		if got := b.newest(); got != time.Hour {
			t.Errorf("without a list the server has %v", got)
		}
		if problem := p.State().Problem; !strings.Contains(problem, errListing.Error()) {
			t.Errorf("problem %q", problem)
		}
	})
}

func TestSlowServerDelaysNoOther(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a", "slow"}, func(t *testing.T, f *fleet) {
		f.hosts["slow"].fail(hang)
		p := NewPusher(f.deps(""), nil)
		f.start(p.Run)
		push(t, p, document(time.Minute, 1))
		after(0)
		if diff := cmp.Diff(map[string]int64{"a": 1, "slow": -1}, acked(p.State())); diff != "" {
			t.Error(diff)
		}
		if got := f.metric("inferencecache_bridge_servers_behind"); got != "1" {
			t.Errorf("behind: %s", got)
		}
		// While it hangs, sets come and go; it gets the newest only.
		for generation := range int64(3) {
			push(t, p, document(time.Duration(generation+2)*time.Minute, generation+2))
			after(time.Second)
		}
		f.hosts["slow"].fail(nil)
		after(requestTimeout)
		if got := f.hosts["slow"].ttls(); !slices.Equal(got, []time.Duration{4 * time.Minute}) {
			t.Errorf("adopted %v", got)
		}
		if got := f.hosts["a"].newest(); got != 4*time.Minute {
			t.Errorf("the other has %v", got)
		}
	})
}

func TestFailingServerIsTriedLessAndLessOften(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		var news atomic.Int64
		p := NewPusher(f.deps(""), func() { news.Add(1) })
		f.hosts["a"].fail(answer(http.StatusServiceUnavailable, "not yet"))
		push(t, p, document(time.Minute, 1))
		f.start(p.Run)
		after(10 * time.Second)
		// At 0, and after about 1, 2 and 4 s more.
		if n := f.hosts["a"].called("/policy"); n != 4 {
			t.Errorf("%d tries in 10 s", n)
		}
		after(10 * time.Minute)
		if n := f.hosts["a"].called("/policy"); n < 15 || n > 30 {
			t.Errorf("%d tries in ten minutes", n)
		}
		if s := p.State().Servers; len(s) != 1 || !strings.Contains(s[0].Problem, "503") || !strings.Contains(s[0].Problem, "not yet") || s[0].Revision != "" {
			t.Errorf("state %+v", s)
		}
		// A server appeared, then had trouble: two things to tell.
		if n := news.Load(); n != 2 {
			t.Errorf("told of %d changes", n)
		}
		f.hosts["a"].fail(nil)
		after(time.Minute)
		if s := p.State(); s.Servers[0].Problem != "" || s.Servers[0].Revision != s.Revision {
			t.Errorf("state %+v", s)
		}
		if n := strings.Count(f.log.String(), "policy push failing"); n != 1 {
			t.Errorf("%d lines of failure:\n%s", n, f.log.String())
		}
		if n := strings.Count(f.log.String(), "policy push works again"); n != 1 {
			t.Errorf("%d lines of recovery:\n%s", n, f.log.String())
		}
	})
}

func TestSameSetOfNewerObjectsIsAcknowledgedAlready(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		p := NewPusher(f.deps(""), nil)
		f.start(p.Run)
		push(t, p, document(time.Minute, 1))
		after(0)
		push(t, p, document(time.Minute, 2))
		after(0)
		if diff := cmp.Diff(map[string]int64{"a": 2}, acked(p.State())); diff != "" {
			t.Error(diff)
		}
		if n := f.hosts["a"].called("/policy"); n != 1 {
			t.Errorf("pushed %d times", n)
		}
	})
}

func TestSetThatServersCannotTakeIsRefused(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a"}, func(t *testing.T, f *fleet) {
		p := NewPusher(f.deps(""), nil)
		f.start(p.Run)
		push(t, p, document(time.Minute, 1))
		after(0)
		huge := document(time.Hour, 2)
		for range 20_000 {
			huge.Policies = append(huge.Policies, policy.Knobs{Namespace: strings.Repeat("n", 63)})
		}
		if err := p.Push(huge); err == nil || !strings.Contains(err.Error(), "20001 namespaces") {
			t.Errorf("error %v", err)
		}
		after(time.Minute)
		if got := f.hosts["a"].newest(); got != time.Minute {
			t.Errorf("has %v", got)
		}
		if p.State().Problem == "" {
			t.Error("no problem told")
		}
		push(t, p, document(time.Hour, 3))
		if problem := p.State().Problem; problem != "" {
			t.Errorf("problem %q", problem)
		}
	})
}

func TestTokenIsReadForEveryRequest(t *testing.T) {
	t.Parallel()
	inFleet(t, nil, func(t *testing.T, f *fleet) {
		// The guard knows one token.
		good := "second"
		h := f.add("a", Guards{Policy: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer "+good {
					http.Error(w, "no", http.StatusUnauthorized)
					return
				}
				next.ServeHTTP(w, r)
			})
		}})
		f.list("a")
		file := filepath.Join(t.TempDir(), "token")
		p := NewPusher(f.deps(file), nil)
		push(t, p, document(time.Minute, 1))
		f.start(p.Run)
		write := func(token string) {
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, v := range []struct {
			act    func()
			result string
		}{
			{func() {}, resultRefused}, // no file: no token
			{func() { write("first\n") }, resultRefused},
			{func() { write(" \n") }, resultToken},
			{func() { write("second\n") }, resultOK},
		} {
			v.act()
			series := `inferencecache_bridge_pushes_total{result="` + v.result + `"}`
			before := f.metric(series)
			after(time.Minute)
			if f.metric(series) == before {
				t.Errorf("no push ended as %s: %+v", v.result, p.State().Servers)
			}
		}
		if h.newest() != time.Minute {
			t.Error("not adopted")
		}
		if strings.Contains(f.log.String(), "first") || strings.Contains(f.log.String(), "second") {
			t.Error("a token is in the log")
		}
	})
}

func TestTokenIsNotCarriedToWhereAServerPoints(t *testing.T) {
	t.Parallel()
	inFleet(t, []string{"a", "other"}, func(t *testing.T, f *fleet) {
		f.list("a")
		f.hosts["a"].fail(func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://other"+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		})
		p := NewPusher(f.deps(""), nil)
		push(t, p, document(time.Minute, 1))
		f.start(p.Run)
		after(time.Minute)
		if n := f.hosts["other"].called("/policy"); n != 0 {
			t.Errorf("the other server was called %d times", n)
		}
		if got := f.metric(`inferencecache_bridge_pushes_total{result="rejected"}`); got == "0" {
			t.Error("a redirect is not counted as rejected")
		}
	})
}
