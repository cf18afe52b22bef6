package server

import (
	"context"
	"time"

	"inferencecache.io/inferencecache/internal/journal"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// What ReportOutcome answers, and the label of a metric: a fixed set.
const (
	outcomeOK        = "OK"
	outcomeRequest   = "UNKNOWN_REQUEST"
	outcomeReplica   = "UNKNOWN_REPLICA"
	outcomeInvalid   = "INVALID"
	outcomeDuplicate = "ALREADY_REPORTED"
)

var outcomes = []string{outcomeOK, outcomeRequest, outcomeReplica, outcomeInvalid, outcomeDuplicate}

// ReportOutcome compares what a replica was said to hold with what its engine
// found. It never returns an error.
func (s *Server) ReportOutcome(_ context.Context, o *pb.Outcome) (*pb.OutcomeAck, error) {
	ack := s.takeOutcome(time.Now(), o)
	s.meters.outcomes[ack.GetReasonCode()].Inc()
	return ack, nil
}

func (s *Server) takeOutcome(now time.Time, o *pb.Outcome) *pb.OutcomeAck {
	if o.GetReplicaId() == "" || o.GetCachedTokens() < 0 || o.GetPromptTokens() < 0 ||
		o.GetPromptTokens() > 0 && o.GetCachedTokens() > o.GetPromptTokens() {
		return &pb.OutcomeAck{ReasonCode: outcomeInvalid}
	}
	var d decision
	duplicate := false
	known := s.decisions.with(o.GetRequestId(), func(at *decision) {
		duplicate, at.done = at.done, true
		d = *at
		d.held = append([]holder(nil), at.held...)
		d.ranked = append([]remark(nil), at.ranked...)
	})
	switch {
	case !known:
		return &pb.OutcomeAck{ReasonCode: outcomeRequest}
	case duplicate:
		return &pb.OutcomeAck{ReasonCode: outcomeDuplicate}
	}
	if s.journal != nil {
		s.journal.Outcome(journal.Outcome{At: now, RequestID: d.id, Replica: o.GetReplicaId(), CachedTokens: o.GetCachedTokens(), PromptTokens: o.GetPromptTokens(), OutputTokens: o.GetOutputTokens()})
	}
	promised := d.promised(d.heldBy(o.GetReplicaId()))
	ack := &pb.OutcomeAck{Accepted: true, ReasonCode: outcomeOK, ExpectedCachedTokens: promised}
	if !s.audit(now, &d, o, promised) {
		ack.Accepted, ack.ReasonCode = false, outcomeReplica
		return ack
	}
	s.meters.promised.Add(int(promised))
	s.meters.found.Add(int(min(o.GetCachedTokens(), promised)))
	s.meters.unforeseen.Add(int(max(0, o.GetCachedTokens()-promised)))
	return ack
}

// audit lets the outcome count for the replica and for the gain. A promise
// below the policy's floor is none.
func (s *Server) audit(now time.Time, d *decision, o *pb.Outcome, promised int32) (known bool) {
	fl := s.fleets.of(d.where.Scope)
	if fl == nil {
		return false
	}
	floor := max(1, s.policies.Load().For(d.where.Tenant).MinMatchedTokens)
	changed, liar := false, false
	known = fl.with(o.GetReplicaId(), func(fl *fleet, m *member) {
		if promised >= floor {
			changed = m.truth.audit(now, promised, o.GetCachedTokens())
			m.audited.add(promised, o.GetCachedTokens())
			liar = m.truth.liar
		}
		fl.gain.add(fl, d, o)
	})
	if changed {
		s.logVerdict(liar, fl, o.GetReplicaId())
	}
	return known
}

// logVerdict names the condition and what to do about it.
func (s *Server) logVerdict(liar bool, fl *fleet, replica string) {
	if !liar {
		s.log.Info("replica is believed again", "condition", conditionUntrue, "tenant", fl.scope.Tenant, "model", fl.scope.Model, "replica", replica)
		return
	}
	s.log.Warn("replica does not hold what it reports; its blocks count for nothing until it does: compare the hash seed, block size and --engine-endpoint of its subscriber with the engine, and whether the gateway reports the engine's own cached tokens",
		"condition", conditionUntrue, "tenant", fl.scope.Tenant, "model", fl.scope.Model, "replica", replica)
}

// conditionUntrue is the name of the condition of a replica in quarantine.
const conditionUntrue = "untrue_reports"

// paroles gives replicas in quarantine another chance.
func (s *Server) paroles(now time.Time) {
	for _, fl := range s.fleets.all() {
		for _, replica := range fl.parole(now) {
			s.logVerdict(false, fl, replica)
		}
	}
}

func (fl *fleet) parole(now time.Time) (freed []string) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, m := range fl.members {
		if m.truth.parole(now) {
			freed = append(freed, m.name)
		}
	}
	return freed
}

// all fleets.
func (f *fleets) all() (all []*fleet) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, fl := range f.by {
		all = append(all, fl)
	}
	return all
}

// quarantined counts the replicas whose reports are not believed.
func (f *fleets) quarantined() (n int) {
	for _, fl := range f.all() {
		fl.mu.Lock()
		for _, m := range fl.members {
			if m.truth.liar {
				n++
			}
		}
		fl.mu.Unlock()
	}
	return n
}
