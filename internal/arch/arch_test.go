package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "inferencecache.io/inferencecache"

// Floors: imports look down, never up, and never across except where a row
// says so. Stations (3) never import each other.
const (
	words = iota
	tools
	machines
	stations
	roles
	mains
)

// room is one planned package: its floor, the rooms of ours it may import, and
// the libraries it may import by module path.
type room struct {
	floor     int
	ours      []string
	libraries []string
}

const (
	connectLib = "connectrpc.com/connect"
	metricsLib = "github.com/VictoriaMetrics/metrics"
	protobuf   = "google.golang.org/protobuf"
	pflagLib   = "github.com/spf13/pflag"
	xxh3       = "github.com/zeebo/xxh3"
	zmq4       = "github.com/go-zeromq/zmq4"
	otelLib    = "go.opentelemetry.io/otel"
	syncLib    = "golang.org/x/sync"
	contract   = "proto/inferencecache/v1alpha1"
	rpc        = contract + "/inferencecachev1alpha1connect"
)

var plan = map[string]room{
	"":                      {mains, []string{"roles"}, nil},
	"docs/examples/gateway": {mains, []string{contract, rpc}, nil}, // what a gateway's authors see

	"roles": {roles,
		[]string{"bench", "bridge", "deploy", "internal/auth", "internal/auth/tokenreview", "internal/engine", "internal/engine/sglang", "internal/engine/sim",
			"internal/engine/trtllm", "internal/engine/vllm", "internal/journal", "internal/kv", "internal/life", "internal/loops", "internal/memhttp", "internal/obs", "internal/policy", "internal/trace", "internal/tracing", contract, rpc, "reconcile", "reconcile/manifests", "roles/doctor", "roles/replay", "roles/server", "subscriber", "webhook", "webhook/certs"},
		[]string{connectLib, metricsLib, otelLib, protobuf, pflagLib, syncLib, "k8s.io/klog/v2", "github.com/spf13/cobra", "github.com/spf13/viper", "sigs.k8s.io/yaml",
			"github.com/go-logr/logr", "github.com/prometheus/common", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"}},

	"roles/server": {stations,
		[]string{"index", "internal/fingerprint", "internal/journal", "internal/kv", "internal/obs", "internal/policy", "internal/rank", "internal/status", contract, rpc},
		[]string{connectLib, "connectrpc.com/grpchealth", "connectrpc.com/grpcreflect", metricsLib, otelLib, pflagLib}},
	"subscriber": {stations,
		[]string{"internal/engine", "internal/engine/sglang", "internal/engine/trtllm", "internal/engine/vllm", "internal/fingerprint", "internal/kv", contract, rpc},
		[]string{connectLib, metricsLib, pflagLib, protobuf, zmq4}},
	"roles/doctor": {stations, []string{"api/v1alpha1", "internal/obs", "internal/status", contract, rpc, "reconcile/judge"}, []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"}},
	"roles/replay": {stations, []string{"index", "internal/kv", "internal/rank", "internal/trace"}, nil},
	"bridge":       {stations, []string{"internal/kv", "internal/loops", "internal/policy", "internal/status", contract, rpc}, []string{connectLib, metricsLib}},
	"reconcile": {stations,
		[]string{"api/v1alpha1", "internal/loops", "internal/policy", "internal/status", "reconcile/compile", "reconcile/judge", "reconcile/render", "webhook/inject"},
		[]string{metricsLib, pflagLib, "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"}},
	"webhook": {stations, []string{"api/v1alpha1", "webhook/certs", "webhook/inject"},
		[]string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", metricsLib, "sigs.k8s.io/controller-runtime"}},
	"bench": {stations, []string{"index", "internal/kv", "internal/trace"}, nil},

	"webhook/certs": {machines, nil, []string{"k8s.io/api", "k8s.io/apimachinery", metricsLib, "sigs.k8s.io/controller-runtime"}},
	"reconcile/judge": {machines, []string{"api/v1alpha1", "internal/loops", "internal/policy", "internal/status", "reconcile/compile", "reconcile/render", "webhook/inject"},
		[]string{"k8s.io/api", "k8s.io/apimachinery"}},
	"reconcile/render":    {machines, []string{"api/v1alpha1", "webhook/inject"}, []string{"k8s.io/api", "k8s.io/apimachinery"}},
	"webhook/inject":      {machines, []string{"api/v1alpha1"}, []string{"k8s.io/api", "k8s.io/apimachinery"}},
	"index":               {machines, []string{"internal/kv"}, []string{xxh3}},
	"internal/engine/sim": {machines, []string{"internal/engine", "internal/engine/vllm", "internal/kv"}, []string{metricsLib, pflagLib, syncLib}},

	"reconcile/compile": {tools, []string{"api/v1alpha1", "internal/policy"}, []string{"k8s.io/apimachinery"}},

	"reconcile/manifests": {tools, []string{"api/v1alpha1", "internal/policy", "reconcile/compile"}, []string{"k8s.io/api", "k8s.io/apimachinery", "sigs.k8s.io/yaml"}},

	"internal/auth":             {tools, nil, []string{syncLib}},
	"internal/auth/tokenreview": {tools, []string{"internal/auth"}, []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"}},
	"internal/cluster":          {tools, nil, []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/go-logr/logr"}},
	"internal/engine":           {tools, []string{"internal/kv"}, nil},
	"internal/engine/sglang":    {tools, []string{"internal/engine"}, nil},
	"internal/engine/trtllm":    {tools, []string{"internal/engine", "internal/engine/vllm"}, nil},
	"internal/engine/vllm":      {tools, []string{"internal/engine"}, nil},
	"internal/fingerprint":      {tools, []string{"internal/kv"}, []string{xxh3}},
	"internal/journal":          {tools, []string{"internal/kv", "internal/trace"}, []string{pflagLib}},
	"internal/life":             {tools, nil, nil},
	"internal/memhttp":          {tools, nil, nil},
	"internal/obs":              {tools, nil, []string{metricsLib}},
	"internal/rank":             {tools, []string{"internal/kv"}, nil},
	"internal/tracing":          {tools, nil, []string{metricsLib, otelLib, pflagLib, protobuf, "go.opentelemetry.io/proto/slim/otlp"}},
	"internal/trace":            {tools, []string{"internal/kv"}, nil},

	"deploy":          {words, nil, nil},
	"api/v1alpha1":    {words, nil, []string{"k8s.io/api", "k8s.io/apimachinery"}},
	"internal/arch":   {words, nil, nil},
	"internal/kv":     {words, nil, nil},
	"internal/loops":  {words, []string{"internal/policy", "internal/status"}, nil},
	"internal/policy": {words, nil, nil},
	"internal/status": {words, nil, nil},
	contract:          {words, nil, []string{protobuf}},
	rpc:               {words, []string{contract}, []string{connectLib}},
	"proto":           {words, nil, []string{protobuf, "github.com/bufbuild/protocompile"}}, // build tag generate

	"deploy/dashboards": {words, nil, []string{"sigs.k8s.io/yaml"}}, // build tag generate
}

// testLibraries are allowed in any test.
var testLibraries = []string{"github.com/google/go-cmp", "go.uber.org/goleak"}

// testSupport may be imported by tests only, of any room.
var testSupport = []string{"internal/cluster"}

// apart are commands that are no part of the product, as generators and
// examples: they may exit and print.
var apart = []string{"proto", "deploy/dashboards", "docs/examples/gateway"}

type file struct {
	name string // below the root, with slashes
	pkg  string // folder
	test bool
	ast  *ast.File
}

func parseTree(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var files []file
	set := token.NewFileSet()
	err = filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, full)
		name = filepath.ToSlash(name)
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() && name != "." {
			if _, err := os.Stat(filepath.Join(full, "go.mod")); err == nil {
				return filepath.SkipDir // a module of its own is not linked into this one
			}
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(set, full, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := path.Dir(name)
		if pkg == "." {
			pkg = ""
		}
		files = append(files, file{name, pkg, strings.HasSuffix(name, "_test.go"), parsed})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func imports(f file) (paths []string) {
	for _, spec := range f.ast.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// owns reports whether path is pkg or a package below it.
func owns(pkg, path string) bool { return path == pkg || strings.HasPrefix(path, pkg+"/") }

func anyOwns(pkgs []string, path string) bool {
	return slices.ContainsFunc(pkgs, func(pkg string) bool { return owns(pkg, path) })
}

func TestEveryPackageKeepsToThePlan(t *testing.T) {
	t.Parallel()
	// A test may use any library of the plan, to put the real thing against it.
	known := slices.Clone(testLibraries)
	for _, row := range plan {
		known = append(known, row.libraries...)
	}
	found := map[string]bool{}
	for _, f := range parseTree(t) {
		row, planned := plan[f.pkg]
		if !planned {
			t.Errorf("%s: package %q has no row in the plan", f.name, f.pkg)
			continue
		}
		found[f.pkg] = true
		for _, imported := range imports(f) {
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
				checkOurs(t, f, row, ours)
			} else if strings.Contains(strings.Split(imported, "/")[0], ".") {
				if !anyOwns(row.libraries, imported) && !(f.test && anyOwns(known, imported)) {
					t.Errorf("%s imports %s, which its row does not allow", f.name, imported)
				}
			}
		}
	}
	for pkg := range plan {
		if !found[pkg] {
			t.Errorf("the plan has a row for %q, which does not exist", pkg)
		}
	}
}

// checkOurs holds imports between rooms to the plan. Tests may look at any
// room of their floor or below, to use the real thing.
func checkOurs(t *testing.T, f file, row room, ours string) {
	t.Helper()
	target, ok := plan[ours]
	switch {
	case !ok:
		t.Errorf("%s imports %s, which is not planned", f.name, ours)
	case f.test && ours != f.pkg && target.floor <= row.floor:
	case f.test && ours == f.pkg: // an external test
	case f.test && slices.Contains(testSupport, ours):
	case slices.Contains(testSupport, ours):
		t.Errorf("%s imports %s, which only tests may", f.name, ours)
	case f.name == "index/bench_test.go" && ours == "bench": // shares its loads
	case !slices.Contains(row.ours, ours):
		t.Errorf("%s imports %s, which its row does not allow", f.name, ours)
	case target.floor > row.floor:
		t.Errorf("%s looks up: floor %d imports %s on floor %d", f.name, row.floor, ours, target.floor)
	case target.floor == stations && row.floor == stations:
		t.Errorf("%s: stations never import each other: %s", f.name, ours)
	}
}

func TestLibrariesStayInTheirRooms(t *testing.T) {
	t.Parallel()
	for _, f := range parseTree(t) {
		if f.test {
			continue
		}
		for _, imported := range imports(f) {
			allowed := true
			switch {
			case owns("github.com/spf13/cobra", imported), owns("github.com/spf13/viper", imported):
				allowed = f.pkg == "roles"
			case owns(pflagLib, imported):
				allowed = f.pkg == "roles" || path.Base(f.name) == "config.go"
			case strings.HasPrefix(imported, "k8s.io/"):
				allowed = anyOwns([]string{"api", "reconcile", "webhook", "roles/doctor", "internal/auth/tokenreview", "internal/obs", "internal/cluster"}, f.pkg) || f.pkg == "roles"
			case owns(zmq4, imported):
				allowed = f.pkg == "subscriber" || f.pkg == "internal/engine/sim"
			case strings.Contains(imported, "msgpack"):
				allowed = owns("internal/engine", f.pkg)
			case owns(otelLib+"/sdk", imported), owns("go.opentelemetry.io/proto", imported):
				allowed = f.pkg == "internal/tracing"
			case owns(xxh3, imported):
				allowed = f.pkg == "internal/fingerprint" || f.pkg == "index"
			}
			if !allowed {
				t.Errorf("%s imports %s, which has no place there", f.name, imported)
			}
		}
	}
}

// TestCallsStayInTheirRooms keeps process-wide acts at the rim.
func TestCallsStayInTheirRooms(t *testing.T) {
	t.Parallel()
	for _, f := range parseTree(t) {
		if f.test || slices.Contains(apart, f.pkg) {
			continue
		}
		rim := f.pkg == "" || f.pkg == "roles"
		ast.Inspect(f.ast, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := selector.X.(*ast.Ident)
			if !ok {
				return true
			}
			call := x.Name + "." + selector.Sel.Name
			switch {
			case call == "os.Exit", strings.HasPrefix(call, "signal.Notify"), strings.HasPrefix(call, "fmt.Print"):
				if !rim {
					t.Errorf("%s calls %s, which only main and roles may", f.name, call)
				}
			case call == "context.Background", call == "context.TODO":
				// A shutdown deadline uses context.WithoutCancel of its own context.
				if f.pkg != "" {
					t.Errorf("%s calls %s: take a context from the caller", f.name, call)
				}
			}
			return true
		})
	}
}
