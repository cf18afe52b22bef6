package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type object = map[string]any

// rendered renders the chart and reads it as strictly as an API server.
func rendered(t *testing.T, namespace string, values object) (text string, objects []object) {
	t.Helper()
	text, err := render("../../chart", namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
	return text, objects
}

func name(o object) string {
	metadata, _ := o["metadata"].(object)
	kind, _ := o["kind"].(string)
	n, _ := metadata["name"].(string)
	return kind + "/" + n
}

var full = object{"namespace": object{"create": true}}

func TestManifestIsTheChart(t *testing.T) {
	want, _ := rendered(t, "inference-cache-system", full)
	got, err := os.ReadFile("../../install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != head+want {
		t.Error("deploy/install.yaml is not what the chart renders: run make generate")
	}
}

// TestManifestNeedsTwoWordsChanged: the program puts a namespace and an image
// into the finished manifest, which must be what Helm would have made.
func TestManifestNeedsTwoWordsChanged(t *testing.T) {
	got, _ := rendered(t, "inference-cache-system", full)
	got = strings.NewReplacer("inference-cache-system", "elsewhere", "inferencecache:dev", "a.example/b:c").Replace(got)
	want, _ := rendered(t, "elsewhere", object{"namespace": object{"create": true}, "image": object{"repository": "a.example/b", "tag": "c"}})
	if got != want {
		t.Error("they differ")
	}
}

func TestOptionsAddAndRemoveObjects(t *testing.T) {
	// Without the definitions, which take most of the time and have no options.
	bare := object{"install": false}
	_, before := rendered(t, "ns", object{"crds": bare})
	f := func(values object, added, removed []string) {
		t.Helper()
		values["crds"] = bare
		_, after := rendered(t, "ns", values)
		has := func(objects []object, n string) bool {
			return slices.ContainsFunc(objects, func(o object) bool { return name(o) == n })
		}
		for _, n := range added {
			if has(before, n) || !has(after, n) {
				t.Errorf("%v does not add %s", values, n)
			}
		}
		for _, n := range removed {
			if !has(before, n) || has(after, n) {
				t.Errorf("%v does not remove %s", values, n)
			}
		}
		if len(after)-len(before) != len(added)-len(removed) {
			t.Errorf("%v: %d objects instead of %d", values, len(after), len(before)+len(added)-len(removed))
		}
	}
	f(object{"namespace": object{"create": true}}, []string{"Namespace/ns"}, nil)
	f(object{"server": object{"autoscaling": object{"enabled": true}}}, []string{"HorizontalPodAutoscaler/inference-cache-server"}, nil)
	f(object{"server": object{"podDisruptionBudget": false}}, nil, []string{"PodDisruptionBudget/inference-cache-server"})
	f(object{"controller": object{"podDisruptionBudget": false}}, nil, []string{"PodDisruptionBudget/inference-cache-controller-manager"})
	f(object{"networkPolicy": object{"enabled": false}}, nil, []string{"NetworkPolicy/inference-cache-server", "NetworkPolicy/inference-cache-controller"})
	f(object{"serviceMonitor": object{"enabled": true}}, []string{"ServiceMonitor/inference-cache-server", "PodMonitor/inference-cache-controller", "PodMonitor/inference-cache-lmcache"}, nil)
	f(object{"webhook": object{"certManager": true}}, []string{"Issuer/selfsigned-issuer", "Certificate/serving-cert"}, []string{"Secret/webhook-server-cert"})
}

func TestDefinitionsComeUnlessUnwanted(t *testing.T) {
	f := func(values object, want int) {
		t.Helper()
		_, objects := rendered(t, "ns", values)
		n := 0
		for _, o := range objects {
			if o["kind"] == "CustomResourceDefinition" {
				n++
			}
		}
		if n != want {
			t.Errorf("%v: %d CRDs, want %d", values, n, want)
		}
	}
	f(nil, 6)
	f(object{"crds": object{"install": false}}, 0)
}

// TestEveryObjectIsOldEnough: nothing needs more than Kubernetes 1.29.
func TestEveryObjectIsOldEnough(t *testing.T) {
	known := []string{"v1", "apps/v1", "apiextensions.k8s.io/v1", "rbac.authorization.k8s.io/v1", "networking.k8s.io/v1", "policy/v1", "admissionregistration.k8s.io/v1", "autoscaling/v2"}
	_, objects := rendered(t, "ns", object{"server": object{"autoscaling": object{"enabled": true}}})
	for _, o := range objects {
		if version, _ := o["apiVersion"].(string); !slices.Contains(known, version) {
			t.Errorf("%s is of %s", name(o), version)
		}
	}
}

func TestKeptDefinitionsSurviveTheRelease(t *testing.T) {
	_, objects := rendered(t, "ns", object{"crds": object{"keep": true}})
	for _, o := range objects {
		if o["kind"] != "CustomResourceDefinition" {
			continue
		}
		annotations, _ := o["metadata"].(object)["annotations"].(object)
		if annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes with the release", name(o))
		}
	}
}
