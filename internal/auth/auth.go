// Package auth answers one question at the door of the control listener: may
// the bearer of this token come in? It fails closed. Who a token belongs to is
// a Reviewer's business (auth/tokenreview asks Kubernetes); tokens are never
// logged, and only their SHA-256 is kept.
package auth

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Identity is who a reviewer says a token belongs to.
type Identity struct {
	Authenticated bool
	Username      string   // for instance system:serviceaccount:ns:name
	Audiences     []string // those of the request that the token is good for
	Problem       string   // what the reviewer said of a token it refused
}

// Reviewer resolves tokens. An error means that it could not tell.
type Reviewer interface {
	Review(ctx context.Context, token string, audience string) (Identity, error)
}

// Result of one request, as counted.
type Result string

const (
	OK        Result = "ok"
	Unauth    Result = "unauth"    // 401: no bearer, or not authenticated
	Forbidden Result = "forbidden" // 403: somebody else
	Error     Result = "error"     // 503: could not be reviewed
)

const (
	successTTL    = 30 * time.Second
	maxSuccesses  = 32
	refusalTTL    = 10 * time.Second
	maxRefusals   = 1024
	knownTTL      = 10 * time.Minute
	reviewTimeout = 5 * time.Second
	// Reviews of tokens never seen good are limited to a burst and a rate, so
	// that a flood of bad tokens cannot become a flood of reviews.
	burst = 20
	rate  = 10 // a second
)

// Gate guards one endpoint. Safe for concurrent use.
type Gate struct {
	reviewer Reviewer
	allowed  string // username
	audience string
	record   func(Result)
	log      *slog.Logger
	flight   singleflight.Group

	mu     sync.Mutex // guards what follows
	good   map[digest]time.Time
	bad    map[digest]refusal
	known  map[digest]time.Time // last seen good: not subject to the limit
	tokens float64
	filled time.Time
}

type digest [sha256.Size]byte

type refusal struct {
	result Result
	until  time.Time
}

// NewGate lets in exactly the user allowed, with a token good for audience.
// record is called once a request with its outcome.
func NewGate(reviewer Reviewer, allowed, audience string, record func(Result), log *slog.Logger) *Gate {
	return &Gate{
		reviewer: reviewer, allowed: allowed, audience: audience, record: record, log: log,
		good: map[digest]time.Time{}, bad: map[digest]refusal{}, known: map[digest]time.Time{},
		tokens: burst, filled: time.Now(),
	}
}

// Wrap lets requests with a good bearer token through to next.
func (g *Gate) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := g.admit(r)
		g.record(result)
		switch result {
		case OK:
			next.ServeHTTP(w, r)
		case Forbidden:
			http.Error(w, "this identity may not use this endpoint", http.StatusForbidden)
		case Error:
			http.Error(w, "the token could not be reviewed, try again", http.StatusServiceUnavailable)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a valid bearer token is required", http.StatusUnauthorized)
		}
	})
}

func (g *Gate) admit(r *http.Request) Result {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return Unauth
	}
	id := digest(sha256.Sum256([]byte(token)))
	if result, ok := g.remembered(id, time.Now()); ok {
		return result
	}
	// Requests with one token share one review, and so its fate.
	result, _, _ := g.flight.Do(string(id[:]), func() (any, error) {
		if !g.mayReview(id, time.Now()) {
			return Error, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), reviewTimeout)
		defer cancel()
		result := g.review(ctx, token)
		g.remember(id, result, time.Now())
		return result, nil
	})
	return result.(Result)
}

func (g *Gate) review(ctx context.Context, token string) Result {
	identity, err := g.reviewer.Review(ctx, token, g.audience)
	switch {
	case err != nil:
		g.log.Warn("auth_token_review_failed", "audience", g.audience, "err", err)
		return Error
	case !identity.Authenticated:
		if identity.Problem != "" {
			g.log.Warn("auth_token_review_unauthenticated", "audience", g.audience, "err", identity.Problem)
		}
		return Unauth
	case !slices.Contains(identity.Audiences, g.audience):
		// An authenticator that ignores audiences vouches for nothing here.
		g.log.Warn("auth_token_review_unauthenticated", "audience", g.audience, "err", "the token is not good for this audience")
		return Unauth
	case identity.Username != g.allowed:
		return Forbidden
	}
	return OK
}

func (g *Gate) remembered(id digest, now time.Time) (Result, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until, ok := g.good[id]; ok && now.Before(until) {
		return OK, true
	}
	if r, ok := g.bad[id]; ok && now.Before(r.until) {
		return r.result, true
	}
	return "", false
}

func (g *Gate) remember(id digest, result Result, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch result {
	case OK:
		put(g.good, id, now.Add(successTTL), maxSuccesses, now, func(t time.Time) time.Time { return t })
		put(g.known, id, now.Add(knownTTL), maxSuccesses, now, func(t time.Time) time.Time { return t })
		delete(g.bad, id)
	case Unauth, Forbidden:
		put(g.bad, id, refusal{result, now.Add(refusalTTL)}, maxRefusals, now, func(r refusal) time.Time { return r.until })
		delete(g.good, id)
		delete(g.known, id)
	}
}

// put makes room first: expired entries go, then the one soonest to expire.
func put[V any](m map[digest]V, id digest, v V, limit int, now time.Time, until func(V) time.Time) {
	if _, ok := m[id]; !ok && len(m) >= limit {
		var soonest digest
		first := true
		for k, v := range m {
			if !now.Before(until(v)) {
				delete(m, k)
			} else if first || until(v).Before(until(m[soonest])) {
				soonest, first = k, false
			}
		}
		if len(m) >= limit {
			delete(m, soonest)
		}
	}
	m[id] = v
}

func (g *Gate) mayReview(id digest, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until, ok := g.known[id]; ok && now.Before(until) {
		return true
	}
	g.tokens = min(burst, g.tokens+now.Sub(g.filled).Seconds()*rate)
	g.filled = now
	if g.tokens < 1 {
		return false
	}
	g.tokens--
	return true
}
