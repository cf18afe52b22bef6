package subscriber

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	"inferencecache.io/inferencecache/internal/kv"
)

// world is an engine that loses, repeats and reorders what it sends, restarts,
// and replays badly, before one stream. A lossless residency for each process
// of the engine says what is true. A script of bytes makes all choices, so that
// the fuzzer can.
type world struct {
	t      *testing.T
	script []byte
	stream *stream
	state  *machine

	processes []*worldProcess
	links     map[uint64]*worldProcess // by connection
	pipe      []batch                  // sent over the present connection, not delivered
	held      []batch                  // out of order: delivered later
	fault     worldFault               // of replays
	asleep    bool                     // the process
	buffer    int                      // batches that a process keeps
	quiet     bool                     // no faults any more
	stamp     uint64
}

// worldProcess is one life of the engine.
type worldProcess struct {
	batches  [][]byte
	truth    []heldBlocks // after so many batches
	lossless *Residency
	chains   [][]uint32 // tokens, a block each
	alive    bool
}

type worldFault uint8

const (
	faultNone worldFault = iota
	faultRefuse
	faultTruncate
	faultHole
	faultLate
	faultEmpty
	faultDuplicate
	worldFaults
)

func newWorld(t *testing.T, script []byte, replays bool) *world {
	w := &world{t: t, script: script, state: &machine{}, links: map[uint64]*worldProcess{}, buffer: 3 + int(peek(script)%40)}
	meters := testSourceMeters()
	w.stream = &stream{
		dialect: vllm.Dialect, limits: engine.DefaultLimits(), state: w.state, account: newAccount(), meters: meters, log: quiet,
		replica: &replica{meters: meters.meters, residency: NewResidency(ResidencyConfig{})},
		at:      newPosition(), logged: map[string]bool{},
	}
	if replays {
		w.stream.history = w
	}
	w.begin()
	return w
}

func peek(script []byte) byte {
	if len(script) == 0 {
		return 0
	}
	return script[0]
}

// choose is the script's next number below n.
func (w *world) choose(n int) int {
	if len(w.script) == 0 {
		return 0
	}
	b := w.script[0]
	w.script = w.script[1:]
	return int(b) % n
}

func (w *world) now() *worldProcess { return w.processes[len(w.processes)-1] }

// begin a process, and a connection to it.
func (w *world) begin() {
	w.processes = append(w.processes, &worldProcess{
		truth: []heldBlocks{{}}, lossless: NewResidency(ResidencyConfig{}), alive: true,
	})
	w.connect()
}

func (w *world) connect() {
	connection := w.state.connect()
	w.links[connection] = w.now()
	w.pipe = append(w.pipe, batch{mark: markConnected, connection: connection, arrived: time.Now()})
}

// restart the engine. What it had sent and nobody read is read first, as TCP
// does, or lost.
func (w *world) restart() {
	w.now().alive, w.asleep = false, false
	w.state.disconnect(time.Now())
	if w.choose(2) == 0 {
		w.pipe = nil
	}
	w.begin()
}

// blip breaks the connection, not the process.
func (w *world) blip() {
	w.state.disconnect(time.Now())
	if w.choose(2) == 0 {
		w.pipe = nil
	}
	for range w.choose(3) {
		w.emit()
		w.pipe = w.pipe[:max(0, len(w.pipe)-1)] // nobody is connected
	}
	w.connect()
}

// emit makes the process change its cache and send a batch about it.
func (w *world) emit() {
	p := w.now()
	time.Sleep(time.Millisecond)
	payload := w.change(p)
	if w.choose(20) == 19 {
		payload = payload[:len(payload)-1] // cannot be decoded: what it says is true all the same
	}
	w.stamp++
	p.batches = append(p.batches, payload)
	p.truth = append(p.truth, everything(p.lossless))
	b := batch{connection: w.state.connection, sequence: uint64(len(p.batches) - 1), payload: payload, arrived: time.Now()}
	switch c := w.choose(10); {
	case w.quiet, c < 6:
		w.pipe = append(w.pipe, b)
	case c == 6:
		w.pipe = append(w.pipe, b, b)
	case c == 7 && len(w.pipe) > 0 && w.pipe[len(w.pipe)-1].mark == markMessage && w.pipe[len(w.pipe)-1].connection == b.connection:
		last := len(w.pipe) - 1
		w.pipe = append(w.pipe[:last:last], b, w.pipe[last])
	}
}

// sleep makes the process lose its cache. Its metrics say so, no batch does.
func (w *world) sleep() {
	p := w.now()
	p.chains, w.asleep = nil, true
	p.lossless.ClearRank(0)
	w.pipe = append(w.pipe, batch{mark: markAsleep, connection: w.state.connection, sequence: uint64(len(p.batches)), arrived: time.Now()})
}

// fellAsleep says that a mark of sleep reaches the stream: from now on it must
// know that all that was held then is gone. A mark of another process than the
// present one is not delivered: a page is younger than that.
func (w *world) fellAsleep(mark batch) bool {
	p := w.links[mark.connection]
	if p != w.now() {
		return false
	}
	for n := range mark.sequence + 1 {
		p.truth[n] = heldBlocks{}
	}
	return true
}

// change is a random step of a process, told to its lossless residency.
func (w *world) change(p *worldProcess) []byte {
	w.stamp++
	head := pack{}.array(2).uint(w.stamp).array(1)
	var payload []byte
	switch c := w.choose(16); {
	case w.asleep: // it wakes, and says what became of its cache
		w.asleep = false
		w.pipe = append(w.pipe, batch{mark: markAwake, arrived: time.Now()})
		payload = head.array(1).text("AllBlocksCleared")
	case c == 0:
		p.chains = nil
		payload = head.array(1).text("AllBlocksCleared")
	case c < 10 || len(p.chains) == 0:
		payload = w.grow(p, head)
	default:
		payload = w.shrink(p, head)
	}
	decoded, err := engine.Decode(vllm.Dialect, payload, engine.DefaultLimits())
	if err != nil {
		w.t.Fatal(err)
	}
	p.lossless.Apply(0, decoded)
	return payload
}

func (w *world) grow(p *worldProcess, head pack) []byte {
	i := len(p.chains)
	if i == 0 || w.choose(3) == 0 {
		p.chains = append(p.chains, nil)
	} else {
		i = w.choose(i)
	}
	var fresh []uint32
	for range 1 + w.choose(3) {
		fresh = append(fresh, uint32(1+w.choose(4)))
	}
	chain := append(p.chains[i][:len(p.chains[i]):len(p.chains[i])], fresh...)
	var hashes []uint64
	for n := len(p.chains[i]) + 1; n <= len(chain); n++ {
		hashes = append(hashes, chainHash(chain[:n]))
	}
	packed := head.array(6).text("BlockStored").hashes(hashes)
	if n := len(p.chains[i]); n > 0 {
		packed = packed.uint(chainHash(chain[:n]))
	} else {
		packed = packed.none()
	}
	packed = packed.array(4 * len(fresh))
	for _, token := range fresh {
		for range 4 {
			packed = packed.uint(uint64(token))
		}
	}
	p.chains[i] = chain
	return packed.uint(4).none()
}

func (w *world) shrink(p *worldProcess, head pack) []byte {
	i := w.choose(len(p.chains))
	chain := p.chains[i]
	hash := chainHash(chain)
	if chain = chain[:len(chain)-1]; len(chain) == 0 {
		p.chains = append(p.chains[:i], p.chains[i+1:]...)
	} else {
		p.chains[i] = chain
	}
	return head.array(2).text("BlockRemoved").hashes([]uint64{hash})
}

// chainHash is an engine's name for a chain.
func chainHash(tokens []uint32) uint64 {
	h := uint64(1469598103934665603)
	for _, token := range tokens {
		h = (h ^ uint64(token)) * 1099511628211
	}
	return h
}

var errRefused = errors.New("refused")

// replay is the present process's answer, with the fault of the day.
func (w *world) replay(_ context.Context, start uint64, yield func(uint64, []byte) bool) (ended bool, err error) {
	p, fault, hole := w.now(), w.fault, 1+w.choose(3)
	first := max(int(start), len(p.batches)-w.buffer)
	switch fault {
	case faultRefuse:
		return false, errRefused
	case faultEmpty:
		return true, nil
	case faultLate:
		first++
	}
	for n := first; n < len(p.batches); n++ {
		switch {
		case fault == faultTruncate && n == first+hole:
			return false, errSilent
		case fault == faultHole && n == first+hole:
			continue
		case fault == faultDuplicate && !yield(uint64(n), p.batches[n]):
			return false, nil
		}
		if !yield(uint64(n), p.batches[n]) {
			return false, nil
		}
	}
	return true, nil
}

// deliver hands the stream up to n batches.
func (w *world) deliver(n int) {
	for ; n > 0 && len(w.pipe) > 0; n-- {
		b := w.pipe[0]
		w.pipe = w.pipe[1:]
		if b.mark == markAsleep && !w.fellAsleep(b) {
			continue
		}
		w.stream.take(context.Background(), b)
		w.check()
	}
}

func (w *world) idle(d time.Duration) {
	time.Sleep(d)
	if len(w.pipe) == 0 {
		w.stream.idle(context.Background(), time.Now())
		w.check()
	}
}

// step does one thing of the script.
func (w *world) step() {
	w.fault = worldFault(w.choose(int(worldFaults)))
	switch c := w.choose(18); {
	case c == 17:
		w.pipe = append(w.pipe, batch{mark: markDrifted, arrived: time.Now()})
	case c == 16:
		w.sleep()
	case c < 7:
		w.emit()
	case c < 12:
		w.deliver(1 + w.choose(4))
	case c < 13:
		w.idle(probeAfter + time.Second)
	case c < 14:
		w.restart()
	case c < 15:
		w.blip()
	default:
		w.idle(replayCooldown + time.Second)
	}
}

// check holds what the stream has made of it against what was true of a
// process at the batch where the stream stands: nothing more, and if it says
// that it is exact, nothing less.
func (w *world) check() {
	held := everything(w.stream.replica.residency)
	if len(held) == 0 && w.state.now() != Exact {
		return
	}
	var problems []string
	for _, p := range []*worldProcess{w.links[w.stream.connection], w.now()} {
		next := int(w.stream.at.next)
		if next >= len(p.truth) {
			problems = append(problems, fmt.Sprintf("stands behind the last of %d", len(p.batches)))
			continue
		}
		problem := p.compare(held, next, w.state.now() == Exact)
		if problem == "" {
			return
		}
		problems = append(problems, problem)
	}
	w.t.Fatalf("state %s, at %d of the connection's process, or of the last: %q", w.state.now(), w.stream.at.next, problems)
}

func (p *worldProcess) compare(held heldBlocks, next int, exact bool) string {
	truth := p.truth[next]
	for b := range held {
		if _, ok := truth[b]; !ok {
			return fmt.Sprintf("%v is not held any more", b)
		}
	}
	if exact && !maps.Equal(held, truth) {
		return fmt.Sprintf("%d of %d blocks", len(held), len(truth))
	}
	return ""
}

// settle ends all faults and lets the stream come to rest.
func (w *world) settle() {
	w.fault, w.quiet = faultNone, true
	w.emit()
	w.deliver(len(w.pipe))
	for range 3 {
		w.fault = faultNone
		w.idle(replayCooldown + time.Second)
	}
	if next := int(w.stream.at.next); next != len(w.now().batches) {
		w.t.Fatalf("came to rest at %d of %d", next, len(w.now().batches))
	}
	w.check()
}

// everything is what a residency holds.
func everything(r *Residency) heldBlocks {
	all := heldBlocks{}
	r.Held(func(c Change) bool {
		for _, h := range c.Hashes {
			all[heldBlock{c.Adapter, h}] = kv.T1
		}
		return true
	})
	return all
}
