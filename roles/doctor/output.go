package doctor

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Formats of Write.
var Formats = []string{"human", "json", "table", "junit"}

// Write prints findings in one of Formats; colour is for human alone.
func Write(w io.Writer, format string, all []Finding, colour bool) error {
	switch format {
	case "human":
		return writeHuman(w, all, colour)
	case "json":
		return writeJSON(w, all)
	case "table":
		return writeTable(w, all)
	case "junit":
		return writeJUnit(w, all)
	}
	return fmt.Errorf("format %q: want one of %s", format, strings.Join(Formats, ", "))
}

var colours = [...]string{OK: "\x1b[32m", Info: "\x1b[36m", Warn: "\x1b[33m", Fail: "\x1b[31m"}

func writeHuman(w io.Writer, all []Finding, colour bool) error {
	var b strings.Builder
	for status := Fail; ; status-- {
		first := true
		for _, f := range all {
			if f.Status != status {
				continue
			}
			if first {
				head := status.String()
				if colour {
					head = colours[status] + head + "\x1b[0m"
				}
				b.WriteString(head + "\n")
				first = false
			}
			writeFinding(&b, f)
		}
		if status == OK {
			break
		}
	}
	s := Summarize(all)
	fmt.Fprintf(&b, "\n%d failed, %d warnings, %d notes, %d fine\n", s.Fail, s.Warn, s.Info, s.OK)
	_, err := io.WriteString(w, b.String())
	return err
}

func writeFinding(b *strings.Builder, f Finding) {
	where := ""
	if f.Resource != "" {
		where = f.Resource + ": "
	}
	fmt.Fprintf(b, "  %s %s%s\n", f.Code, where, f.Message)
	if f.Evidence != "" {
		fmt.Fprintf(b, "        seen: %s\n", f.Evidence)
	}
	if f.Remedy != "" && f.Status != OK {
		fmt.Fprintf(b, "        do:   %s\n", f.Remedy)
	}
	if f.Status >= Warn { // notes have no page
		fmt.Fprintf(b, "        more: docs/doctor/%s.md\n", f.ID)
	}
}

func writeJSON(w io.Writer, all []Finding) error {
	if all == nil {
		all = []Finding{}
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		Summary  Summary   `json:"summary"`
		Findings []Finding `json:"findings"`
	}{Summarize(all), all})
}

func writeTable(w io.Writer, all []Finding) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STATUS\tCODE\tCHECK\tRESOURCE\tMESSAGE")
	for _, f := range all {
		resource := f.Resource
		if resource == "" {
			resource = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", f.Status, f.Code, f.Check, resource, strings.Join(strings.Fields(f.Message), " "))
	}
	return table.Flush()
}

// The parts of a JUnit report that readers of it share.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Failure *junitFailure `xml:"failure,omitempty"`
	}
	junitFailure struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

func writeJUnit(w io.Writer, all []Finding) error {
	suite := junitSuite{Name: "inferencecache doctor", Tests: len(all)}
	for _, f := range all {
		c := junitCase{Class: f.Check, Name: strings.TrimSpace(f.Code + " " + f.ID + " " + f.Resource)}
		if f.Status >= Warn {
			suite.Failures++
			c.Failure = &junitFailure{Type: f.Status.String(), Message: f.Message, Text: strings.TrimSpace(f.Evidence + "\n" + f.Remedy)}
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
