package render

import (
	"cmp"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	redisContainer = "redis-l2"
	redisPortName  = "redis"
	// RedisPort is where Managed storage listens.
	RedisPort int32 = 6379
	redisUser int64 = 999 // of the official image
	// AnnotationCredentials on the pods of Managed storage changes with their
	// password, so that a new one restarts them.
	AnnotationCredentials = "inferencecache.io/credentials-hash"
)

// redisScript keeps the password off every command line: Redis gets its hash,
// in a configuration that it reads from standard input. The hash also spares
// quoting whatever a password may contain.
const redisScript = `hash=$(printf %%s "$REDIS_PASSWORD" | sha256sum | cut -c1-64)
exec redis-server - <<END
user default on #$hash ~* &* +@all
save ""
appendonly no
maxmemory %d
maxmemory-policy allkeys-lru
END
`

// Storage is what Managed storage consists of, besides its Secret.
type Storage struct {
	Deployment    *appsv1.Deployment
	Service       *corev1.Service
	NetworkPolicy *networkingv1.NetworkPolicy
}

// Endpoint is where engines reach Managed storage.
func Endpoint(b *v1alpha1.CacheBackend) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local:%d", b.RemoteName(), b.Namespace, RedisPort)
}

// Redis renders Managed storage of backend b, which has remoteStorage.
// credentials is a word that changes with the password.
func Redis(b *v1alpha1.CacheBackend, credentials string, o Options) Storage {
	return Storage{redisDeployment(b, credentials, o), redisService(b), redisPolicy(b)}
}

// RedisSecret is the Secret of a generated password.
func RedisSecret(b *v1alpha1.CacheBackend, password string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: meta(b, b.RemoteName(), storageLabels(b)),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{v1alpha1.GeneratedPasswordKey: []byte(password)},
	}
}

// selector finds the pods of Managed storage. Label values are shorter than
// names of objects may be; RemoteName fits.
func selector(b *v1alpha1.CacheBackend) map[string]string {
	return map[string]string{v1alpha1.LabelName: NameStorage, v1alpha1.LabelInstance: b.RemoteName(), v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}
}

func storageLabels(b *v1alpha1.CacheBackend) map[string]string {
	labels := selector(b)
	labels[v1alpha1.LabelBackendType] = string(b.CacheType())
	return labels
}

func redisDeployment(b *v1alpha1.CacheBackend, credentials string, o Options) *appsv1.Deployment {
	one, history := int32(1), int32(1)
	return &appsv1.Deployment{
		ObjectMeta: meta(b, b.RemoteName(), storageLabels(b)),
		Spec: appsv1.DeploymentSpec{
			Replicas:             &one,
			RevisionHistoryLimit: &history,
			// Two at a time would answer in turns from two memories.
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Selector: &metav1.LabelSelector{MatchLabels: selector(b)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: storageLabels(b), Annotations: map[string]string{AnnotationCredentials: credentials}},
				Spec:       redisPod(b, o),
			},
		},
	}
}

func redisPod(b *v1alpha1.CacheBackend, o Options) corev1.PodSpec {
	no, yes, user := false, true, redisUser
	w := b.Spec.RemoteStorage.Workload
	if w == nil {
		w = &v1alpha1.WorkloadSpec{}
	}
	w = w.DeepCopy()
	spec := corev1.PodSpec{
		NodeSelector: w.NodeSelector, Affinity: w.Affinity, Tolerations: w.Tolerations, TopologySpreadConstraints: w.TopologySpreadConstraints,
		ImagePullSecrets: w.ImagePullSecrets, ServiceAccountName: w.ServiceAccountName, SecurityContext: w.SecurityContext,
		PriorityClassName: w.PriorityClassName, SchedulerName: w.SchedulerName, RuntimeClassName: w.RuntimeClassName,
		TerminationGracePeriodSeconds: w.TerminationGracePeriodSeconds,
		AutomountServiceAccountToken:  &no, EnableServiceLinks: &no,
		Containers: []corev1.Container{redisServer(b, o)},
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	}
	return spec
}

func redisServer(b *v1alpha1.CacheBackend, o Options) corev1.Container {
	no, yes := false, true
	image := cmp.Or(o.RedisImage, DefaultRedisImage)
	if r := b.Spec.RemoteStorage.Redis; r != nil {
		image = cmp.Or(r.Image, image)
	}
	resources := redisResources(b)
	password := &corev1.EnvVarSource{SecretKeyRef: b.RemotePassword()}
	return corev1.Container{
		Name: redisContainer, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/bin/sh", "-c", fmt.Sprintf(redisScript, maxMemory(resources))},
		Env: []corev1.EnvVar{
			{Name: "REDIS_PASSWORD", ValueFrom: password},
			{Name: "REDISCLI_AUTH", ValueFrom: password.DeepCopy()}, // redis-cli of the probe
		},
		Ports:     []corev1.ContainerPort{{Name: redisPortName, ContainerPort: RedisPort, Protocol: corev1.ProtocolTCP}},
		Resources: resources,
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:        corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", `test "$(redis-cli ping)" = PONG`}}},
			InitialDelaySeconds: 1, PeriodSeconds: 10, TimeoutSeconds: 2, SuccessThreshold: 1, FailureThreshold: 3,
		},
		LivenessProbe: &corev1.Probe{
			ProbeHandler:        corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString(redisPortName)}},
			InitialDelaySeconds: 10, PeriodSeconds: 20, TimeoutSeconds: 5, SuccessThreshold: 1, FailureThreshold: 6,
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// redisResources are those given, an empty object meaning none.
func redisResources(b *v1alpha1.CacheBackend) corev1.ResourceRequirements {
	if r := b.Spec.RemoteStorage.Redis; r != nil && r.Resources != nil {
		given := r.Resources.DeepCopy()
		return corev1.ResourceRequirements{Requests: given.Requests, Limits: given.Limits}
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")},
	}
}

// maxMemory leaves a fifth of the limit to what Redis needs besides data.
func maxMemory(r corev1.ResourceRequirements) int64 {
	limit, ok := r.Limits[corev1.ResourceMemory]
	if !ok {
		limit = resource.MustParse("8Gi")
	}
	return limit.Value() - limit.Value()/5
}

func redisService(b *v1alpha1.CacheBackend) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: meta(b, b.RemoteName(), storageLabels(b)),
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeClusterIP,
			Selector: selector(b),
			Ports: []corev1.ServicePort{{
				Name: redisPortName, Port: RedisPort, TargetPort: intstr.FromString(redisPortName), Protocol: corev1.ProtocolTCP}},
		},
	}
}

// redisPolicy lets in whoever has engines' blocks to store, and nothing out.
// NodeLocal servers have the network of their node, which no selector of pods
// matches; then the port is open to all, and the password is what guards it.
func redisPolicy(b *v1alpha1.CacheBackend) *networkingv1.NetworkPolicy {
	tcp, port := corev1.ProtocolTCP, intstr.FromInt32(RedisPort)
	rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &port}}}
	if lm := b.Spec.LMCache; lm == nil || lm.Topology != v1alpha1.NodeLocal {
		from := &metav1.LabelSelector{}
		if domain := b.Domain(); domain != "" {
			from.MatchLabels = map[string]string{v1alpha1.LabelCacheDomain: domain}
		}
		rule.From = []networkingv1.NetworkPolicyPeer{{PodSelector: from}}
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: meta(b, b.RemoteName(), storageLabels(b)),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: selector(b)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{rule},
		},
	}
}
