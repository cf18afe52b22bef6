// Package reconcile is the operator's hands in the cluster: controllers that
// compare what CacheBackends, CachePolicies and CacheTenants ask for with what
// there is, change what differs, and write status. What should be is decided by
// the pure packages below it: render (objects), judge (status), compile (the
// policy document). It calls no server: the loops of package bridge do, and
// meet it in three interfaces of one or two methods.
//
// # Who writes what
//
// Each field has one writer, and writers write only what differs.
//
//	writer    writes                                              when
//	backends  CacheBackend.status but indexParticipation,         a backend, an engine pod or a thing
//	          its finalizer; Redis objects, NodeLocal pods,       of a backend changed; time passed
//	          cleaners; evictions
//	policies  CachePolicy.status, CacheTenant.status;             a policy, tenant or Namespace changed,
//	          hands the document to the pusher                    a server acknowledged, a snapshot came
//	index     CacheIndex and its status,                          a snapshot came, every 15 s
//	          CacheBackend.status.indexParticipation
//
// Status is a merge patch of the fields that changed; that of backends carries
// the version it was made from, so that nothing is decided on what is no
// longer so. Objects are created, never applied over: an object of our name
// that is not ours is left alone and reported.
//
// # What is read
//
// Caches hold engine pods by label, stripped to what is looked at, and of
// everything else only what the operator made. No controller lists from the
// API server after the start. Secrets are read one by one, as metadata.
package reconcile
