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

// EncodePolicy writes the body of POST /policy in this build's version.
// Servers refuse bodies above a megabyte, so it does too.
func EncodePolicy(d policy.Document) ([]byte, error) {
	d.Version = PolicyVersion
	if d.Policies == nil {
		d.Policies = []policy.Knobs{}
	}
	if d.Tenants == nil {
		d.Tenants = []policy.Quota{}
	}
	body, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode policies: %w", err)
	}
	if len(body) > maxPolicyBody {
		return nil, fmt.Errorf("the policies of %d namespaces and the quotas of %d tenants take %d bytes, and servers accept %d: delete some",
			len(d.Policies), len(d.Tenants), len(body), maxPolicyBody)
	}
	return body, nil
}

// DecodePolicy resolves the body of POST /policy against the server's
// defaults. Unknown fields, versions outside the window and anything after the
// first JSON value are errors.
func DecodePolicy(body []byte, defaults policy.Policy) (*policy.Set, error) {
	var wire policy.Document
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
		resolved, err := resolve(p, wire.Version, defaults)
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
func resolve(p policy.Knobs, version int, defaults policy.Policy) (policy.Policy, error) {
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
