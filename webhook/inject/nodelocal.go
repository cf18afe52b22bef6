package inject

import (
	_ "embed"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	nodeSHMVolume    = "lmcache-node-shm"
	nodeConfigVolume = "lmcache-node-config"
	nodeClientFile   = "/var/run/inference-cache/lmcache-node/client.yaml"
	envGate          = "INFERENCECACHE_NODE_LOCAL_GATE"
)

// gateScript waits until the node's server is the one expected.
//
//go:embed gate.py
var gateScript string

// nodeVolume is the memory of the node that engines and server share.
func nodeVolume(b *v1alpha1.CacheBackend) corev1.Volume {
	create := corev1.HostPathDirectoryOrCreate
	return corev1.Volume{Name: nodeSHMVolume, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: SHMDirectory(b), Type: &create}}}
}

// placeNodeLocal points the engine at the server of its node, and holds it
// back until that server is there. Where the pod runs is not touched.
func (w *wiring) placeNodeLocal(spec *v1alpha1.NodeLocalSpec) (host string, port int32, err error) {
	if w.backend.UID == "" {
		return "", 0, refuse(v1alpha1.SkipInvalidBackend, "CacheBackend %s has no UID", w.backend.Name)
	}
	if _, err := remoteAdapter(w.backend); err != nil {
		return "", 0, err
	}
	volume := nodeVolume(w.backend)
	if mount := w.mountAt(sharedMemory); mount != nil && (mount.Name != volume.Name || mount.ReadOnly || mount.SubPath != "" || mount.SubPathExpr != "") {
		return "", 0, refuse(v1alpha1.SkipSharedMemory, "the engine has a /dev/shm of its own, but NodeLocal needs the node's: remove the mount of volume %s", mount.Name)
	}
	if err := w.placeVolume(volume); err != nil {
		return "", 0, err
	}
	if err := w.placeMount(corev1.VolumeMount{Name: volume.Name, MountPath: sharedMemory}); err != nil {
		return "", 0, err
	}
	w.setEnvFrom(fromField(envNodeIP, "status.hostIP"))
	gate := w.gate(spec)
	if gate.Image == "" {
		return "", 0, refuse(v1alpha1.SkipInvalidBackend, "no image of the LMCache server is known: set lmCache.nodeLocal.server.image, or the operator's default")
	}
	if w.backend.Spec.Runtime == v1alpha1.RuntimeSGLang {
		mount := corev1.VolumeMount{Name: nodeConfigVolume, MountPath: path.Dir(nodeClientFile)}
		if err := w.placeVolume(corev1.Volume{Name: nodeConfigVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}); err != nil {
			return "", 0, err
		}
		if err := w.placeMount(mount); err != nil {
			return "", 0, err
		}
		gate.Env = append(gate.Env, envVar{Name: "CLIENT_CONFIG_PATH", Value: nodeClientFile})
		gate.VolumeMounts = []corev1.VolumeMount{mount}
	}
	return "$(" + envNodeIP + ")", orDefault(spec.Server.Port, v1alpha1.DefaultMPPort), w.placeInit(gate, envGate)
}

// gate is the init container that waits for the node's server.
func (w *wiring) gate(spec *v1alpha1.NodeLocalSpec) corev1.Container {
	s := &spec.Server
	yes := true
	context := w.asEngine(confined())
	context.ReadOnlyRootFilesystem = &yes
	return corev1.Container{
		Name: v1alpha1.ContainerNodeGate, Image: serverImage(s.Image, w.options), ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"python3", "-c", gateScript},
		Env: []envVar{
			fromField(envNodeIP, "status.hostIP"),
			{Name: envGate, Value: markTrue},
			{Name: "EXPECTED_INSTANCE_ID", Value: InstanceID(w.backend)},
			{Name: "EXPECTED_SHM_NAME", Value: SHMName(w.backend)},
			{Name: "EXPECTED_MP_PORT", Value: text(orDefault(s.Port, v1alpha1.DefaultMPPort))},
			{Name: "EXPECTED_HTTP_PORT", Value: text(orDefault(s.HTTPPort, v1alpha1.DefaultNodeHTTPPort))},
			{Name: "EXPECTED_CHUNK_SIZE", Value: text(w.backend.Spec.LMCache.ChunkSize())},
			{Name: "EXPECTED_MAX_GPU_WORKERS", Value: text(orDefault(s.MaxGPUWorkers, v1alpha1.DefaultGPUWorkers))},
			{Name: "EXPECTED_MAX_CPU_WORKERS", Value: text(orDefault(s.MaxCPUWorkers, v1alpha1.DefaultWorkers))},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		SecurityContext:        context,
		TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}
