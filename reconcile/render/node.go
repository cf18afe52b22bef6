package render

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

const (
	maxName = 253
	// cleanSeconds bounds a pod that only deletes files.
	cleanSeconds = int64(120)
)

// NodeServer is the pod of the LMCache server for one node. It tolerates what
// source, an engine there, tolerates, unless lmCache.nodeLocal.scheduling says
// otherwise. The scheduler, not a node name, puts it there, so that a taken
// host port is seen as what it is.
func NodeServer(b *v1alpha1.CacheBackend, node string, source *corev1.Pod, o Options) (*corev1.Pod, error) {
	container, volume, err := inject.NodeServer(b, o.Inject)
	if err != nil {
		return nil, err
	}
	no := false
	pod := &corev1.Pod{
		ObjectMeta: meta(b, nodeName(b.Name, "", node), nodeLabels(b, NameServer)),
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{container}, Volumes: []corev1.Volume{volume},
			HostNetwork: true, DNSPolicy: corev1.DNSClusterFirstWithHostNet, RestartPolicy: corev1.RestartPolicyAlways,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Affinity: onNode(node),
		},
	}
	pod.Labels[v1alpha1.LabelNodeServer], pod.Labels[v1alpha1.LabelMPMetrics] = "true", "true"
	pod.Annotations = map[string]string{
		v1alpha1.AnnotationNodeOwner:      b.Namespace + "/" + b.Name,
		v1alpha1.AnnotationNodeOwnerUID:   string(b.UID),
		v1alpha1.AnnotationNodeGeneration: strconv.FormatInt(b.Generation, 10),
		v1alpha1.AnnotationNodeTarget:     node,
		v1alpha1.AnnotationNodeSHMName:    inject.SHMName(b),
		v1alpha1.AnnotationWiringHash:     inject.ServerHash(b, o.Inject),
	}
	schedule(&pod.Spec, b.Spec.LMCache.NodeLocal.Scheduling, source)
	return pod, nil
}

// schedule places a server like the engine that it is for, but where the
// backend says otherwise.
func schedule(spec *corev1.PodSpec, own *v1alpha1.NodeLocalScheduling, source *corev1.Pod) {
	if own == nil {
		own = &v1alpha1.NodeLocalScheduling{}
	}
	own = own.DeepCopy()
	from := source.Spec.DeepCopy()
	spec.Tolerations = append(from.Tolerations, own.Tolerations...)
	spec.ImagePullSecrets = from.ImagePullSecrets
	if own.ImagePullSecrets != nil {
		spec.ImagePullSecrets = own.ImagePullSecrets
	}
	spec.PriorityClassName = cmp.Or(own.PriorityClassName, from.PriorityClassName)
	spec.SchedulerName = cmp.Or(own.SchedulerName, from.SchedulerName)
	spec.RuntimeClassName = cmp.Or(own.RuntimeClassName, from.RuntimeClassName)
	spec.ServiceAccountName, spec.SecurityContext = own.ServiceAccountName, own.SecurityContext
	grace := int64(30)
	spec.TerminationGracePeriodSeconds = cmp.Or(own.TerminationGracePeriodSeconds, &grace)
}

// NodeCleaner is a pod that removes what a backend's servers and engines left
// in the memory of a node, and ends. It is for after the last of them is gone.
func NodeCleaner(b *v1alpha1.CacheBackend, node, image string) *corev1.Pod {
	no, yes, root, deadline, create := false, true, int64(0), cleanSeconds, corev1.HostPathDirectoryOrCreate
	pod := &corev1.Pod{
		ObjectMeta: meta(b, nodeName(b.Name, "clean-", node), nodeLabels(b, NameCleaner)),
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &deadline,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Affinity: onNode(node), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "clean", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"/bin/sh", "-c", "rm -rf /memory/* /memory/.[!.]*"},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
				},
				// The folder is the kubelet's, so only root may remove what is in it.
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}},
			}},
			Volumes: []corev1.Volume{{Name: "memory", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: inject.SHMDirectory(b), Type: &create}}}},
		},
	}
	pod.Annotations = map[string]string{v1alpha1.AnnotationNodeTarget: node}
	return pod
}

func nodeLabels(b *v1alpha1.CacheBackend, name string) map[string]string {
	return map[string]string{v1alpha1.LabelName: name, v1alpha1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelBackendUID: string(b.UID)}
}

// nodeName is one name for each backend and node.
func nodeName(backend, infix, node string) string {
	sum := sha256.Sum256([]byte(node))
	suffix := "-" + infix + hex.EncodeToString(sum[:6])
	if len(backend)+len(suffix) > maxName {
		backend = strings.TrimRight(backend[:maxName-len(suffix)], "-.")
	}
	return backend + suffix
}

func onNode(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}}
}
