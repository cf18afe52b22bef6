// Package journal is a bounded record of what a server was told and asked, so
// that its routing can be replayed elsewhere. It holds hashes, counts and names,
// never prompts or tokens. It is no log of truth: records are dropped rather
// than waited for, and nothing is read back by the server. The server writes
// it; `inferencecache replay` and `inferencecache journal` read it.
//
// A journal is two files, FILE.1 and FILE, in this order. When FILE has reached
// its half of the bound it becomes FILE.1. Each can be read alone:
//
//	file    magic "icjrnl\n", version (1 byte), then frames
//	frame   length of the payload (uvarint), payload, CRC-32C of it (4 bytes, little endian)
//	payload kind (1 byte), then the fields of the kind in this order:
//
//	                  at  partition  request  replica  reason  numbers  tier  parent?  keys
//	1 start            x  and the log2 of the window (1 byte)
//	2 lookup           x      x         x        x        x       2                      x
//	3 outcome          x                x        x                3
//	4 store            x      x                  x                1       x       x      x
//	5 remove           x      x                  x                                       x
//	6 clear            x      x                  x
//
//	at        microseconds since the record before (zigzag); in a start since 1970
//	partition of four names, request id, replica, reason: a word
//	word      0: empty. 1: new, with each name as length and bytes. 2+n: the one
//	          that was new n words ago; partitions, requests and names (replicas
//	          and reasons) are counted apart, and so many are remembered of each
//	numbers   uvarint of 32 bits each: tokens, block tokens; cached, prompt and
//	          output tokens; step
//	tier      1 byte
//	parent?   1 byte, 1: the first of keys is the parent, not a key of its own
//	keys      how many, then runs until there are so many
//	run       uvarint n<<2 | how, n keys:
//	          how 0: raw, 8 bytes each, big endian. Each gets the next node number,
//	                 and the key before it in this record, if any, as its parent
//	                 (in a remove: no numbers)
//	          how 1: a node and its ancestors, ancestors first; then how many
//	                 nodes ago the node was numbered, from 0
//	          how 2: the same, the node first
//
// Prompts share prefixes, so most of a chain is one run of how 1. Nodes older
// than the window are forgotten by writer and reader alike. A start forgets
// everything: a file begins with one, and a server that is started again goes
// on in the file with another, after cutting off a last frame that is not whole.
// What follows a frame that is not whole, or whose sum is wrong, is lost.
package journal
