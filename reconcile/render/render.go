// Package render makes of a CacheBackend the objects that the operator runs
// for it: Managed storage (redis.go), the LMCache servers of topology NodeLocal
// and the pods that give their memory back (node.go). It is pure: no client, no
// clock, no randomness; the same backend gives the same bytes. What is written,
// when, and in place of what is the reconciler's to decide. What is inside
// engine pods is package inject's.
package render

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// DefaultRedisImage runs Managed storage whose backend names no image.
const DefaultRedisImage = "docker.io/library/redis:7.4-alpine"

// Values of v1alpha1.LabelName.
const (
	NameStorage = "cachebackend"
	NameServer  = "lmcache-mp-server"
	NameCleaner = "lmcache-shm-cleaner"
)

// Options are what the operator, not the backend, decides.
type Options struct {
	RedisImage string // empty: DefaultRedisImage
	Inject     inject.Options
}

// meta is the metadata of an object that belongs to a backend.
func meta(b *v1alpha1.CacheBackend, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: b.Namespace, Name: name, Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("CacheBackend"))},
	}
}
