// Package replay is the station that asks "what if": it plays a trace of
// requests to a simulated fleet, routed by the real index and the real ranking
// or by what others do, and says how long prompts would have waited and how
// much of them would have been cached. `inferencecache replay` calls it. It
// talks to nobody and measures no engine: a replica is a queue with a cache.
//
//	trace -> fleet: replicas (queue, LRU cache)
//	           |  events, after --event-lag -> index --\
//	           |  loads, each --report-every ----------> policy -> replica
//
// The model is the one under the table of the design: a replica prefills one
// prompt at a time, at so many tokens a second, and whole blocks; decoding only
// counts as concurrency; its cache forgets the block used longest ago, and of a
// prompt the last block first.
package replay
