package inject

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const subscriberUser = 65532

// subscribes reports whether the operator attaches subscribers to the pods of
// this backend.
func (w *wiring) subscribes() bool {
	return w.options.SubscriberImage != "" && w.backend.Spec.Integration.KVEvents != v1alpha1.KVEventsExternal
}

// planSubscriber renders the sidecar that reports the engine's events; nil:
// none, which events-only backends refuse and others warn about.
func (w *wiring) planSubscriber() (*corev1.Container, error) {
	if w.backend.Spec.Integration.KVEvents == v1alpha1.KVEventsExternal {
		return nil, nil
	}
	sub, problem := w.subscriber()
	switch {
	case problem == "":
		return sub, nil
	case w.backend.EventsOnly():
		return nil, refuse(v1alpha1.SkipNothingToWire, "no events can be read from the engine: %s", problem)
	}
	w.warn("no subscriber was added, so nothing is known of what this engine holds: %s", problem)
	return nil, nil
}

// subscriber renders the sidecar, or says why there is none.
func (w *wiring) subscriber() (*corev1.Container, string) {
	if w.options.SubscriberImage == "" || len(w.options.Servers) == 0 {
		return nil, "the operator was started without an image or a server for subscribers"
	}
	if at := w.named(w.pod.Spec.Containers, v1alpha1.ContainerSubscriber); at >= 0 && !hasMark(w.pod.Spec.Containers[at], envSubscriber) {
		return nil, "the pod has a container " + v1alpha1.ContainerSubscriber + " of its own"
	}
	if w.named(w.pod.Spec.InitContainers, v1alpha1.ContainerSubscriber) >= 0 {
		return nil, "the pod has an init container " + v1alpha1.ContainerSubscriber + " of its own"
	}
	model := w.model()
	if model == "" {
		return nil, "the model is not seen in the engine's command: set observation.modelID"
	}
	p, problem := w.published()
	if problem != "" {
		return nil, problem
	}
	events, ok := dial(p.Endpoint)
	if !ok {
		return nil, fmt.Sprintf("it publishes to %s, which a sidecar cannot read: an engine binds only tcp://*:<port>", p.Endpoint)
	}
	replay, _ := dial(p.Replay)
	return w.renderSubscriber(model, p.Topic, events, replay), ""
}

func (w *wiring) renderSubscriber(model, topic, events, replay string) *corev1.Container {
	port, _ := w.enginePort()
	args := []string{"run", "--role=subscriber",
		"--engine-endpoint=" + events, "--engine-replay-endpoint=" + replay}
	if topic != "" {
		args = append(args, "--topic="+topic)
	}
	for _, server := range w.options.Servers {
		args = append(args, "--server="+server)
	}
	args = append(args, "--replica-id=$(POD_NAME)", "--tenant-id=$(POD_NAMESPACE)", "--model-id="+model, "--hash-scheme="+w.adapter.scheme,
		fmt.Sprintf("--engine-metrics-url=http://%s:%d/metrics", localAddress, port))
	if ranks := w.ranks(); ranks > 1 {
		args = append(args, fmt.Sprintf("--ranks=0-%d", ranks-1))
	}
	observation := &w.backend.Spec.Observation
	if names := adapterNames(observation.LoRAAdapters); names != "" {
		args = append(args, "--lora-adapter-names="+names)
	}
	if size := observation.EngineCacheSize; size != nil {
		args = append(args, "--engine-cache-size-bytes="+strconv.FormatInt(size.Value(), 10))
	}
	if !w.backend.EventsOnly() {
		args = append(args, "--ignore-block-removed=true")
	}
	context, yes, user := confined(), true, int64(subscriberUser)
	context.RunAsNonRoot, context.RunAsUser, context.ReadOnlyRootFilesystem = &yes, &user, &yes
	return &corev1.Container{
		Name: v1alpha1.ContainerSubscriber, Image: w.options.SubscriberImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
		Env: []envVar{fromField("POD_NAME", "metadata.name"), fromField("POD_NAMESPACE", "metadata.namespace"), {Name: envSubscriber, Value: markTrue}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		SecurityContext:        context,
		TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}

// placeSubscriber adds the sidecar, or brings the one there up to date.
func (w *wiring) placeSubscriber(c *corev1.Container) {
	list := &w.pod.Spec.Containers
	at := w.named(*list, v1alpha1.ContainerSubscriber)
	switch {
	case c == nil:
	case at < 0:
		*list = append(*list, *c)
	default:
		(*list)[at] = keepExtras(*c, (*list)[at])
	}
}

func adapterNames(adapters []v1alpha1.LoRAAdapter) string {
	pairs := make([]string, len(adapters))
	for i, a := range adapters {
		pairs[i] = fmt.Sprintf("%d=%s", a.ID, a.Name)
	}
	return strings.Join(pairs, ",")
}

// model is the model as gateways ask for it: what the backend says, else the
// name the engine serves, else the model it loads; empty: not seen.
func (w *wiring) model() string {
	if id := w.backend.Spec.Observation.ModelID; id != "" {
		return id
	}
	for _, flags := range [][]string{{"--served-model-name"}, {"--model", "--model-path"}} {
		if all := w.line.find(flags...); len(all) > 0 {
			if a := all[len(all)-1]; a.known && a.given {
				return a.value
			}
			return ""
		}
	}
	return w.line.positional()
}

// positional is the model in "vllm serve MODEL", or of an image that runs
// "vllm serve" by itself.
func (l *line) positional() string {
	all := l.arguments()
	start := -1
	for i, a := range all {
		if a.name == "" && a.value == "serve" {
			start = i + 1
			break
		}
	}
	if start < 0 && len(l.tokens) > 0 && l.tokens[0].place == inArgs {
		start = 0
	}
	if start < 0 || start >= len(all) || all[start].name != "" || !all[start].known {
		return ""
	}
	return all[start].value
}

// enginePort is where the engine serves HTTP; known: its command says so, or
// says nothing.
func (w *wiring) enginePort() (port int32, known bool) {
	a := w.adapter
	all := w.line.find("--port")
	if len(all) == 0 {
		return a.httpPort, true
	}
	for i := len(all) - 1; i >= 0; i-- {
		if n, err := strconv.ParseUint(all[i].value, 10, 16); err == nil && n > 0 && all[i].known {
			return int32(n), true
		}
	}
	return a.httpPort, false
}
