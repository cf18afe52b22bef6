package judge

import (
	"net"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/render"
)

// remote judges the tier beyond hosts.
func (j *judging) remote() verdict {
	r := j.Backend.Spec.RemoteStorage
	if r == nil || !j.offloads() {
		j.drop(v1alpha1.ConditionRemoteStorageReady)
		j.status.RemoteStorage = nil
		return verdict{}
	}
	s := &v1alpha1.RemoteStorageStatus{Provider: r.Provider}
	var v verdict
	if r.Ownership == v1alpha1.External {
		s.Endpoint = j.Backend.RemoteEndpoint()
		v = j.external(s.Endpoint)
		if v.status == metav1.ConditionUnknown || v.broken {
			j.soon(retry)
		}
	} else {
		if j.Remote.Service != nil {
			s.Endpoint = render.Endpoint(j.Backend)
		}
		s.CredentialsHash = j.Remote.Credentials
		v = j.managed()
	}
	s.Ready = v.status
	j.status.RemoteStorage = s
	j.set(v1alpha1.ConditionRemoteStorageReady, v)
	return v
}

func (j *judging) external(endpoint string) verdict {
	switch {
	case endpoint == "":
		return broken(v1alpha1.ReasonExternalMissing, "remoteStorage.endpoint is empty: give host:port")
	case !ValidEndpoint(endpoint):
		return broken(v1alpha1.ReasonExternalInvalid, "remoteStorage.endpoint "+endpoint+" is not host:port")
	case !j.Remote.Dial.Done:
		if was := j.before(v1alpha1.ConditionRemoteStorageReady); was != nil && was.ObservedGeneration == j.Backend.Generation {
			return verdict{was.Status, was.Reason, was.Message, was.Status == metav1.ConditionFalse, was.Status == metav1.ConditionUnknown}
		}
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonRemotePending, "the endpoint has not been dialled yet", false, true}
	case j.Remote.Dial.Problem != "":
		return broken(v1alpha1.ReasonRemoteUnreachable, j.Remote.Dial.Problem)
	}
	return is(v1alpha1.ReasonRemoteReady, "the endpoint answers")
}

// ValidEndpoint reports whether text is host:port.
func ValidEndpoint(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && n > 0 && host != ""
}

func (j *judging) managed() verdict {
	d := j.Remote.Deployment
	switch {
	case j.Remote.Conflict != "":
		return broken(v1alpha1.ReasonNameConflict, j.Remote.Conflict+" exists and is not this backend's, and is left alone: rename it, or the backend")
	case j.Remote.MissingSecret != "":
		return broken(v1alpha1.ReasonRemoteSecretMissing, j.Remote.MissingSecret+" does not exist: create it, or remove redis.authentication for a generated password")
	case d == nil || j.Remote.Service == nil:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonRemotePending, "Redis is being created", false, true}
	case available(d):
		return is(v1alpha1.ReasonRemoteReady, "Redis runs")
	case rollingOut(d):
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonRemotePending, "Redis is being rolled out", false, true}
	}
	return broken(v1alpha1.ReasonRemoteUnavailable, "Deployment "+d.Name+" has no available pod: see its events")
}

func broken(reason, message string) verdict {
	return verdict{metav1.ConditionFalse, reason, message, true, false}
}

func available(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.AvailableReplicas > 0 && d.Status.UpdatedReplicas > 0
}

// rollingOut tells a Deployment on its way from one that had arrived, or gave
// up: the Deployment controller says so in its condition Progressing.
func rollingOut(d *appsv1.Deployment) bool {
	if d.Status.ObservedGeneration < d.Generation {
		return true
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing {
			return c.Status == corev1.ConditionTrue && c.Reason != "NewReplicaSetAvailable"
		}
	}
	return true
}
