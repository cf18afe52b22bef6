// Package subscriber is the station between one engine and the servers: it
// reads the engine's KV-cache events over ZeroMQ, works out what the replica
// holds, and reports that to every server in order. A second loop scrapes the
// engine's metrics page for its load. Roles run it beside an engine; nothing
// else calls it. It answers no question and keeps no index: what it knows is
// what one engine said.
//
//	of each rank:                        of the replica:
//	engine PUB --> receiver --> queue --> stream --> replica --> outbox (one per server) --> SyncCacheState
//	              (socket)     (drops)     |        (residency)  (order, retry)
//	engine ROUTER <-- what is missing -----+
//	engine /metrics --> statsLoop --> ReportCacheState
//	                       |
//	all of them ------> sentinel --> conditions: why prompts may not be matched
//
// A stream applies batches in the order of their numbers and of one process of
// the engine (position, recover). What is missing is replayed; what cannot be
// had is made up for by forgetting, so that nothing is reported that the engine
// may have dropped. State says how far that has come.
//
// The servers are named one by one, or are all that a name stands for at
// present. Each hears something at least every heartbeat, and a goodbye.
//
// Each arrow to the right is a hand-over that never makes the one before it wait: the
// queue drops its oldest batch with a mark, an outbox that falls behind drops
// everything and starts again from what residency holds. So neither a slow
// server nor a slow worker backs up into the engine's send queue, where loss
// would be silent.
package subscriber
