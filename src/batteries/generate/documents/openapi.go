package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/kube-openapi/pkg/handler3"
)

// extremes are schemas with what upstream's own documents have none of: values of all types where any
// value may stand, zeros, alternatives, texts that YAML quotes.
const extremes = `{"components":{"schemas":{"a":{"type":"object","minimum":0,"maximum":1.5,"maxLength":0,"minItems":2,
"nullable":false,"default":{"a":1},"additionalProperties":false,"x-b":{"c":[1,2.5,"true","",null,[["d"],{"e":[]}],{"f":{},"g":"yes no"}]},
"properties":{"x-y":{"type":"string","default":"","enum":["","null","1","a b","a: b","- a","#","'","\"","2001-01-01","~","a\nb\n"," a","é"]},
"of":{"oneOf":[{"type":"string"},{"$ref":"#/components/schemas/a"}],"default":0},"not":{"not":{"required":["a"]},"default":false},
"items":{"type":"array","items":{"type":"integer","default":-3,"format":"int64","example":[1]},"default":[]}}}}},
"info":{"title":"a","version":"b"},"openapi":"3.0.0","paths":{"/a/":{"get":{"responses":{"200":{"description":"a"},"default":{"description":"b"}},
"parameters":[{"in":"query","name":"a","schema":{"type":"string","uniqueItems":true}},{"$ref":"#/components/parameters/b"}],
"x-kubernetes-action":"get","deprecated":true,"tags":["a"]}}}}`

// published are documents of upstream that together have all members that it uses.
var published = []string{"apis__apps__v1", "apis__apiextensions.k8s.io__v1", "apis__resource.k8s.io__v1", "version"}

// writeDocuments writes documents of both versions, without descriptions, as JSON and as upstream's
// library encodes them.
func writeDocuments(upstream, folder string) error {
	specs := filepath.Join(upstream, "api", "openapi-spec")
	var lines bytes.Buffer
	write := func(version int, name string, text []byte, encode func([]byte) ([]byte, error)) error {
		binary, err := encode(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		line, err := json.Marshal(map[string]any{"v": version, "name": name, "json": string(text), "proto": binary})
		lines.Write(append(line, '\n'))
		return err
	}
	// With sorted keys, as all documents of the server have them.
	var rare any
	if err := json.Unmarshal([]byte(extremes), &rare); err != nil {
		return err
	}
	sorted, err := json.Marshal(rare)
	if err != nil {
		return err
	}
	if err := write(3, "extremes", sorted, handler3.ToV3ProtoBinary); err != nil {
		return err
	}
	for _, name := range published {
		text, err := withoutProse(filepath.Join(specs, "v3", name+"_openapi.json"))
		if err != nil {
			return err
		}
		if err := write(3, name, text, handler3.ToV3ProtoBinary); err != nil {
			return err
		}
	}
	if err := writeSecond(specs, write); err != nil {
		return err
	}
	return writePacked(filepath.Join(folder, "documents.jsonl.gz"), lines.Bytes())
}

func writePacked(path string, lines []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var packed bytes.Buffer
	zipper, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := zipper.Write(lines); err != nil {
		return err
	}
	if err := zipper.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}

// writeSecond writes the definitions and paths of one group from the document of version 2.
func writeSecond(specs string, write func(int, string, []byte, func([]byte) ([]byte, error)) error) error {
	text, err := withoutProse(filepath.Join(specs, "swagger.json"))
	if err != nil {
		return err
	}
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		return err
	}
	keep := func(member string, prefixes ...string) {
		maps.DeleteFunc(document[member].(map[string]any), func(name string, _ any) bool {
			return !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		})
	}
	keep("definitions", "io.k8s.api.apps.", "io.k8s.apiextensions-apiserver.", "io.k8s.apimachinery.")
	keep("paths", "/apis/apps/", "/version/")
	if text, err = json.Marshal(document); err != nil {
		return err
	}
	return write(2, "swagger", text, func(text []byte) ([]byte, error) {
		parsed, err := openapi_v2.ParseDocument(text)
		if err != nil {
			return nil, err
		}
		return proto.Marshal(parsed)
	})
}

// withoutProse reads a document and empties its descriptions: those of responses must be there.
func withoutProse(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	strip(document)
	return json.Marshal(document)
}

func strip(value any) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			strip(item)
		}
	case map[string]any:
		if _, text := value["description"].(string); text {
			value["description"] = "-"
		}
		for _, member := range value {
			strip(member)
		}
	}
}
