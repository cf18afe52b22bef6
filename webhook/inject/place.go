package inject

import (
	"path"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const envSubscriber = "INFERENCECACHE_SUBSCRIBER_SIDECAR"

// marks are the variables that tell our containers from others of their name.
var marks = []string{envMPServer, envGate, envSubscriber}

func hasMark(c corev1.Container, mark string) bool {
	return slices.ContainsFunc(c.Env, func(v envVar) bool { return v.Name == mark && v.Value == markTrue })
}

func isMarked(c corev1.Container) bool {
	return slices.ContainsFunc(marks, func(mark string) bool { return hasMark(c, mark) })
}

// marked reports whether the pod was wired before.
func marked(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, isMarked) || slices.ContainsFunc(pod.Spec.Containers, isMarked)
}

// placeInit adds an init container of ours, or brings the one there up to date.
func (w *wiring) placeInit(c corev1.Container, mark string) error {
	if w.named(w.pod.Spec.Containers, c.Name) >= 0 {
		return refuse(v1alpha1.SkipNameCollision, "the pod has a container %s of its own: rename it", c.Name)
	}
	at := w.named(w.pod.Spec.InitContainers, c.Name)
	if at < 0 {
		w.pod.Spec.InitContainers = append(w.pod.Spec.InitContainers, c)
		return nil
	}
	if !hasMark(w.pod.Spec.InitContainers[at], mark) {
		return refuse(v1alpha1.SkipNameCollision, "the pod has an init container %s of its own: rename it", c.Name)
	}
	w.pod.Spec.InitContainers[at] = keepExtras(c, w.pod.Spec.InitContainers[at])
	return nil
}

func (w *wiring) named(list []corev1.Container, name string) int {
	return slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name })
}

// keepExtras keeps variables and mounts that others, such as the API server's
// token volume, added to a container of ours.
func keepExtras(want, have corev1.Container) corev1.Container {
	for _, v := range have.Env {
		if !namedAgain(want.Env, v.Name) && !slices.Contains(removable, v.Name) {
			want.Env = append(want.Env, v)
		}
	}
	for _, m := range have.VolumeMounts {
		if !slices.ContainsFunc(want.VolumeMounts, func(n corev1.VolumeMount) bool { return n.MountPath == m.MountPath }) {
			want.VolumeMounts = append(want.VolumeMounts, m)
		}
	}
	return want
}

// removable are variables of ours that a later spec may not have.
var removable = []string{"LMCACHE_RESP_USERNAME", "LMCACHE_RESP_PASSWORD", "CLIENT_CONFIG_PATH"}

// placeVolume adds a volume of ours, or sees that the one there is it.
func (w *wiring) placeVolume(v corev1.Volume) error {
	at := slices.IndexFunc(w.pod.Spec.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name })
	switch {
	case at < 0:
		w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, v)
	case sameVolume(w.pod.Spec.Volumes[at], v):
	case w.wasOurs:
		w.pod.Spec.Volumes[at] = v
	default:
		return refuse(v1alpha1.SkipNameCollision, "the pod has a volume %s of its own: rename it", v.Name)
	}
	return nil
}

func sameVolume(a, b corev1.Volume) bool {
	if a.EmptyDir != nil && b.EmptyDir != nil && a.EmptyDir.SizeLimit != nil && b.EmptyDir.SizeLimit != nil {
		return a.EmptyDir.Medium == b.EmptyDir.Medium && a.EmptyDir.SizeLimit.Cmp(*b.EmptyDir.SizeLimit) == 0
	}
	return reflect.DeepEqual(a, b)
}

// mountAt is what the engine mounts at a path; nil: nothing.
func (w *wiring) mountAt(at string) *corev1.VolumeMount {
	engine := w.engine()
	for i := range engine.VolumeMounts {
		if path.Clean(engine.VolumeMounts[i].MountPath) == at {
			return &engine.VolumeMounts[i]
		}
	}
	return nil
}

// placeMount mounts a volume of ours into the engine.
func (w *wiring) placeMount(m corev1.VolumeMount) error {
	have := w.mountAt(m.MountPath)
	switch {
	case have == nil:
		w.engine().VolumeMounts = append(w.engine().VolumeMounts, m)
	case have.Name != m.Name || have.ReadOnly || have.SubPath != "" || have.SubPathExpr != "":
		return refuse(v1alpha1.SkipNameCollision, "the engine mounts volume %s at %s, where the cache's own goes: move it", have.Name, m.MountPath)
	}
	return nil
}

// setEnvFrom gives the engine one variable that is read from the pod.
func (w *wiring) setEnvFrom(v envVar) {
	engine := w.engine()
	i := slices.IndexFunc(engine.Env, func(have envVar) bool { return have.Name == v.Name })
	switch {
	case i < 0:
		engine.Env = append(engine.Env, v)
	case !reflect.DeepEqual(engine.Env[i], v):
		w.warn("%s of the engine was replaced by the node's address", v.Name)
		engine.Env[i] = v
	}
}
