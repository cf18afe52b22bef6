// Package loops is what the controller's loops over its servers say of
// themselves and of what they brought: words that the bridge, which runs them,
// and the reconcilers, which write them into status, share. It does nothing.
package loops

import (
	"time"

	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/status"
)

// Server is one server as the controller reaches it.
type Server struct {
	Name    string // for people: the pod's name
	Control string // base URL of its control listener, http://10.0.0.7:8081
	RPC     string // base URL of its data listener
}

// ServerState is how one loop does with one server.
type ServerState struct {
	Name    string
	At      time.Time // of the last success; zero: never
	Problem string    // of the last try
	Refused bool      // the problem is who we are, or what was sent
}

// PushState is how pushing goes. Servers are sorted by name.
type PushState struct {
	Revision string          // of the newest set, a hash of what servers see; "": none yet
	Sources  []policy.Source // of the newest set
	Problem  string          // of the newest set or of the list of servers
	Servers  []PushedServer
}

// PushedServer is one server and the set that it acknowledged last.
type PushedServer struct {
	ServerState
	Revision string          // "": none since this process started
	Sources  []policy.Source // those of that set
}

// PullState is how pulling goes. Problem is empty when all is well.
type PullState struct {
	Complete time.Time // when every server last answered; zero: never
	Problem  string    // of the list of servers
	Servers  []ServerState
}

// Pulled is one round of snapshots in which at least one server answered.
type Pulled struct {
	At       time.Time
	Snapshot status.Snapshot  // of all that answered, merged
	Answered []string         // servers, by name
	Missing  []string         // servers that did not answer
	Prefixes map[string]int64 // of each server that answered
}

// Verdict on one server.
type Verdict string

const (
	Healthy Verdict = "healthy"
	Broken  Verdict = "broken"  // a stage gave a wrong answer
	Unknown Verdict = "unknown" // no answer, and none before said broken
)

// ProbeState is what the self-test says of each server, by name.
type ProbeState struct {
	Problem string // of the list of servers
	Servers []ProbedServer
}

// ProbedServer is the verdict on one server. A server found broken stays so
// until an answer says otherwise: silence is no cure.
type ProbedServer struct {
	Name    string
	Verdict Verdict
	Stage   string // that failed last
	Message string
	At      time.Time // of the verdict
}
