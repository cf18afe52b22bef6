package roles

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/internal/trace"
	"inferencecache.io/inferencecache/roles/replay"
)

// replaying is what `inferencecache replay` is asked to do.
type replaying struct {
	fleet    replay.Config
	policies []string
	replicas []int
	caches   []int
	sizes    []int
	tenant   string // of a journal
	model    string
	output   string
	plot     string
}

func (q *replaying) flags(fs *pflag.FlagSet) {
	d := replay.DefaultConfig()
	fs.StringSliceVar(&q.policies, "policy", replay.Policies, "policies to compare")
	fs.IntSliceVar(&q.replicas, "replicas", []int{d.Replicas}, "sizes of the fleet, in replicas")
	fs.IntSliceVar(&q.caches, "cache", []int{d.CacheBlocks}, "sizes of a replica's cache, in blocks of the trace")
	fs.IntSliceVar(&q.sizes, "capacity", []int{1000, 2000, 4000, 8000, 16000, 32000, 64000, 0}, "sizes of one shared cache to give the hit rate for (0: without bound)")
	fs.Float64Var(&q.fleet.PrefillRate, "prefill-rate", d.PrefillRate, "prompt tokens a second that a replica computes")
	fs.DurationVar(&q.fleet.DecodeToken, "decode-token", d.DecodeToken, "time for each token of an answer")
	fs.DurationVar(&q.fleet.ReportEvery, "report-every", d.ReportEvery, "time between two load reports of a replica (0: its load is always known)")
	fs.DurationVar(&q.fleet.EventLag, "event-lag", d.EventLag, "time until a change of a cache is known (0: at once)")
	fs.Uint64Var(&q.fleet.Seed, "seed", d.Seed, "seed for ties")
	fs.StringVar(&q.tenant, "tenant", "", "play only this tenant's requests of a journal")
	fs.StringVar(&q.model, "model", "", "play only this model's requests of a journal")
	fs.StringVarP(&q.output, "output", "o", "text", "text or json")
	fs.StringVar(&q.plot, "plot", "", "file to draw the result into, as SVG")
}

func (q *replaying) validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(q.output != "text" && q.output != "json", "--output %q: want text or json", q.output)
	for _, p := range q.policies {
		refuse(!slices.Contains(replay.Policies, p), "--policy %q: want some of %s", p, strings.Join(replay.Policies, ", "))
	}
	for _, n := range q.replicas {
		refuse(n < 1 || n > 4096, "--replicas %d: want 1 to 4096", n)
	}
	for _, n := range q.caches {
		refuse(n < 1, "--cache %d: must be positive", n)
	}
	for _, n := range q.sizes {
		refuse(n < 0, "--capacity %d: must not be negative", n)
	}
	refuse(!(q.fleet.PrefillRate > 0 && q.fleet.PrefillRate < 1e12), "--prefill-rate %g: must be positive", q.fleet.PrefillRate)
	refuse(q.fleet.DecodeToken < 0 || q.fleet.ReportEvery < 0 || q.fleet.EventLag < 0, "--decode-token, --report-every and --event-lag: must not be negative")
	return errors.Join(errs...)
}

// newReplay is `inferencecache replay`.
func newReplay() *cobra.Command {
	var q replaying
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Play a trace to a simulated fleet and compare ways of routing",
		Long: `Play a trace of requests with block ids (Mooncake or Bailian, JSON lines, or the
journal of a server) to a simulated fleet, routed by the real index and ranking ("cost", "compat") or as
others do, and say how long prompts wait for their first token and how much of
them was cached. A replica prefills one prompt at a time; its cache is an LRU of
whole blocks. "thresholds" and "block-cost" are models of published designs.`,
		Example: `  inferencecache replay conversation_trace.jsonl
  inferencecache replay --report-every 10s --event-lag 2s conversation_trace.jsonl
  inferencecache replay --replicas 8,12,16 --cache 2000,8000 --policy cost -o json trace.jsonl
  inferencecache replay --plot waits.svg trace.jsonl
  inferencecache replay --tenant acme --cache 64000 server.journal`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.validate(); err != nil {
				return usage(err)
			}
			lines, tokens, err := q.read(cmd.ErrOrStderr(), args[0])
			if err != nil {
				return err
			}
			q.fleet.BlockTokens = tokens
			return q.run(cmd, args[0], replay.Requests(lines))
		},
	}
	q.flags(cmd.Flags())
	return cmd
}

// read reads a trace or a journal whole and says how many tokens its blocks
// have.
func (q *replaying) read(notes io.Writer, name string) (lines []trace.Request, blockTokens int, err error) {
	isJournal, err := beginsAsJournal(name)
	switch {
	case err != nil:
		return nil, 0, usage(err)
	case isJournal:
		t, err := readJournal(notes, name, q.tenant, q.model)
		if err != nil {
			return nil, 0, usage(fmt.Errorf("read %s: %w", name, err))
		}
		return t.Requests, t.BlockTokens, nil
	case q.tenant != "" || q.model != "":
		return nil, 0, usage(fmt.Errorf("--tenant and --model choose from a journal, and %s is none", name))
	}
	return readTrace(name)
}

// readTrace reads a trace whole and says how many tokens its blocks have.
func readTrace(name string) (lines []trace.Request, blockTokens int, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, usage(err)
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<20)
	first, _ := in.Peek(in.Size()) // a short file ends early
	first, _, _ = bytes.Cut(bytes.TrimSpace(first), []byte("\n"))
	format, tokens := trace.Guess(first)
	lines, err = trace.NewReader(in, format).ReadAll()
	if err == nil && len(lines) == 0 {
		err = errors.New("no requests")
	}
	if err != nil {
		return nil, 0, usage(fmt.Errorf("read %s: %w", name, err))
	}
	return lines, tokens, nil
}

func (q *replaying) run(cmd *cobra.Command, name string, requests []replay.Request) error {
	report := replay.Report{Trace: filepath.Base(name), Requests: len(requests), Capacities: replay.Capacities(requests, q.sizes)}
	show := progress(cmd.ErrOrStderr())
	for _, n := range q.replicas {
		for _, cache := range q.caches {
			c := q.fleet
			c.Replicas, c.CacheBlocks = n, cache
			sweep := replay.Sweep{Replicas: n, CacheBlocks: cache}
			for _, policy := range q.policies {
				result, err := replay.Run(cmd.Context(), c, requests, policy, func(done float64) {
					show(fmt.Sprintf("%d replicas, %d blocks, %s: %.0f%%", n, cache, policy, 100*done))
				})
				if err != nil {
					return err
				}
				sweep.Results = append(sweep.Results, result)
			}
			report.Sweeps = append(report.Sweeps, sweep)
		}
	}
	show("")
	if q.plot != "" {
		if err := writePlot(q.plot, &report); err != nil {
			return err
		}
	}
	if q.output == "json" {
		return writeJSON(cmd.OutOrStdout(), report)
	}
	return report.Print(cmd.OutOrStdout())
}

func writePlot(name string, report *replay.Report) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(report.Plot(file), file.Close())
}

// progress overwrites one line of a terminal, a few times a second. Elsewhere
// it says nothing.
func progress(w io.Writer) func(string) {
	if !isTerminal(w) {
		return func(string) {}
	}
	var last time.Time
	return func(text string) {
		if now := time.Now(); text == "" || now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(w, "\r\033[K%s", text)
		}
	}
}
