package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// Options are what the operator, not the backend, decides.
type Options struct {
	// LMCacheImage runs LMCache servers whose backend names no image. Empty:
	// PodLocal servers run the engine's, NodeLocal ones need to name theirs.
	LMCacheImage string
	// SubscriberImage is the image of this program; empty: no subscribers.
	SubscriberImage string
	// Servers are what subscribers report to, in the form of their --server.
	Servers []string
}

// Refusal is why a pod is not wired.
type Refusal struct {
	Reason  string // one of the Skip constants
	Message string // for people: what is in the way and what to do
}

// Error makes a Refusal the error of the steps that may refuse.
func (r *Refusal) Error() string { return r.Message }

func refuse(reason, format string, args ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, args...)}
}

// Outcome is what to admit.
type Outcome struct {
	Pod      *corev1.Pod // a copy
	Refusal  *Refusal    // nil: wired
	Warnings []string    // for whoever creates the pod
}

// Dress wires a pod to the backend that owns its domain. Neither is changed.
func Dress(pod *corev1.Pod, backend *v1alpha1.CacheBackend, options Options) Outcome {
	w := &wiring{pod: pod.DeepCopy(), backend: backend, options: options}
	if err := w.apply(); err != nil {
		refusal, ok := err.(*Refusal)
		if !ok {
			panic("bug: refused without a reason: " + err.Error())
		}
		return Refuse(pod, *refusal)
	}
	w.annotate()
	return Outcome{Pod: w.pod, Warnings: w.warnings}
}

// Refuse admits a pod as it is, but for annotations that only we may set, with
// the reason on it.
func Refuse(pod *corev1.Pod, refusal Refusal) Outcome {
	out := Clean(pod)
	if out.Annotations == nil {
		out.Annotations = make(map[string]string)
	}
	out.Annotations[v1alpha1.AnnotationInjectSkipped] = refusal.Reason
	warning := fmt.Sprintf("runs without cache (%s): %s", refusal.Reason, refusal.Message)
	return Outcome{Pod: out, Refusal: &refusal, Warnings: []string{warning}}
}

// ours are the annotations that only we may set.
var ours = []string{
	v1alpha1.AnnotationInjectedBy,
	v1alpha1.AnnotationInjectedByUID,
	v1alpha1.AnnotationInjectedGeneration,
	v1alpha1.AnnotationWiringHash,
	v1alpha1.AnnotationInjectSkipped,
}

// Clean is a copy of pod without annotations that only we may set.
func Clean(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	for _, key := range ours {
		delete(out.Annotations, key)
	}
	return out
}

// OptedOut reports whether the pod asks not to be wired.
func OptedOut(pod *corev1.Pod) bool {
	value := strings.TrimSpace(pod.Annotations[v1alpha1.AnnotationSkipInject])
	if value == "" {
		return false
	}
	if skip, err := strconv.ParseBool(value); err == nil {
		return skip
	}
	return !slices.Contains([]string{"no", "off", "disable", "disabled"}, strings.ToLower(value))
}

// wiring is one pod being dressed.
type wiring struct {
	pod      *corev1.Pod // being edited
	backend  *v1alpha1.CacheBackend
	options  Options
	adapter  *adapter
	index    int   // of the engine among the pod's containers
	line     *line // the engine's command line
	wasOurs  bool  // the pod was wired before
	warnings []string
}

func (w *wiring) warn(format string, args ...any) {
	w.warnings = append(w.warnings, fmt.Sprintf(format, args...))
}

// engine is the engine container; it moves when containers are added.
func (w *wiring) engine() *corev1.Container { return &w.pod.Spec.Containers[w.index] }

// adapter is what is particular to one kind of engine and cache.
type adapter struct {
	container    string // of the engine
	scheme       string // of its events' block keys
	httpPort     int32  // where it serves by default
	reservedArgs []string
	reservedEnv  []string
	kernels      bool // its LMCache kernels can be checked
	wire         func(*wiring) error
}

// adapterFor returns the adapter of a backend; nil: there is none.
func adapterFor(runtime v1alpha1.Runtime, cache v1alpha1.BackendType) *adapter {
	switch {
	case runtime == v1alpha1.RuntimeVLLM && cache == v1alpha1.TypeLMCache:
		return &vllmLMCache
	case runtime == v1alpha1.RuntimeSGLang && cache == v1alpha1.TypeLMCache:
		return &sglangLMCache
	case runtime == v1alpha1.RuntimeSGLang && cache == v1alpha1.TypeHiCache:
		return &sglangHiCache
	}
	return nil
}

// Reserved returns the flags and environment variables of the engine that
// overrides must leave alone; ok: the pair is supported.
func Reserved(runtime v1alpha1.Runtime, cache v1alpha1.BackendType) (args, env []string, ok bool) {
	a := adapterFor(runtime, cache)
	if a == nil {
		return nil, nil, false
	}
	return a.reservedArgs, a.reservedEnv, true
}

func (w *wiring) apply() error {
	spec := &w.backend.Spec
	a := adapterFor(spec.Runtime, w.backend.CacheType())
	if a == nil {
		return refuse(v1alpha1.SkipUnsupported, "runtime %s does not go with type %s", spec.Runtime, w.backend.CacheType())
	}
	w.adapter = a
	if err := w.findEngine(); err != nil {
		return err
	}
	line, err := parseLine(w.engine(), spec.Runtime)
	if err != nil {
		return err
	}
	w.line, w.wasOurs = line, marked(w.pod)
	if w.line.unsure {
		w.warn("cannot tell whether %s passes arguments on to the engine: give command and args that start the engine itself", w.line.program())
	}
	if err := w.wireEngine(); err != nil {
		return err
	}
	sub, err := w.planSubscriber()
	if err != nil {
		return err
	}
	w.line.write(w.engine())
	w.placeKernelCheck()
	w.placeSubscriber(sub)
	return nil
}

// wireEngine edits the engine container and adds what it talks to.
func (w *wiring) wireEngine() error {
	if w.backend.EventsOnly() {
		return w.wireEventsOnly()
	}
	before, env := w.line.clone(), slices.Clone(w.engine().Env)
	if err := w.adapter.wire(w); err != nil {
		return err
	}
	if err := w.publishEvents(); err != nil {
		return err
	}
	return w.override(before, env)
}

// annotate puts our name on a wired pod.
func (w *wiring) annotate() {
	if w.pod.Annotations == nil {
		w.pod.Annotations = make(map[string]string)
	}
	b := w.backend
	delete(w.pod.Annotations, v1alpha1.AnnotationInjectSkipped)
	w.pod.Annotations[v1alpha1.AnnotationInjectedBy] = b.Namespace + "/" + b.Name
	w.pod.Annotations[v1alpha1.AnnotationInjectedByUID] = string(b.UID)
	w.pod.Annotations[v1alpha1.AnnotationInjectedGeneration] = strconv.FormatInt(b.Generation, 10)
	w.pod.Annotations[v1alpha1.AnnotationWiringHash] = WiringHash(b, w.options)
}

// findEngine finds the engine by its name, or as the only container that is
// not ours.
func (w *wiring) findEngine() error {
	candidates := 0
	for i, c := range w.pod.Spec.Containers {
		if c.Name == w.adapter.container {
			w.index = i
			return nil
		}
		if c.Name != v1alpha1.ContainerSubscriber {
			w.index = i
			candidates++
		}
	}
	if candidates != 1 {
		return refuse(v1alpha1.SkipNoEngineContainer, "which of %d containers is the engine? Name it %q", candidates, w.adapter.container)
	}
	return nil
}
