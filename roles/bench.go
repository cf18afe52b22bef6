package roles

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/bench"
)

// benchmark is what `inferencecache bench` is asked to do.
type benchmark struct {
	blocks          int
	full, strict    bool
	each            time.Duration
	trace           string
	engines         int
	blocksPerEngine int
	holders         int
	soak            time.Duration
	soakMemory      int64
	output          string
}

func (q *benchmark) flags(fs *pflag.FlagSet) {
	fs.IntVar(&q.blocks, "blocks", bench.Million, "holder-blocks (replica x block) to measure with")
	fs.BoolVar(&q.full, "full", false, "take some minutes: measure longer, and again with ten times the blocks")
	fs.DurationVar(&q.each, "each", 0, "time to spend on a figure (0: 200ms, or 1s with --full)")
	fs.StringVar(&q.trace, "trace", "", "Mooncake or Bailian trace to replay (JSON lines); none: one that looks like it is made up")
	fs.IntVar(&q.engines, "engines", 0, "only say what memory the index needs for that many engines")
	fs.IntVar(&q.blocksPerEngine, "blocks-per-engine", 0, "blocks that an engine has room for, with --engines")
	fs.IntVar(&q.holders, "holders", 1, "engines that hold a block on average, with --engines")
	fs.DurationVar(&q.soak, "soak", 0, "only churn an index at its memory budget for so long")
	fs.Int64Var(&q.soakMemory, "soak-memory", 256<<20, "bytes the index may use, with --soak")
	fs.BoolVar(&q.strict, "strict", false, "exit with 1 if a goal is missed")
	fs.StringVarP(&q.output, "output", "o", "text", "text or json")
}

func (q *benchmark) validate() error {
	var errs []error
	if q.output != "text" && q.output != "json" {
		errs = append(errs, fmt.Errorf("--output %q: want text or json", q.output))
	}
	if q.blocks < 1 {
		errs = append(errs, fmt.Errorf("--blocks %d: must be positive", q.blocks))
	}
	if q.engines != 0 && q.soak != 0 {
		errs = append(errs, errors.New("--engines and --soak do not go together"))
	}
	if q.engines != 0 || q.blocksPerEngine != 0 {
		if q.engines < 1 || q.blocksPerEngine < 1 {
			errs = append(errs, errors.New("--engines and --blocks-per-engine: both must be given and positive"))
		}
		if most := min(max(1, q.engines), bench.MaxHolders); q.holders < 1 || q.holders > most {
			errs = append(errs, fmt.Errorf("--holders %d: must be 1 to %d", q.holders, most))
		}
	}
	if q.soak < 0 || q.each < 0 {
		errs = append(errs, errors.New("--soak and --each: must not be negative"))
	}
	if q.soakMemory < 1 {
		errs = append(errs, fmt.Errorf("--soak-memory %d: must be positive", q.soakMemory))
	}
	return errors.Join(errs...)
}

// newBench is `inferencecache bench`.
func newBench() *cobra.Command {
	var q benchmark
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the index on this machine, or size its memory",
		Long: `Measure the index on this machine against its goals, which hold for a million
holder-blocks on two cores. x-map says how many times as fast it is as the same
work done block by block on a plain Go map in the same run (for collections,
pauses and memory there is none). Other work on the machine makes figures worse:
compare ratios.`,
		Example: `  inferencecache bench
  inferencecache bench --full --trace conversation_trace.jsonl
  inferencecache bench --engines 64 --blocks-per-engine 500000 --holders 4
  inferencecache bench --soak 5m --soak-memory 268435456 --strict`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.validate(); err != nil {
				return usage(err)
			}
			if q.engines > 0 {
				return q.size(cmd)
			}
			rows, err := q.rows(cmd)
			if len(rows) > 0 { // some, if it was interrupted
				err = errors.Join(err, q.write(cmd.OutOrStdout(), rows))
			}
			if err != nil {
				return err
			}
			if missed := bench.Missed(rows); q.strict && missed > 0 {
				return fmt.Errorf("%d of %d figures miss their goal", missed, len(rows))
			}
			return nil
		},
	}
	q.flags(cmd.Flags())
	return cmd
}

func (q *benchmark) size(cmd *cobra.Command) error {
	s := bench.NewSizing(q.engines, q.blocksPerEngine, q.holders, bench.BytesPerHolderBlock(q.blocks, q.holders))
	if q.output == "json" {
		return writeJSON(cmd.OutOrStdout(), s)
	}
	return s.Print(cmd.OutOrStdout())
}

func (q *benchmark) rows(cmd *cobra.Command) ([]bench.Row, error) {
	if q.soak > 0 {
		return bench.Soak(cmd.Context(), q.soakMemory, q.soak)
	}
	options := bench.Options{Blocks: q.blocks, Full: q.full, Each: q.each}
	if q.trace != "" {
		requests, _, err := readTrace(q.trace)
		if err != nil {
			return nil, err
		}
		options.Trace = requests
	}
	if w := cmd.ErrOrStderr(); isTerminal(w) {
		options.Progress = func(what string) { fmt.Fprintln(w, what) }
	}
	return bench.Run(cmd.Context(), options)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (q *benchmark) write(w io.Writer, rows []bench.Row) error {
	if q.output == "text" {
		return bench.Print(w, rows)
	}
	type judged struct {
		bench.Row
		Met bool `json:"met"`
	}
	out := struct {
		Go    string   `json:"go"`
		Cores int      `json:"cores"`
		Rows  []judged `json:"rows"`
	}{Go: runtime.Version(), Cores: runtime.GOMAXPROCS(0)}
	for _, r := range rows {
		out.Rows = append(out.Rows, judged{r, r.Met()})
	}
	return writeJSON(w, out)
}

func writeJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}
