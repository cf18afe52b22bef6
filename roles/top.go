package roles

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// fleetQuestion is what `inferencecache top` asks, again and again.
type fleetQuestion struct {
	question
	interval time.Duration
	once     bool
	rows     int32
}

// leastInterval keeps a table from becoming a load.
const leastInterval = 200 * time.Millisecond

// newTop is `inferencecache top`.
func newTop() *cobra.Command {
	var q fleetQuestion
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the fleet as a server sees it, live",
		Long: `top shows every replica with its state, load, blocks and the audit of what it
promised, and the beginnings that recent prompts have in common, until Ctrl-C. What
is not a terminal gets one table after the other. The same as a page: / of the server.`,
		Example: `  inferencecache top
  inferencecache top --once -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.check(); err != nil {
				return usage(err)
			}
			if q.interval < leastInterval {
				return usage(fmt.Errorf("--interval %s: want at least %s", q.interval, leastInterval))
			}
			return q.follow(cmd.Context(), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	q.connection(fs)
	fs.StringVar(&q.tenant, "tenant", "", "only this tenant")
	fs.StringVar(&q.model, "model", "", "only this model")
	fs.DurationVar(&q.interval, "interval", 2*time.Second, "pause between two looks")
	fs.BoolVar(&q.once, "once", false, "look once")
	fs.Int32Var(&q.rows, "rows", 40, "replicas to show; where there are more, those in trouble first")
	return cmd
}

// follow shows the fleet until ctx ends. A server that has answered once may be
// away for a while.
func (q *fleetQuestion) follow(ctx context.Context, w io.Writer) error {
	screen := !q.once && q.output == "text" && isTerminal(w)
	var last *pb.GetFleetResponse
	for {
		fleet, err := q.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && last == nil:
			return err
		}
		if err := q.show(w, screen, fleet, last, err); err != nil || q.once {
			return err
		}
		if fleet != nil {
			last = fleet
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(q.interval):
		}
	}
}

func (q *fleetQuestion) ask(ctx context.Context) (*pb.GetFleetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	fleet, err := q.client().GetFleet(ctx, &pb.GetFleetRequest{TenantId: q.tenant, ModelId: q.model, MaxReplicas: q.rows, TopK: 5})
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", q.server, explainCall(err))
	}
	return fleet, nil
}

// show writes one look; fleet is nil if there was none, for the reason that
// failed gives.
func (q *fleetQuestion) show(w io.Writer, screen bool, fleet, last *pb.GetFleetResponse, failed error) error {
	if q.output == "json" {
		if fleet == nil {
			return nil
		}
		return writeProto(w, fleet)
	}
	var text strings.Builder
	if failed != nil {
		fmt.Fprintf(&text, "the server does not answer, this is from before: %v\n\n", failed)
		fleet, last = last, nil
	}
	if err := writeFleet(&text, fleet, last); err != nil {
		return err
	}
	if screen { // over the last look, line by line: nothing flickers
		_, err := fmt.Fprint(w, "\x1b[H", strings.ReplaceAll(text.String(), "\n", "\x1b[K\n"), "\x1b[J")
		return err
	}
	_, err := fmt.Fprintln(w, text.String())
	return err
}

// writeFleet prints a look for people. Rates are over the time since last; nil:
// there is none.
func writeFleet(w io.Writer, fleet, last *pb.GetFleetResponse) error {
	s := fleet.GetServer()
	fmt.Fprintf(w, "inferencecache %s, up %s; index %s of %s, %d blocks, %d entries\n", s.GetVersion(), (time.Duration(s.GetUptimeMs()) * time.Millisecond).Round(time.Second),
		size(s.GetIndexBytes()), size(s.GetIndexBytesLimit()), s.GetIndexKeys(), s.GetIndexEntries())
	fmt.Fprintf(w, "lookups%s; replicas%s\n\n", lookupText(fleet, last), stateText(fleet.GetStates()))
	if len(fleet.GetReplicas()) == 0 {
		_, err := fmt.Fprintln(w, "no replica has reported: is a subscriber beside each engine, and does its --server name this server?")
		return err
	}
	if err := writeReplicas(w, fleet); err != nil || len(fleet.GetHotPrefixes()) == 0 {
		return err
	}
	fmt.Fprintf(w, "\nhottest prefixes of the latest %d lookups\n", fleet.GetDecisions())
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "prefix\tmodel\tblocks\tlookups\ta second\tholders\tmost sent to")
	for _, p := range fleet.GetHotPrefixes() {
		most := "-"
		if p.GetMostHinted() != "" {
			most = fmt.Sprintf("%s %.0f %%", p.GetMostHinted(), 100*p.GetMostShare())
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%.1f\t%d\t%s\n", p.GetHash(), printable(p.GetTenantId()+"/"+p.GetModelId()), p.GetBlocks(), p.GetLookups(),
			p.GetLookupsPerSecond(), p.GetHolders(), printable(most))
	}
	return table.Flush()
}

func writeReplicas(w io.Writer, fleet *pb.GetFleetResponse) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "replica\tmodel\tstate\trunning\twaiting\twait\thints/min\theld\tindexed\tstream\theard\tchanged\tfound of promised")
	for _, r := range fleet.GetReplicas() {
		running, waiting, wait := "-", "-", "-"
		if stats := r.GetStats(); stats != nil && stats.RunningRequests != nil {
			running = fmt.Sprintf("%.0f", stats.GetRunningRequests())
		}
		if stats := r.GetStats(); stats != nil && stats.WaitingRequests != nil {
			waiting = fmt.Sprintf("%.0f", stats.GetWaitingRequests())
		}
		if r.GetLoadKnown() {
			wait = ms(r.GetBacklogMs()) + "ms"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\n", printable(r.GetReplicaId()), printable(r.GetTenantId()+"/"+r.GetModelId()),
			lower(r.GetState().String(), "REPLICA_"), running, waiting, wait, r.GetRecentHints(), heldText(r.GetHeld()), r.GetIndexedBlocks(),
			lower(r.GetStreamState().String(), "STREAM_"), agoText(r.GetHeardAgeMs()), agoText(r.GetChangedAgeMs()), auditText(r.GetAudit()))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if hidden := total(fleet.GetStates()) - int64(len(fleet.GetReplicas())); hidden > 0 {
		fmt.Fprintf(w, "and %d more: --rows\n", hidden)
	}
	return nil
}

// lookupText is how many a second by reason if there was a look before, else how
// many since the start.
func lookupText(fleet, last *pb.GetFleetResponse) string {
	now := fleet.GetServer().GetLookups()
	if len(now) == 0 {
		return ": none yet"
	}
	text, per := " since the start:", 0.0
	if seconds := float64(fleet.GetAtUs()-last.GetAtUs()) / 1e6; last != nil && seconds > 0 && last.GetServer().GetEpoch() == fleet.GetServer().GetEpoch() {
		text, per = " a second:", seconds
	}
	for _, reason := range sortedKeys(now) {
		if per == 0 {
			text += fmt.Sprintf(" %s %d", reason, now[reason])
		} else {
			text += fmt.Sprintf(" %s %.1f", reason, float64(now[reason]-last.GetServer().GetLookups()[reason])/per)
		}
	}
	return text
}

func stateText(states map[string]int64) string {
	if len(states) == 0 {
		return ": none"
	}
	var all []string
	for _, state := range sortedKeys(states) {
		all = append(all, fmt.Sprintf("%d %s", states[state], lower(state, "REPLICA_")))
	}
	return " " + strings.Join(all, ", ")
}

func sortedKeys(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func total(m map[string]int64) (sum int64) {
	for _, n := range m {
		sum += n
	}
	return sum
}

func lower(name, prefix string) string {
	name = strings.ToLower(strings.TrimPrefix(name, prefix))
	if strings.HasSuffix(name, "unspecified") {
		return "-"
	}
	return name
}

// heldText is what a replica says to hold, by tier if not all is in the first.
func heldText(h *pb.HeldBlocks) string {
	switch {
	case h == nil:
		return "-"
	case h.GetT2() == 0 && h.GetT3() == 0:
		return fmt.Sprint(h.GetT1())
	}
	return fmt.Sprintf("%d+%d+%d", h.GetT1(), h.GetT2(), h.GetT3())
}

func auditText(a *pb.TruthAudit) string {
	if a.GetPromisedTokens() == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %% of %d tokens", 100*float64(a.GetFoundTokens())/float64(a.GetPromisedTokens()), a.GetPromisedTokens())
}

func agoText(ms int64) string {
	if ms < 0 {
		return "never"
	}
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}

func size(bytes int64) string {
	const mib = 1 << 20
	if bytes >= 1024*mib {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1024*mib))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/mib)
}

// printable keeps names that producers made up from steering the terminal.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, name)
}
