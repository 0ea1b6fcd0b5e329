package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// runOpenAPI writes the messages in which OpenAPI version 2 is sent as protobuf: name to fields,
// each with name, number and type. A type in brackets is repeated; a message's begins with a colon.
func runOpenAPI(arguments []string) error {
	flags := flag.NewFlagSet("openapi", flag.ContinueOnError)
	out := flags.String("out", "../../server/documents/openapi/messages.json", "file to write")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var b bytes.Buffer
	messages := openapi_v2.File_openapiv2_OpenAPIv2_proto.Messages()
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
	return os.WriteFile(*out, b.Bytes(), 0o644)
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
