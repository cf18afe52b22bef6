package roles

import (
	"bufio"
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// fallbackMemory is the index's budget where no limit can be read, in bytes.
const fallbackMemory = 512 << 20

// indexMemory is half of what the process may use.
func indexMemory() int64 {
	if limit := memoryLimit(); limit > 0 {
		return limit / 2
	}
	return fallbackMemory
}

// memoryLimit is what the process may use, in bytes: the limit of its
// container, or the machine's memory; 0 if neither can be read.
func memoryLimit() (limit int64) {
	for _, read := range []func() int64{
		func() int64 { return readNumber("/sys/fs/cgroup/memory.max") },
		func() int64 { return readNumber("/sys/fs/cgroup/memory/memory.limit_in_bytes") },
		totalMemory,
	} {
		// An unlimited v1 cgroup says so with a number near 2^63.
		if n := read(); n > 0 && n < 1<<60 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	return limit
}

// restMemory is for all but the index and the cache of tokenized prompts.
const restMemory = 128 << 20

// limitMemory tells the garbage collector what the process should make do
// with, so that garbage beside a large index does not add up to its size
// again. GOMEMLIMIT has the last word.
func limitMemory(index, tokens int64) {
	if os.Getenv("GOMEMLIMIT") == "" && index < 1<<60 {
		debug.SetMemoryLimit(index + tokens + restMemory)
	}
}

const (
	// blockMemory is what a subscriber keeps of one block, in bytes.
	blockMemory = 150
	// subscriberMemory is for all but blocks and queued events.
	subscriberMemory = 16 << 20
)

// limitSubscriber does the same for a subscriber: with the defaults it stays
// below 128 MiB, and below nine tenths of its container's limit if that is less.
func limitSubscriber(maxBlocks, queueBytes int) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(maxBlocks)*blockMemory + int64(queueBytes)/2 + subscriberMemory
	if most := memoryLimit() / 10 * 9; most > 0 && most < limit {
		limit = most
	}
	debug.SetMemoryLimit(limit)
}

func readNumber(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max": 0
	return n
}

func totalMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}
