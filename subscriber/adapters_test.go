package subscriber

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAdapterNamesFollowTheirFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "adapters")
	r := &replica{meters: testMeters(), residency: NewResidency(ResidencyConfig{})}
	a := &adapterNames{fixed: map[int64]string{1: "sql"}, file: file, replica: r, log: quiet}
	expect := func(what string, want map[int64]string) {
		t.Helper()
		a.look()
		if diff := cmp.Diff(want, r.residency.config.Adapters); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect("no file", nil)
	write("# loaded at noon\n2=chat\n\n")
	two := map[int64]string{1: "sql", 2: "chat"}
	expect("one line", two)
	write("2=chat\n3")
	expect("half a line", two)
	write("1=other\n2=chat\n3=code\n")
	expect("the flag wins", map[int64]string{1: "sql", 2: "chat", 3: "code"})
}
