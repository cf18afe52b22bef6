package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Values in force where a field is unset. The API server fills those that are
// defaults of the schema; objects that never passed one may lack them too.
const (
	DefaultChunkSize         int32 = 256
	DefaultPageSize          int32 = 16
	DefaultMPPort            int32 = 5555
	DefaultPodHTTPPort       int32 = 8080
	DefaultNodeHTTPPort      int32 = 5556
	DefaultWorkers           int32 = 4
	DefaultGPUWorkers        int32 = 8
	DefaultIdleRetention           = 5 * time.Minute
	DefaultFirstEventTimeout       = 5 * time.Minute
	DefaultStaleAfter              = 2 * time.Minute
	DefaultDrainTimeout            = 10 * time.Minute
)

// Domain is the value of LabelCacheDomain on the pods of this backend; empty:
// it has none.
func (b *CacheBackend) Domain() string {
	if b.Spec.CacheDomain != "" {
		return b.Spec.CacheDomain
	}
	if s := b.Spec.EngineSelector; s != nil && len(s.MatchLabels) == 1 {
		return s.MatchLabels[LabelCacheDomain]
	}
	return ""
}

// Owns reports whether a pod with these labels, in the backend's namespace, is
// of its domain.
func (b *CacheBackend) Owns(labels map[string]string) bool {
	domain := b.Domain()
	return domain != "" && labels[LabelCacheDomain] == domain
}

// CacheType is spec.type in force.
func (b *CacheBackend) CacheType() BackendType {
	if b.Spec.Type == "" {
		return TypeLMCache
	}
	return b.Spec.Type
}

// EventsOnly reports whether engines only tell what they hold.
func (b *CacheBackend) EventsOnly() bool { return b.Spec.Integration.Mode == ModeEventsOnly }

// FailsOpen is integration.failOpen in force.
func (b *CacheBackend) FailsOpen() bool {
	return b.Spec.Integration.FailOpen == nil || *b.Spec.Integration.FailOpen
}

// RemoteGatesReady reports whether a lost remote tier lowers Ready.
func (b *CacheBackend) RemoteGatesReady() bool {
	r := b.Spec.RemoteStorage
	switch {
	case r == nil:
		return false
	case r.RequiredForReady != nil:
		return *r.RequiredForReady
	}
	return !b.FailsOpen()
}

// RequiresEvents reports whether events are part of Ready.
func (b *CacheBackend) RequiresEvents() bool {
	if r := b.Spec.Observation.RequireEvents; r != nil {
		return *r
	}
	return b.Annotations[AnnotationRequireKVEvents] != "false"
}

// FirstEventTimeout is observation.firstEventTimeout in force.
func (b *CacheBackend) FirstEventTimeout() time.Duration {
	if t := b.Spec.Observation.FirstEventTimeout; t != nil && t.Duration > 0 {
		return t.Duration
	}
	return DefaultFirstEventTimeout
}

// StaleAfter is observation.staleAfter in force.
func (b *CacheBackend) StaleAfter() time.Duration {
	if t := b.Spec.Observation.StaleAfter; t != nil && t.Duration > 0 {
		return t.Duration
	}
	return DefaultStaleAfter
}

// ParseKernelCheck reads a value of AnnotationKernelCheck.
func ParseKernelCheck(annotation string) (KernelCheck, bool) {
	switch annotation {
	case "", "auto":
		return KernelCheckAuto, true
	case "report-only":
		return KernelCheckReportOnly, true
	case "strict":
		return KernelCheckStrict, true
	case "off":
		return KernelCheckOff, true
	}
	return "", false
}

// KernelCheckMode is the kernel check in force: the field, else the
// annotation, else Auto.
func (b *CacheBackend) KernelCheckMode() KernelCheck {
	if b.Spec.KernelCheck != "" {
		return b.Spec.KernelCheck
	}
	if mode, ok := ParseKernelCheck(b.Annotations[AnnotationKernelCheck]); ok {
		return mode
	}
	return KernelCheckAuto
}

// ChunkSize is lmCache.chunkSizeTokens in force.
func (s *LMCacheSpec) ChunkSize() int32 {
	if s.ChunkSizeTokens != nil {
		return *s.ChunkSizeTokens
	}
	return DefaultChunkSize
}

// PageSize is lmCache.pageSizeTokens in force.
func (s *LMCacheSpec) PageSize() int32 {
	if s.PageSizeTokens != nil {
		return *s.PageSizeTokens
	}
	return DefaultPageSize
}

const maxServiceName = 63 // a DNS label

// RemoteName is the name of everything made for Managed storage: Deployment,
// Service, NetworkPolicy and the Secret of a generated password. Its suffix
// keeps it off the user's own objects; a name that would be too long is cut
// and told apart by a hash.
func (b *CacheBackend) RemoteName() string {
	const suffix = "-l3"
	name := strings.ReplaceAll(b.Name, ".", "-")
	if name == b.Name && len(name)+len(suffix) <= maxServiceName {
		return name + suffix
	}
	sum := sha256.Sum256([]byte(b.Name))
	mark := "-" + hex.EncodeToString(sum[:4])
	if over := len(name) + len(mark) + len(suffix) - maxServiceName; over > 0 {
		name = strings.TrimRight(name[:len(name)-over], "-")
	}
	return name + mark + suffix
}

// GeneratedPasswordKey is the key of a generated password in the Secret named
// RemoteName.
const GeneratedPasswordKey = "password"

// RemotePassword is where the password of the remote tier is; nil: it has none.
func (b *CacheBackend) RemotePassword() *corev1.SecretKeySelector {
	r := b.Spec.RemoteStorage
	switch {
	case r == nil:
		return nil
	case r.Redis != nil && r.Redis.Authentication != nil:
		return r.Redis.Authentication.Password.Selector()
	case r.Ownership == Managed:
		return (&SecretKey{Name: b.RemoteName(), Key: GeneratedPasswordKey}).Selector()
	}
	return nil
}

// RemoteUsername is where the user name of the remote tier is; nil: it has none.
func (b *CacheBackend) RemoteUsername() *corev1.SecretKeySelector {
	r := b.Spec.RemoteStorage
	if r == nil || r.Redis == nil || r.Redis.Authentication == nil || r.Redis.Authentication.Username == nil {
		return nil
	}
	return r.Redis.Authentication.Username.Selector()
}

// RemoteEndpoint is host:port of the remote tier; empty: none, or not known yet.
func (b *CacheBackend) RemoteEndpoint() string {
	r := b.Spec.RemoteStorage
	switch {
	case r == nil:
		return ""
	case r.Ownership == External:
		return strings.TrimSpace(r.Endpoint)
	case b.Status.RemoteStorage == nil:
		return ""
	}
	return strings.TrimSpace(b.Status.RemoteStorage.Endpoint)
}

// Selector is the reference as pods take it.
func (k *SecretKey) Selector() *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: k.Name}, Key: k.Key}
}

// Tenant is the tenant that a CacheTenant bounds.
func (t *CacheTenant) Tenant() string {
	if t.Spec.TenantID == "" {
		return t.Namespace
	}
	return t.Spec.TenantID
}

// Granted reports whether CacheTenants of a namespace may claim a tenant: the
// one of its name, or one that its annotation AnnotationTenantGrants lists.
// Whoever may create objects in a namespace could otherwise cap another team's
// tenant. Nobody may claim the self-test's.
func Granted(namespace, tenant, annotation string) bool {
	if tenant == ReservedTenant || tenant == namespace {
		return tenant != ReservedTenant
	}
	for granted := range strings.SplitSeq(annotation, ",") {
		if granted = strings.TrimSpace(granted); granted == tenant || granted == "*" {
			return true
		}
	}
	return false
}
