package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder3"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// origin says who creates a bootstrap object, and when it comes back after a deletion.
type origin struct{ restore, manager string }

// later is a field of a bootstrap object that its creator does not send: a manager applies it
// afterwards or, if there is none, the server allocates it.
type later struct{ field, manager, subresource string }

// owners returns the managed fields that an object has once its creator has sent it and the others have
// applied their parts, as upstream's field managers write them.
func (b *bootstrapper) owners(s *subject, from origin, object runtime.Object, parts []later) ([]metav1.ManagedFieldsEntry, error) {
	if err := b.learnTypes(); err != nil {
		return nil, err
	}
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	sent := runtime.DeepCopyJSON(tree)
	for _, part := range parts {
		unstructured.RemoveNestedField(sent, strings.Split(part.field, ".")...)
	}
	// The fake client has noted owners of its own.
	unstructured.RemoveNestedField(sent, "metadata", "managedFields")
	text, err := json.Marshal(sent)
	if err != nil {
		return nil, err
	}
	created, err := s.decode(text)
	if err != nil {
		return nil, err
	}
	s.group.scheme.Default(created)
	fields, err := b.fieldManager(s, "")
	if err != nil {
		return nil, err
	}
	live, err := s.group.scheme.New(s.gvk)
	if err != nil {
		return nil, err
	}
	current, err := fields.Update(live, created, from.manager)
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		if part.manager == "" {
			continue
		}
		if current, err = b.apply(s, current, tree, part); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", part.field, s.gvk.Kind, err)
		}
	}
	return current.(metav1.ObjectMetaAccessor).GetObjectMeta().GetManagedFields(), nil
}

// apply lets a manager apply one field of the object.
func (b *bootstrapper) apply(s *subject, live runtime.Object, tree map[string]any, part later) (runtime.Object, error) {
	path := strings.Split(part.field, ".")
	value, found, err := unstructured.NestedFieldCopy(tree, path...)
	if err != nil || !found {
		return nil, fmt.Errorf("the object does not have it: %w", err)
	}
	patch := &unstructured.Unstructured{Object: map[string]any{}}
	patch.SetGroupVersionKind(s.gvk)
	patch.SetName(live.(metav1.ObjectMetaAccessor).GetObjectMeta().GetName())
	if err := unstructured.SetNestedField(patch.Object, withoutEmpty(value), path...); err != nil {
		return nil, err
	}
	fields, err := b.fieldManager(s, part.subresource)
	if err != nil {
		return nil, err
	}
	return fields.Apply(live, patch, part.manager, true)
}

// withoutEmpty leaves out texts that nobody set, which an apply configuration does not send.
func withoutEmpty(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, one := range v {
			if one == "" {
				delete(v, name)
			} else {
				v[name] = withoutEmpty(one)
			}
		}
	case []any:
		for i, one := range v {
			v[i] = withoutEmpty(one)
		}
	}
	return value
}

// fieldManager returns what the handlers of a kind or of its subresource use.
func (b *bootstrapper) fieldManager(s *subject, sub string) (*managedfields.FieldManager, error) {
	store := s.store
	if sub != "" {
		store = s.subStore(sub)
	}
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if store.ResetFieldsStrategy != nil {
		reset = fieldpath.NewExcludeFilterSetMap(store.ResetFieldsStrategy.GetResetFields())
	}
	scheme, hub := s.group.scheme, schema.GroupVersion{Group: s.gvk.Group, Version: runtime.APIVersionInternal}
	return managedfields.NewDefaultFieldManager(b.types, scheme, scheme, scheme, s.gvk, hub, sub, reset)
}

// learnTypes makes the types of all kinds from the definitions that the server publishes.
func (b *bootstrapper) learnTypes() error {
	if b.types != nil {
		return nil
	}
	config := genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, openapinamer.NewDefinitionNamer(schemes...))
	var names []string
	for gvk, s := range b.oracle.subjects {
		object, err := s.group.scheme.New(gvk)
		if err != nil {
			return err
		}
		names = append(names, openapiName(reflect.TypeOf(object).Elem()))
	}
	definitions, err := builder3.BuildOpenAPIDefinitionsForResources(config, names...)
	if err != nil {
		return err
	}
	b.types, err = managedfields.NewTypeConverter(definitions, false)
	return err
}
