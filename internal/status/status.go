// Package status is what a server says of itself to its controller: the JSON
// of GET /snapshot and POST /probe. Both banks of the bridge and the server
// share these words; key sets and presence rules are frozen by the contract.
package status

import "time"

// Snapshot is the body of GET /snapshot. Nil slices are null on the wire.
type Snapshot struct {
	Replicas      []Replica `json:"replicas"` // by tenant, then replica id
	Tenants       []Tenant  `json:"tenants"`  // by tenant id
	TotalPrefixes int64     `json:"totalPrefixes"`
	HotPrefixes   int64     `json:"hotPrefixes"`
}

// Replica is one (tenant, replica): its latest stats and what it holds.
type Replica struct {
	ReplicaID        string    `json:"replicaId"`
	Tenant           string    `json:"tenant,omitempty"`
	CacheMemoryBytes int64     `json:"cacheMemoryBytes"`
	HitRate          float32   `json:"hitRate"`
	Pressure         float32   `json:"pressure"`
	LastUpdate       time.Time `json:"lastUpdate"`
	PrefixCount      int64     `json:"prefixCount"`
	LastEventAt      time.Time `json:"lastEventAt"` // newest entry, or heartbeat that vouches for all of them
	StatsReported    bool      `json:"statsReported,omitempty"`
	T2HitTokens      int64     `json:"t2HitTokens,omitempty"`
	T2QueryTokens    int64     `json:"t2QueryTokens,omitempty"`
}

// Tenant sums up one tenant.
type Tenant struct {
	TenantID        string  `json:"tenantId"`
	IndexEntries    int64   `json:"indexEntries"` // distinct keys
	HitRate         float64 `json:"hitRate"`      // mean of reporting replicas
	HitRateReported bool    `json:"hitRateReported,omitempty"`
	MemoryUsed      int64   `json:"memoryUsed"` // deprecated: always 0
}

// ProbeRequest is the body of POST /probe.
type ProbeRequest struct {
	Backend     string `json:"backend"`
	Model       string `json:"model"`
	HashScheme  string `json:"hashScheme"`
	BackendType string `json:"backendType,omitempty"`
}

// Outcome of a probe stage.
type Outcome string

const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// ProbeResult answers a ProbeRequest.
type ProbeResult struct {
	Backend string       `json:"backend"`
	Ingest  Outcome      `json:"ingest"`
	Routing Outcome      `json:"routing"`
	T2      Outcome      `json:"t2"`
	Errors  []ProbeError `json:"errors,omitempty"`
}

// ProbeError says why a stage (ingest, routing, t2) failed.
type ProbeError struct {
	Stage   string `json:"stage"`
	Message string `json:"message"`
}
