package judge

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// unwired tells of pods that run without cache.
func (j *judging) unwired() {
	n := j.status.UnwiredEnginePods
	switch {
	case n == nil || !wants(j.Backend):
		j.drop(v1alpha1.ConditionEngineUnwired)
	case *n == 0:
		j.set(v1alpha1.ConditionEngineUnwired, not(v1alpha1.ReasonAllWired, "no engine pod runs without cache"))
	default:
		reasons := map[string]int{}
		for i := range j.engines {
			if e := &j.engines[i]; Unwired(j.Backend, e.pod) {
				reasons[e.unverifiedReason()]++
			}
		}
		j.set(v1alpha1.ConditionEngineUnwired, is(v1alpha1.ReasonPodsUnwired,
			fmt.Sprintf("%d engine pods run without cache (%s): pods that say why are to be changed, the others to be created anew", *n, listed(reasons))))
	}
}

// kernelState is what one kernel check says; later ones outweigh earlier.
type kernelState int

const (
	kernelsOK kernelState = iota
	kernelsPending
	kernelsUnclear
	kernelsFail
)

// kernels tells of the checks in engine pods, and whether a strict one failed.
func (j *judging) kernels() (strictFails bool) {
	worst, found, who, cause := kernelsOK, false, "", ""
	for i := range j.engines {
		e := &j.engines[i]
		strict, checked := kernelCheck(e.pod)
		if !e.active || !e.verified || !checked {
			continue
		}
		found = true
		state, message := kernelVerdict(initStatus(e.pod, v1alpha1.ContainerKernelCheck))
		if state > worst {
			worst, who, cause = state, e.pod.Name, message
		}
		strictFails = strictFails || strict && state == kernelsFail
	}
	if !found {
		j.drop(v1alpha1.ConditionKernelsHealthy)
		return false
	}
	j.set(v1alpha1.ConditionKernelsHealthy, map[kernelState]verdict{
		kernelsOK:      is(v1alpha1.ReasonKernelsHealthy, "LMCache's kernels load in every engine"),
		kernelsPending: unknown(v1alpha1.ReasonKernelPending, "the check has not ended in every engine pod"),
		kernelsUnclear: unknown(v1alpha1.ReasonKernelCheckErr, "the check of pod "+who+" gave no answer: see the logs of "+v1alpha1.ContainerKernelCheck),
		kernelsFail:    not(v1alpha1.ReasonKernelLoadFail, "pod "+who+": "+cause),
	}[worst])
	return strictFails
}

func kernelCheck(p *corev1.Pod) (strict, checked bool) {
	for _, c := range p.Spec.InitContainers {
		if c.Name == v1alpha1.ContainerKernelCheck {
			for _, v := range c.Env {
				strict = strict || v.Name == KernelStrictEnv && v.Value == "1"
			}
			return strict, true
		}
	}
	return false, false
}

// KernelStrictEnv "1" of the check's container makes it strict.
const KernelStrictEnv = "KERNEL_CHECK_STRICT"

// kernelVerdict reads what the check wrote when it ended.
func kernelVerdict(c *corev1.ContainerStatus) (kernelState, string) {
	if c == nil {
		return kernelsPending, ""
	}
	ended := c.State.Terminated
	if ended == nil {
		ended = c.LastTerminationState.Terminated
	}
	if ended == nil {
		return kernelsPending, ""
	}
	text := strings.TrimSpace(ended.Message)
	switch cause, failed := strings.CutPrefix(text, "FAIL:"); {
	case failed:
		return kernelsFail, truncated(strings.TrimSpace(cause))
	case text == "OK" && ended.ExitCode == 0:
		return kernelsOK, ""
	}
	return kernelsUnclear, ""
}

// truncated keeps what containers write from filling the status.
func truncated(text string) string {
	const limit = 512
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "..."
}

// crashLoop tells of wired engines that do not stay up.
func (j *judging) crashLoop() {
	for i := range j.engines {
		e := &j.engines[i]
		c := e.container(j.Backend.Spec.Runtime)
		if e.active && e.verified && c != nil && c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" {
			j.set(v1alpha1.ConditionEngineCompatibility, not(v1alpha1.ReasonEngineCrashLoop,
				"the engine of pod "+e.pod.Name+" starts and ends again and again: see its logs; its image may not fit the cache"))
			return
		}
	}
	j.drop(v1alpha1.ConditionEngineCompatibility)
}

// hostTier tells whether the tier on the host serves what it is asked for.
func (j *judging) hostTier() {
	p := j.Backend.Status.IndexParticipation
	if !j.offloads() || p == nil || p.T2HitRate == nil {
		j.drop(v1alpha1.ConditionT2Degraded)
		return
	}
	v := not(v1alpha1.ReasonT2Serving, "the host tier serves blocks")
	if *p.T2HitRate == "0" {
		v = verdict{status: metav1.ConditionTrue, reason: v1alpha1.ReasonT2ZeroHitRate, message: "the host tier was asked for blocks over the last minutes and served none"}
	}
	j.set(v1alpha1.ConditionT2Degraded, v)
}
