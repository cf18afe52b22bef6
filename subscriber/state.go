package subscriber

import "sync"

// trust is how far the view of an engine can be trusted.
type trust uint8

const (
	connecting trust = iota // no connection to the engine's publisher
	live                    // connected, and no batch is known to be missing
	degraded                // connected, but batches were lost since the publisher started
)

func (t trust) String() string {
	switch t {
	case connecting:
		return "connecting"
	case live:
		return "live"
	case degraded:
		return "degraded"
	}
	panic("bug: unknown state")
}

// machine is the state of one stream. The receiver reports the connection, the
// stream what it found in it.
type machine struct {
	mu         sync.Mutex
	connection uint64 // ordinal of the last connection, from 1
	connected  bool
	lossy      bool // batches were lost since the publisher started
}

// connect opens the next connection and gives its ordinal.
func (m *machine) connect() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connection++
	m.connected = true
	return m.connection
}

func (m *machine) disconnect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connected = false
}

// lost says that events are missing that nothing will bring back. It is true
// if none were before: repeated loss is counted, not logged.
func (m *machine) lost() (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first = !m.lossy
	m.lossy = true
	return first
}

// restarted says that the publisher is a new process, whose loss is none yet.
func (m *machine) restarted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lossy = false
}

func (m *machine) now() trust {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.connected:
		return connecting
	case m.lossy:
		return degraded
	}
	return live
}
