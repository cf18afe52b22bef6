// Command chart renders deploy/chart by Helm's own engine into the manifest
// that is embedded in the program, deploy/install.yaml. It is what `helm
// template --namespace inference-cache-system --set namespace.create=true`
// prints, in the order in which Helm installs. `make generate` runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
)

const head = `# Made by make generate from deploy/chart: change it there.
# Another namespace or image: inferencecache manifests --namespace --image.
`

func main() {
	chart := flag.String("chart", "../chart", "folder of the chart")
	out := flag.String("out", "../install.yaml", "file to write")
	flag.Parse()
	text, err := render(*chart, "inference-cache-system", map[string]any{"namespace": map[string]any{"create": true}})
	if err == nil {
		err = os.WriteFile(*out, []byte(head+text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// render is what `helm template` prints for a namespace and values.
func render(folder, namespace string, values map[string]any) (string, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return "", fmt.Errorf("load chart %s: %w", folder, err)
	}
	options := chartutil.ReleaseOptions{Name: "inferencecache", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return "", fmt.Errorf("complete the values of chart %s: %w", folder, err)
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return "", fmt.Errorf("render chart %s: %w", folder, err)
	}
	for name := range files {
		if !slices.Contains([]string{".yaml", ".yml"}, path.Ext(name)) {
			delete(files, name) // helpers and notes
		}
	}
	_, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return "", fmt.Errorf("sort the objects of chart %s: %w", folder, err)
	}
	var b strings.Builder
	for _, m := range manifests {
		b.WriteString("---\n" + strings.Trim(m.Content, "\n") + "\n")
	}
	return b.String(), nil
}
