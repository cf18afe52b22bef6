package subscriber

import (
	"sync"
	"time"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// State is how far the view of one event stream can be trusted.
type State uint8

const (
	Connecting    State = iota // no connection to the engine's publisher yet
	Bootstrapping              // connected; the engine's history is being read
	Exact                      // every batch of the publisher's process has been applied
	Degraded                   // what is reported is held, but more may be, or an event was not understood
	Stale                      // the publisher is away or stands still: what is reported may be gone
	states
)

var stateNames = [states]string{"connecting", "bootstrapping", "exact", "degraded", "stale"}

// String is the state's name in metrics, logs and /debug/state.
func (s State) String() string {
	if s < states {
		return stateNames[s]
	}
	panic("bug: unknown state")
}

// wire is the state in an update.
func (s State) wire() pb.StreamState { return pb.StreamState(s + 1) }

// trust orders the states; the higher the better.
var trust = [states]int{Connecting: 0, Stale: 1, Bootstrapping: 2, Degraded: 3, Exact: 4}

// worse is the less trusted of two states.
func worse(a, b State) State {
	if trust[b] < trust[a] {
		return b
	}
	return a
}

// machine is the state of one stream. The receiver reports the connection, the
// stream what it found in it.
type machine struct {
	mu         sync.Mutex
	connection uint64    // ordinal of the last connection, from 1
	connected  bool      // now
	first      time.Time // when the first connection began
	parted     time.Time // when the last connection ended
	reading    bool      // history is being read
	late       bool      // the engine's history is known from a later batch on, or not at all
	lossy      bool      // batches were lost for good
	doubtful   bool      // an event was not understood
	stuck      bool      // the publisher does not answer
}

// connect opens the next connection and gives its ordinal. History is to be
// read or checked before anything else.
func (m *machine) connect() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connection++
	m.connected, m.reading, m.stuck = true, true, false
	if m.first.IsZero() {
		m.first = time.Now()
	}
	return m.connection
}

func (m *machine) disconnect(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connected, m.parted = false, now
}

// unbroken says whether connection is still the present one.
func (m *machine) unbroken(connection uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.connected && m.connection == connection
}

// up says whether there is a connection.
func (m *machine) up() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.connected
}

// reached says whether there is a connection, or was one within the last minute.
func (m *machine) reached(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.connected || m.connection > 0 && now.Sub(m.parted) < time.Minute
}

// since is when the first connection began; zero: there was none.
func (m *machine) since() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first
}

// away is how long there has been no connection; zero while there is one, and
// before the first.
func (m *machine) away(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.connected || m.connection == 0 {
		return 0
	}
	return now.Sub(m.parted)
}

// read says that history is known: all of it, or from a later batch on. That a
// connection was read says nothing of the next one.
func (m *machine) read(connection uint64, late bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if connection == m.connection {
		m.reading, m.late = false, late
	}
}

// lost says that batches are missing that nothing will bring back. It is true
// if none were before: repeated loss is counted, not logged.
func (m *machine) lost() (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first = !m.lossy
	m.lossy = true
	return first
}

// doubt says that an event which may have taken blocks away was not understood.
func (m *machine) doubt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.doubtful = true
}

// certain says that all that is held is known: the process has just begun, or
// it has cleared its cache.
func (m *machine) certain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late, m.lossy, m.doubtful = false, false, false
}

// hang says whether the publisher stands still; it is true if that is news.
func (m *machine) hang(stuck bool) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	news = m.stuck != stuck
	m.stuck = stuck
	return news
}

func (m *machine) now() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.connection == 0:
		return Connecting
	case !m.connected, m.stuck:
		return Stale
	case m.reading:
		return Bootstrapping
	case m.late, m.lossy, m.doubtful:
		return Degraded
	}
	return Exact
}
