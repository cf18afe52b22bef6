// Package subscriber is the station between one engine and the servers: it
// reads the engine's KV-cache events over ZeroMQ, works out what the replica
// holds, and reports that to every server in order. A second loop scrapes the
// engine's metrics page for its load. Roles run it beside an engine; nothing
// else calls it. It answers no question and keeps no index: what it knows is
// what one engine said.
//
//	engine PUB -> receiver -> queue -> stream -> outbox (one per server) -> SyncCacheState
//	              (socket)   (drops)   (residency)  (order, retry)
//	engine /metrics -> statsLoop -> ReportCacheState
//
// The servers are named one by one, or are all that a name stands for at
// present. Each hears something at least every heartbeat, and a goodbye.
//
// Each arrow is a hand-over that never makes the one before it wait: the
// queue drops its oldest batch with a mark, an outbox that falls behind drops
// everything and starts again from what residency holds. So neither a slow
// server nor a slow worker backs up into the engine's send queue, where loss
// would be silent.
package subscriber
