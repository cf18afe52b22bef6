package roles

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
)

// giveBack returns what only the start of a process needed: garbage, and the
// pages of the program itself that its packages' init went through, which are
// most of them. They stay in the kernel's cache of files, and those that are
// needed again are mapped again. Measured: 40 MiB resident at rest become 24.
func giveBack() error {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var start, end uintptr
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &start, &end, &mode); err != nil {
			return fmt.Errorf("/proc/self/maps: %q: %w", lines.Text(), err)
		}
		// What is never written is the same when it is read again.
		if !strings.HasSuffix(lines.Text(), program) || strings.Contains(mode, "w") {
			continue
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return lines.Err()
}
