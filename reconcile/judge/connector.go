package judge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// maxCoverage bounds what status lists of pods.
const maxCoverage = 200

// connector judges the LMCache servers and the engines before them.
func (j *judging) connector() verdict {
	if !j.offloads() {
		j.drop(v1alpha1.ConditionConnectorReady)
		j.status.Connector = nil
		return verdict{}
	}
	var v verdict
	c := &v1alpha1.ConnectorStatus{Topology: v1alpha1.PodLocal}
	if j.nodeLocal() {
		c.Topology = v1alpha1.NodeLocal
		v = j.coverNodes(c)
	} else {
		v = j.coverPods(c)
	}
	for _, e := range c.EnginePodCoverage {
		switch {
		case e.Reason == v1alpha1.ReasonOptedOut:
			continue
		case e.Covered:
			c.CoveredEnginePods++
		default:
			c.UncoveredEnginePods++
		}
		c.MatchedEnginePods++
		if e.Ready {
			c.ReadyEnginePods++
		}
	}
	c.EnginePodCoverage = bounded(c.EnginePodCoverage)
	j.status.Connector = c
	j.set(v1alpha1.ConditionConnectorReady, v)
	return v
}

// bounded keeps the pods that something is wrong with, then by name.
func bounded(all []v1alpha1.EnginePodCoverage) []v1alpha1.EnginePodCoverage {
	byName := func(a, b v1alpha1.EnginePodCoverage) int { return cmp.Compare(a.Name, b.Name) }
	if len(all) > maxCoverage {
		slices.SortStableFunc(all, func(a, b v1alpha1.EnginePodCoverage) int {
			if a.Covered != b.Covered {
				if b.Covered {
					return -1
				}
				return 1
			}
			return byName(a, b)
		})
		all = all[:maxCoverage]
	}
	slices.SortFunc(all, byName)
	return all
}

func (j *judging) cover(c *v1alpha1.ConnectorStatus, e *engine, covered bool, reason string) {
	if covered && e.outdated {
		reason = v1alpha1.ReasonOutdated
	}
	c.EnginePodCoverage = append(c.EnginePodCoverage, v1alpha1.EnginePodCoverage{
		Name: e.pod.Name, NodeName: e.pod.Spec.NodeName, Ready: e.ready, Covered: covered, Reason: reason})
}

// unwiredVerdict is what both topologies say first.
func (j *judging) unwiredVerdict() (verdict, bool) {
	considered := j.considered()
	if len(considered) == 0 {
		return not(v1alpha1.ReasonNoEnginePods, "no engine pod of the domain runs"), true
	}
	unverified := 0
	for _, e := range considered {
		if !e.verified {
			unverified++
		}
	}
	if unverified > 0 {
		return unknown(v1alpha1.ReasonInjectionUnverified,
			fmt.Sprintf("%d of %d engine pods were not wired by this backend: see unwired pods in status, and create them anew", unverified, len(considered))), true
	}
	return verdict{}, false
}

// coverPods: each engine has a server inside its pod.
func (j *judging) coverPods(c *v1alpha1.ConnectorStatus) verdict {
	var starting, dead, lost int
	for i := range j.engines {
		e := &j.engines[i]
		if !e.active {
			continue
		}
		if e.optedOut {
			j.cover(c, e, false, v1alpha1.ReasonOptedOut)
			continue
		}
		c.DesiredServers++
		server := initStatus(e.pod, v1alpha1.ContainerMPServer)
		switch {
		case !e.verified:
			j.cover(c, e, false, e.unverifiedReason())
			continue
		case !serves(server):
			j.cover(c, e, false, v1alpha1.ReasonMPServersNotReady)
			if died(server) {
				dead++
			}
			starting++
			continue
		}
		c.ReadyServers++
		if !registered(e.container(j.Backend.Spec.Runtime), server) {
			j.cover(c, e, false, v1alpha1.ReasonEngineNotRegistered)
			lost++
			continue
		}
		j.cover(c, e, true, v1alpha1.ReasonConnectorReady)
		if !e.ready {
			starting++
		}
	}
	return j.sum(dead, lost, starting)
}

// sum makes one verdict of how many pods are how.
func (j *judging) sum(dead, lost, starting int) verdict {
	if v, ok := j.unwiredVerdict(); ok {
		return v
	}
	n := len(j.considered())
	switch {
	case dead > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonMPServersNotReady,
			fmt.Sprintf("the LMCache servers of %d of %d engine pods are down: see their logs", dead, n), true, false}
	case lost > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonEngineNotRegistered,
			fmt.Sprintf("the LMCache servers of %d of %d engine pods restarted under them, and engines register only when they start: create these pods anew", lost, n), true, false}
	case starting > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonMPServersNotReady,
			fmt.Sprintf("%d of %d engine pods, or their LMCache servers, are not ready yet", starting, n), false, true}
	}
	return is(v1alpha1.ReasonConnectorReady, "every engine pod is wired, and its LMCache server runs")
}

// coverNodes: engines share the server of their node.
func (j *judging) coverNodes(c *v1alpha1.ConnectorStatus) verdict {
	engines, servers := map[string]int{}, map[string][]*corev1.Pod{}
	for i := range j.engines {
		if e := &j.engines[i]; e.counts() && e.verified && e.pod.Spec.NodeName != "" {
			engines[e.pod.Spec.NodeName]++
		}
	}
	for i := range j.Servers {
		if p := &j.Servers[i]; NodeServerFits(j.Backend, p) {
			servers[p.Annotations[v1alpha1.AnnotationNodeTarget]] = append(servers[p.Annotations[v1alpha1.AnnotationNodeTarget]], p)
		}
	}
	c.DesiredServers = int32(len(engines))
	for node := range engines {
		if readyServer(servers[node]) != nil {
			c.ReadyServers++
		}
	}
	var dead, lost, starting, crowded, ambiguous, unscheduled int
	for i := range j.engines {
		e := &j.engines[i]
		if !e.active {
			continue
		}
		node := e.pod.Spec.NodeName
		server := readyServer(servers[node])
		switch {
		case e.optedOut:
			j.cover(c, e, false, v1alpha1.ReasonOptedOut)
		case !e.verified:
			j.cover(c, e, false, e.unverifiedReason())
		case node == "":
			j.cover(c, e, false, v1alpha1.ReasonEngineSchedulePending)
			unscheduled++
		case engines[node] > j.gpuWorkers():
			j.cover(c, e, false, v1alpha1.ReasonNodeWorkersExceeded)
			crowded++
		case server == nil && len(servers[node]) > 1:
			j.cover(c, e, false, v1alpha1.ReasonNodeServersAmbiguous)
			ambiguous++
		case server == nil:
			j.cover(c, e, false, v1alpha1.ReasonNodeServersPending)
			starting++
			if len(servers[node]) == 1 && died(statusOf(servers[node][0].Status.ContainerStatuses, v1alpha1.ContainerMPServer)) {
				dead++
			}
		case !registered(e.container(j.Backend.Spec.Runtime), statusOf(server.Status.ContainerStatuses, v1alpha1.ContainerMPServer)):
			j.cover(c, e, false, v1alpha1.ReasonEngineNotRegistered)
			lost++
		default:
			j.cover(c, e, true, v1alpha1.ReasonConnectorReady)
			if !e.ready {
				starting++
			}
		}
	}
	if v, ok := j.nodeVerdict(len(engines), crowded, ambiguous); ok {
		return v
	}
	if dead == 0 && lost == 0 && starting+unscheduled > 0 {
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNodeServersPending,
			fmt.Sprintf("%d engine pods wait for the LMCache server of their node, or are not ready yet", starting+unscheduled), false, true}
	}
	return j.sum(dead, lost, starting)
}

// nodeVerdict is what only nodes can have wrong, in order of weight.
func (j *judging) nodeVerdict(nodes, crowded, ambiguous int) (verdict, bool) {
	if j.Forbidden != "" {
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNodeLocalNotAllowed, j.Forbidden, true, false}, true
	}
	if v, ok := j.unwiredVerdict(); ok {
		return v, true
	}
	switch {
	case nodes == 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNodeServersPending, "no engine pod has a node yet", false, true}, true
	case j.portTaken() != "":
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNodePortConflict,
			"a port of the LMCache server is taken on node " + j.portTaken() + ": give lmCache.nodeLocal.server other ports", true, false}, true
	case crowded > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNodeWorkersExceeded,
			fmt.Sprintf("%d engine pods are on nodes with more engines than maxGPUWorkers (%d): raise it, or spread them", crowded, j.gpuWorkers()), true, false}, true
	case ambiguous > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNodeServersAmbiguous, "a node has more than one LMCache server of this backend", true, false}, true
	}
	return verdict{}, false
}

func (j *judging) gpuWorkers() int {
	if n := j.Backend.Spec.LMCache.NodeLocal; n != nil && n.Server.MaxGPUWorkers > 0 {
		return int(n.Server.MaxGPUWorkers)
	}
	return int(v1alpha1.DefaultGPUWorkers)
}

// readyServer is the server of a node, if there is exactly one and it is ready.
func readyServer(servers []*corev1.Pod) *corev1.Pod {
	if len(servers) != 1 || !isReady(servers[0]) {
		return nil
	}
	return servers[0]
}

// portTaken names a node whose server cannot be placed for its ports.
func (j *judging) portTaken() string {
	for i := range j.Servers {
		p := &j.Servers[i]
		for _, c := range p.Status.Conditions {
			text := strings.ToLower(c.Message)
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable &&
				(strings.Contains(text, "free ports") || strings.Contains(text, "host port")) && NodeServerFits(j.Backend, p) {
				return p.Annotations[v1alpha1.AnnotationNodeTarget]
			}
		}
	}
	return ""
}

// NodeServerFits reports whether a pod is a server that engines of this
// backend can use: ours, not ending, and with the memory that they share. What
// else its spec says may be older than the backend's.
func NodeServerFits(b *v1alpha1.CacheBackend, p *corev1.Pod) bool {
	if !p.DeletionTimestamp.IsZero() || !metav1.IsControlledBy(p, b) || p.Labels[v1alpha1.LabelNodeServer] != "true" ||
		p.Annotations[v1alpha1.AnnotationNodeOwner] != b.Namespace+"/"+b.Name ||
		p.Annotations[v1alpha1.AnnotationNodeOwnerUID] != string(b.UID) ||
		p.Annotations[v1alpha1.AnnotationNodeSHMName] != inject.SHMName(b) {
		return false
	}
	shared := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && v.HostPath.Path == inject.SHMDirectory(b)
	})
	return shared && slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		at := slices.Index(c.Args, "--shm-name")
		return c.Name == v1alpha1.ContainerMPServer && at >= 0 && at+1 < len(c.Args) && c.Args[at+1] == inject.SHMName(b)
	})
}
