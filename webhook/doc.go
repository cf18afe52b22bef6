// Package webhook is what the API server asks before it stores an object: the
// rules of the operator's kinds that CEL in the CRDs cannot say, because they
// take a namespace, a second object, or Go's own parsers. Rules are pure
// functions of the object, its predecessor and its neighbours; they return
// every violation at once. What CRDs say is not said again, except where an
// update must not keep an old violation.
package webhook
