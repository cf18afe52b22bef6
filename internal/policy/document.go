package policy

import "time"

// Document is what operators asked for, whole and unresolved: the JSON of POST
// /policy. The controller writes it, the server completes it with its own
// defaults into a Set. Pointers tell absent from zero where the two differ.
type Document struct {
	Version  int     `json:"version"` // the bridge's; writers leave it 0
	Policies []Knobs `json:"policies"`
	Tenants  []Quota `json:"tenants"`

	// Sources are the objects that this came from. They stay with the writer.
	Sources []Source `json:"-"`
}

// Knobs are one namespace's policy.
type Knobs struct {
	Namespace            string        `json:"namespace"`
	EvictionTTL          time.Duration `json:"evictionTTL,omitempty"` // nanoseconds; 0: the server's
	MinimumPrefixTokens  int32         `json:"minimumPrefixTokens,omitempty"`
	MinimumMatchedTokens int32         `json:"minimumMatchedTokens,omitempty"` // 0: off, as if absent
	RoutingFloorScore    *float32      `json:"routingFloorScore,omitempty"`
	LookupTimeoutMs      int32         `json:"lookupTimeoutMs,omitempty"`
	AffinityRouting      *bool         `json:"affinityRouting,omitempty"`
	Eviction             string        `json:"eviction,omitempty"` // lru or lfu
	Strategy             *Strategy     `json:"strategy,omitempty"`
	Ranking              *Ranking      `json:"ranking,omitempty"`
	Shadow               *bool         `json:"shadow,omitempty"`
}

// Ranking says how replicas are compared and how many are named.
type Ranking struct {
	Profile string `json:"profile,omitempty"` // of a Profile; "": the server's
	TopK    *int32 `json:"topK,omitempty"`    // 0: all
}

// Strategy says which ways of matching a namespace allows.
type Strategy struct {
	EnableChainMatching *bool `json:"enableChainMatching,omitempty"`
	RequireChain        *bool `json:"requireChain,omitempty"`
	EnableTenantHot     *bool `json:"enableTenantHot,omitempty"`
}

// Quota bounds the distinct keys of one tenant; 0 keeps nothing.
type Quota struct {
	TenantID        string `json:"tenantID"`
	MaxIndexEntries int64  `json:"maxIndexEntries"`
	IsolationMode   string `json:"isolationMode,omitempty"`
}

// Source is one object at one generation.
type Source struct {
	Kind, Namespace, Name string
	Generation            int64
}
