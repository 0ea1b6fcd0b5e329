package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	yaml "go.yaml.in/yaml/v2"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// writeBuiltIn writes the schemas by which upstream merges built-in kinds: made by its own converter
// from the definitions that it publishes, which are vectors of apimachinery.
func writeBuiltIn(out string) {
	f := must(os.Open(filepath.Join(out, "../../apimachinery/testdata/openapi.jsonl.gz")))
	defer f.Close()
	scanner := bufio.NewScanner(must(gzip.NewReader(f)))
	scanner.Buffer(nil, 1<<26)
	models := map[string]*spec.Schema{}
	for scanner.Scan() {
		var row struct {
			Name   string
			V      int
			Schema json.RawMessage
		}
		if err := json.Unmarshal(scanner.Bytes(), &row); err != nil {
			panic(err)
		}
		if row.V == 3 {
			model := &spec.Schema{}
			if err := json.Unmarshal(row.Schema, model); err != nil {
				panic(err)
			}
			models[row.Name] = model
		}
	}
	schema := must(schemaconv.ToSchemaFromOpenAPI(models, false))
	var types []any
	for _, definition := range schema.Types {
		var tree any
		if err := yaml.Unmarshal(must(yaml.Marshal(definition)), &tree); err != nil {
			panic(err)
		}
		types = append(types, plain(tree))
	}
	sort.Slice(types, func(i, j int) bool {
		return types[i].(map[string]any)["name"].(string) < types[j].(map[string]any)["name"].(string)
	})
	g := must(os.Create(filepath.Join(out, "built_in.jsonl.gz")))
	defer g.Close()
	w := must(gzip.NewWriterLevel(g, gzip.BestCompression))
	fmt.Fprintln(w, string(must(json.Marshal(map[string]any{"op": "schema", "id": "built-in", "types": types}))))
	if err := w.Close(); err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stderr, "built_in types", len(types))
}

// plain makes the maps of YAML those of JSON, with fields in order.
func plain(v any) any {
	switch t := v.(type) {
	case map[any]any:
		out := map[string]any{}
		for k, v := range t {
			out[fmt.Sprint(k)] = plain(v)
		}
		return out
	case []any:
		out := make([]any, len(t))
		for i, v := range t {
			out[i] = plain(v)
		}
		sort.SliceStable(out, func(i, j int) bool { return name(out[i]) < name(out[j]) })
		return out
	}
	return v
}

func name(v any) string {
	if m, ok := v.(map[string]any); ok {
		if text, ok := m["name"].(string); ok {
			return text
		}
	}
	return ""
}
