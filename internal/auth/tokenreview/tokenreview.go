// Package tokenreview asks the Kubernetes API server who a bearer token
// belongs to. It needs only the right to create tokenreviews. It caches
// nothing: that is auth.Gate's.
package tokenreview

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"inferencecache.io/inferencecache/internal/auth"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 1 << 20

// Reviewer is an auth.Reviewer. Safe for concurrent use.
type Reviewer struct {
	client *http.Client
	url    string
}

// New asks the API server that config names. One small JSON request needs no
// typed client, which would bring every API group into the binary.
func New(config *rest.Config) (*Reviewer, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return &Reviewer{client, strings.TrimSuffix(base.String(), "/") + "/apis/authentication.k8s.io/v1/tokenreviews"}, nil
}

// Review implements auth.Reviewer.
func (r *Reviewer) Review(ctx context.Context, token, audience string) (auth.Identity, error) {
	review := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return auth.Identity{}, fmt.Errorf("encode token review: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return auth.Identity{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := r.client.Do(request)
	if err != nil {
		return auth.Identity{}, fmt.Errorf("create token review: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated && response.StatusCode != http.StatusOK {
		return auth.Identity{}, fmt.Errorf("create token review: the API server answered %s", response.Status)
	}
	var answer authenticationv1.TokenReview
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&answer); err != nil {
		return auth.Identity{}, fmt.Errorf("decode token review: %w", err)
	}
	return auth.Identity{
		Authenticated: answer.Status.Authenticated,
		Username:      answer.Status.User.Username,
		Audiences:     answer.Status.Audiences,
		Problem:       answer.Status.Error,
	}, nil
}
