package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/loops"
)

// Endpoints knows the servers there are. Implementations are safe for
// concurrent use.
type Endpoints interface {
	// Endpoints lists every server, ready or not. Control is unique.
	Endpoints(ctx context.Context) ([]loops.Server, error)
	// Changed returns a channel that is closed when the list may have changed
	// since the call; nil if it never does.
	Changed() <-chan struct{}
}

const (
	requestTimeout = 5 * time.Second
	// A failing list of servers is asked for again after this.
	relistAfter = 5 * time.Second
	// A changed list is used after this, with what else changes meanwhile.
	settle = time.Second
)

// Results of one request, as counted.
const (
	resultOK          = "ok"
	resultToken       = "token"       // the token's file could not be read
	resultUnreachable = "unreachable" // no answer, or not in time
	resultRefused     = "refused"     // 401, 403: who we are is the problem
	resultRejected    = "rejected"    // any other status: what we sent is
	resultUnreadable  = "unreadable"  // the answer is not what it should be
	resultFailed      = "failed"      // the self-test's finding
)

// callError is what went wrong with a request and how that is counted.
type callError struct {
	result string
	err    error
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// resultOf says how the outcome of a request is counted.
func resultOf(err error) string {
	var failed *callError
	switch {
	case err == nil:
		return resultOK
	case errors.As(err, &failed):
		return failed.result
	}
	return resultUnreachable
}

// caller makes requests to control listeners with one audience's token.
type caller struct {
	http      *http.Client
	tokenFile string
}

// newCaller never follows redirects: a token is for the server it was sent to.
func newCaller(client *http.Client, tokenFile string) caller {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return caller{&own, tokenFile}
}

// call sends body, wants exactly status want, and returns at most limit bytes
// of answer.
func (c caller) call(ctx context.Context, method, url string, body []byte, want int, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, &callError{resultUnreachable, err}
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	token, err := readToken(c.tokenFile)
	if err != nil {
		return nil, &callError{resultToken, err}
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, &callError{resultUnreachable, err}
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden:
		return nil, &callError{resultRefused, fmt.Errorf("%s %s: answered %s: check the audience of the token in %s and the server's --allowed-controller-sa",
			method, url, response.Status, c.tokenFile)}
	case response.StatusCode != want:
		return nil, &callError{resultRejected, fmt.Errorf("%s %s: answered %s: %s", method, url, response.Status, firstLine(answer))}
	case err != nil:
		return nil, &callError{resultUnreachable, fmt.Errorf("%s %s: read the answer: %w", method, url, err)}
	case int64(len(answer)) > limit:
		return nil, &callError{resultUnreadable, fmt.Errorf("%s %s: the answer is longer than %d bytes", method, url, limit)}
	}
	return answer, nil
}

// firstLine is what of an answer fits into a message.
func firstLine(answer []byte) string {
	line, _, _ := strings.Cut(string(answer), "\n")
	return strings.ToValidUTF8(line[:min(len(line), 200)], "?")
}

// readToken reads a projected token, which Kubernetes replaces long before it
// expires; so it is read for every request. No file is no token: servers may
// run without authentication, and say 401 if they do not.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("read the service account's token: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", fmt.Errorf("read the service account's token: %s is empty", file)
	}
	return token, nil
}

// between is a random wait, so that controllers and servers that started
// together do not stay in step.
func between(low, high time.Duration) time.Duration { return low + rand.N(high-low) }

// rounds calls round with every server there is until ctx ends: at once, after
// each wait of low to high, and soon after the servers changed.
func rounds(ctx context.Context, endpoints Endpoints, low, high time.Duration, round func(context.Context, []loops.Server, error)) {
	for {
		changed := endpoints.Changed()
		servers, err := endpoints.Endpoints(ctx)
		if ctx.Err() != nil {
			return
		}
		round(ctx, servers, err)
		wait := between(low, high)
		if err != nil {
			wait = relistAfter
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
		}
	}
}
