package roles

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/deploy"
)

func TestManifestsArePrintedForNamespaceAndImage(t *testing.T) {
	out, err := command(t.Context(), "manifests", "--namespace=elsewhere", "--image=a.example/b:c")
	if err != nil {
		t.Fatal(err)
	}
	want, err := deploy.Manifest("elsewhere", "a.example/b:c")
	if err != nil {
		t.Fatal(err)
	}
	if out != want {
		t.Error("the program prints another manifest than it holds")
	}
	if code := Main(t.Context(), []string{"manifests", "--namespace=Else Where"}); code != exitUsage {
		t.Errorf("exit code %d for a namespace that is none", code)
	}
}

// TestServerOfTheManifestStarts: its arguments are flags of this program, and
// together they are what it accepts.
func TestServerOfTheManifestStarts(t *testing.T) {
	args := argsOf(t, "inference-cache-server")
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	s := bindRun(flags)
	if err := flags.Parse(args[1:]); err != nil {
		t.Fatal(err)
	}
	if err := s.complete(); err != nil {
		t.Fatal(err)
	}
	if args[0] != "run" || s.role != roleServer || s.server.AllowedControllerSA != "system:serviceaccount:"+deploy.DefaultNamespace+":inference-cache-controller-manager" {
		t.Errorf("%s --role=%s lets in %q", args[0], s.role, s.server.AllowedControllerSA)
	}
}

// argsOf are the arguments of a Deployment's first container.
func argsOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := deploy.Manifest(deploy.DefaultNamespace, deploy.DefaultImage)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var d struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Template struct {
					Spec struct{ Containers []struct{ Args []string } }
				}
			}
		}
		if !strings.Contains(document, "kind: Deployment") {
			continue
		}
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
			t.Fatal(err)
		}
		if d.Kind == "Deployment" && d.Metadata.Name == name {
			return d.Spec.Template.Spec.Containers[0].Args
		}
	}
	t.Fatalf("there is no Deployment %s", name)
	return nil
}
