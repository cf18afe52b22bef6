package journal

import (
	"testing"

	"github.com/spf13/pflag"
)

func TestConfigIsOffByDefaultAndValidatesItsSize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		ok   bool
		path string
	}{
		{nil, true, ""},
		{[]string{"--journal=j"}, true, "j"},
		{[]string{"--journal-max-bytes=1"}, true, ""}, // of no journal
		{[]string{"--journal=j", "--journal-max-bytes=65536"}, true, "j"},
		{[]string{"--journal=j", "--journal-max-bytes=65535"}, false, "j"},
		{[]string{"--journal=j", "--journal-max-bytes=34359738369"}, false, "j"},
	} {
		var config Config
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		config.Flags(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := config.Validate(); (err == nil) != c.ok || config.Path != c.path {
			t.Errorf("%v: %+v, %v", c.args, config, err)
		}
	}
}
