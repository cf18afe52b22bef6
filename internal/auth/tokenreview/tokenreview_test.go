package tokenreview

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"inferencecache.io/inferencecache/internal/auth"
)

func newReviewer(t *testing.T, api http.HandlerFunc) *Reviewer {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	r, err := New(&rest.Config{Host: server.URL, BearerToken: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReviewAsksForTheAudienceAndReadsTheStatus(t *testing.T) {
	t.Parallel()
	r := newReviewer(t, func(w http.ResponseWriter, req *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if req.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || req.Header.Get("Authorization") != "Bearer mine" ||
			review.Spec.Token != "theirs" || len(review.Spec.Audiences) != 1 || review.Spec.Audiences[0] != "aud" {
			t.Errorf("request %s %+v", req.URL.Path, review.Spec)
		}
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{"aud"}, User: authenticationv1.UserInfo{Username: "them"},
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	})
	got, err := r.Review(t.Context(), "theirs", "aud")
	if err != nil {
		t.Fatal(err)
	}
	want := auth.Identity{Authenticated: true, Username: "them", Audiences: []string{"aud"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedOrUnreadableReviewIsAnError(t *testing.T) {
	t.Parallel()
	for name, api := range map[string]http.HandlerFunc{
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"not JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
	} {
		if _, err := newReviewer(t, api).Review(t.Context(), "x", "aud"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
