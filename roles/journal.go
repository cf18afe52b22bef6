package roles

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"inferencecache.io/inferencecache/internal/journal"
	"inferencecache.io/inferencecache/internal/kv"
)

// newJournal is `inferencecache journal`.
func newJournal() *cobra.Command {
	return &cobra.Command{
		Use:   "journal FILE",
		Short: "Print what a server's journal holds",
		Long: `Print the records of a journal, FILE.1 if there is one and then FILE, as one JSON
object a line, hashes in hex. A server that is running may be writing it. A last
record that is cut off is said on standard error; the exit code is 1 if a file is
damaged in another way, after all that can be read.`,
		Example: `  inferencecache journal server.journal | jq -c 'select(.record == "lookup") | {at, chosen, reason}'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := journal.OpenFiles(args[0])
			if err != nil {
				return usage(err)
			}
			defer files.Close()
			if err := printRecords(cmd.OutOrStdout(), files); err != nil {
				return err
			}
			return damages(cmd.ErrOrStderr(), files)
		},
	}
}

func printRecords(w io.Writer, files *journal.Files) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	for {
		record, err := files.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return usage(err)
		}
		if err := out.Encode(record); err != nil {
			return err
		}
	}
}

// damages writes torn ends, which are normal, and returns what is not.
func damages(w io.Writer, files *journal.Files) error {
	var worse []error
	for _, err := range files.Damages() {
		var damage *journal.Damage
		if errors.As(err, &damage) && damage.Torn {
			fmt.Fprintf(w, "note: %v\n", err)
			continue
		}
		worse = append(worse, err)
	}
	return errors.Join(worse...)
}

func beginsAsJournal(name string) (bool, error) {
	file, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer file.Close()
	var beginning [16]byte
	n, err := io.ReadFull(file, beginning[:])
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return journal.Is(beginning[:n]), err
}

// readJournal makes a trace of the lookups of a tenant and model ("": of all)
// and says on notes what is missing in it.
func readJournal(notes io.Writer, name, tenant, model string) (*journal.Trace, error) {
	files, err := journal.OpenFiles(name)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	t, err := journal.NewTrace(files.Read, func(p kv.Partition) bool {
		return (tenant == "" || p.Tenant == tenant) && (model == "" || p.Model == model)
	})
	for _, damage := range files.Damages() {
		fmt.Fprintf(notes, "note: not read to its end: %v\n", damage)
	}
	if err != nil {
		return nil, err
	}
	note := func(n int, format string, args ...any) {
		if n > 0 {
			fmt.Fprintf(notes, "note: "+format+"\n", args...)
		}
	}
	note(t.Partitions-1, "prompts of %d tenants, models or adapters, which share nothing, go to one fleet (--tenant, --model choose)", t.Partitions)
	note(t.Otherwise, "%d lookups left out: their blocks are not of %d tokens", t.Otherwise, t.BlockTokens)
	note(t.Unknown, "%d of %d requests have no outcome: their answers are taken to be empty", t.Unknown, len(t.Requests))
	note(t.Beyond, "%d prompts are longer than the blocks asked for: the rest is taken to be one block", t.Beyond)
	return t, nil
}
