package roles

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/trtllm"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	"inferencecache.io/inferencecache/subscriber"
)

// decoded is one document of `inferencecache decode`.
type decoded struct {
	File string `json:"file"`
	subscriber.Document
}

// newDecode is `inferencecache decode`: what a payload says and what a
// subscriber would make of it.
func newDecode() *cobra.Command {
	var engineName string
	var asHex bool
	cmd := &cobra.Command{
		Use:   "decode FILE...",
		Short: "Show what KV-event payloads say and what would be indexed",
		Long: `Decode raw KV-event payloads (the third frame of a live message) and print one JSON
document a file: the events, the verdict on each, and the prefix hashes that a
subscriber would index. "-" is standard input. The exit code is 1 if a payload could
not be read at all.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			dialect, err := dialectOf(engineName)
			if err != nil {
				return usage(err)
			}
			out := json.NewEncoder(cmd.OutOrStdout())
			out.SetIndent("", "  ")
			out.SetEscapeHTML(false)
			var unreadable []string
			for _, file := range files {
				payload, err := readPayload(cmd.InOrStdin(), file, asHex)
				if err != nil {
					return usage(err)
				}
				document := decoded{file, subscriber.Inspect(dialect, payload)}
				if document.Error != "" {
					unreadable = append(unreadable, fmt.Sprintf("%s: %s", file, document.Error))
				}
				if err := out.Encode(document); err != nil {
					return err
				}
			}
			if len(unreadable) > 0 {
				return errors.New(strings.Join(unreadable, "; "))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&engineName, "engine", vllm.Dialect.Name, "whose events these are: vllm, sglang or trtllm")
	cmd.Flags().BoolVar(&asHex, "hex", false, "the files hold hex text, white space ignored")
	return cmd
}

func dialectOf(name string) (engine.Dialect, error) {
	for _, d := range []engine.Dialect{vllm.Dialect, sglang.Dialect, trtllm.Dialect} {
		if d.Name == name {
			return d, nil
		}
	}
	return engine.Dialect{}, fmt.Errorf("--engine %q: want vllm, sglang or trtllm", name)
}

func readPayload(stdin io.Reader, file string, asHex bool) ([]byte, error) {
	var payload []byte
	var err error
	if file == "-" {
		payload, err = io.ReadAll(stdin)
	} else {
		payload, err = os.ReadFile(file)
	}
	if err != nil || !asHex {
		return payload, err
	}
	payload, err = hex.DecodeString(strings.Join(strings.Fields(string(payload)), ""))
	if err != nil {
		return nil, fmt.Errorf("%s: not hex: %w", file, err)
	}
	return payload, nil
}
