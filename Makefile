# The commands of this project. `make help` lists them.
GO      ?= go
BIN     := bin/inferencecache
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short HEAD 2>/dev/null)
LDFLAGS := -s -w -X inferencecache.io/inferencecache/roles.Version=$(VERSION) -X inferencecache.io/inferencecache/roles.Commit=$(COMMIT)

# One set of flags for all but the race detector, so that they share the cache.
export CGO_ENABLED := 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath

# Packages that start goroutines: tested under the race detector. The others
# hold pure functions, where it finds nothing.
RACE := ./bench/... ./webhook/certs/... ./bridge/... ./index/... ./reconcile ./reconcile/manifests ./subscriber/... ./roles ./roles/server/... ./internal/auth/... ./internal/journal/... ./internal/life/... ./internal/memhttp/... ./internal/obs/... ./internal/tracing/... ./internal/engine/sim/...
# The race detector needs a C compiler; without one the tests run without it.
# One package at a time: several of these wait for processes that share the cores.
# `make check` vets; doing so again for each set of flags costs minutes.
WITH_RACE := $(shell command -v $$($(GO) env CC) >/dev/null 2>&1 && echo CGO_ENABLED=1 $(GO) test -race -vet=off -p 1 || echo $(GO) test -vet=off -p 1)

# Every fuzz target as package:name.
FUZZ := $(shell grep -rlE '^func Fuzz' --include='*_test.go' . 2>/dev/null | xargs -r grep -HoE '^func Fuzz[A-Za-z0-9]+' | sed -E 's|/[^/]+_test.go:func |:|' | sort -u)
FUZZTIME ?= 30s
SOAK     ?= 5m

# Tests on a real control plane carry the build tag cluster.
CLUSTER_FILES := $(shell grep -rlE '^//go:build cluster$$' --include='*_test.go' . 2>/dev/null)
CLUSTER       := $(sort $(dir $(CLUSTER_FILES)))
CLUSTER_TESTS := $(shell grep -hoE '^func Test[A-Za-z0-9]+' $(CLUSTER_FILES) /dev/null | sed 's/^func //' | grep -v '^TestMain$$' | paste -sd'|')

.PHONY: help build image run test race bench soak fuzz generate check cluster-bins test-cluster
help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## build bin/inferencecache, static
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN) .

image: build ## pack the binary into a container image, bin/image: an archive, an OCI layout and an SBOM
	cd deploy/image && $(GO) run . -binary ../../$(BIN) -license ../../LICENSE -out ../../bin/image -tag inferencecache:$(VERSION) -version $(VERSION) -revision '$(COMMIT)'

run: build ## run everything on loopback: server, three simulated engines, subscribers
	@exec $(BIN) run --role=all

test: ## run every test, packages with goroutines under the race detector
	$(GO) test -vet=off $$($(GO) list ./... | grep -vE "$$($(GO) list $(RACE) | paste -sd'|' | sed 's/\./\\./g; s/|/$$|/g; s/$$/$$/')")
	@case '$(WITH_RACE)' in *-race*) CGO_ENABLED=1 $(GO) build -race $(RACE) ;; *) echo 'no C compiler: testing without the race detector' ;; esac # on every core: -p 1 is for the compiler too
	$(WITH_RACE) $(RACE)
	$(GO) test -vet=off -run Allocates ./roles/server # what the race detector allocates is not ours
	cd deploy/tools && $(GO) test ./...
	cd deploy/image && $(GO) test ./...

cluster-bins: ## build the Kubernetes control plane that tests run on: ten minutes, once
	@$(MAKE) -s -C testdata/cluster bins

# One control plane at a time, and never from go test's cache, which does not
# see what the binaries are.
test-cluster: cluster-bins ## run the tests that need a Kubernetes control plane, and count them (SHORT=-short: without those that take minutes)
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; \
	{ $(GO) test -tags cluster -vet=off $(SHORT) -count=1 -p 1 -timeout 40m -v -run '^($(CLUSTER_TESTS))$$' $(CLUSTER) 2>&1; echo $$? >"$$out.rc"; } | tee "$$out"; \
	rc=$$(cat "$$out.rc"); rm -f "$$out.rc"; \
	echo "cluster tests: $$(grep -c '^--- PASS' "$$out") passed, $$(grep -c '^--- FAIL' "$$out") failed, $$(grep -c '^--- SKIP' "$$out") skipped"; \
	exit $$rc

race: ## run the tests of packages with goroutines under the race detector, three times
	$(WITH_RACE) -count=3 $(RACE)

bench: build ## run the benchmarks and measure the index (TRACE=file: with that trace)
	TRACE='$(abspath $(TRACE))' $(GO) test -run='^$$' -bench=. -benchmem ./index ./internal/... ./subscriber ./roles/server
	$(BIN) bench --full --trace='$(abspath $(TRACE))'

soak: build ## churn an index at its memory budget for SOAK (5m)
	$(BIN) bench --soak=$(SOAK) --strict

fuzz: ## fuzz every target for FUZZTIME (30s)
	@set -e; for t in $(FUZZ); do echo "== $$t"; $(GO) test -run='^$$' -fuzz="^$${t#*:}$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=20x "$${t%%:*}"; done

# Tools of a module of their own, so that the product does not inherit what
# they require. Go keeps the linked tool in its cache: 1 s once it is there.
CONTROLLER_GEN := $(GO) tool -modfile=deploy/tools/go.mod controller-gen

generate: ## generate code from the .proto files; deepcopy and CRDs from api/; roles from the code that needs them; the manifest from the chart; the dashboard
	cd proto && $(GO) run -tags generate generate.go
	cd deploy/dashboards && $(GO) run -tags generate generate.go
	$(CONTROLLER_GEN) object crd paths=./api/... output:crd:dir=deploy/crds
	@rm -f deploy/chart/rbac/role.yaml # without a marker none would be written
	$(CONTROLLER_GEN) rbac:roleName=inference-cache-controller paths=./webhook/... paths=./reconcile/... paths=./bridge paths=./roles output:rbac:dir=deploy/chart/rbac
	cd deploy/tools && $(GO) run ./chart

check: ## what CI wants besides tests: formatting, vet, tidy modules, generated code
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags cluster $(CLUSTER)
	$(GO) mod tidy -diff
	cd deploy/tools && $(GO) vet ./... && $(GO) mod tidy -diff
	cd deploy/image && $(GO) vet ./... && $(GO) mod tidy -diff
	$(MAKE) -s generate
	@git diff --exit-code -- proto api deploy && test -z "$$(git ls-files --others --exclude-standard -- proto api deploy)" || \
		{ echo "generated code differs from its source: commit the result of make generate"; exit 1; }
