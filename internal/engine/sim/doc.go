// Package sim is a simulated vLLM replica: an LRU prefix cache with a model of
// prefill and decode time, which speaks vLLM's HTTP API, metric names and
// KV-event wire format over real sockets. Sending it a prompt makes it hold
// that prefix and say so, which is all that the rest of the plane wants of an
// engine. It can be told to misbehave the way engines do (fault_*.go; faults.go
// lists them for HTTP), and to do what SGLang does otherwise: name its process in
// topics and give placement snapshots (snapshot.go).
//
// It is not a model server: completions are filler text, generated tokens fill
// no cache blocks, there is one KV-cache group, and blocks go to the host's
// memory only by order. `inferencecache sim`, --role=all and the tests of the
// subscriber run it.
//
//	HTTP --> scheduler ---events---> feed ---> PUB socket  --> subscribers
//	   |      (cache, time)           |  seq, replay buffer, placement
//	   |                              +------> ROUTER socket <-> replay clients
//	   |                              +------> ROUTER socket <-> snapshot clients
//	   +---> the same again for every further data-parallel rank (rank.go)
//
// The scheduler, its cache, the hash seed, the sequence, the replay buffer and
// the epoch die together in a restart (process.go); the sockets outlive it, as a
// pod's address outlives its container.
//
// Tokens: one per byte of UTF-8, id = byte value, no special tokens. The chat
// template is the plain concatenation of the message contents. So a text sent
// to /v1/completions, the same text through /tokenize as a prompt, and its
// pieces as chat messages all give the same token ids.
package sim
