package inject

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

type envVar = corev1.EnvVar

const (
	envNodeIP    = "INFERENCECACHE_NODE_IP"
	envPodIP     = "INFERENCECACHE_POD_IP"
	envFailOpen  = "INFERENCECACHE_FAIL_OPEN" // of older versions; no engine reads it
	envMPServer  = "INFERENCECACHE_MP_SERVER"
	sharedMemory = "/dev/shm"
	markTrue     = "true"
)

// Overhead is the memory of an LMCache server beside its blocks.
var Overhead = resource.MustParse("1Gi")

// Budget is the memory of a server that keeps capacity bytes of blocks.
func Budget(capacity resource.Quantity) resource.Quantity {
	capacity.Add(Overhead)
	return capacity
}

// serverResources are the resources given, and what is derived where none is.
func serverResources(given *v1alpha1.Resources, capacity resource.Quantity) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	if given != nil {
		r.Requests, r.Limits = given.Requests.DeepCopy(), given.Limits.DeepCopy()
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
	}
	budget := Budget(capacity)
	if limit, ok := r.Limits[corev1.ResourceCPU]; !ok {
		setDefault(r.Requests, corev1.ResourceCPU, resource.MustParse("1"))
	} else if one := resource.MustParse("1"); limit.Cmp(one) < 0 {
		setDefault(r.Requests, corev1.ResourceCPU, limit)
	} else {
		setDefault(r.Requests, corev1.ResourceCPU, one)
	}
	if limit, ok := r.Limits[corev1.ResourceMemory]; ok && limit.Cmp(budget) < 0 {
		budget = limit // refused by the schema; older objects may have it
	}
	setDefault(r.Requests, corev1.ResourceMemory, budget)
	request := r.Requests[corev1.ResourceMemory]
	setDefault(r.Limits, corev1.ResourceMemory, request)
	return r
}

func setDefault(list corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if _, ok := list[name]; !ok {
		list[name] = q
	}
}

// gib is a quantity in GiB, a decimal where it is no whole number.
func gib(q resource.Quantity) string {
	return strconv.FormatFloat(q.AsApproximateFloat64()/(1<<30), 'f', -1, 64)
}

func orDefault(n, otherwise int32) int32 {
	if n == 0 {
		return otherwise
	}
	return n
}

// remoteAdapter is the value of --l2-adapter; empty: no remote tier.
func remoteAdapter(b *v1alpha1.CacheBackend) (string, error) {
	if b.Spec.RemoteStorage == nil {
		return "", nil
	}
	endpoint := b.RemoteEndpoint()
	if endpoint == "" {
		return "", refuse(v1alpha1.SkipEndpointMissing, "the remote tier of CacheBackend %s has no endpoint yet: pods created once it has one are wired", b.Name)
	}
	host, port, err := net.SplitHostPort(endpoint)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || number == 0 || host == "" {
		return "", refuse(v1alpha1.SkipInvalidBackend, "the endpoint %q of the remote tier is not host:port", endpoint)
	}
	text, err := json.Marshal(struct {
		Type string `json:"type"`
		Host string `json:"host"`
		Port uint64 `json:"port"`
	}{"resp", host, number})
	if err != nil {
		panic("bug: an adapter that is no JSON: " + err.Error())
	}
	return string(text), nil
}

// serverEnv are the variables of every LMCache server.
func serverEnv(b *v1alpha1.CacheBackend, devices string) []envVar {
	env := []envVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: devices}, {Name: envMPServer, Value: markTrue}}
	if username := b.RemoteUsername(); username != nil {
		env = append(env, envVar{Name: "LMCACHE_RESP_USERNAME", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: username}})
	}
	if password := b.RemotePassword(); password != nil {
		env = append(env, envVar{Name: "LMCACHE_RESP_PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: password}})
	}
	return env
}

func fromField(name, path string) envVar {
	return envVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
}

func serverPorts(port, httpPort int32) []corev1.ContainerPort {
	return []corev1.ContainerPort{
		{Name: v1alpha1.PortLMCacheMP, ContainerPort: port, Protocol: corev1.ProtocolTCP},
		{Name: v1alpha1.PortLMCacheHTTP, ContainerPort: httpPort, Protocol: corev1.ProtocolTCP},
	}
}

// probe asks the server's health. Values the API server would default are
// written out: a pod admitted twice must not differ.
func probe(period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/healthcheck", Port: intstr.FromString(v1alpha1.PortLMCacheHTTP), Scheme: corev1.URISchemeHTTP}},
		TimeoutSeconds: 2, PeriodSeconds: period, SuccessThreshold: 1, FailureThreshold: failures,
	}
}

// withProbes gives a server its probes and what else all servers have.
func withProbes(c corev1.Container) corev1.Container {
	c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = probe(3, 40), probe(5, 3), probe(10, 3)
	c.ImagePullPolicy = corev1.PullIfNotPresent
	c.TerminationMessagePath, c.TerminationMessagePolicy = corev1.TerminationMessagePathDefault, corev1.TerminationMessageReadFile
	return c
}

// confined is the security context that restricted Pod Security asks for, but
// for the user.
func confined() *corev1.SecurityContext {
	no := false
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// SHMDirectory is the node's folder that engines and server of a NodeLocal
// backend share.
func SHMDirectory(b *v1alpha1.CacheBackend) string {
	return "/dev/shm/inference-cache/" + string(b.UID)
}

// SHMName is the shared memory that a NodeLocal server owns.
func SHMName(b *v1alpha1.CacheBackend) string {
	return "lmcache_l1_pool_inferencecache_" + string(b.UID)
}

// InstanceID tells a NodeLocal server from another backend's on the same port.
// What follows it behind a "#" is the server's own revision.
func InstanceID(b *v1alpha1.CacheBackend) string {
	return fmt.Sprintf("%s/%s@%s", b.Namespace, b.Name, b.UID)
}

// NodeServer is the container of a NodeLocal server, and the volume it mounts.
// Its pod has host network.
func NodeServer(b *v1alpha1.CacheBackend, options Options) (corev1.Container, corev1.Volume, error) {
	lm := b.Spec.LMCache
	if lm == nil || lm.NodeLocal == nil {
		return corev1.Container{}, corev1.Volume{}, refuse(v1alpha1.SkipInvalidBackend, "CacheBackend %s has no lmCache.nodeLocal", b.Name)
	}
	remote, err := remoteAdapter(b)
	if err != nil {
		return corev1.Container{}, corev1.Volume{}, err
	}
	s := &lm.NodeLocal.Server
	port, httpPort := orDefault(s.Port, v1alpha1.DefaultMPPort), orDefault(s.HTTPPort, v1alpha1.DefaultNodeHTTPPort)
	host := "$(" + envNodeIP + ")"
	args := []string{"server", "--instance-id", InstanceID(b) + "#" + ServerHash(b, options), "--shm-name", SHMName(b),
		"--host", host, "--port", text(port), "--http-host", host, "--http-port", text(httpPort),
		"--chunk-size", text(lm.ChunkSize()), "--l1-size-gb", gib(s.L1Capacity), "--eviction-policy", "LRU",
		"--max-gpu-workers", text(orDefault(s.MaxGPUWorkers, v1alpha1.DefaultGPUWorkers)),
		"--max-cpu-workers", text(orDefault(s.MaxCPUWorkers, v1alpha1.DefaultWorkers))}
	if remote != "" {
		args = append(args, "--l2-adapter", remote)
	}
	ports := serverPorts(port, httpPort)
	for i := range ports {
		ports[i].HostPort = ports[i].ContainerPort
	}
	volume := nodeVolume(b)
	return withProbes(corev1.Container{
		Name: v1alpha1.ContainerMPServer, Image: serverImage(s.Image, options), Command: []string{"lmcache"}, Args: args,
		Env: append([]envVar{fromField(envNodeIP, "status.hostIP")}, serverEnv(b, "all")...), Ports: ports,
		Resources: serverResources(s.Resources, s.L1Capacity), SecurityContext: confined(),
		VolumeMounts: []corev1.VolumeMount{{Name: volume.Name, MountPath: sharedMemory}},
	}), volume, nil
}

func text(n int32) string { return strconv.Itoa(int(n)) }

func serverImage(image string, options Options) string {
	if image == "" {
		return options.LMCacheImage
	}
	return image
}
