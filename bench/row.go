package bench

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// Bound says on which side of its goal a value should be.
type Bound string

// AtMost and AtLeast the goal; rows without a goal have no bound.
const (
	AtMost  Bound = "at most"
	AtLeast Bound = "at least"
)

// Row is one figure.
type Row struct {
	Load  string  `json:"load"`
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	XMap  float64 `json:"xMap,omitempty"` // times as fast as a plain map[uint64]uint64 in this run; 0: does not apply
	Bound Bound   `json:"bound,omitempty"`
	Must  float64 `json:"must"` // the goal, if there is a bound
}

// Met reports whether the value keeps to its goal, if it has one.
func (r Row) Met() bool {
	switch r.Bound {
	case AtMost:
		return r.Value <= r.Must
	case AtLeast:
		return r.Value >= r.Must
	}
	return true
}

// Missed counts the rows that miss their goals.
func Missed(rows []Row) (n int) {
	for _, r := range rows {
		if !r.Met() {
			n++
		}
	}
	return n
}

// Print writes rows as a table.
func Print(w io.Writer, rows []Row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "load\twhat\tvalue\tx-map\tmust\tmet")
	for _, r := range rows {
		xmap, must, met := "", "", ""
		if r.XMap > 0 {
			xmap = fmt.Sprintf("%.2f", r.XMap)
		}
		if r.Bound != "" {
			must = fmt.Sprintf("%s %s", r.Bound, amount(r.Must, r.Unit))
			met = "yes"
			if !r.Met() {
				met = "NO"
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Load, r.What, amount(r.Value, r.Unit), xmap, must, met)
	}
	return table.Flush()
}

// amount is a value in at most four digits, with its unit.
func amount(v float64, unit string) string {
	if unit == "ns" {
		switch {
		case v >= 1e6:
			return digits(v/1e6) + " ms"
		case v >= 1e3:
			return digits(v/1e3) + " us"
		}
	}
	if unit == "" {
		return count(v)
	}
	return count(v) + " " + unit
}

func count(v float64) string {
	switch {
	case v >= 1e6:
		return digits(v/1e6) + " M"
	case v >= 1e4:
		return digits(v/1e3) + " k"
	}
	return digits(v)
}

func digits(v float64) string {
	switch {
	case v == math.Trunc(v) || v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
