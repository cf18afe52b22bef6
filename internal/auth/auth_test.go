package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	controller = "system:serviceaccount:inference-cache-system:inference-cache-controller-manager"
	audience   = "inferencecache.io/controller"
)

type fakeReviewer struct {
	calls atomic.Int64
	by    map[string]Identity // by token
	err   error
}

func (f *fakeReviewer) Review(_ context.Context, token, _ string) (Identity, error) {
	f.calls.Add(1)
	return f.by[token], f.err
}

func good() Identity {
	return Identity{Authenticated: true, Username: controller, Audiences: []string{audience}}
}

type door struct {
	gate     *Gate
	reviewer *fakeReviewer
	results  []Result
}

func newDoor(by map[string]Identity) *door {
	d := &door{reviewer: &fakeReviewer{by: by}}
	d.gate = NewGate(d.reviewer, controller, audience, func(r Result) { d.results = append(d.results, r) }, slog.New(slog.DiscardHandler))
	return d
}

func (d *door) knock(authorization string) int {
	r := httptest.NewRequest(http.MethodGet, "/snapshot", nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	d.gate.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
	return w.Code
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	d := newDoor(map[string]Identity{
		"good":   good(),
		"other":  {Authenticated: true, Username: "system:serviceaccount:x:y", Audiences: []string{audience}},
		"else":   {Authenticated: true, Username: controller, Audiences: []string{"api"}},
		"no-aud": {Authenticated: true, Username: controller},
	})
	for _, v := range []struct {
		header string
		code   int
		want   Result
	}{
		{"", 401, Unauth},
		{"Basic good", 401, Unauth},
		{"Bearer", 401, Unauth},
		{"Bearer  ", 401, Unauth},
		{"Bearer good", 200, OK},
		{"bEaReR  good ", 200, OK},
		{"Bearer other", 403, Forbidden},
		{"Bearer else", 401, Unauth},
		{"Bearer no-aud", 401, Unauth},
		{"Bearer bad", 401, Unauth},
	} {
		d.results = nil
		if code := d.knock(v.header); code != v.code {
			t.Errorf("%q: status %d, want %d", v.header, code, v.code)
		}
		if diff := cmp.Diff([]Result{v.want}, d.results); diff != "" {
			t.Errorf("%q: %s", v.header, diff)
		}
	}
}

func TestReviewTroubleFailsClosedAndIsNotRemembered(t *testing.T) {
	t.Parallel()
	d := newDoor(map[string]Identity{"good": good()})
	d.reviewer.err = errors.New("api server away")
	if code := d.knock("Bearer good"); code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", code)
	}
	d.reviewer.err = nil
	if code := d.knock("Bearer good"); code != http.StatusOK {
		t.Errorf("after recovery: status %d, want 200", code)
	}
}

func TestSuccessIsRememberedFor30Seconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(map[string]Identity{"good": good()})
		for range 5 {
			d.knock("Bearer good")
		}
		if n := d.reviewer.calls.Load(); n != 1 {
			t.Errorf("%d reviews, want 1", n)
		}
		time.Sleep(31 * time.Second) // the bubble's clock
		d.reviewer.by = nil
		if code := d.knock("Bearer good"); code != http.StatusUnauthorized {
			t.Errorf("revoked token: status %d, want 401", code)
		}
	})
}

func TestFloodOfBadTokensDoesNotReachTheReviewer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(map[string]Identity{"good": good()})
		d.knock("Bearer good")
		for range 1000 {
			d.knock("Bearer one and the same")
		}
		if n := d.reviewer.calls.Load(); n != 2 {
			t.Errorf("one bad token repeated: %d reviews, want 2 with the good one", n)
		}
		for i := range 10_000 {
			d.knock(fmt.Sprint("Bearer guess-", i))
		}
		if n := d.reviewer.calls.Load(); n > 2+burst {
			t.Errorf("many bad tokens: %d reviews", n)
		}
		if len(d.gate.bad) > maxRefusals {
			t.Errorf("%d refusals kept", len(d.gate.bad))
		}
		time.Sleep(successTTL + time.Second) // the bubble's clock
		for i := range 10_000 {
			d.knock(fmt.Sprint("Bearer again-", i))
		}
		if code := d.knock("Bearer good"); code != http.StatusOK {
			t.Errorf("a token known to be good was refused during a flood: %d", code)
		}
	})
}
