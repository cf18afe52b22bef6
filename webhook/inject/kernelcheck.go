package inject

import (
	_ "embed"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	envStrict = "KERNEL_CHECK_STRICT"
	gpu       = corev1.ResourceName("nvidia.com/gpu")
)

// kernelScript loads LMCache's and the engine's native code.
//
//go:embed kernelcheck.py
var kernelScript string

// placeKernelCheck adds, replaces or removes the init container that tests the
// engine's kernels. The name is ours alone.
func (w *wiring) placeKernelCheck() {
	inits := &w.pod.Spec.InitContainers
	at := w.named(*inits, v1alpha1.ContainerKernelCheck)
	switch wanted := w.checksKernels(); {
	case wanted && at >= 0:
		(*inits)[at] = w.kernelCheck()
	case wanted:
		*inits = append(*inits, w.kernelCheck())
	case at >= 0:
		*inits = slices.Delete(*inits, at, at+1)
	}
}

func (w *wiring) checksKernels() bool {
	if !w.adapter.kernels || w.backend.EventsOnly() {
		return false
	}
	switch w.backend.KernelCheckMode() {
	case v1alpha1.KernelCheckOff:
		return false
	case v1alpha1.KernelCheckAuto:
		r := w.engine().Resources
		limit, request := r.Limits[gpu], r.Requests[gpu]
		return limit.Sign() > 0 || request.Sign() > 0
	}
	return true
}

// kernelCheck runs in the engine's image as the engine would.
func (w *wiring) kernelCheck() corev1.Container {
	engine := w.engine().DeepCopy()
	strict := "0"
	if w.backend.KernelCheckMode() == v1alpha1.KernelCheckStrict {
		strict = "1"
	}
	env := slices.DeleteFunc(engine.Env, func(v envVar) bool { return v.Name == envStrict })
	return corev1.Container{
		Name: v1alpha1.ContainerKernelCheck, Image: engine.Image, ImagePullPolicy: engine.ImagePullPolicy,
		Command: []string{"python3", "-c", kernelScript}, WorkingDir: engine.WorkingDir,
		Env: append(env, envVar{Name: envStrict, Value: strict}), EnvFrom: engine.EnvFrom,
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("256Mi")}},
		VolumeMounts: engine.VolumeMounts, VolumeDevices: engine.VolumeDevices, SecurityContext: engine.SecurityContext,
		TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}
