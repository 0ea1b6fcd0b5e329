package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// field has the keys of a field in schemas.json that matter to an encoder.
type field struct {
	Name    string `json:"n"`
	Type    string `json:"t"`
	Omit    string `json:"o,omitempty"`
	Pointer int    `json:"p,omitempty"`
	Proto   int    `json:"pb"`
	Wire    string `json:"pbt"`
}

type definition struct {
	Go     string              `json:"go"`
	Kinds  []map[string]string `json:"gvk,omitempty"`
	Meta   int                 `json:"tm,omitempty"`
	Fields []field             `json:"fields"`
}

const group = "apidiscovery.k8s.io"

// roots are the aggregated documents of discovery.
var roots = []runtime.Object{&apidiscoveryv2.APIGroupDiscoveryList{}, &apidiscoveryv2beta1.APIGroupDiscoveryList{}}

// writeDiscovery writes the types of the aggregated documents that are not in schemas.json, in its form.
func writeDiscovery(data string) error {
	text, err := os.ReadFile(filepath.Join(data, "schemas.json"))
	if err != nil {
		return err
	}
	var known struct{ Definitions map[string]json.RawMessage }
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	found := map[string]*definition{}
	for _, root := range roots {
		t := reflect.TypeOf(root).Elem()
		name, err := addType(found, known.Definitions, t)
		if err != nil {
			return err
		}
		found[name].Kinds = []map[string]string{{"group": group, "kind": t.Name(), "version": versionOf(t)}}
	}
	var b bytes.Buffer
	for i, name := range slices.Sorted(maps.Keys(found)) {
		line, err := json.Marshal(found[name])
		if err != nil {
			return err
		}
		b.WriteString(map[bool]string{true: "{\"definitions\":{\n", false: ",\n"}[i == 0])
		fmt.Fprintf(&b, "%q:%s", name, line)
	}
	b.WriteString("\n}}\n")
	return os.WriteFile(filepath.Join(data, "discovery.json"), b.Bytes(), 0o644)
}

func versionOf(t reflect.Type) string {
	return t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:]
}

func nameOf(t reflect.Type) string {
	if named, ok := reflect.New(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return "io." + strings.NewReplacer("k8s.io/", "k8s.", "/", ".").Replace(t.PkgPath()) + "." + t.Name()
}

func addType(found map[string]*definition, known map[string]json.RawMessage, t reflect.Type) (string, error) {
	name := nameOf(t)
	if found[name] != nil || known[name] != nil {
		return name, nil
	}
	d := &definition{Go: t.PkgPath() + "." + t.Name()}
	found[name] = d
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() {
			d.Meta = 1
			continue
		}
		json, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		proto := strings.Split(f.Tag.Get("protobuf"), ",")
		if json == "" || len(proto) < 2 {
			return "", fmt.Errorf("%s.%s has no name or number", name, f.Name)
		}
		number, err := strconv.Atoi(proto[1])
		if err != nil {
			return "", err
		}
		row := field{Name: json, Proto: number, Wire: proto[0]}
		if options == "omitempty" {
			row.Omit = "empty"
		}
		ft := f.Type
		if ft.Kind() == reflect.Pointer {
			row.Pointer, ft = 1, ft.Elem()
		}
		if row.Type, err = typeName(found, known, ft); err != nil {
			return "", fmt.Errorf("%s.%s: %w", name, f.Name, err)
		}
		d.Fields = append(d.Fields, row)
	}
	return name, nil
}

func typeName(found map[string]*definition, known map[string]json.RawMessage, t reflect.Type) (string, error) {
	switch t.Kind() {
	case reflect.String:
		return "string", nil
	case reflect.Struct:
		name, err := addType(found, known, t)
		return "ref:" + name, err
	case reflect.Slice:
		name, err := typeName(found, known, t.Elem())
		return "[]" + name, err
	}
	return "", fmt.Errorf("a %s", t)
}

// writeAggregated writes upstream's aggregated document of all groups in both forms, under both versions.
func writeAggregated(upstream, folder string) error {
	text, err := os.ReadFile(filepath.Join(upstream, "api", "discovery", "aggregated_v2.json"))
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	var lines bytes.Buffer
	for _, root := range roots {
		if err := json.Unmarshal(text, root); err != nil {
			return err
		}
		t := reflect.TypeOf(root).Elem()
		version := versionOf(t)
		root.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: t.Name()})
		var binary bytes.Buffer
		if err := protobuf.NewSerializer(scheme, scheme).Encode(root, &binary); err != nil {
			return err
		}
		plain, err := json.Marshal(root)
		if err != nil {
			return err
		}
		line, err := json.Marshal(map[string]any{"name": version, "json": string(plain), "proto": binary.Bytes()})
		if err != nil {
			return err
		}
		lines.Write(append(line, '\n'))
	}
	return writePacked(filepath.Join(folder, "aggregated.jsonl.gz"), lines.Bytes())
}
