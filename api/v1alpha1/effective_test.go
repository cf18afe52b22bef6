package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

func TestDomainIsOneOfTwoForms(t *testing.T) {
	t.Parallel()
	b := &v1alpha1.CacheBackend{}
	labels := map[string]string{v1alpha1.LabelCacheDomain: "d"}
	if b.Domain() != "" || b.Owns(labels) || b.Owns(map[string]string{v1alpha1.LabelCacheDomain: ""}) {
		t.Error("a backend without a domain owns pods")
	}
	b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: labels}
	if b.Domain() != "d" || !b.Owns(labels) {
		t.Errorf("the selector gives domain %q", b.Domain())
	}
	b.Spec.EngineSelector = nil
	b.Spec.CacheDomain = "d"
	if !b.Owns(labels) || b.Owns(map[string]string{v1alpha1.LabelCacheDomain: "e"}) {
		t.Error("cacheDomain d does not own just the pods labelled d")
	}
	b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{"a": "b", v1alpha1.LabelCacheDomain: "d"}}
	b.Spec.CacheDomain = ""
	if b.Domain() != "" {
		t.Error("a selector of two keys defines a domain")
	}
}

func TestRemoteNameIsALabelAndNobodyElses(t *testing.T) {
	t.Parallel()
	name := func(s string) string {
		b := &v1alpha1.CacheBackend{}
		b.Name = s
		return b.RemoteName()
	}
	if got := name("llama"); got != "llama-l3" {
		t.Errorf("llama gives %q", got)
	}
	seen := make(map[string]string)
	long := strings.Repeat("a", 61)
	for _, s := range []string{"llama", "a.b", "a-b", long, long + "b", long + "c", strings.Repeat("a.", 120) + "a"} {
		got := name(s)
		if len(got) > 63 || strings.Contains(got, ".") || !strings.HasSuffix(got, "-l3") {
			t.Errorf("%q gives %q", s, got)
		}
		if other, taken := seen[got]; taken {
			t.Errorf("%q and %q both give %q", s, other, got)
		}
		seen[got] = s
	}
}

func TestPasswordIsGivenOrGenerated(t *testing.T) {
	t.Parallel()
	b := &v1alpha1.CacheBackend{}
	b.Name = "b"
	if b.RemotePassword() != nil {
		t.Error("a password without a remote tier")
	}
	b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Ownership: v1alpha1.External}
	if b.RemotePassword() != nil {
		t.Error("a password of external storage that names none")
	}
	b.Spec.RemoteStorage.Ownership = v1alpha1.Managed
	if p := b.RemotePassword(); p == nil || p.Name != "b-l3" || p.Key != "password" {
		t.Errorf("the generated password is in %v", p)
	}
	b.Spec.RemoteStorage.Redis = &v1alpha1.RedisSpec{Authentication: &v1alpha1.RedisAuthentication{Password: v1alpha1.SecretKey{Name: "s", Key: "k"}}}
	if p := b.RemotePassword(); p.Name != "s" || p.Key != "k" {
		t.Errorf("the given password is in %v", p)
	}
}

func TestAnnotationsSpeakWhereFieldsAreSilent(t *testing.T) {
	t.Parallel()
	b := &v1alpha1.CacheBackend{}
	if b.KernelCheckMode() != v1alpha1.KernelCheckAuto || !b.RequiresEvents() {
		t.Error("the defaults are not Auto and true")
	}
	b.Annotations = map[string]string{v1alpha1.AnnotationKernelCheck: "strict", v1alpha1.AnnotationRequireKVEvents: "false"}
	if b.KernelCheckMode() != v1alpha1.KernelCheckStrict || b.RequiresEvents() {
		t.Error("annotations were not heard")
	}
	yes := true
	b.Spec.KernelCheck, b.Spec.Observation.RequireEvents = v1alpha1.KernelCheckOff, &yes
	if b.KernelCheckMode() != v1alpha1.KernelCheckOff || !b.RequiresEvents() {
		t.Error("fields do not win over annotations")
	}
	b.Annotations[v1alpha1.AnnotationKernelCheck], b.Spec.KernelCheck = "nonsense", ""
	if b.KernelCheckMode() != v1alpha1.KernelCheckAuto {
		t.Error("nonsense is not Auto")
	}
}

func TestRemoteTierGatesReadyByEitherField(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	f := func(failOpen, required *bool, want bool) {
		t.Helper()
		b := &v1alpha1.CacheBackend{}
		b.Spec.Integration.FailOpen = failOpen
		b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{RequiredForReady: required}
		if got := b.RemoteGatesReady(); got != want {
			t.Errorf("failOpen %v, requiredForReady %v: %v", failOpen, required, got)
		}
	}
	f(nil, nil, false)
	f(&yes, nil, false)
	f(&no, nil, true)
	f(&no, &no, false)
	f(&yes, &yes, true)
}

func TestTimesInForce(t *testing.T) {
	t.Parallel()
	b := &v1alpha1.CacheBackend{}
	b.Spec.Observation.FirstEventTimeout = &metav1.Duration{Duration: -time.Second}
	if b.FirstEventTimeout() != 5*time.Minute || b.StaleAfter() != 2*time.Minute {
		t.Errorf("%s, %s", b.FirstEventTimeout(), b.StaleAfter())
	}
	b.Spec.Observation.FirstEventTimeout = &metav1.Duration{Duration: time.Second}
	if b.FirstEventTimeout() != time.Second {
		t.Error(b.FirstEventTimeout())
	}
}

func TestTenantIDIsTheNamespaceUnlessGranted(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		namespace, id, annotation string
		want                      bool
	}{
		{"a", "a", "", true},
		{"a", "b", "", false},
		{"a", "b", "b", true},
		{"a", "b", " c , b ", true},
		{"a", "b", "bb,c", false},
		{"a", "b", "*", true},
		{"a", v1alpha1.ReservedTenant, "*", false},
		{"a", "", "", true}, // unset: the namespace
		{"a", "b", "c,", false},
	} {
		tenant := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace}, Spec: v1alpha1.CacheTenantSpec{TenantID: v.id}}
		if got := v1alpha1.Granted(v.namespace, tenant.Tenant(), v.annotation); got != v.want {
			t.Errorf("%q in %s with %q: %t", v.id, v.namespace, v.annotation, got)
		}
	}
}
