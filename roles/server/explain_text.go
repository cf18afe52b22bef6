package server

import (
	"fmt"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// summarize says in words why the first one is first, and what would have
// changed that. It only reads e.
func summarize(e *pb.ExplainResponse) (summary string, changes []string) {
	live := e.GetConsidered()
	for i, c := range live {
		if c.GetExcluded() {
			live = live[:i]
			break
		}
	}
	if len(live) == 0 {
		return "No live replica of this tenant, model and hash scheme is known.", nil
	}
	first := live[0]
	if e.GetProfile() == "Compat" {
		return fmt.Sprintf("%s holds %d of %d tokens, and the published formula gives it the highest score.", first.GetReplicaId(), first.GetHeldTokens(), e.GetPromptTokens()), nil
	}
	summary = fmt.Sprintf("%s: %s", first.GetReplicaId(), holding(first, e.GetPromptTokens()))
	if len(live) == 1 {
		return summary + "; it is the only live replica.", nil
	}
	second := live[1]
	switch lead := second.GetFinishMs() - first.GetFinishMs(); {
	case first.GetOverShare() != second.GetOverShare():
		summary += fmt.Sprintf("; %s had more than its share of recent hints.", second.GetReplicaId())
	case lead == 0:
		summary += fmt.Sprintf("; equal to %s, so the lot decided, which sends equal prompts to the same replica.", second.GetReplicaId())
	case lead < 0:
		summary += fmt.Sprintf("; it meets the wanted time to first token with the least work, though %s is expected %.1f ms earlier.", second.GetReplicaId(), -lead)
	default:
		summary += fmt.Sprintf("; expected %.1f ms before %s.", lead, second.GetReplicaId())
		changes = append(changes, fmt.Sprintf("%s would be first if %s kept a prompt waiting more than %.1f ms longer.", second.GetReplicaId(), first.GetReplicaId(), lead))
	}
	deepest := first
	for _, c := range live {
		if c.GetHeldTokens() > deepest.GetHeldTokens() {
			deepest = c
		}
	}
	if deepest != first {
		changes = append(changes, deeper(first, deepest))
	}
	return summary, changes
}

// holding says what a replica brings.
func holding(c *pb.Considered, prompt int32) string {
	switch {
	case c.GetQuarantined():
		return fmt.Sprintf("what it reports is not believed; %.1f ms of waiting", c.GetBacklogMs())
	case c.GetHeldTokens() > 0:
		return fmt.Sprintf("holds %d of %d tokens, with %.1f ms of waiting", c.GetHeldTokens(), prompt, c.GetBacklogMs())
	case c.GetSoonTokens() > 0:
		return fmt.Sprintf("a like prompt was sent there a moment ago, so it will hold %d of %d tokens soon", c.GetSoonTokens(), prompt)
	}
	return fmt.Sprintf("holds nothing of the prompt, with %.1f ms of waiting", c.GetBacklogMs())
}

// deeper says what keeps the replica that holds most from being first.
func deeper(first, most *pb.Considered) string {
	more := most.GetHeldTokens() - first.GetHeldTokens()
	switch behind := most.GetFinishMs() - first.GetFinishMs(); {
	case most.GetQuarantined():
		return fmt.Sprintf("%s says it holds %d tokens more, but engines did not find what it promised.", most.GetReplicaId(), more)
	case most.GetSuspect() && most.GetPenaltyMs() >= behind:
		return fmt.Sprintf("%s holds %d tokens more and would be first if it had been heard of lately.", most.GetReplicaId(), more)
	default:
		return fmt.Sprintf("%s holds %d tokens more and would be first if it kept a prompt waiting %.1f ms less.", most.GetReplicaId(), more, behind)
	}
}
