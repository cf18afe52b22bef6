// Package doctor is the station that says what is wrong with a running system
// and what to do: it reads what servers, subscribers and engines show of
// themselves, judges that, and writes findings. It changes nothing and is no
// monitor: it looks once. Roles run it as `inferencecache doctor`.
//
//	Local (addresses) --gather--> evidence --judge--> findings --> human, json, table, junit
package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// Status of a finding, the worst last.
type Status uint8

const (
	OK Status = iota
	Info
	Warn
	Fail
)

var statusNames = []string{"OK", "INFO", "WARN", "FAIL"}

// String is the status in every output.
func (s Status) String() string { return statusNames[s] }

// MarshalJSON writes the name.
func (s Status) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Finding is one thing that was looked at. Code and ID are stable: a code is
// what alerts and scripts match, an id says the same in words and names the page
// docs/doctor/<id>.md.
type Finding struct {
	Code     string `json:"code"`
	ID       string `json:"id"`
	Status   Status `json:"status"`
	Check    string `json:"check"`
	Resource string `json:"resource,omitempty"`
	Message  string `json:"message"`
	Evidence string `json:"evidence,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
}

// Summary counts findings.
type Summary struct {
	OK       int `json:"ok"`
	Info     int `json:"info"`
	Warn     int `json:"warn"`
	Fail     int `json:"fail"`
	ExitCode int `json:"exitCode"` // 0: nothing above INFO; 1: the worst is WARN; 2: FAIL
}

// Summarize counts and gives the exit code.
func Summarize(all []Finding) (s Summary) {
	for _, f := range all {
		switch f.Status {
		case OK:
			s.OK++
		case Info:
			s.Info++
		case Warn:
			s.Warn++
			s.ExitCode = max(s.ExitCode, 1)
		case Fail:
			s.Fail++
			s.ExitCode = 2
		}
	}
	return s
}

// kind is what all findings with one id have in common.
type kind struct {
	code, check string
	status      Status
	says        string // the message, a format
	remedy      string // empty for conditions: the subscriber's advice
}

// found makes a finding of a known id; an unknown one is a bug. args are for the
// message of its kind.
func found(id, resource, evidence string, args ...any) Finding {
	k, ok := catalog[id]
	if !ok {
		panic("bug: finding without a kind: " + id)
	}
	return Finding{
		Code: k.code, ID: id, Status: k.status, Check: k.check, Resource: resource,
		Message: fmt.Sprintf(k.says, args...), Evidence: evidence, Remedy: k.remedy,
	}
}

// order puts the worst first, then by code and resource.
func order(all []Finding) {
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Status, a.Status), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Resource, b.Resource))
	})
}
