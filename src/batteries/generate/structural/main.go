// Command structural asks upstream's code for custom kinds how it prunes,
// defaults and reads objects, and writes the answers for the tests of
// apimachinery. The inputs are those of upstream's own tests and random ones.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "structural:", err)
		os.Exit(1)
	}
}

// input is an object and the schema to read it by.
type input struct {
	// From names the test of upstream's, or is "random".
	From   string          `json:"from"`
	Schema json.RawMessage `json:"schema"`
	Object json.RawMessage `json:"object"`
}

// answer is what upstream makes of an object.
type answer struct {
	Out     any      `json:"out"`
	Unknown []string `json:"unknown,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// line is one line of the file: an input and all answers.
type line struct {
	input
	Prune      answer   `json:"prune"`
	PruneValue answer   `json:"pruneValue"`
	Nulls      any      `json:"nulls"`
	Default    any      `json:"default"`
	Lists      []string `json:"lists,omitempty"`
	// Request and Stored are given for objects only.
	Request *answer `json:"request,omitempty"`
	Stored  *answer `json:"stored,omitempty"`
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("structural", flag.ContinueOnError)
	out := flags.String("out", "../../apimachinery/testdata/structural.jsonl.gz", "file to write")
	work := flags.String("work", "", "folder for a copy of upstream's module; default a new one")
	seed := flags.Int64("seed", 1, "seed of the random inputs")
	count := flags.Int("count", 600, "number of random inputs")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	inputs, err := harvest(*work)
	if err != nil {
		return err
	}
	harvested := len(inputs)
	random := maker{rand.New(rand.NewSource(*seed))}
	for range *count {
		inputs = append(inputs, random.input())
	}
	var buffer bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(compressor)
	encoder.SetEscapeHTML(false)
	written, unsteady := 0, 0
	for _, given := range inputs {
		answered, err := steady(given)
		if err != nil {
			return fmt.Errorf("%s: %w", given.Schema, err)
		}
		if answered == nil {
			unsteady++
			continue
		}
		if err := encoder.Encode(answered); err != nil {
			return err
		}
		written++
	}
	if err := compressor.Close(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "structural: %d inputs of upstream's tests, %d random; %d written, %d left out because the answer depends on the order of a Go map\n",
		harvested, *count, written, unsteady)
	return os.WriteFile(filepath.Clean(*out), buffer.Bytes(), 0o644)
}

// steady answers an input several times; nil if the answers differ.
func steady(given input) (*line, error) {
	first, err := ask(given)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(first)
	if err != nil {
		return nil, err
	}
	for range 20 {
		again, err := ask(given)
		if err != nil {
			return nil, err
		}
		other, err := json.Marshal(again)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(text, other) {
			return nil, nil
		}
	}
	return first, nil
}

func structuralOf(text json.RawMessage) (*schema.Structural, error) {
	var versioned apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(text, &versioned); err != nil {
		return nil, err
	}
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&versioned, &internal, nil); err != nil {
		return nil, err
	}
	return schema.NewStructural(&internal)
}

func ask(given input) (*line, error) {
	structural, err := structuralOf(given.Schema)
	if err != nil {
		return nil, err
	}
	fresh := func() (object any) {
		if err := utiljson.Unmarshal(given.Object, &object); err != nil {
			panic(err)
		}
		return object
	}
	out := &line{input: given}
	tracked := func() schema.UnknownFieldPathOptions {
		return schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	}
	object := fresh()
	out.Prune.Unknown = pruning.PruneWithOptions(object, structural, true, tracked())
	out.Prune.Out = object
	object = fresh()
	out.PruneValue.Unknown = pruning.PruneWithOptions(object, structural, false, tracked())
	out.PruneValue.Out = object
	object = fresh()
	defaulting.PruneNonNullableNullsWithoutDefaults(object, structural)
	out.Nulls = object
	object = fresh()
	defaulting.Default(object, structural)
	out.Default = object
	if members, ok := fresh().(map[string]any); ok {
		for _, problem := range listtype.ValidateListSetsAndMaps(nil, structural, members) {
			out.Lists = append(out.Lists, problem.Error())
		}
		slices.Sort(out.Lists)
		out.Request = read(fresh().(map[string]any), structural, false)
		out.Stored = read(fresh().(map[string]any), structural, true)
	}
	return out, nil
}

// read brings a custom object into the form in which upstream's handler sees
// it. The handler's own function is not exported; the order of its steps is.
func read(object map[string]any, structural *schema.Structural, dropMalformed bool) *answer {
	delete(object, "kind")
	delete(object, "apiVersion")
	// What is read from the store is complained about to nobody.
	track := !dropMalformed
	metadata, found, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{DropMalformedFields: dropMalformed, ReturnUnknownFieldPaths: track})
	if err != nil {
		return &answer{Error: err.Error()}
	}
	unknown = append(unknown, pruning.PruneWithOptions(object, structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: track})...)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, structural)
	problem, more := objectmeta.CoerceWithOptions(nil, object, structural, false, objectmeta.CoerceOptions{DropInvalidFields: dropMalformed, ReturnUnknownFieldPaths: track})
	if problem != nil {
		return &answer{Error: problem.Error()}
	}
	if found {
		if err := objectmeta.SetObjectMeta(object, metadata); err != nil {
			return &answer{Error: err.Error()}
		}
	}
	defaulting.Default(object, structural)
	return &answer{Out: runtime.DeepCopyJSON(object), Unknown: append(unknown, more...)}
}

// maker makes random schemas and objects that nearly fit them.
type maker struct{ *rand.Rand }

func (m maker) chance(percent int) bool { return m.Intn(100) < percent }

func pick[T any](m maker, from []T) T { return from[m.Intn(len(from))] }

var names = []string{"a", "b", "spec", "items", "kind", "metadata", "name", "data", "x.y", "long-name-of-more-than-twenty-four-bytes"}

func (m maker) input() input {
	root := m.object(4, true)
	root["type"] = "object"
	delete(root, "x-kubernetes-embedded-resource")
	delete(root, "nullable")
	delete(root, "default")
	restrictMeta(root)
	object := m.value(root, 5)
	members, ok := object.(map[string]any)
	if !ok {
		members = map[string]any{}
	}
	if m.chance(70) {
		members["metadata"] = m.metadata()
	}
	return input{From: "random", Schema: text(root), Object: text(members)}
}

func text(value any) json.RawMessage {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(buffer.Bytes())
}

func (m maker) schema(depth int) map[string]any {
	var out map[string]any
	switch roll := m.Intn(100); {
	case depth <= 0 || roll < 35:
		out = m.scalar()
	case roll < 55:
		out = map[string]any{"type": "array", "items": m.schema(depth - 1)}
		switch m.Intn(3) {
		case 0:
			out["x-kubernetes-list-type"] = "set"
		case 1:
			item := m.object(depth-1, true)
			out["items"], out["x-kubernetes-list-type"] = item, "map"
			keys := []string{"name"}
			if m.chance(50) {
				keys = append(keys, "a")
			}
			out["x-kubernetes-list-map-keys"] = keys
		}
	default:
		out = m.object(depth, m.chance(70))
	}
	if m.chance(20) {
		out["nullable"] = true
	}
	if m.chance(25) {
		out["default"] = m.value(out, 3)
	}
	return out
}

func (m maker) scalar() map[string]any {
	switch m.Intn(8) {
	case 0:
		return map[string]any{"x-kubernetes-int-or-string": true}
	case 1:
		return map[string]any{"x-kubernetes-preserve-unknown-fields": true}
	default:
		return map[string]any{"type": pick(m, []string{"string", "integer", "number", "boolean"})}
	}
}

func (m maker) object(depth int, fields bool) map[string]any {
	out := map[string]any{"type": "object"}
	if fields {
		properties := map[string]any{}
		for range 1 + m.Intn(5) {
			properties[pick(m, names)] = m.schema(depth - 1)
		}
		out["properties"] = properties
	}
	if !fields || m.chance(10) {
		switch m.Intn(4) {
		case 0:
			out["additionalProperties"] = true
		case 1, 2:
			out["additionalProperties"] = m.schema(depth - 1)
		}
	}
	if m.chance(15) {
		out["x-kubernetes-preserve-unknown-fields"] = true
	}
	if m.chance(15) {
		out["x-kubernetes-embedded-resource"] = true
		restrictMeta(out)
		delete(out, "additionalProperties")
	}
	if m.chance(10) {
		out["x-kubernetes-map-type"] = pick(m, []string{"atomic", "granular"})
	}
	return out
}

// restrictMeta leaves of the schemas of kind and metadata what a
// CustomResourceDefinition may say about those of a resource.
func restrictMeta(resource map[string]any) {
	properties, _ := resource["properties"].(map[string]any)
	if _, found := properties["kind"]; found {
		properties["kind"] = map[string]any{"type": "string"}
	}
	if _, found := properties["metadata"]; found {
		properties["metadata"] = map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}
	}
}

// value fits the schema, most of the time.
func (m maker) value(of map[string]any, depth int) any {
	switch roll := m.Intn(100); {
	case roll < 8:
		return nil
	case roll < 14:
		return m.anything(2)
	}
	switch of["type"] {
	case "object":
		out := map[string]any{}
		properties, _ := of["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if m.chance(65) {
				out[name] = m.value(properties[name].(map[string]any), depth-1)
			}
		}
		if m.chance(35) {
			out[pick(m, names)+pick(m, []string{"", "2"})] = m.anything(2)
		}
		if values, ok := of["additionalProperties"].(map[string]any); ok {
			for range m.Intn(3) {
				out[pick(m, names)] = m.value(values, depth-1)
			}
		}
		if of["x-kubernetes-embedded-resource"] == true {
			if m.chance(60) {
				out["kind"] = pick(m, []any{"Pod", "Pod", "", 7, nil})
			}
			if m.chance(70) {
				out["metadata"] = m.metadata()
			}
		}
		return out
	case "array":
		out := []any{}
		for range m.Intn(5) {
			out = append(out, m.value(of["items"].(map[string]any), depth-1))
		}
		return out
	case "string":
		return pick(m, []string{"", "a", "b", "<&>", "ü"})
	case "integer":
		return pick(m, numbers)
	case "number":
		return pick(m, numbers)
	case "boolean":
		return m.chance(50)
	}
	return m.anything(3)
}

var numbers = []any{json.Number("0"), json.Number("1"), json.Number("1.0"), json.Number("1e0"), json.Number("-7"), json.Number("1.5"),
	json.Number("9007199254740993"), json.Number("9223372036854775807"), json.Number("9223372036854775808")}

func (m maker) anything(depth int) any {
	switch m.Intn(9) {
	case 0:
		return nil
	case 1:
		return m.chance(50)
	case 2, 3:
		return pick(m, numbers)
	case 4, 5:
		return pick(m, []string{"", "x", "y"})
	case 6:
		out := []any{}
		for range m.Intn(3) {
			if depth > 0 {
				out = append(out, m.anything(depth-1))
			}
		}
		return out
	default:
		out := map[string]any{}
		for range m.Intn(4) {
			if depth > 0 {
				out[pick(m, names)] = m.anything(depth - 1)
			}
		}
		return out
	}
}

// metadata is right, or wrong in one member.
func (m maker) metadata() any {
	if m.chance(6) {
		return m.anything(1)
	}
	out := map[string]any{}
	good := map[string][]any{
		"name": {"a", ""}, "namespace": {"ns"}, "generation": {json.Number("3"), json.Number("0"), json.Number("1.0"), json.Number("4611686018427387904e0"), json.Number("2.5")}, "labels": {map[string]any{"a": "b"}, map[string]any{}, map[string]any{"a": nil}},
		"creationTimestamp": {"2020-01-02T03:04:05Z", nil}, "deletionTimestamp": {"2020-01-02T03:04:05Z", nil}, "finalizers": {[]any{"x/y"}, []any{}},
		"ownerReferences": {[]any{map[string]any{"kind": "K", "name": "n", "uid": "u", "apiVersion": "v1"}}, []any{map[string]any{"kind": "K", "other": json.Number("1")}}},
		"managedFields":   {[]any{map[string]any{"manager": "m", "fieldsV1": map[string]any{"f:a": map[string]any{}}}}},
	}
	for _, name := range slices.Sorted(maps.Keys(good)) {
		if m.chance(30) {
			out[name] = pick(m, good[name])
		}
	}
	if m.chance(25) {
		out[pick(m, []string{"unknown", "Name", "clusterName"})] = m.anything(1)
	}
	if m.chance(25) {
		out[pick(m, slices.Sorted(maps.Keys(good)))] = m.anything(1)
	}
	return out
}
