package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// An SPDX 2.3 document, as far as it is used here.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		License       string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID        string         `json:"SPDXID"`
		Name      string         `json:"name"`
		Version   string         `json:"versionInfo"`
		Download  string         `json:"downloadLocation"`
		Analyzed  bool           `json:"filesAnalyzed"`
		Checksums []spdxChecksum `json:"checksums,omitempty"`
		Refs      []spdxRef      `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

// writeSBOM lists the modules that the linker put into the binary, which it
// says itself, and the Go release that made it.
func writeSBOM(s settings, info facts) ([]byte, error) {
	binary, err := os.ReadFile(s.binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	digest := hex.EncodeToString(sum[:])
	const product = "SPDXRef-inferencecache"
	d := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "inferencecache " + s.version,
		Namespace: "https://inferencecache.io/spdx/" + digest,
		Creation:  spdxCreation{epoch.Format(time.RFC3339), []string{"Tool: inferencecache-deploy-image"}},
		Packages: []spdxPackage{{
			ID: product, Name: "inferencecache", Version: s.version, Download: "NOASSERTION",
			Checksums: []spdxChecksum{{"SHA256", digest}},
		}},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", product}},
	}
	modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
	for i, m := range modules {
		m = cmp.Or(m.Replace, m)
		id := fmt.Sprintf("SPDXRef-module-%d", i)
		d.Packages = append(d.Packages, spdxPackage{
			ID: id, Name: m.Path, Version: m.Version, Download: "NOASSERTION",
			Refs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}},
		})
		d.Relationships = append(d.Relationships, spdxRelationship{product, "DEPENDS_ON", id})
	}
	return json.MarshalIndent(d, "", "  ")
}
