// Package index remembers which replica holds which block of a prefix cache,
// and finds the replicas that hold the longest run from the start of a chain.
// It is not a cache and not a model of an engine: it believes what it is told,
// forgets it by age, and ranks nobody. Ingest and subscribers write to it, the
// lookup service reads from it, a ticker calls Sweep.
//
// # Memory
//
//	Index -- tenant -- scope (model, scheme) -- partition (adapter)
//	                     |                        |
//	                     | byID: replica -> n     | 16 stripes, by the first 4 bits of a place
//	                     v                        v
//	                   ordinal n                stripe: lock, directory by the next bits
//	                   dead, mark,                |   |
//	                   cleared, count             v   v
//	                                            table: up to 50,000 keys
//
//	table.entries  sorted by tag, 8 bytes each; "." is empty
//	  +---+---+---+---+---+---+---+    tag  segment  offset in it
//	  | a | b | . | c | d | e | . |     26       31             7  bits
//	  +---+---+---+---+---+---+---+
//	                |
//	heap: slabs     v  segment: up to 125 keys, mostly one behind the other in a chain
//	  +---------+-------+-------+----+----+----+----+-----+
//	  | numbers |     span      | k0 | k1 | k2 | .. | free|
//	  +---------+-------+-------+----+----+----+----+-----+
//	                |  or where the block of two and more spans is
//	                v
//	  | span | span | span |   by ordinal and from; 16 bytes each:
//	                           stamp:32 ordinal:16 tier:8 use:8  tokens:32 step:16 from:8 to:8
//
// A place is a key under a salted bijection, a tag the bits of it behind those
// that chose the stripe. A span says that a replica holds the keys [from, to)
// of a segment, all stamped alike; so a chain that a replica reported at once
// costs 16 bytes for 125 keys, and a lookup that follows it goes from segment
// to segment: one search, then a comparison of keys that lie side by side.
// Which keys share a segment is a matter of speed alone. Parents and the order
// of reports are hints; any keys in any segment give the same answers.
//
// A key that nobody holds any more stays in its segment, under no span, until
// half of the segment is like that and it is packed. Blocks come from a buddy
// system over slabs of up to 1 MiB, tables are split in two when they are full;
// a budget of bytes is charged before either is allocated. The collector sees
// no pointers below a table or a slab.
//
// Nothing walks all entries of a replica. Clear and Kill mark its ordinal dead
// and give it a new one; spans of the old one are absent at once and taken out
// by the sweep, and its number is used again only behind a full pass. A clear
// that is older than what the replica reported since sets a mark instead:
// spans stamped up to it are absent. Vouch works the same way round: the ordinal
// remembers when all of its spans were last said to hold, and they age from then.
//
// # Locks
//
//	victims.mu > sweeper.mu > Index.mu > tenant.mu > scope.mu > partition.mu > stripe.mu > guard
//
// list.mu and heap.mu are below all of them. Nobody holds two locks of one
// kind. A partition has one writer at a time, who has the scope's mu to read
// and the partition's mu, and reads entries and segments without more; entries
// change under the stripe's mu, what readers see of a segment under its guard.
// What an ordinal means changes under the write lock of the scope, so that
// "live" stays true for as long as a writer has the read lock.
//
// A lookup takes each lock to read: one after the other down to the first
// block; then, for each segment, the stripe of the key that led there and the
// guard. A segment is freed, or moved and then freed, only when no entry leads
// to it, so the stripe's lock keeps it where it is. A writer enters keys before
// a span covers them, and uncovers them before it erases the entry: the change
// of spans under the guard is the moment at which keys come and go.
//
// # Limits
//
// Stamps are kept to the millisecond. A TTL over 20 days is read as 20 days,
// and Sweep has to get round once in four days; what is vouched for for longer
// than 20 days is stamped anew, 10 days back. A store that carries the stamp
// of a late clear is kept with the next millisecond. Beyond some 100 million
// keys a partition's tags begin to collide: searches look at a segment more
// then, and stay right. All slabs together hold up to 64 GiB.
package index
