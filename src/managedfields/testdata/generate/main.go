// Command generate runs the tests of structured-merge-diff and of field management in apimachinery,
// and writes what they call, and what comes
// back, as vectors: one JSON object per line, gzipped.
//
// Usage: go run . <folder of the vectors> [smd|built-in|apimachinery]
//
// It copies each module into a temporary folder, renames the functions under test there, and puts
// functions of the old names beside them that call and record. Nothing of upstream's code is kept.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

// module is the version that Kubernetes 1.37 uses.
const module = "sigs.k8s.io/structured-merge-diff/v6@v6.4.2"

//go:embed recorders
var recorders embed.FS

// renamed lists, per file, functions that get another name because a recording one takes theirs.
var renamed = map[string][][2]string{
	"fieldpath/set.go": {
		{"Union", "union"}, {"Intersection", "intersection"}, {"Difference", "difference"},
		{"RecursiveDifference", "recursiveDifference"}, {"Leaves", "leaves"},
		{"EnsureNamedFieldsAreMembers", "ensureNamedFieldsAreMembers"},
		{"FilterIncludeMatches", "filterIncludeMatches"}, {"Has", "has"}, {"String", "string"},
		{"Equals", "equals"}, {"NewIncludeMatcherFilter", "newIncludeMatcherFilter"},
	},
	"fieldpath/serialize.go":    {{"ToJSON", "toJSON"}, {"FromJSON", "fromJSON"}},
	"fieldpath/serialize-pe.go": {{"DeserializePathElement", "deserializePathElement"}, {"SerializePathElement", "serializePathElement"}},
	"fieldpath/element.go":      {{"Compare", "compare"}},
	"fieldpath/path.go":         {{"String", "string"}},
	"fieldpath/managers.go":     {{"Difference", "difference"}},
	"typed/typed.go": {
		{"AsTyped", "asTyped"}, {"ToFieldSet", "toFieldSet"}, {"Merge", "mergeWith"}, {"Compare", "compareWith"},
		{"RemoveItems", "removeItems"}, {"ExtractItems", "extractItems"},
	},
	"typed/reconcile_schema.go": {{"ReconcileFieldSetWithSchema", "reconcileFieldSetWithSchema"}},
	"merge/update.go":           {{"Update", "updateObject"}, {"Apply", "applyObject"}},
	"merge/conflict.go":         {{"Error", "error"}},
	"value/value.go":            {{"Compare", "compare"}, {"Equals", "equals"}},
}

// receivers lists the types whose methods are renamed; functions have none.
var receivers = map[string]string{
	"fieldpath/set.go": `\(s \*Set\) `, "fieldpath/serialize.go": `\(s \*Set\) `, "fieldpath/element.go": `\(e PathElement\) `,
	"fieldpath/path.go": `\(fp Path\) `, "fieldpath/managers.go": `\(lhs ManagedFields\) `, "typed/typed.go": `\(tv TypedValue\) `,
	"merge/update.go": `\(s \*Updater\) `, "merge/conflict.go": `\(conflicts Conflicts\) `,
}

func main() {
	out := os.Args[1]
	if len(os.Args) > 2 {
		map[string]func(string){
			"built-in": writeBuiltIn, "smd": harvest, "apimachinery": harvestApimachinery,
		}[os.Args[2]](out)
		return
	}
	harvest(out)
	writeBuiltIn(out)
	harvestApimachinery(out)
}

// harvest runs the tests of structured-merge-diff.
func harvest(out string) {
	folder := must(os.MkdirTemp("", "smd"))
	defer os.RemoveAll(folder)
	copyModule(module, folder)
	for name, functions := range renamed {
		rename(filepath.Join(folder, name), receivers[name], functions)
	}
	place(folder, "record", "internal/record/record.go")
	for _, name := range []string{"fieldpath", "typed", "merge", "value"} {
		place(folder, name, name+"/zz_record.go")
	}
	raw := filepath.Join(folder, "recorded.jsonl")
	test := exec.Command("go", "test", "-count=1", "./fieldpath/...", "./typed/...", "./merge/...", "./value/...")
	test.Dir = folder
	test.Env = append(os.Environ(), "SMD_RECORD="+raw, "GOFLAGS=-mod=mod")
	test.Stdout, test.Stderr = os.Stderr, os.Stderr
	if err := test.Run(); err != nil {
		panic(fmt.Errorf("upstream's tests: %w", err))
	}
	write(out, must(os.ReadFile(raw)))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// moduleFolder returns the folder in which Go keeps a module of a version.
func moduleFolder(module string) string {
	var found struct{ Dir string }
	if err := json.Unmarshal(must(exec.Command("go", "mod", "download", "-json", module).Output()), &found); err != nil {
		panic(err)
	}
	return found.Dir
}

func copyModule(name, to string) {
	from := moduleFolder(name)
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return os.WriteFile(target, must(os.ReadFile(path)), 0o644)
	})
	if err != nil {
		panic(err)
	}
}

func rename(path, receiver string, functions [][2]string) {
	text := must(os.ReadFile(path))
	for _, names := range functions {
		old, new := names[0], names[1]
		declared := regexp.MustCompile(`(?m)^func (` + receiver + `)?` + old + `\(`)
		if !declared.Match(text) {
			panic(path + ": no function " + old)
		}
		text = declared.ReplaceAll(text, []byte("func ${1}"+new+"("))
		// Calls for the parts of a set are not of interest.
		text = regexp.MustCompile(`\.set\.`+old+`\(`).ReplaceAll(text, []byte(".set."+new+"("))
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		panic(err)
	}
}

func place(folder, name, target string) {
	text := must(recorders.ReadFile("recorders/" + name + ".go.txt"))
	target = filepath.Join(folder, target)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(target, text, 0o644); err != nil {
		panic(err)
	}
}

// files lists the vector files and the operations in them.
var files = map[string][]string{
	"sets":       {"union", "intersection", "difference", "recursive_difference", "leaves", "include", "patterns", "has", "equals", "set_text", "managers_difference"},
	"serialize":  {"write", "read", "read_element", "write_element", "order", "path_text", "value_order", "value_equals", "conflicts_text"},
	"objects":    {"validate", "field_set", "merge", "compare", "remove", "extract", "reconcile", "named"},
	"operations": {"update", "apply"},
}

// perOperationMax bounds the lines of an operation: the tests call some of them very often.
const perOperationMax = 2000

func write(out string, recorded []byte) {
	lines := map[string][]string{}
	schemas := map[string]string{}
	scanner := bufio.NewScanner(bytes.NewReader(recorded))
	scanner.Buffer(nil, 1<<26)
	seen := map[string]bool{}
	for scanner.Scan() {
		line := scanner.Text()
		if seen[line] {
			continue
		}
		seen[line] = true
		if strings.Contains(line, "[\"none\"]") || strings.Contains(line, "no type found matching") {
			continue // an element or a schema that cannot be made elsewhere
		}
		if strings.Contains(line, `\"time\"`) {
			continue // the key of a manager, which never has a time outside of tests
		}
		var head struct{ Op, ID string }
		if err := json.Unmarshal([]byte(line), &head); err != nil {
			panic(err)
		}
		if head.Op == "schema" {
			schemas[head.ID] = line
			continue
		}
		lines[head.Op] = append(lines[head.Op], line)
	}
	for name, operations := range files {
		f := must(os.Create(filepath.Join(out, name+".jsonl.gz")))
		w := must(gzip.NewWriterLevel(f, gzip.BestCompression))
		var chosen []string
		for _, operation := range operations {
			all := lines[operation]
			sort.Strings(all)
			step := (len(all) + perOperationMax - 1) / perOperationMax
			for at := 0; at < len(all); at += max(step, 1) {
				chosen = append(chosen, all[at])
			}
			fmt.Fprintln(os.Stderr, name, operation, len(all))
		}
		for _, id := range used(chosen, schemas) {
			fmt.Fprintln(w, schemas[id])
		}
		for _, line := range chosen {
			fmt.Fprintln(w, line)
		}
		if err := w.Close(); err != nil {
			panic(err)
		}
		f.Close()
	}
}

// used returns the names of the schemas that lines refer to.
func used(lines []string, schemas map[string]string) []string {
	names := map[string]bool{}
	for _, line := range lines {
		var head struct{ Schema string }
		if json.Unmarshal([]byte(line), &head) == nil && schemas[head.Schema] != "" {
			names[head.Schema] = true
		}
	}
	var sorted []string
	for name := range names {
		sorted = append(sorted, name)
	}
	sort.Strings(sorted)
	return sorted
}
