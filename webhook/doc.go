// Package webhook is what the API server asks before it stores an object: the
// rules of the operator's kinds that CEL in the CRDs cannot say, because they
// take a namespace, a second object, or Go's own parsers, and the linker that
// wires engine pods to the cache of their domain. Setup serves both.
//
// Rules are pure functions of the object, its predecessor and its neighbours;
// they return every violation at once. What CRDs say is not said again, except
// where an update must not keep an old violation. How a pod is wired decides
// package inject. Handlers here only gather, ask, and answer: they read past
// every cache, because a rule about neighbours is wrong about one created a
// moment ago.
package webhook
