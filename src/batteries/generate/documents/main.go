// Command documents writes what the server's documents are encoded with and checked against: the
// messages in which OpenAPI and aggregated discovery are sent as protobuf, and documents in both forms.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func main() {
	out := flag.String("out", "../../server/documents", "folder of the server's documents")
	data := flag.String("data", "../data", "folder of the generated data")
	flag.Parse()
	if err := write(*out, *data); err != nil {
		fmt.Fprintln(os.Stderr, "documents:", err)
		os.Exit(1)
	}
}

func write(out, data string) error {
	for name, messages := range map[string]protoreflect.MessageDescriptors{
		"messages.json":  openapi_v2.File_openapiv2_OpenAPIv2_proto.Messages(),
		"messages3.json": openapi_v3.File_openapiv3_OpenAPIv3_proto.Messages(),
	} {
		if err := writeMessages(filepath.Join(out, "openapi", name), messages); err != nil {
			return err
		}
	}
	if err := writeDiscovery(data); err != nil {
		return err
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return fmt.Errorf("where upstream's documents are: %w", err)
	}
	upstream, testdata := strings.TrimSpace(string(module)), filepath.Join(out, "testdata")
	if err := writeAggregated(upstream, testdata); err != nil {
		return err
	}
	return writeDocuments(upstream, testdata)
}

// writeMessages writes name to fields, each with name, number and type. A type in brackets is repeated;
// a message's begins with a colon.
func writeMessages(path string, messages protoreflect.MessageDescriptors) error {
	var b bytes.Buffer
	for i := range messages.Len() {
		message := messages.Get(i)
		fields := [][3]any{}
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			fields = append(fields, [3]any{field.Name(), field.Number(), fieldType(field)})
		}
		line, err := json.Marshal(fields)
		if err != nil {
			return err
		}
		b.WriteString(map[bool]string{true: "{\n", false: ",\n"}[i == 0])
		b.WriteString(`"` + string(message.Name()) + `":`)
		b.Write(line)
	}
	b.WriteString("\n}\n")
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func fieldType(field protoreflect.FieldDescriptor) string {
	name := field.Kind().String()
	if message := field.Message(); message != nil {
		name = ":" + string(message.Name())
	}
	if field.IsList() {
		return "[" + name + "]"
	}
	return name
}
