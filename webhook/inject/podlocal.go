package inject

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	podSHMVolume    = "lmcache-mp-shm"
	podConfigVolume = "lmcache-mp-config"
	podClientFile   = "/var/run/inference-cache/lmcache/client.yaml"
)

// clientScript writes SGLang's client file from its arguments, then becomes
// the server.
const clientScript = `umask 022
printf 'chunk_size: %s\nmp_host: "%s"\nmp_port: %s\n' "$2" "$3" "$4" > "$1.new"
mv "$1.new" "$1"
shift 4
exec lmcache "$@"
`

// placeServer gives the engine a server to talk to, and its address.
func (w *wiring) placeServer() (host string, port int32, err error) {
	lm := w.backend.Spec.LMCache
	switch {
	case lm == nil:
		return "", 0, refuse(v1alpha1.SkipInvalidBackend, "CacheBackend %s has no lmCache", w.backend.Name)
	case lm.Topology == v1alpha1.NodeLocal && lm.NodeLocal != nil:
		return w.placeNodeLocal(lm.NodeLocal)
	case lm.Topology != v1alpha1.NodeLocal && lm.PodLocal != nil:
		return w.placePodLocal(lm.PodLocal)
	}
	return "", 0, refuse(v1alpha1.SkipInvalidBackend, "lmCache of CacheBackend %s has no server for topology %s", w.backend.Name, lm.Topology)
}

// placePodLocal adds a server as a native sidecar, sharing memory with the engine.
func (w *wiring) placePodLocal(spec *v1alpha1.PodLocalSpec) (host string, port int32, err error) {
	s := &spec.Server
	port = orDefault(s.Port, v1alpha1.DefaultMPPort)
	httpPort := orDefault(s.HTTPPort, v1alpha1.DefaultPodHTTPPort)
	if err := w.checkPorts(port, httpPort); err != nil {
		return "", 0, err
	}
	image := serverImage(s.Image, w.options)
	if image == "" {
		// It has LMCache, since the engine's connector imports it, and of the
		// engine's own version.
		image = w.engine().Image
	}
	remote, err := remoteAdapter(w.backend)
	if err != nil {
		return "", 0, err
	}
	args := []string{"server", "--host", localAddress, "--port", text(port), "--http-host", "$(" + envPodIP + ")", "--http-port", text(httpPort),
		"--chunk-size", text(w.backend.Spec.LMCache.ChunkSize()), "--l1-size-gb", gib(s.L1Capacity), "--eviction-policy", "LRU",
		"--max-workers", text(orDefault(s.MaxWorkers, v1alpha1.DefaultWorkers))}
	if remote != "" {
		args = append(args, "--l2-adapter", remote)
	}
	volume, err := w.sharePodMemory(s)
	if err != nil {
		return "", 0, err
	}
	always := corev1.ContainerRestartPolicyAlways
	server := withProbes(corev1.Container{
		Name: v1alpha1.ContainerMPServer, Image: image, Command: []string{"lmcache"}, Args: args, RestartPolicy: &always,
		Env:   append([]envVar{fromField(envPodIP, "status.podIP")}, serverEnv(w.backend, w.devices())...),
		Ports: serverPorts(port, httpPort), Resources: serverResources(s.Resources, s.L1Capacity), SecurityContext: w.asEngine(confined()),
		VolumeMounts: []corev1.VolumeMount{{Name: volume, MountPath: sharedMemory}},
	})
	server.Resources.Claims = slices.Clone(w.engine().Resources.Claims)
	if w.backend.Spec.Runtime == v1alpha1.RuntimeSGLang {
		server.Command = []string{"/bin/sh", "-c", clientScript, "sh", podClientFile, text(w.backend.Spec.LMCache.ChunkSize()), localAddress, text(port)}
		mount := corev1.VolumeMount{Name: podConfigVolume, MountPath: path.Dir(podClientFile)}
		if err := w.placeVolume(corev1.Volume{Name: podConfigVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}); err != nil {
			return "", 0, err
		}
		if err := w.placeMount(mount); err != nil {
			return "", 0, err
		}
		server.VolumeMounts = append(server.VolumeMounts, mount)
	}
	if w.pod.Labels == nil {
		w.pod.Labels = make(map[string]string)
	}
	w.pod.Labels[v1alpha1.LabelMPMetrics] = markTrue
	return localAddress, port, w.placeInit(server, envMPServer)
}

// sharePodMemory makes /dev/shm of the engine one that the server can share,
// and names its volume.
func (w *wiring) sharePodMemory(s *v1alpha1.PodLocalServer) (string, error) {
	budget := Budget(s.L1Capacity)
	mount := w.mountAt(sharedMemory)
	if mount == nil || mount.Name == podSHMVolume {
		volume := corev1.Volume{Name: podSHMVolume, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &budget}}}
		if err := w.placeVolume(volume); err != nil {
			return "", err
		}
		return podSHMVolume, w.placeMount(corev1.VolumeMount{Name: podSHMVolume, MountPath: sharedMemory})
	}
	i := slices.IndexFunc(w.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
	switch {
	case mount.ReadOnly || mount.SubPath != "" || mount.SubPathExpr != "":
		return "", refuse(v1alpha1.SkipSharedMemory, "the engine mounts /dev/shm read-only or from a sub-path: mount the whole volume, writable")
	case i < 0 || w.pod.Spec.Volumes[i].EmptyDir == nil || w.pod.Spec.Volumes[i].EmptyDir.Medium != corev1.StorageMediumMemory:
		return "", refuse(v1alpha1.SkipSharedMemory, "the engine's /dev/shm is no emptyDir of medium Memory: make volume %s one, or remove it", mount.Name)
	}
	if limit := w.pod.Spec.Volumes[i].EmptyDir.SizeLimit; limit != nil && limit.Cmp(budget) < 0 {
		return "", refuse(v1alpha1.SkipSharedMemory, "volume %s at /dev/shm is limited to %s, but l1Capacity + 1Gi is %s: raise its sizeLimit", mount.Name, limit, &budget)
	}
	return mount.Name, nil
}

// devices are the GPUs that the server may open: those of the engine where its
// template names them. A device plugin's choice is not known at admission, and
// CUDA's handles between processes need the same device.
func (w *wiring) devices() string {
	for _, v := range w.engine().Env {
		if v.Name == "NVIDIA_VISIBLE_DEVICES" && v.ValueFrom == nil && v.Value != "" {
			return v.Value
		}
	}
	if len(w.engine().Resources.Claims) > 0 {
		return "void" // the claim that the server shares brings its devices
	}
	return "all"
}

// asEngine runs a container as the engine's user: they share memory, and a
// namespace of restricted Pod Security wants it of every container.
func (w *wiring) asEngine(c *corev1.SecurityContext) *corev1.SecurityContext {
	if engine := w.engine().SecurityContext; engine != nil {
		c.RunAsUser, c.RunAsGroup, c.RunAsNonRoot = engine.RunAsUser, engine.RunAsGroup, engine.RunAsNonRoot
	}
	return c
}

// checkPorts refuses ports of the server that something else of the pod has.
func (w *wiring) checkPorts(port, httpPort int32) error {
	taken := w.portsOfOthers()
	for _, p := range []struct {
		port  int32
		field string
	}{{port, "port"}, {httpPort, "httpPort"}} {
		if who := taken[p.port]; who != "" {
			return refuse(v1alpha1.SkipPortCollision, "port %d is used by %s: set lmCache.podLocal.server.%s to a free one", p.port, who, p.field)
		}
	}
	return nil
}

// portsOfOthers are the ports that the pod's own containers have, and whose.
func (w *wiring) portsOfOthers() map[int32]string {
	taken := make(map[int32]string)
	for _, list := range [][]corev1.Container{w.pod.Spec.Containers, w.pod.Spec.InitContainers} {
		for _, c := range list {
			if isMarked(c) {
				continue
			}
			for _, p := range c.Ports {
				taken[p.ContainerPort] = "container " + c.Name
			}
		}
	}
	if port, known := w.enginePort(); known {
		taken[port] = "the engine"
	}
	if len(w.eventArguments()) > 0 {
		p, _ := w.published()
		for _, endpoint := range []string{p.Endpoint, p.Replay} {
			if address, ok := dial(endpoint); ok {
				taken[portOf(address)] = "the engine's KV events"
			}
		}
	}
	return taken
}

// portsTaken are those, and the ones the server of this backend takes.
func (w *wiring) portsTaken() map[int32]string {
	taken := w.portsOfOthers()
	if lm := w.backend.Spec.LMCache; lm != nil && lm.PodLocal != nil {
		taken[orDefault(lm.PodLocal.Server.Port, v1alpha1.DefaultMPPort)] = v1alpha1.ContainerMPServer
		taken[orDefault(lm.PodLocal.Server.HTTPPort, v1alpha1.DefaultPodHTTPPort)] = v1alpha1.ContainerMPServer
	}
	return taken
}

func portOf(address string) (port int32) {
	for _, c := range address[strings.LastIndexByte(address, ':')+1:] {
		port = port*10 + c - '0'
	}
	return port
}
