package sim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// modest serves 100 prompt tokens and 10 generated ones per second.
func modest() Config {
	return Config{PrefillRate: 100, DecodeRate: 10, BlockSize: 10, Blocks: 20, Seed: 1}
}

func newTestEngine(cfg Config) *Engine { return New(cfg, slog.New(slog.DiscardHandler)) }

// published takes the events that wait for the event thread.
func published(e *Engine) (events []event) {
	f := e.current().feed
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.queue {
		events = append(events, b.events...)
	}
	f.queue = nil
	return events
}

func kinds(events []event) (kinds []eventKind) {
	for _, e := range events {
		kinds = append(kinds, e.kind)
	}
	return kinds
}

func TestRequestTakesPrefillAndDecodeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(modest())
		f := func(tokens, maxTokens, cached int, took time.Duration) {
			t.Helper()
			began := time.Now()
			usage, err := e.Complete(t.Context(), text('a', tokens), maxTokens)
			if want := (Usage{tokens, cached, maxTokens}); err != nil || usage != want {
				t.Errorf("usage %v, want %v, %v", usage, want, err)
			}
			if d := time.Since(began); d != took {
				t.Errorf("took %v, want %v", d, took)
			}
		}
		f(100, 10, 0, 2*time.Second)                       // 100/100 + 10/10
		f(105, 10, 100, 1050*time.Millisecond)             // only the tail is new
		f(100, 10, 90, 1100*time.Millisecond)              // the last token is always computed
		f(200, 1, 100, 1*time.Second+100*time.Millisecond) // the whole cache
		if e.State().HeldBlocks != 20 {
			t.Errorf("holds %d blocks", e.State().HeldBlocks)
		}
		e.check(t)
	})
}

func TestOnlyNewBlocksArePublishedAfterPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(modest())
		var done sync.WaitGroup
		done.Go(func() { _, _ = e.Complete(t.Context(), text('a', 100), 10) })
		<-time.After(999 * time.Millisecond)
		synctest.Wait()
		if got := published(e); got != nil {
			t.Errorf("published %v before the end of prefill", got)
		}
		<-time.After(time.Millisecond)
		synctest.Wait()
		first := published(e)
		if len(first) != 1 || len(first[0].hashes) != 10 || len(first[0].tokens) != 100 || first[0].hasParent {
			t.Errorf("published %+v", first)
		}
		done.Wait()
		_, _ = e.Complete(t.Context(), text('a', 125), 10)
		second := published(e)
		if len(second) != 1 || len(second[0].hashes) != 2 || len(second[0].tokens) != 20 || second[0].parent != first[0].hashes[9] {
			t.Errorf("published %+v", second)
		}
		_, _ = e.Complete(t.Context(), text('a', 125), 10)
		if got := published(e); got != nil {
			t.Errorf("published %v for a prompt that was held", got)
		}
	})
}

func TestEvictionsComeBeforeTheStoreInOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(modest())
		_, _ = e.Complete(t.Context(), text('a', 150), 1)
		held := published(e)[0].hashes
		_, _ = e.Complete(t.Context(), text('b', 70), 1)
		e.current().feed.mu.Lock()
		batches := len(e.current().feed.queue)
		e.current().feed.mu.Unlock()
		events := published(e)
		if want := []eventKind{blockRemoved, blockRemoved, blockStored}; batches != 1 || !slices.Equal(kinds(events), want) {
			t.Fatalf("%d batches with %v", batches, kinds(events))
		}
		if events[0].hashes[0] != held[14] || events[1].hashes[0] != held[13] {
			t.Errorf("evicted %x and %x, want the tail of %x", events[0].hashes, events[1].hashes, held)
		}
		if e.State().Evictions != 2 {
			t.Errorf("counted %d evictions", e.State().Evictions)
		}
		e.check(t)
	})
}

func TestPrefillIsSerialAndDecodeIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(modest())
		began := time.Now()
		ends := make(chan time.Duration, 3)
		for _, letter := range []byte("abc") {
			go func() {
				_, _ = e.Complete(t.Context(), text(letter, 50), 20) // 0.5 s and 2 s
				ends <- time.Since(began)
			}()
			synctest.Wait()
		}
		if s := e.State(); s.Running != 1 || s.Waiting != 2 {
			t.Errorf("%d running, %d waiting", s.Running, s.Waiting)
		}
		<-time.After(1500 * time.Millisecond)
		synctest.Wait()
		if s := e.State(); s.Running != 3 || s.Waiting != 0 || s.UsedBlocks != 15 {
			t.Errorf("%d running, %d waiting, %d blocks used", s.Running, s.Waiting, s.UsedBlocks)
		}
		for _, want := range []time.Duration{2500, 3000, 3500} {
			if got := <-ends; got != want*time.Millisecond {
				t.Errorf("ended after %v, want %v ms", got, int64(want))
			}
		}
	})
}

func TestRequestsWaitForSeatsAndBlocks(t *testing.T) {
	f := func(cfg Config, want time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			e := newTestEngine(cfg)
			began := time.Now()
			var done sync.WaitGroup
			for _, letter := range []byte("ab") {
				done.Go(func() {
					if _, err := e.Complete(t.Context(), text(letter, 50), 20); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			done.Wait()
			if got := time.Since(began); got != want {
				t.Errorf("two requests took %v, want %v", got, want)
			}
			e.check(t)
		})
	}
	one := modest()
	one.MaxConcurrency = 1
	f(one, 5*time.Second)
	small := modest()
	small.Blocks = 9 // two prompts need ten
	f(small, 5*time.Second)
	f(modest(), 3*time.Second)
}

func TestCancelledRequestFreesItsPlace(t *testing.T) {
	for name, after := range map[string]time.Duration{"prefill": 200 * time.Millisecond, "decode": 1200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := modest()
				cfg.MaxConcurrency = 1
				e := newTestEngine(cfg)
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				waiting, leave := context.WithTimeout(t.Context(), after/2)
				defer leave()
				var done sync.WaitGroup
				done.Go(func() {
					if _, err := e.Complete(ctx, text('a', 100), 100); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("error %v", err)
					}
				})
				synctest.Wait()
				done.Go(func() {
					if _, err := e.Complete(waiting, text('b', 100), 1); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("error %v", err)
					}
				})
				done.Wait()
				if s := e.State(); s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 || s.Requests != 0 {
					t.Errorf("left behind: %+v", s)
				}
				if _, err := e.Complete(t.Context(), text('c', 10), 1); err != nil {
					t.Error(err)
				}
				e.check(t)
			})
		})
	}
}

func TestRestartKillsRequestsAndForgetsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(modest())
		_, _ = e.Complete(t.Context(), text('a', 100), 1)
		old := published(e)[0].hashes
		var done sync.WaitGroup
		for _, letter := range []byte("xyz") {
			done.Go(func() {
				if _, err := e.Complete(t.Context(), text(letter, 100), 100); !errors.Is(err, ErrRestarted) {
					t.Errorf("error %v", err)
				}
			})
		}
		synctest.Wait()
		e.Restart()
		done.Wait()
		if s := e.State(); s.HeldBlocks != 0 || s.NextSequence != 0 || s.Running != 0 || s.Requests != 0 || s.Restarts != 1 {
			t.Errorf("after the restart: %+v", s)
		}
		_, _ = e.Complete(t.Context(), text('a', 100), 1)
		if !slices.Equal(published(e)[0].hashes, old) {
			t.Error("a configured seed changed in the restart")
		}
	})
}

func TestRandomSeedIsNewInEveryProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := modest()
		cfg.Seed = 0
		e := newTestEngine(cfg)
		seen := map[blockHash]bool{}
		again := func() {
			_, _ = e.Complete(t.Context(), text('a', 100), 1)
			for _, event := range published(e) {
				seen[event.hashes[0]] = true
			}
		}
		again()
		e.Restart()
		again()
		e.Reseed()
		again()
		if len(seen) != 3 || e.State().HeldBlocks != 20 {
			t.Errorf("%d different first hashes, %d blocks held", len(seen), e.State().HeldBlocks)
		}
	})
}

func TestClearRefusesWhileARequestRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(modest())
		var done sync.WaitGroup
		done.Go(func() { _, _ = e.Complete(t.Context(), text('a', 100), 10) })
		synctest.Wait()
		if e.Clear() {
			t.Error("cleared blocks in use")
		}
		done.Wait()
		published(e)
		if !e.Clear() || !slices.Equal(kinds(published(e)), []eventKind{allBlocksCleared}) || e.State().HeldBlocks != 0 {
			t.Error("not cleared")
		}
	})
}

func TestFullQueueLosesBatchesVisibly(t *testing.T) {
	e := newTestEngine(modest())
	for range queueLimit + 3 {
		e.current().feed.put([]event{{kind: allBlocksCleared}})
	}
	if s := e.State(); s.QueuedBatches != queueLimit || s.LostBatches != 3 || s.NextSequence != queueLimit+3 {
		t.Errorf("%+v", s)
	}
}

func TestImpossiblePromptsAreRefused(t *testing.T) {
	e := newTestEngine(modest())
	for _, n := range []int{0, 201} {
		_, err := e.Complete(t.Context(), text('a', n), 1)
		if prompt := (*PromptError)(nil); !errors.As(err, &prompt) {
			t.Errorf("%d tokens: %v", n, err)
		}
	}
}
