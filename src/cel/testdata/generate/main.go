// Command generate writes CEL's published conformance cases, the cases of upstream's parser tests and
// the answers of Kubernetes' environment, as lines of JSON. It runs in its own folder and takes no arguments: `go run .`
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	expr "cel.dev/expr"
	_ "cel.dev/expr/conformance/proto2"
	_ "cel.dev/expr/conformance/proto3"
	conformance "cel.dev/expr/conformance/test"
	_ "github.com/google/cel-go/cel"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type object = map[string]any

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	specification, err := folder("cel.dev/expr")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(specification, "tests/simple/testdata/*.textproto"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll("../conformance", 0o755); err != nil {
		return err
	}
	total := 0
	for _, path := range files {
		count, err := convert(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Printf("%-16s %4d\n", strings.TrimSuffix(filepath.Base(path), ".textproto"), count)
		total += count
	}
	fmt.Printf("%-16s %4d\n", "all", total)
	upstream, err := folder("github.com/google/cel-go")
	if err != nil {
		return err
	}
	if err := harvest(filepath.Join(upstream, "parser/parser_test.go")); err != nil {
		return err
	}
	apiserver, err := folder("k8s.io/apiserver")
	if err != nil {
		return err
	}
	return ask(apiserver)
}

func folder(module string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	return strings.TrimSpace(string(out)), err
}

func write(path string, lines []object) error {
	var text strings.Builder
	for _, line := range lines {
		bytes, err := json.Marshal(line)
		if err != nil {
			return err
		}
		text.Write(bytes)
		text.WriteByte('\n')
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

func convert(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var file conformance.SimpleTestFile
	if err := prototext.Unmarshal(text, &file); err != nil {
		return 0, err
	}
	lines := []object{}
	for _, section := range file.Section {
		for _, test := range section.Test {
			lines = append(lines, caseOf(section.Name, test))
		}
	}
	name := strings.TrimSuffix(filepath.Base(path), ".textproto")
	return len(lines), write("../conformance/"+name+".jsonl", lines)
}

func caseOf(section string, test *conformance.SimpleTest) object {
	line := object{"name": section + "/" + test.Name, "expr": test.Expr}
	if test.Container != "" {
		line["container"] = test.Container
	}
	if test.DisableCheck {
		line["unchecked"] = true
	}
	if test.DisableMacros {
		line["no_macros"] = true
	}
	if test.CheckOnly {
		line["check_only"] = true
	}
	variables, functions := object{}, []object{}
	for _, declared := range test.TypeEnv {
		if ident := declared.GetIdent(); ident != nil {
			variables[declared.Name] = typeOf(ident.Type)
		}
		for _, overload := range declared.GetFunction().GetOverloads() {
			parameters := []string{}
			for _, parameter := range overload.Params {
				parameters = append(parameters, typeOf(parameter))
			}
			functions = append(functions, object{
				"name": declared.Name, "id": overload.OverloadId, "member": overload.IsInstanceFunction,
				"parameters": parameters, "result": typeOf(overload.ResultType),
			})
		}
	}
	if len(variables) > 0 {
		line["variables"] = variables
	}
	if len(functions) > 0 {
		line["functions"] = functions
	}
	bindings := object{}
	for name, bound := range test.Bindings {
		bindings[name] = valueOf(bound.GetValue())
	}
	if len(bindings) > 0 {
		line["bindings"] = bindings
	}
	switch result := test.ResultMatcher.(type) {
	case *conformance.SimpleTest_Value:
		line["value"] = valueOf(result.Value)
	case *conformance.SimpleTest_TypedResult:
		if result.TypedResult.Result != nil {
			line["value"] = valueOf(result.TypedResult.Result)
		}
		line["type"] = typeOf(result.TypedResult.DeducedType)
	case *conformance.SimpleTest_EvalError, *conformance.SimpleTest_AnyEvalErrors:
		line["error"] = true
	case nil:
		line["value"] = object{"bool": true}
	default:
		line["unknown"] = true
	}
	return line
}

func typeOf(t *expr.Type) string {
	switch kind := t.GetTypeKind().(type) {
	case *expr.Type_Dyn:
		return "dyn"
	case *expr.Type_Null:
		return "null"
	case *expr.Type_Primitive:
		return primitive(kind.Primitive)
	case *expr.Type_Wrapper:
		return "wrapper(" + primitive(kind.Wrapper) + ")"
	case *expr.Type_WellKnown:
		switch kind.WellKnown {
		case expr.Type_DURATION:
			return "duration"
		case expr.Type_TIMESTAMP:
			return "timestamp"
		}
		return "any"
	case *expr.Type_ListType_:
		return "list(" + typeOf(kind.ListType.ElemType) + ")"
	case *expr.Type_MapType_:
		return "map(" + typeOf(kind.MapType.KeyType) + ", " + typeOf(kind.MapType.ValueType) + ")"
	case *expr.Type_MessageType:
		return kind.MessageType
	case *expr.Type_TypeParam:
		return kind.TypeParam
	case *expr.Type_Type:
		if kind.Type.GetTypeKind() == nil {
			return "type"
		}
		return "type(" + typeOf(kind.Type) + ")"
	case *expr.Type_AbstractType_:
		parameters := []string{}
		for _, parameter := range kind.AbstractType.ParameterTypes {
			parameters = append(parameters, typeOf(parameter))
		}
		return kind.AbstractType.Name + "(" + strings.Join(parameters, ", ") + ")"
	}
	return "dyn"
}

func primitive(p expr.Type_PrimitiveType) string {
	switch p {
	case expr.Type_INT64:
		return "int"
	case expr.Type_UINT64:
		return "uint"
	}
	return strings.ToLower(p.String())
}

func valueOf(v *expr.Value) object {
	switch kind := v.GetKind().(type) {
	case *expr.Value_NullValue:
		return object{"null": true}
	case *expr.Value_BoolValue:
		return object{"bool": kind.BoolValue}
	case *expr.Value_Int64Value:
		return object{"int": strconv.FormatInt(kind.Int64Value, 10)}
	case *expr.Value_Uint64Value:
		return object{"uint": strconv.FormatUint(kind.Uint64Value, 10)}
	case *expr.Value_DoubleValue:
		return object{"double": strconv.FormatUint(math.Float64bits(kind.DoubleValue), 16)}
	case *expr.Value_StringValue:
		return object{"string": kind.StringValue}
	case *expr.Value_BytesValue:
		return object{"bytes": base64.StdEncoding.EncodeToString(kind.BytesValue)}
	case *expr.Value_TypeValue:
		return object{"type": kind.TypeValue}
	case *expr.Value_ListValue:
		values := []object{}
		for _, value := range kind.ListValue.Values {
			values = append(values, valueOf(value))
		}
		return object{"list": values}
	case *expr.Value_MapValue:
		entries := [][2]object{}
		for _, entry := range kind.MapValue.Entries {
			entries = append(entries, [2]object{valueOf(entry.Key), valueOf(entry.Value)})
		}
		return object{"map": entries}
	case *expr.Value_EnumValue:
		return object{"message": kind.EnumValue.Type}
	case *expr.Value_ObjectValue:
		return messageOf(kind.ObjectValue)
	}
	return object{"message": "unknown"}
}

func messageOf(any *anypb.Any) object {
	message, err := any.UnmarshalNew()
	if err != nil {
		return object{"message": any.TypeUrl}
	}
	switch m := message.(type) {
	case *durationpb.Duration:
		return object{"duration": strconv.FormatInt(int64(m.AsDuration()), 10)}
	case *timestamppb.Timestamp:
		return object{"timestamp": []string{strconv.FormatInt(m.Seconds, 10), strconv.Itoa(int(m.Nanos))}}
	case *wrapperspb.BoolValue:
		return object{"bool": m.Value}
	case *wrapperspb.Int32Value:
		return object{"int": strconv.Itoa(int(m.Value))}
	case *wrapperspb.Int64Value:
		return object{"int": strconv.FormatInt(m.Value, 10)}
	case *wrapperspb.UInt32Value:
		return object{"uint": strconv.Itoa(int(m.Value))}
	case *wrapperspb.UInt64Value:
		return object{"uint": strconv.FormatUint(m.Value, 10)}
	case *wrapperspb.DoubleValue:
		return object{"double": strconv.FormatUint(math.Float64bits(m.Value), 16)}
	case *wrapperspb.FloatValue:
		return object{"double": strconv.FormatUint(math.Float64bits(float64(m.Value)), 16)}
	case *wrapperspb.StringValue:
		return object{"string": m.Value}
	case *wrapperspb.BytesValue:
		return object{"bytes": base64.StdEncoding.EncodeToString(m.Value)}
	case *structpb.Value:
		return jsonOf(m.AsInterface())
	case *structpb.Struct:
		return jsonOf(m.AsMap())
	case *structpb.ListValue:
		return jsonOf(m.AsSlice())
	}
	return object{"message": string(message.ProtoReflect().Descriptor().FullName())}
}

func jsonOf(v any) object {
	switch value := v.(type) {
	case nil:
		return object{"null": true}
	case bool:
		return object{"bool": value}
	case float64:
		return object{"double": strconv.FormatUint(math.Float64bits(value), 16)}
	case string:
		return object{"string": value}
	case []any:
		values := []object{}
		for _, element := range value {
			values = append(values, jsonOf(element))
		}
		return object{"list": values}
	case map[string]any:
		names := []string{}
		for name := range value {
			names = append(names, name)
		}
		sort.Strings(names)
		entries := [][2]object{}
		for _, name := range names {
			entries = append(entries, [2]object{{"string": name}, jsonOf(value[name])})
		}
		return object{"map": entries}
	}
	return object{"message": "unknown"}
}

// harvest writes the cases of a table of upstream's tests whose fields are constants: I is the
// input, E the complaint, P the tree with its ids.
func harvest(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return err
	}
	lines := []object{}
	ast.Inspect(file, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		line := object{}
		for _, element := range literal.Elts {
			pair, ok := element.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			name, ok := pair.Key.(*ast.Ident)
			if !ok {
				continue
			}
			if name.Name == "Opts" {
				line["options"] = true
			}
			if text, ok := constant(pair.Value); ok {
				line[name.Name] = text
			}
		}
		if _, ok := line["I"]; ok {
			lines = append(lines, line)
		}
		return true
	})
	fmt.Printf("%-16s %4d\n", "parser tests", len(lines))
	return write("../parser.jsonl", lines)
}

func constant(node ast.Expr) (string, bool) {
	switch value := node.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(value.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, ok := constant(value.X)
		right, also := constant(value.Y)
		return left + right, ok && also && value.Op == token.ADD
	}
	return "", false
}
