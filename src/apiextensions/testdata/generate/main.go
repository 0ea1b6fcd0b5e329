// Command generate runs upstream's own tests of custom kinds in a copy of the module, and writes
// what they call, and what comes back, as vectors: one JSON object per line, gzipped.
//
// Usage: go run . [--work FOLDER] <folder of the vectors>
//
// It renames the functions under test in the copy, and puts functions of the old names beside them
// that call and record. Nothing of upstream's code is kept.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

const (
	module = "k8s.io/apiextensions-apiserver"
	client = "k8s.io/client-go"
	// release is the version of both that Kubernetes 1.37 has.
	release = "v0.37.0"
	// suffix is what the names of functions get that are recorded.
	suffix = "Unrecorded"
)

//go:embed recorders
var recorders embed.FS

// recorded is a package whose tests run, with the functions that record, if any.
type recorded struct {
	folder, recorder string
	functions        []function
}

// function is a function or a method, in a file of its package.
type function struct{ file, receiver, name, renamed string }

var packages = []recorded{
	{"pkg/apiserver/schema/cel", "cel", []function{
		{"validation.go", "", "validator", "validator"},
		{"validation.go", "(s *Validator) ", "Validate", "validate"},
		{"compilation.go", "", "Compile", "compile"},
		{"validation.go", "", "ValidFieldPath", "validFieldPath"},
	}},
	{"pkg/apiserver/validation", "validation", []function{
		{"ratcheting.go", "(r *RatchetingSchemaValidator) ", "Validate", "validate"},
		{"ratcheting.go", "(r *RatchetingSchemaValidator) ", "ValidateUpdate", "validateUpdate"},
	}},
	{"pkg/apiserver/schema", "schema", []function{
		{"validation.go", "", "validateStructuralMetadataInvariants", "validateStructuralMetadataInvariants"},
		{"complete.go", "", "validateStructuralCompleteness", "validateStructuralCompleteness"},
	}},
	{"pkg/apiserver/schema/defaulting", "defaulting", []function{
		{"validation.go", "", "validate", "validate"},
	}},
	{"pkg/registry/customresource/tableconvertor", "tableconvertor", []function{
		{"tableconvertor.go", "(c *convertor) ", "ConvertToTable", "convertToTable"},
	}},
	{"pkg/apis/apiextensions/validation", "definition", []function{
		{"validation.go", "", "ValidateCustomResourceDefinition", "ValidateCustomResourceDefinition"},
		{"validation.go", "", "ValidateCustomResourceDefinitionUpdate", "ValidateCustomResourceDefinitionUpdate"},
		{"validation.go", "", "validateCustomResourceDefinitionUpdate", "validateCustomResourceDefinitionUpdate"},
		{"validation.go", "", "validateCustomResourceDefinitionValidation", "validateCustomResourceDefinitionValidation"},
		{"validation.go", "", "ValidateCustomResourceDefinitionStoredVersions", "ValidateCustomResourceDefinitionStoredVersions"},
		{"validation.go", "", "validateDeprecationWarning", "validateDeprecationWarning"},
		{"validation.go", "", "ValidateCustomResourceDefinitionOpenAPISchema", "ValidateCustomResourceDefinitionOpenAPISchema"},
	}},
	{"pkg/registry/customresourcedefinition", "strategy", []function{
		{"strategy.go", "(strategy) ", "Validate", "validate"},
		{"strategy.go", "(strategy) ", "ValidateUpdate", "validateUpdate"},
		{"strategy.go", "(strategy) ", "WarningsOnCreate", "warningsOnCreate"},
		{"strategy.go", "(strategy) ", "WarningsOnUpdate", "warningsOnUpdate"},
	}},
	{"pkg/registry/customresource", "customresource", []function{
		{"strategy.go", "(a customResourceStrategy) ", "PrepareForUpdate", "prepareForUpdate"},
		{"strategy.go", "(a customResourceStrategy) ", "selectableFields", "selectableFields"},
		{"status_strategy.go", "(a statusStrategy) ", "PrepareForUpdate", "prepareForUpdate"},
		{"status_strategy.go", "(a statusStrategy) ", "ValidateUpdate", "validateUpdate"},
		{"validator.go", "(a customResourceValidator) ", "Validate", "validate"},
	}},
	{"pkg/controller/establish", "establish", nil},
	{"pkg/controller/status", "status", []function{
		{"naming_controller.go", "(c *NamingConditionController) ", "calculateNamesAndConditions", "calculateNamesAndConditions"},
	}},
	{"pkg/controller/nonstructuralschema", "nonstructuralschema", []function{
		{"nonstructuralschema_controller.go", "", "calculateCondition", "calculateCondition"},
	}},
	{"pkg/controller/apiapproval", "apiapproval", []function{
		{"apiapproval_controller.go", "", "calculateCondition", "calculateCondition"},
	}},
	{"pkg/apiserver/schema/objectmeta", "objectmeta", []function{
		{"validation.go", "", "Validate", "Validate"},
		{"validation.go", "", "validateEmbeddedResource", "validateEmbeddedResource"},
	}},
	// The cases of these are counted only.
	{"pkg/apiserver/schema/listtype", "", nil},
	{"pkg/apiserver/schema/pruning", "", nil},
	{"pkg/apiserver/conversion", "", nil},
	{"pkg/apihelpers", "", nil},
	{"pkg/registry/customresourcedefinition/tableconvertor", "", nil},
	{"pkg/jsonpath", "jsonpath", []function{
		{"jsonpath.go", "(j *JSONPath) ", "Execute", "execute"},
		{"parser.go", "", "Parse", "parse"},
	}},
}

// files are the vector files with the operations in them.
var files = map[string][]string{
	"rules": {"rules"}, "costs": {"compile"}, "values": {"values"}, "schemas": {"structural", "defaults"}, "columns": {"path", "cells"},
	"definitions": {"definition"}, "names": {"names", "condition"}, "field_paths": {"field_path"}, "embedded": {"embedded"}, "objects": {"prepare", "validate", "selectable"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("generate", flag.ContinueOnError)
	work := flags.String("work", "", "folder for the copy, which is kept; default a new one, which is not")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *work == "" {
		made, err := os.MkdirTemp("", "definitions")
		if err != nil {
			return err
		}
		defer os.RemoveAll(made)
		*work = made
	}
	root := filepath.Join(*work, "module")
	if err := copyModules(root); err != nil {
		return err
	}
	if err := place(root, "record", "pkg/record/record.go"); err != nil {
		return err
	}
	// One case at a time: a call belongs to the case that began last.
	command := []string{"test", "-vet=off", "-count=1", "-p=1", "-parallel=1"}
	for _, tested := range packages {
		if err := markCases(filepath.Join(root, tested.folder)); err != nil {
			return err
		}
		for _, renamed := range tested.functions {
			if err := rename(filepath.Join(root, tested.folder, renamed.file), renamed); err != nil {
				return err
			}
		}
		if tested.recorder != "" {
			if err := place(root, tested.recorder, filepath.Join(tested.folder, "zz_record.go")); err != nil {
				return err
			}
		}
		command = append(command, "./"+tested.folder)
	}
	records := filepath.Join(*work, "records.jsonl")
	if err := os.RemoveAll(records); err != nil {
		return err
	}
	test := exec.Command("go", command...)
	test.Dir = root
	test.Env = append(os.Environ(), "GENERATE_RECORDS="+records, "GOFLAGS=-mod=mod")
	test.Stdout, test.Stderr = os.Stderr, os.Stderr
	if err := test.Run(); err != nil {
		return fmt.Errorf("run upstream's tests: %w", err)
	}
	answers := filepath.Join(*work, "answers.jsonl")
	if err := answer(root, records, answers); err != nil {
		return err
	}
	return write(flags.Arg(0), records, answers)
}

// answer asks the copy what a server answers to the definitions of the records.
func answer(root, records, answers string) error {
	if err := place(root, "answer", "pkg/answer/main.go"); err != nil {
		return err
	}
	program := exec.Command("go", "run", "./pkg/answer", records, answers)
	program.Dir = root
	program.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	program.Stdout, program.Stderr = os.Stderr, os.Stderr
	if err := program.Run(); err != nil {
		return fmt.Errorf("answer definitions: %w", err)
	}
	return nil
}

// copyModules copies the module and, into it, the package of paths.
func copyModules(root string) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	for _, from := range []struct{ module, folder, to string }{
		{module, ".", "."}, {client, "util/jsonpath", "pkg/jsonpath"},
	} {
		source, err := moduleFolder(from.module)
		if err != nil {
			return err
		}
		to := filepath.Join(root, from.to)
		if err := os.CopyFS(to, os.DirFS(filepath.Join(source, from.folder))); err != nil {
			return err
		}
	}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o755)
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"tableconvertor.go", "tableconvertor_test.go"} {
		path := filepath.Join(root, "pkg/registry/customresource/tableconvertor", name)
		err := edit(path, regexp.MustCompile(`"k8s.io/client-go/util/jsonpath"`), `"`+module+`/pkg/jsonpath"`)
		if err != nil {
			return err
		}
	}
	return nil
}

func moduleFolder(name string) (string, error) {
	out, err := exec.Command("go", "mod", "download", "-json", name+"@"+release).Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	var found struct{ Dir string }
	return found.Dir, json.Unmarshal(out, &found)
}

func rename(path string, named function) error {
	head := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(named.receiver+named.name) + `\(`)
	return edit(path, head, "func "+named.receiver+named.renamed+suffix+"(")
}

func edit(path string, wanted *regexp.Regexp, by string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !wanted.Match(text) {
		return fmt.Errorf("%s has no %s", path, wanted)
	}
	return os.WriteFile(path, wanted.ReplaceAllLiteral(text, []byte(by)), 0o644)
}

func place(root, name, target string) error {
	text, err := recorders.ReadFile("recorders/" + name + ".go.txt")
	if err != nil {
		return err
	}
	target = filepath.Join(root, target)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, text, 0o644)
}

// alikeMax bounds the lines of one test about structural schemas, some of which upstream draws at random.
const alikeMax = 200

var selfType = regexp.MustCompile(`selfType\d+`)

// write sorts the records into files. The same call counts once.
func write(out, records, answers string) error {
	all := collected{seen: map[string]bool{}, lines: map[string][]string{}, alike: map[string]int{}, cases: map[string]*tally{}}
	for _, name := range []string{records, answers} {
		if err := all.read(name, name == answers); err != nil {
			return err
		}
	}
	for name, operations := range files {
		var buffer bytes.Buffer
		compressor, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
		if err != nil {
			return err
		}
		for _, operation := range operations {
			chosen := all.lines[operation]
			sort.Strings(chosen)
			fmt.Fprintf(os.Stderr, "%s %s: %d\n", name, operation, len(chosen))
			fmt.Fprintln(compressor, strings.Join(chosen, "\n"))
		}
		if err := compressor.Close(); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, name+".jsonl.gz"), buffer.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, "cases.tsv"), []byte(all.table()), 0o644)
}

// tally counts the cases of a test, and those of them that call a recorded function.
type tally struct{ cases, called int }

// collected is what the records have: lines by operation, and the cases of each test.
type collected struct {
	seen  map[string]bool
	lines map[string][]string
	alike map[string]int
	cases map[string]*tally
}

// read reads a file of records, or the answers to the definitions in it.
func (c *collected) read(name string, answered bool) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<26)
	var current *tally
	for lines.Scan() {
		// The number in the name of a type is a time.
		line := selfType.ReplaceAllString(lines.Text(), "selfType")
		var head struct{ Op, From string }
		if err := json.Unmarshal([]byte(line), &head); err != nil {
			return err
		}
		if head.Op == "case" {
			if c.cases[head.From] == nil {
				c.cases[head.From] = &tally{}
			}
			current = c.cases[head.From]
			current.cases++
			continue
		}
		if current != nil {
			current.called++
			current = nil
		}
		if head.Op == "definition" && !answered {
			continue
		}
		if key := head.Op + head.From; !c.seen[line] && (head.Op != "structural" || c.alike[key] < alikeMax) {
			c.alike[key]++
			c.lines[head.Op] = append(c.lines[head.Op], line)
		}
		c.seen[line] = true
	}
	return lines.Err()
}

// table is a line for each test: its name, its cases, and those that call a recorded function.
func (c *collected) table() string {
	names := make([]string, 0, len(c.cases))
	for name := range c.cases {
		names = append(names, name)
	}
	sort.Strings(names)
	var out strings.Builder
	for _, name := range names {
		fmt.Fprintf(&out, "%s\t%d\t%d\n", name, c.cases[name].cases, c.cases[name].called)
	}
	return out.String()
}
