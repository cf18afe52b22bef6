package journal

import (
	"encoding/json"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// hexes are hashes as people compare them.
type hexes []kv.Hash

func (h hexes) MarshalJSON() ([]byte, error) {
	text := make([]string, len(h))
	for i, hash := range h {
		text[i] = hash.String()
	}
	return json.Marshal(text)
}

// head is what the JSON of all records begins with.
type head struct {
	Record string    `json:"record"`
	At     time.Time `json:"at"`
}

type where struct {
	Tenant  string `json:"tenant"`
	Model   string `json:"model"`
	Scheme  string `json:"scheme"`
	Adapter string `json:"adapter,omitempty"`
}

func whereOf(s kv.Scope, adapter string) where { return where{s.Tenant, s.Model, s.Scheme, adapter} }

// MarshalJSON writes hashes in hex.
func (r Lookup) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		head
		where
		RequestID   string `json:"request_id"`
		Chosen      string `json:"chosen"`
		Reason      string `json:"reason"`
		Tokens      int32  `json:"tokens"`
		BlockTokens int32  `json:"block_tokens"`
		Keys        hexes  `json:"keys"`
	}{head{"lookup", r.At}, whereOf(r.Partition.Scope, r.Partition.Adapter), r.RequestID, r.Chosen, r.Reason, r.Tokens, r.BlockTokens, r.Keys})
}

// MarshalJSON names the fields as all JSON of this project does.
func (r Outcome) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		head
		RequestID    string `json:"request_id"`
		Replica      string `json:"replica"`
		CachedTokens int32  `json:"cached_tokens"`
		PromptTokens int32  `json:"prompt_tokens"`
		OutputTokens int32  `json:"output_tokens"`
	}{head{"outcome", r.At}, r.RequestID, r.Replica, r.CachedTokens, r.PromptTokens, r.OutputTokens})
}

// MarshalJSON writes hashes in hex.
func (r Store) MarshalJSON() ([]byte, error) {
	var parent string
	if r.HasParent {
		parent = r.Parent.String()
	}
	return json.Marshal(struct {
		head
		where
		Replica string `json:"replica"`
		Tier    string `json:"tier"`
		Step    int32  `json:"step"`
		Parent  string `json:"parent,omitempty"`
		Keys    hexes  `json:"keys"`
	}{head{"store", r.At}, whereOf(r.Scope, r.Adapter), r.Replica, r.Tier.String(), r.Step, parent, r.Keys})
}

// MarshalJSON writes hashes in hex.
func (r Remove) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		head
		where
		Replica string `json:"replica"`
		Keys    hexes  `json:"keys"`
	}{head{"remove", r.At}, whereOf(r.Scope, r.Adapter), r.Replica, r.Keys})
}

// MarshalJSON names the fields as all JSON of this project does.
func (r Clear) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		head
		where
		Replica string `json:"replica"`
	}{head{"clear", r.At}, whereOf(r.Scope, ""), r.Replica})
}
