package subscriber

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"
)

// adaptersEvery is how often the file of adapter names is looked at.
const adaptersEvery = 5 * time.Second

// adapterNames keeps a replica's names of adapters up to date with a file: an
// engine loads adapters while it runs, and events of old engines carry numbers
// only. A file that cannot be read, or not understood, changes nothing.
type adapterNames struct {
	fixed   map[int64]string // of the flag; they win
	file    string
	replica *replica
	log     *slog.Logger

	text    string // last read
	failing bool   // the trouble has been logged
}

// run looks at the file until ctx ends.
func (a *adapterNames) run(ctx context.Context) {
	tick := time.NewTicker(adaptersEvery)
	defer tick.Stop()
	for {
		a.look()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *adapterNames) look() {
	names, changed, err := a.read()
	if err != nil {
		if !a.failing {
			a.log.Warn("adapter names not read, the last ones stay", "file", a.file, "err", err)
		}
		a.failing = true
		return
	}
	a.failing = false
	if changed {
		a.replica.name(names)
		a.log.Info("adapter names read", "file", a.file, "adapters", len(names))
	}
}

// read gives the names of file and flag together; changed is false if the file
// is as it was.
func (a *adapterNames) read() (names map[int64]string, changed bool, err error) {
	text, err := os.ReadFile(a.file)
	if err != nil {
		return nil, false, err
	}
	if string(text) == a.text {
		return nil, false, nil
	}
	names, err = parseAdapterFile(string(text))
	if err != nil {
		return nil, false, err
	}
	a.text = string(text)
	maps.Copy(names, a.fixed)
	return names, true, nil
}

// parseAdapterFile reads id=name lines. Empty lines and those that begin with #
// are passed over.
func parseAdapterFile(text string) (map[int64]string, error) {
	var pairs []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			if strings.Contains(line, ",") {
				return nil, fmt.Errorf("%q: want one id=name a line", line)
			}
			pairs = append(pairs, line)
		}
	}
	return parseAdapters(strings.Join(pairs, ","))
}
