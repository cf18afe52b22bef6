package replay

import "slices"

// outcome is what became of one request.
type outcome struct {
	ttft        float64 // seconds
	blocks, hit int
}

// Result is one run.
type Result struct {
	Policy   string  `json:"policy"`
	Requests int     `json:"requests"`
	HitRate  float64 `json:"hit_rate"` // of blocks
	Skew     float64 `json:"skew"`     // most prefill work of a replica / mean
	P50      float64 `json:"ttft_p50_seconds"`
	P90      float64 `json:"ttft_p90_seconds"`
	P99      float64 `json:"ttft_p99_seconds"`
	Mean     float64 `json:"ttft_mean_seconds"`
}

type tally struct {
	Result
	ttfts       []float64
	blocks, hit int
	seconds     float64
}

func newTally(policy string, requests int) *tally {
	return &tally{Result: Result{Policy: policy, Requests: requests}, ttfts: make([]float64, 0, requests)}
}

func (t *tally) add(o outcome) {
	t.ttfts = append(t.ttfts, o.ttft)
	t.seconds += o.ttft
	t.blocks += o.blocks
	t.hit += o.hit
}

func (t *tally) result(f *fleet) Result {
	if len(t.ttfts) == 0 {
		return t.Result
	}
	slices.Sort(t.ttfts)
	at := func(share float64) float64 { return t.ttfts[min(len(t.ttfts)-1, int(share*float64(len(t.ttfts))))] }
	t.P50, t.P90, t.P99 = at(.5), at(.9), at(.99)
	t.Mean = t.seconds / float64(len(t.ttfts))
	t.HitRate = float64(t.hit) / float64(max(1, t.blocks))
	most, sum := 0.0, 0.0
	for _, r := range f.replicas {
		most, sum = max(most, r.work), sum+r.work
	}
	if sum > 0 {
		t.Skew = most / (sum / float64(len(f.replicas)))
	}
	return t.Result
}
