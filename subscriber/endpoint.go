package subscriber

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// endpoint is where one data-parallel rank of an engine publishes its events
// and replays them.
type endpoint struct {
	Rank     int
	Events   string // tcp://host:port or ipc://path
	Replay   string // the same; empty: the engine does not replay
	Snapshot string // the same; empty: the engine takes no snapshots
	Topic    string // prefix of the topics to take
}

const (
	maxRanks = 256     // of one engine's process
	maxRank  = 1 << 16 // over all of its processes
	// autoReplay finds the replay endpoint by custom: the port after the events.
	autoReplay = "auto"
)

// endpoints are those of the ranks that c names. Engines add the rank to the
// ports of both endpoints.
func (c *Config) endpoints() ([]endpoint, error) {
	ranks, err := parseRanks(c.Ranks)
	if err != nil {
		return nil, fmt.Errorf("--ranks: %w", err)
	}
	var all []endpoint
	for _, rank := range ranks {
		events, err := offsetPort(c.EngineEndpoint, rank)
		if err != nil {
			return nil, fmt.Errorf("--engine-endpoint: %w", err)
		}
		replay, err := c.replayOf(rank, len(ranks) == 1)
		if err != nil {
			return nil, fmt.Errorf("--engine-replay-endpoint: %w", err)
		}
		snapshot, err := c.snapshotOf(rank)
		if err != nil {
			return nil, fmt.Errorf("--engine-snapshot-endpoint: %w", err)
		}
		all = append(all, endpoint{Rank: rank, Events: events, Replay: replay, Snapshot: snapshot, Topic: c.Topic})
	}
	return all, nil
}

// replayOf is where a rank replays. The customary port of rank 0 is that of
// rank 1's events, so with several ranks it has to be told.
func (c *Config) replayOf(rank int, alone bool) (string, error) {
	switch {
	case c.ReplayEndpoint == "":
		return "", nil
	case c.ReplayEndpoint != autoReplay:
		return offsetPort(c.ReplayEndpoint, rank)
	case !alone || !strings.HasPrefix(c.EngineEndpoint, "tcp://"):
		return "", nil
	}
	return offsetPort(c.EngineEndpoint, rank+1)
}

func (c *Config) snapshotOf(rank int) (string, error) {
	if c.SnapshotEndpoint == "" {
		return "", nil
	}
	return offsetPort(c.SnapshotEndpoint, rank)
}

// complete fills in what an engine does not tell of a rank that it names: what
// was configured, by the same rules.
func (c *Config) complete(found []endpoint) []endpoint {
	for i := range found {
		e := &found[i]
		if c.Topic != "" {
			e.Topic = c.Topic
		}
		if e.Replay == "" && c.ReplayEndpoint != "" && c.ReplayEndpoint != autoReplay {
			e.Replay, _ = offsetPort(c.ReplayEndpoint, e.Rank) // none beyond the last port
		}
		if e.Replay == "" && c.ReplayEndpoint == autoReplay && len(found) == 1 {
			e.Replay, _ = offsetPort(e.Events, 1)
		}
		e.Snapshot, _ = c.snapshotOf(e.Rank)
	}
	return found
}

// offsetPort adds n to the port of a tcp:// endpoint. Others have no room for
// ranks.
func offsetPort(endpoint string, n int) (string, error) {
	if n == 0 {
		return endpoint, nil
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%q: only tcp:// endpoints have ranks above 0", endpoint)
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port <= 0 || port+n > 65535 {
		return "", fmt.Errorf("endpoint %q: no port %s+%d", endpoint, text, n)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port+n)), nil
}

// parseRanks reads a list of ranks and ranges: "0-3,8".
func parseRanks(list string) ([]int, error) {
	var ranks []int
	seen := map[int]bool{}
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is no rank, as in 0-3,8", part)
		}
		to, err := strconv.ParseUint(high, 10, 16)
		if err != nil || to < from {
			return nil, fmt.Errorf("%q is no range of ranks, as in 0-3,8", part)
		}
		for rank := int(from); rank <= int(to); rank++ {
			if seen[rank] {
				return nil, fmt.Errorf("rank %d is given twice", rank)
			}
			if len(ranks) == maxRanks {
				return nil, fmt.Errorf("more than %d ranks", maxRanks)
			}
			seen[rank] = true
			ranks = append(ranks, rank)
		}
	}
	return ranks, nil
}
