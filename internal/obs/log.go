// Package obs is what an operator sees of a process: its log, its metrics
// page, its health and, on request, its profiles. It decides nothing.
package obs

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// NewLogger returns a logger of format json or text at a level of debug, info,
// warn(ing) or error; both are trimmed and read in any case, "" is json and
// info.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	switch strings.ToLower(strings.TrimSpace(level)) {
	case "debug":
		l = slog.LevelDebug
	case "", "info":
	case "warn", "warning":
		l = slog.LevelWarn
	case "error":
		l = slog.LevelError
	default:
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch strings.ToLower(strings.TrimSpace(format)) {
	case "", "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want json or text", format)
}
