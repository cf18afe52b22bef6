package life

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func TestStagesStopInReverse(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var stopped []string
	service := func(name string, stage Stage) Service {
		return Service{name, stage, func(ctx context.Context) error {
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			stopped = append(stopped, name)
			return nil
		}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, time.Minute, quiet, service("page", Obs), service("hands", Hands), service("door", Doors), service("index", State)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"hands", "door", "index", "page"}, stopped); diff != "" {
		t.Error(diff)
	}
}

func TestOneFailureEndsAll(t *testing.T) {
	t.Parallel()
	broken := errors.New("port taken")
	waits := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	err := Run(t.Context(), time.Minute, quiet,
		Service{"index", State, waits},
		Service{"listener", Doors, func(context.Context) error { return broken }})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "listener") {
		t.Errorf("got %v", err)
	}
}

func TestEndingByItselfIsAFailure(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), time.Minute, quiet, Service{"loop", State, func(context.Context) error { return nil }})
	if !errors.Is(err, errEnded) {
		t.Errorf("got %v", err)
	}
}

func TestAHangingServiceIsNamedAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := Run(ctx, 4*time.Second, quiet, Service{"stuck", Doors, func(context.Context) error { <-release; return nil }})
		close(release)
		if err == nil || !strings.Contains(err.Error(), "stuck did not stop within 4s") {
			t.Errorf("got %v", err)
		}
	})
}
