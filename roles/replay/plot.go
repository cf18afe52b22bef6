package replay

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Sizes of the picture, in its own units.
const (
	plotWidth  = 860
	plotMargin = 130
	plotBar    = 14
)

// Plot writes an SVG picture of the report: for every size of fleet, how long
// prompts waited by policy, the mean as a bar and p99 as a tick, on a
// logarithmic scale.
func (r *Report) Plot(w io.Writer) error {
	var b strings.Builder
	rows := 0
	low, high := math.Inf(1), 0.0
	for _, s := range r.Sweeps {
		rows += len(s.Results) + 2
		for _, p := range s.Results {
			low, high = min(low, p.Mean, p.P99), max(high, p.Mean, p.P99)
		}
	}
	low, high = max(low, 1e-3), max(high, 2e-3)
	x := func(seconds float64) float64 {
		share := math.Log(max(seconds, low)/low) / math.Log(high/low)
		return plotMargin + 20 + share*(plotWidth-plotMargin-120)
	}
	height := 40 + rows*(plotBar+6)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<text x="10" y="20">%s: seconds to the first token, mean (bar) and p99 (tick)</text>`+"\n", html.EscapeString(r.Trace))
	y := 40
	for _, s := range r.Sweeps {
		fmt.Fprintf(&b, `<text x="10" y="%d" font-weight="bold">%d replicas, %d blocks each</text>`+"\n", y+plotBar, s.Replicas, s.CacheBlocks)
		y += plotBar + 6
		for _, p := range s.Results {
			fmt.Fprintf(&b, `<text x="10" y="%d">%s</text><rect x="%d" y="%d" width="%.1f" height="%d" fill="#7aa6d6"/>`,
				y+plotBar-2, html.EscapeString(p.Policy), plotMargin, y, x(p.Mean)-plotMargin, plotBar)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="2" height="%d" fill="#b33"/><text x="%.1f" y="%d">%.2f / %.2f</text>`+"\n",
				x(p.P99), y, plotBar, x(max(p.P99, p.Mean))+8, y+plotBar-2, p.Mean, p.P99)
			y += plotBar + 6
		}
		y += plotBar + 6
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
