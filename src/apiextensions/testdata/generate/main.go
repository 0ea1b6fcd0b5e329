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

// recorded is a package whose tests run, with the functions that record.
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
	{"pkg/jsonpath", "jsonpath", []function{
		{"jsonpath.go", "(j *JSONPath) ", "Execute", "execute"},
		{"parser.go", "", "Parse", "parse"},
	}},
}

// files are the vector files with the operations in them.
var files = map[string][]string{
	"rules": {"rules"}, "costs": {"compile"}, "values": {"values"}, "schemas": {"structural", "defaults"}, "columns": {"path", "cells"},
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
	command := []string{"test", "-vet=off", "-count=1", "-p=1"}
	for _, tested := range packages {
		for _, renamed := range tested.functions {
			if err := rename(filepath.Join(root, tested.folder, renamed.file), renamed); err != nil {
				return err
			}
		}
		if err := place(root, tested.recorder, filepath.Join(tested.folder, "zz_record.go")); err != nil {
			return err
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
	return write(flags.Arg(0), records)
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
func write(out, records string) error {
	file, err := os.Open(records)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<26)
	seen := map[string]bool{}
	byOperation, alike := map[string][]string{}, map[string]int{}
	for lines.Scan() {
		// The number in the name of a type is a time.
		line := selfType.ReplaceAllString(lines.Text(), "selfType")
		var head struct{ Op, From string }
		if err := json.Unmarshal([]byte(line), &head); err != nil {
			return err
		}
		if key := head.Op + head.From; !seen[line] && (head.Op != "structural" || alike[key] < alikeMax) {
			alike[key]++
			byOperation[head.Op] = append(byOperation[head.Op], line)
		}
		seen[line] = true
	}
	if err := lines.Err(); err != nil {
		return err
	}
	for name, operations := range files {
		var buffer bytes.Buffer
		compressor, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
		if err != nil {
			return err
		}
		for _, operation := range operations {
			chosen := byOperation[operation]
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
	return nil
}
