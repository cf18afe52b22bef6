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
//	                   dead, mark,                |   |   |
//	                   cleared, count             v   v   v
//	                                            table: up to 3,600 keys
//
//	table.slots   sorted by place, 24 bytes each; "." is empty
//	  +---+---+---+---+---+---+---+     place  word  tokens  n  class wide
//	  | a | b | . | c | d | e | . |       8      8      4    2    1     1
//	  +---+---+---+---+---+---+---+
//	                    |                 n == 1: word is the holder
//	table.arena         v                 n > 1:  word is where its block lies
//	  +----+----+----+----+----+----+
//	  | h0 | h1 | h2 |free| .. | .. |     holder: stamp:32 ordinal:16 tier:8 use:8
//	  +----+----+----+----+----+----+
//
// A place is a key under a salted bijection. A slot's home is its place scaled
// to the size of the table, so a table of any size is sorted, is rebuilt by one
// walk, and a sweep that remembers a place goes on there whatever became of
// the table. Tables are split in two when they are full, so no step copies
// more than one, and a budget of bytes is charged before each allocation. The
// collector sees no pointers below a table.
//
// Nothing walks all entries of a replica. Clear and Kill mark its ordinal dead
// and give it a new one; holders of the old one are absent at once and taken
// out by the sweep, and its number is used again only behind a full pass. A
// clear that is older than what the replica reported since sets a mark
// instead: holders stamped up to it are absent.
//
// # Locks
//
//	victims.mu > sweeper.mu > Index.mu > tenant.mu > scope.mu > stripe.mu
//
// list.mu is below all of them. Nobody holds two locks of one kind. Holders
// change under the read lock of their scope and the write lock of their
// stripe; what an ordinal means changes under the write lock of the scope, so
// that "live" stays true for as long as a writer has the read lock. A lookup
// takes each lock to read: one after the other down to the first block, then
// once a stripe for each 256 keys, copying holders out.
//
// # Limits
//
// Stamps are kept to the millisecond. A TTL over 20 days is read as 20 days,
// and Sweep has to get round once in four days. A store that carries the stamp
// of a late clear is kept with the next millisecond.
package index
