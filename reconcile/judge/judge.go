// Package judge says how a CacheBackend, a CachePolicy, a CacheTenant and the
// CacheIndex are doing: of what was observed it makes the status that should
// be. It is pure: the caller gathers, gives the time, and writes what differs.
//
//	pods ----> engines ----> ConnectorReady --+
//	servers ---^                              +--> Ready, Progressing, Degraded
//	remote tier ------> RemoteStorageReady ---+
//	what servers heard -----> EventsFresh ----+
//
// Ready starts from what the mode asks for (base); events and a strict kernel
// check can only lower it. Messages hold no ages and no clock, so that the same
// state is the same bytes and nothing is written while nothing happens.
package judge

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// Observed is everything that the status of one backend is made of.
type Observed struct {
	Backend *v1alpha1.CacheBackend // with the status as it was last
	Now     time.Time
	Wiring  string       // hash of what engine pods would be wired from now
	Pods    []corev1.Pod // of the backend's domain, in any order
	Servers []corev1.Pod // of NodeLocal servers made for its UID
	Remote  Remote
	Heard   Heard
	// Taken names the older backend that owns the same domain; "": none.
	Taken string
	// Forbidden says why the backend may not have NodeLocal servers; "": it may.
	Forbidden string
	// Failed is what could not be applied; "": all was.
	Failed string
}

// Remote is the remote tier as seen.
type Remote struct {
	Conflict      string // kind and name of an object in our place that is not ours
	MissingSecret string // name of a Secret, or of a key in it, that is not there
	Credentials   string // word that changes with the password
	Deployment    *appsv1.Deployment
	Service       *corev1.Service
	Dial          Dial // of External storage
}

// Dial is how the last try to reach an endpoint went.
type Dial struct {
	Done    bool
	Problem string // "": it answered
}

// Heard is what servers told of the backend's engines since this process
// pulled first; Known false: it has not yet.
type Heard struct {
	Known bool
	Last  time.Time // of the newest event or heartbeat; zero: never
}

// Judged is the status that should be.
type Judged struct {
	Status v1alpha1.CacheBackendStatus
	// Again is when time alone may change it; 0: never.
	Again time.Duration
}

// retry is how soon something that is not as it should be is looked at again,
// where no watch tells of its recovery.
const retry = 15 * time.Second

// Backend judges. It leaves indexParticipation, which is another writer's, as
// it was.
func Backend(o Observed) Judged {
	j := &judging{Observed: o, status: *o.Backend.Status.DeepCopy()}
	j.now = metav1.NewTime(o.Now.Truncate(time.Second))
	j.engines = sortEngines(o)
	j.counts()
	if o.Failed == "" && o.Remote.Conflict == "" {
		j.status.ObservedGeneration = o.Backend.Generation
	}
	fails := o.Backend.FailsOpen()
	j.status.FailOpen = &fails
	j.status.WiringHash = o.Wiring

	connector := j.connector()
	remote := j.remote()
	base := j.base(connector, remote)
	events := j.events(base)
	kernels := j.kernels()
	j.unwired()
	j.crashLoop()
	j.hostTier()
	ready := j.ready(base, events, kernels)
	j.health(ready, connector, remote, events)
	return Judged{j.status, j.again}
}

// judging is one backend on its way.
type judging struct {
	Observed
	now     metav1.Time
	engines []engine
	status  v1alpha1.CacheBackendStatus
	again   time.Duration
}

// verdict is one condition's worth.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
	broken  bool // something that worked, or should by now, does not
	moving  bool // something is on its way
}

func is(reason, message string) verdict {
	return verdict{status: metav1.ConditionTrue, reason: reason, message: message}
}

func not(reason, message string) verdict {
	return verdict{status: metav1.ConditionFalse, reason: reason, message: message}
}

func unknown(reason, message string) verdict {
	return verdict{status: metav1.ConditionUnknown, reason: reason, message: message}
}

func (v verdict) isTrue() bool { return v.status == metav1.ConditionTrue }

// soon asks for another look after d at the latest.
func (j *judging) soon(d time.Duration) {
	d = max(d, time.Second)
	if j.again == 0 || d < j.again {
		j.again = d
	}
}

func (j *judging) set(kind string, v verdict) {
	meta.SetStatusCondition(&j.status.Conditions, metav1.Condition{
		Type: kind, Status: v.status, Reason: v.reason, Message: v.message,
		ObservedGeneration: j.Backend.Generation, LastTransitionTime: j.now,
	})
}

func (j *judging) drop(kind string) { meta.RemoveStatusCondition(&j.status.Conditions, kind) }

// before is a condition as it was; nil: there was none.
func (j *judging) before(kind string) *metav1.Condition {
	return meta.FindStatusCondition(j.Backend.Status.Conditions, kind)
}

// offloads reports whether engines are to have an LMCache server.
func (j *judging) offloads() bool {
	return !j.Backend.EventsOnly() && j.Backend.CacheType() == v1alpha1.TypeLMCache && j.Backend.Spec.LMCache != nil
}

func (j *judging) nodeLocal() bool {
	return j.offloads() && j.Backend.Spec.LMCache.Topology == v1alpha1.NodeLocal
}
