package server

import (
	"cmp"
	"context"
	"math"
	"slices"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// gain sums up what hints save a fleet. It is guarded by the fleet's mu.
type gain struct {
	lookups [2]int64 // not in shadow, in shadow
	sums    [2]gainSum
}

type gainSum struct {
	outcomes, prompt, cached, compared int64
	tokens, seconds                    moments
}

// moments of a sample.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(v float64) {
	m.n++
	m.sum += v
	m.squares += v * v
}

// margin is half the width of the 95 % interval of the sum, by the normal
// approximation; infinite below two values.
func (m *moments) margin() float64 {
	if m.n < 2 {
		return math.Inf(1)
	}
	mean := m.sum / m.n
	variance := max(0, m.squares/m.n-mean*mean) * m.n / (m.n - 1)
	return 1.96 * math.Sqrt(variance*m.n)
}

func shadowIndex(shadow bool) int {
	if shadow {
		return 1
	}
	return 0
}

// add compares one outcome. In shadow mode the prompt went where the gateway
// alone sent it: against that stands what the first replica of the ranking was
// trusted to hold. Else it went by the hint: against that stands the mean of
// what the candidates held, which is what a replica drawn by lot would have.
func (g *gain) add(fl *fleet, d *decision, o *pb.Outcome) {
	if len(d.ranked) == 0 || d.members == 0 {
		return
	}
	sum := &g.sums[shadowIndex(d.shadow)]
	compared := 0.0
	if d.shadow {
		top := &d.ranked[0]
		compared = float64(d.promised(top.Scored.Tokens))
		if m := fl.byName[top.Scored.Replica]; m != nil {
			compared *= float64(m.truth.share())
		}
	} else {
		for _, h := range d.held {
			compared += float64(d.promised(h.tokens))
		}
		compared /= float64(d.members)
	}
	saved := compared - float64(o.GetCachedTokens())
	if !d.shadow {
		saved = -saved
	}
	sum.outcomes++
	sum.prompt += int64(cmp.Or(o.GetPromptTokens(), d.tokens))
	sum.cached += int64(o.GetCachedTokens())
	sum.compared += int64(compared)
	sum.tokens.add(saved)
	if d.fleet.Rate > 0 {
		sum.seconds.add(saved / d.fleet.Rate)
	}
}

// GetGain implements the RPC.
func (s *Server) GetGain(_ context.Context, r *pb.GetGainRequest) (*pb.GetGainResponse, error) {
	answer := &pb.GetGainResponse{}
	for _, fl := range s.fleets.all() {
		if r.GetTenantId() != "" && r.GetTenantId() != fl.scope.Tenant || r.GetModelId() != "" && r.GetModelId() != fl.scope.Model {
			continue
		}
		fl.mu.Lock()
		g := fl.gain
		fl.mu.Unlock()
		for i, sum := range g.sums {
			if g.lookups[i] == 0 {
				continue
			}
			answer.Gains = append(answer.Gains, &pb.Gain{
				TenantId: fl.scope.Tenant, ModelId: fl.scope.Model, Shadow: i == 1, Lookups: g.lookups[i],
				Outcomes: sum.outcomes, PromptTokens: sum.prompt, CachedTokens: sum.cached, ComparedTokens: sum.compared,
				SavedTokens: sum.tokens.sum, SavedTokensMargin: sum.tokens.margin(),
				SavedSeconds: sum.seconds.sum, SavedSecondsMargin: sum.seconds.margin(),
			})
		}
	}
	slices.SortFunc(answer.Gains, func(a, b *pb.Gain) int {
		return cmp.Or(cmp.Compare(a.TenantId, b.TenantId), cmp.Compare(a.ModelId, b.ModelId), cmp.Compare(shadowIndex(a.Shadow), shadowIndex(b.Shadow)))
	})
	return answer, nil
}
