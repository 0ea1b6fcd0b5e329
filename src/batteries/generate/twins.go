package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// twinRounds is how many random objects of each kind are converted to see
// whether fields that only an internal type has are ever set.
const twinRounds = 300

// twinField is one field of an internal type; README.md explains each key.
type twinField struct {
	Name   string          `json:"n,omitempty"`
	GoName string          `json:"gn,omitempty"`
	Zero   json.RawMessage `json:"z,omitempty"`
}

// twin is the internal type to which a published struct is converted.
type twin struct {
	internal reflect.Type
	fields   []twinField
	// added are the names of fields that the published type does not have.
	added []string
	// differs says that the fields are not those of the published type.
	differs bool
	// moved says why the fields cannot be paired.
	moved string
}

// twins are the internal types by published type.
type twins map[reflect.Type]*twin

// addTwins notes the fields of the internal types that differ from the published ones.
func (c *catalog) addTwins(o *oracle) error {
	all := twins{}
	for _, gvk := range o.sortedKinds() {
		s := o.subjects[gvk]
		object, err := s.group.scheme.New(gvk)
		if err != nil {
			return err
		}
		internal, err := s.internal(object)
		if err != nil {
			return err
		}
		published := reflect.TypeOf(object).Elem()
		if err := all.pair(published, reflect.TypeOf(internal).Elem()); err != nil {
			return fmt.Errorf("%s: %w", gvk.Kind, err)
		}
		f := &filler{random: rand.New(rand.NewSource(int64(len(gvk.Kind)) + 78)), enums: c.enums()}
		for round := range twinRounds {
			f.presence = []float64{0.35, 0.55, 0.8}[round%3]
			all.observe(s, f.object(published).Interface().(runtime.Object))
		}
	}
	for published, found := range all {
		d := c.definitions[openapiName(published)]
		switch {
		case found.internal == published:
			d.Shared = 1
		case found.moved != "":
			fmt.Fprintf(os.Stderr, "%s: no internal fields: %s\n", published, found.moved)
		case found.differs:
			d.Internal = found.fields
		}
	}
	return nil
}

// pair pairs the fields of two structs by Go's names, and the structs inside likewise.
func (all twins) pair(published, internal reflect.Type) error {
	if known := all[published]; known != nil {
		if known.internal != internal {
			return fmt.Errorf("%s becomes %s and %s", published, known.internal, internal)
		}
		return nil
	}
	found := &twin{internal: internal}
	all[published] = found
	if published == internal {
		return nil
	}
	fields, inside := memberFields(published), memberFields(internal)
	byName := map[string]reflect.StructField{}
	for _, f := range fields {
		byName[f.Name] = f
	}
	var order []string
	for _, f := range inside {
		outer, paired := byName[f.Name]
		if !paired {
			found.added = append(found.added, f.Name)
			found.fields = append(found.fields, twinField{GoName: f.Name, Zero: zeroOf(f.Type)})
			continue
		}
		if f.Tag.Get("json") != "" && f.Type != reflect.TypeFor[metav1.ObjectMeta]() {
			return fmt.Errorf("%s.%s has a JSON name", internal, f.Name)
		}
		delete(byName, f.Name)
		order = append(order, f.Name)
		one := twinField{Name: jsonNameOf(outer)}
		// The other way round the pointer is set to the published zero.
		if outer.Type.Kind() == reflect.Pointer && f.Type.Kind() != reflect.Pointer {
			one.Zero = zeroOf(f.Type)
			found.differs = true
		}
		found.fields = append(found.fields, one)
		if err := all.pairInside(found, outer.Type, f.Type); err != nil {
			return err
		}
	}
	for _, f := range fields {
		if _, left := byName[f.Name]; left {
			found.moved = fmt.Sprintf("%s has no field %s", internal, f.Name)
		}
	}
	for i, name := range order {
		found.differs = found.differs || len(fields) > i && fields[i].Name != name
	}
	found.differs = found.differs || len(found.added) > 0
	return nil
}

// pairInside pairs what the pointers, lists and maps of a field hold.
func (all twins) pairInside(around *twin, published, internal reflect.Type) error {
	published, internal = bareType(published), bareType(internal)
	if _, leaf := leaves[published]; leaf || published.Kind() != reflect.Struct {
		if leaf && published != internal {
			around.moved = fmt.Sprintf("%s is %s", published, internal)
		}
		return nil
	}
	if internal.Kind() != reflect.Struct {
		return fmt.Errorf("%s is %s", published, internal)
	}
	return all.pair(published, internal)
}

// bareType is the type at the end of pointers, lists and maps.
func bareType(t reflect.Type) reflect.Type {
	for t != reflect.TypeFor[[]byte]() && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map) {
		t = t.Elem()
	}
	return t
}

// memberFields are the fields of a struct and of those it embeds, kind and apiVersion aside.
func memberFields(t reflect.Type) []reflect.StructField {
	var out []reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case !f.IsExported() || jsonNameOf(f) == "-" || f.Type == reflect.TypeFor[metav1.TypeMeta]():
		case f.Anonymous && f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[metav1.ObjectMeta]():
			out = append(out, memberFields(f.Type)...)
		default:
			out = append(out, f)
		}
	}
	return out
}

func zeroOf(t reflect.Type) json.RawMessage {
	return json.RawMessage(mustJSON(reflect.Zero(t).Interface()))
}

// observe looks whether the internal form of an object has fields that only internal types have.
func (all twins) observe(s *subject, object runtime.Object) {
	// Upstream keeps some of them in annotations.
	if accessor, ok := object.(metav1.ObjectMetaAccessor); ok {
		accessor.GetObjectMeta().SetAnnotations(map[string]string{appsv1.DeprecatedRollbackTo: "1", appsv1.DeprecatedTemplateGeneration: "1"})
	}
	// Upstream's own defaulting and conversion cannot bear every object.
	defer func() { _ = recover() }()
	s.group.scheme.Default(object)
	internal, err := s.internal(object)
	if err != nil {
		return
	}
	byInternal := map[reflect.Type]*twin{}
	for _, found := range all {
		byInternal[found.internal] = found
	}
	noteAdded(reflect.ValueOf(internal), byInternal)
}

// noteAdded goes down a value and marks the types whose added fields are set.
func noteAdded(v reflect.Value, known map[reflect.Type]*twin) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noteAdded(v.Elem(), known)
		}
	case reflect.Slice:
		for i := range v.Len() {
			noteAdded(v.Index(i), known)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			noteAdded(v.MapIndex(key), known)
		}
	case reflect.Struct:
		if found := known[v.Type()]; found != nil {
			for _, name := range found.added {
				if !v.FieldByName(name).IsZero() {
					found.moved = name + " is made of something else"
				}
			}
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				noteAdded(v.Field(i), known)
			}
		}
	}
}
