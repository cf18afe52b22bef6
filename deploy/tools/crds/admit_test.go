// Package crds holds objects to the generated CRDs as an API server does:
// strict decoding, defaulting, schema validation, CEL. It needs no cluster.
// What takes a second object, or a namespace, is the webhook's and not here.
// It is tests only, in this module so that the product does not inherit the
// requirements of the API server's libraries.
package crds

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// object is a manifest as decoded JSON.
type object = map[string]any

// definition admits the objects of one kind.
type definition struct {
	structural *schema.Structural
	openapi    validation.SchemaValidator
	rules      *cel.Validator
}

// read returns every CRD in dir.
func read(dir string) (all []*apiextensions.CustomResourceDefinition, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(&crd)
		internal := &apiextensions.CustomResourceDefinition{}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, internal, nil); err != nil {
			return nil, fmt.Errorf("convert %s: %w", name, err)
		}
		all = append(all, internal)
	}
	return all, nil
}

// load returns a definition for every kind in dir.
func load(dir string) (map[string]definition, error) {
	all, err := read(dir)
	if err != nil {
		return nil, err
	}
	kinds := make(map[string]definition)
	for _, crd := range all {
		root := crd.Spec.Versions[0].Schema
		if root == nil {
			root = crd.Spec.Validation
		}
		structural, err := schema.NewStructural(root.OpenAPIV3Schema)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.Name, err)
		}
		openapi, _, err := validation.NewSchemaValidator(root.OpenAPIV3Schema)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.Name, err)
		}
		kinds[crd.Spec.Names.Kind] = definition{structural, openapi, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	}
	return kinds, nil
}

// admit defaults and validates o, in place, as on create, or as on update of
// old. Unknown fields are errors, as with kubectl.
func (d definition) admit(ctx context.Context, o, old object) field.ErrorList {
	options := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	var errs field.ErrorList
	for _, path := range pruning.PruneWithOptions(o, d.structural, true, options) {
		errs = append(errs, field.Invalid(field.NewPath(path), nil, "unknown field"))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(o, d.structural)
	defaulting.Default(o, d.structural)
	var before any
	if old == nil {
		errs = append(errs, validation.ValidateCustomResource(nil, o, d.openapi)...)
	} else {
		before = old
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, o, old, d.openapi)...)
	}
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, d.structural, o)...)
	if len(errs) > 0 || d.rules == nil { // rules need an object of the right types
		return errs
	}
	errs, _ = d.rules.Validate(ctx, nil, d.structural, o, before, celconfig.RuntimeCELCostBudget)
	return errs
}
