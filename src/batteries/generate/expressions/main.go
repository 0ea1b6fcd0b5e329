// Command expressions writes what upstream's compilers say of the expressions in upstream's tests: of admission
// policies and webhooks, and of devices. It runs in the folder above: `go run ./expressions`.
package main

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"

	celgo "github.com/google/cel-go/cel"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// line is one question and its answer.
type line struct {
	Scope      string `json:"scope"`
	Expression string `json:"expr"`
	// Error is the complaint; empty if there is none.
	Error string `json:"error,omitempty"`
	// Type is the type of the result, Cost the most that an evaluation costs.
	Type string `json:"type,omitempty"`
	Cost string `json:"cost,omitempty"`
}

// condition is an expression with the types that it may make.
type condition struct {
	text  string
	types []*celgo.Type
}

func (c condition) GetExpression() string      { return c.text }
func (c condition) ReturnTypes() []*celgo.Type { return c.types }

// scopes are the places of expressions in policies and webhooks.
var scopes = []struct {
	name  string
	uses  plugincel.OptionalVariableDeclarations
	types []*celgo.Type
}{
	{"webhook", plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, []*celgo.Type{celgo.BoolType}},
	{"validation", plugincel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true}, []*celgo.Type{celgo.BoolType}},
	{"message", plugincel.OptionalVariableDeclarations{HasParams: true}, []*celgo.Type{celgo.StringType}},
	{"annotation", plugincel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true}, []*celgo.Type{celgo.StringType, celgo.NullType}},
	{"variable", plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, []*celgo.Type{celgo.AnyType, celgo.DynType}},
	{"apply", plugincel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true, HasPatchTypes: true}, []*celgo.Type{celgo.ObjectType("Object")}},
	{"patch", plugincel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true, HasPatchTypes: true}, []*celgo.Type{celgo.ListType(celgo.ObjectType("JSONPatch"))}},
}

// variables are defined before the expressions of these scopes.
var variables = [][2]string{
	{"replicas", "1"}, {"names", "['a']"}, {"labels", "{'a': 'b'}"}, {"size", "quantity('1')"},
	{"user", "request.userInfo"}, {"anything", "object.spec"}, {"broken", "1 +"}, {"foo", "'text'"}, {"bar", "variables.foo"},
}

func main() {
	out := flag.String("out", "../tests/expressions", "folder to write to")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	policies, err := harvest(regexp.MustCompile(`object|request\.|params|authorizer|variables\.|namespaceObject|JSONPatch|Object`),
		"k8s.io/apiserver", "pkg/admission/plugin/cel", "pkg/admission/plugin/policy", "pkg/admission/plugin/webhook",
		"k8s.io/kubernetes", "pkg/apis/admissionregistration/validation", "test/integration/apiserver/cel")
	if err != nil {
		return err
	}
	if err := write(filepath.Join(out, "admission.jsonl.gz"), admission(policies)); err != nil {
		return err
	}
	about, err := harvest(regexp.MustCompile(`device`), "k8s.io/dynamic-resource-allocation", "cel",
		"k8s.io/kubernetes", "pkg/apis/resource/validation")
	if err != nil {
		return err
	}
	return write(filepath.Join(out, "devices.jsonl.gz"), devices(about))
}

func admission(expressions []string) []line {
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		panic(err)
	}
	alone := plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	for _, variable := range variables {
		compiler.CompileAndStoreVariable(named{condition{variable[1], scopes[4].types}, variable[0]}, scopes[4].uses, environment.NewExpressions)
	}
	lines := []line{}
	for _, expression := range expressions {
		for number, scope := range scopes {
			asked := plugincel.Compiler(compiler)
			if number == 0 {
				asked = alone
			}
			answer := asked.CompileCELExpression(condition{expression, scope.types}, scope.uses, environment.NewExpressions)
			found := line{Scope: scope.name, Expression: expression}
			if answer.Error != nil {
				found.Error = answer.Error.Detail
			} else {
				found.Type = answer.OutputType.String()
			}
			lines = append(lines, found)
		}
	}
	return lines
}

type named struct {
	condition
	name string
}

func (n named) GetName() string { return n.name }

func devices(expressions []string) []line {
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})
	mode := environment.NewExpressions
	lines := []line{}
	for _, expression := range expressions {
		for _, derived := range []bool{false, true} {
			answer := compiler.CompileCELExpression(expression, dracel.Options{EnvType: &mode, DerivedAttribute: derived})
			found := line{Scope: map[bool]string{false: "selector", true: "attribute"}[derived], Expression: expression}
			if answer.Error != nil {
				found.Error = answer.Error.Detail
			} else {
				found.Cost = strconv.FormatUint(answer.MaxCost, 10)
			}
			lines = append(lines, found)
		}
	}
	return lines
}

// harvest returns the texts in tests that a pattern finds, and each with one word changed. Of the arguments, one
// with a dot is a module, and those that follow are its folders.
func harvest(pattern *regexp.Regexp, places ...string) ([]string, error) {
	found, root := map[string]bool{}, ""
	for _, place := range places {
		if strings.Contains(place, ".") {
			dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", place).Output()
			if err != nil {
				return nil, err
			}
			root = strings.TrimSpace(string(dir))
			continue
		}
		if err := filepath.WalkDir(filepath.Join(root, place), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			return texts(path, pattern, found)
		}); err != nil {
			return nil, err
		}
	}
	sorted := []string{}
	for text := range found {
		sorted = append(sorted, text)
	}
	sort.Strings(sorted)
	for number, text := range sorted {
		if changed := broken(number, text); !found[changed] {
			found[changed] = true
			sorted = append(sorted, changed)
		}
	}
	return sorted, nil
}

func texts(path string, pattern *regexp.Regexp, found map[string]bool) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(node ast.Node) bool {
		literal, ok := node.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(literal.Value)
		text = strings.TrimSpace(text)
		// What has a colon and a space is a message, and what has %v a format.
		if err == nil && len(text) < 1500 && pattern.MatchString(text) && !strings.Contains(text, "ERROR") && !strings.Contains(text, "%v") {
			found[text] = true
		}
		return true
	})
	return nil
}

var words = regexp.MustCompile(`[A-Za-z_0-9]+|'[^']*'|"[^"]*"|\S`)

// broken takes one word out of an expression, or puts another one in its place.
func broken(number int, expression string) string {
	substitutes := []string{"x", "1", "'s'", "true", "object", "spec", "[1]", "null"}
	places := words.FindAllStringIndex(expression, -1)
	if len(places) == 0 {
		return expression
	}
	place := places[(number*7+len(expression))%len(places)]
	return expression[:place[0]] + substitutes[number%len(substitutes)] + expression[place[1]:]
}

func write(path string, lines []line) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	packed, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(packed)
	encoder.SetEscapeHTML(false)
	accepted := 0
	for _, line := range lines {
		if line.Error == "" {
			accepted++
		}
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	fmt.Printf("%-24s %5d, %d accepted\n", filepath.Base(path), len(lines), accepted)
	return packed.Close()
}
