package replay

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Report is what a replay found.
type Report struct {
	Trace      string     `json:"trace"`
	Requests   int        `json:"requests"`
	Capacities []Capacity `json:"capacities"`
	Sweeps     []Sweep    `json:"sweeps"`
}

// Sweep is one size of the fleet with the results of every policy.
type Sweep struct {
	Replicas    int      `json:"replicas"`
	CacheBlocks int      `json:"cache_blocks"`
	Results     []Result `json:"results"`
}

// Print writes the report as tables.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s, %d requests\n\none cache shared by all, of so many blocks\t", r.Trace, r.Requests)
	for _, c := range r.Capacities {
		fmt.Fprintf(t, "%s\t", size(c.Blocks))
	}
	fmt.Fprint(t, "\nhit rate\t")
	for _, c := range r.Capacities {
		fmt.Fprintf(t, "%.3f\t", c.HitRate)
	}
	fmt.Fprintln(t)
	for _, s := range r.Sweeps {
		fmt.Fprintf(t, "\n%d replicas, %d blocks each\thit rate\tskew\tTTFT p50\tp90\tp99\tmean s\t\n", s.Replicas, s.CacheBlocks)
		for _, p := range s.Results {
			fmt.Fprintf(t, "%s\t%.3f\t%.2f\t%.2f\t%.2f\t%.2f\t%.3f\t\n", p.Policy, p.HitRate, p.Skew, p.P50, p.P90, p.P99, p.Mean)
		}
	}
	return t.Flush()
}

func size(blocks int) string {
	switch {
	case blocks == 0:
		return "any"
	case blocks%1000 == 0:
		return fmt.Sprintf("%dk", blocks/1000)
	}
	return fmt.Sprint(blocks)
}
