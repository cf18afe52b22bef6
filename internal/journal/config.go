package journal

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Bounds on the size of a journal: node numbers have 32 bits, and a file holds
// more than one record.
const (
	MinBytes = 64 << 10
	MaxBytes = 32 << 30
)

// Config is where a journal is kept.
type Config struct {
	Path     string // "": none
	MaxBytes int64  // of both files together
}

// Flags registers the flags of a server's journal.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Path, "journal", "", "file to record lookups and events in, hashes and counts only, for inferencecache replay (empty: none)")
	fs.Int64Var(&c.MaxBytes, "journal-max-bytes", 256<<20, "bytes that --journal may take; half of it is renamed to FILE.1 when it is full")
}

// Validate says what is wrong.
func (c *Config) Validate() error {
	if c.Path == "" {
		return nil
	}
	return checkSize(c.MaxBytes)
}

func checkSize(maxBytes int64) error {
	if maxBytes < MinBytes || maxBytes > MaxBytes {
		return fmt.Errorf("--journal-max-bytes %d: want %d to %d", maxBytes, MinBytes, int64(MaxBytes))
	}
	return nil
}
