package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/policy"
)

const (
	// PolicyVersion is what this build writes; it reads from OldestPolicyVersion.
	// Additive, defaultable changes raise only the first; any other both.
	PolicyVersion       = 8
	OldestPolicyVersion = 3
)

// policyBody is the wire form of POST /policy.
type policyBody struct {
	Version  int          `json:"version"`
	Policies []policyWire `json:"policies"`
	Tenants  []tenantWire `json:"tenants"`
}

// policyWire is one namespace's policy. Pointers tell absent from zero where
// the two differ.
type policyWire struct {
	Namespace            string        `json:"namespace"`
	EvictionTTL          time.Duration `json:"evictionTTL,omitempty"` // nanoseconds
	MinimumPrefixTokens  int32         `json:"minimumPrefixTokens,omitempty"`
	MinimumMatchedTokens int32         `json:"minimumMatchedTokens,omitempty"`
	RoutingFloorScore    *float32      `json:"routingFloorScore,omitempty"`
	LookupTimeoutMs      int32         `json:"lookupTimeoutMs,omitempty"`
	AffinityRouting      *bool         `json:"affinityRouting,omitempty"`
	Eviction             string        `json:"eviction,omitempty"`
	Strategy             *strategyWire `json:"strategy,omitempty"`
	Ranking              *rankingWire  `json:"ranking,omitempty"` // from version 8 on, like shadow
	Shadow               *bool         `json:"shadow,omitempty"`
}

type rankingWire struct {
	Profile string `json:"profile,omitempty"` // Cost or Compat
	TopK    *int32 `json:"topK,omitempty"`    // 0: all
}

type strategyWire struct {
	EnableChainMatching *bool `json:"enableChainMatching,omitempty"`
	RequireChain        *bool `json:"requireChain,omitempty"`
	EnableTenantHot     *bool `json:"enableTenantHot,omitempty"`
}

type tenantWire struct {
	TenantID        string `json:"tenantID"`
	MaxIndexEntries int64  `json:"maxIndexEntries"`
	IsolationMode   string `json:"isolationMode,omitempty"`
}

// DecodePolicy resolves the body of POST /policy against the server's
// defaults. Unknown fields, versions outside the window and anything after the
// first JSON value are errors.
func DecodePolicy(body []byte, defaults policy.Policy) (*policy.Set, error) {
	var wire policyBody
	if err := decodeStrict(body, &wire); err != nil {
		return nil, err
	}
	if wire.Version < OldestPolicyVersion || wire.Version > PolicyVersion {
		return nil, fmt.Errorf("policy version %d is not supported: this server reads versions %d to %d",
			wire.Version, OldestPolicyVersion, PolicyVersion)
	}
	set := &policy.Set{
		Default:  defaults,
		Policies: make(map[string]policy.Policy, len(wire.Policies)),
		Quotas:   make(map[string]int64, len(wire.Tenants)),
		Version:  wire.Version,
	}
	for _, p := range wire.Policies {
		if p.Namespace == "" {
			continue
		}
		resolved, err := p.resolve(wire.Version, defaults)
		if err != nil {
			return nil, fmt.Errorf("policy of namespace %s: %w", p.Namespace, err)
		}
		set.Policies[p.Namespace] = resolved
	}
	for _, t := range wire.Tenants {
		if t.TenantID != "" {
			set.Quotas[t.TenantID] = max(0, t.MaxIndexEntries)
		}
	}
	return set, nil
}

// resolve completes what an older sender could not say and what an absent
// field means.
func (p policyWire) resolve(version int, defaults policy.Policy) (policy.Policy, error) {
	r := policy.Policy{
		TTL:              defaults.TTL,
		LFU:              strings.EqualFold(p.Eviction, "lfu"),
		MinPrefixTokens:  max(0, p.MinimumPrefixTokens),
		MinMatchedTokens: max(0, p.MinimumMatchedTokens),
		FloorScore:       defaults.FloorScore,
		Timeout:          time.Duration(max(0, p.LookupTimeoutMs)) * time.Millisecond,
		ChainMatching:    true,
		TenantHot:        true,
		Affinity:         true,
		Profile:          defaults.Profile,
		TopK:             defaults.TopK,
		Shadow:           defaults.Shadow,
	}
	if p.EvictionTTL > 0 {
		r.TTL = p.EvictionTTL
	}
	// From version 4 on, absent means 0: the sender leaves zeros out.
	if version < 4 && r.MinMatchedTokens == 0 {
		r.MinMatchedTokens = defaults.MinMatchedTokens
	}
	if p.RoutingFloorScore != nil {
		r.FloorScore = max(0, *p.RoutingFloorScore)
	}
	set(&r.Affinity, p.AffinityRouting)
	if s := p.Strategy; s != nil {
		set(&r.ChainMatching, s.EnableChainMatching)
		set(&r.RequireChain, s.RequireChain)
		set(&r.TenantHot, s.EnableTenantHot)
	}
	set(&r.Shadow, p.Shadow)
	if p.Ranking == nil {
		return r, nil
	}
	if k := p.Ranking.TopK; k != nil {
		r.TopK = max(0, *k)
	}
	if p.Ranking.Profile == "" {
		return r, nil
	}
	return r, r.Profile.Set(p.Ranking.Profile)
}

func set(dst *bool, v *bool) {
	if v != nil {
		*dst = *v
	}
}

// decodeStrict reads exactly one JSON value without unknown fields.
func decodeStrict(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode body: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("decode body: unexpected content after the JSON value")
	}
	return nil
}
