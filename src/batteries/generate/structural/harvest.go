package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "k8s.io/apiextensions-apiserver"

// recorded are the functions whose arguments are recorded: the file, the head
// of the function, and the call to put behind it.
var recorded = []struct{ file, head, call string }{
	{"pruning/algorithm.go", "func PruneWithOptions(obj interface{}, s *structuralschema.Structural, isResourceRoot bool, opts structuralschema.UnknownFieldPathOptions) []string {", "structuralschema.Record(obj, s)"},
	{"defaulting/algorithm.go", "func Default(x interface{}, s *structuralschema.Structural) {", "structuralschema.Record(x, s)"},
	{"defaulting/prunenulls.go", "func PruneNonNullableNullsWithoutDefaults(x interface{}, s *structuralschema.Structural) {", "structuralschema.Record(x, s)"},
	{"listtype/validation.go", "func ValidateListSetsAndMaps(fldPath *field.Path, s *schema.Structural, obj map[string]interface{}) field.ErrorList {", "schema.Record(obj, s)"},
	{"objectmeta/algorithm.go", "func CoerceWithOptions(pth *field.Path, obj interface{}, s *structuralschema.Structural, isResourceRoot bool, opts CoerceOptions) (*field.Error, []string) {", "structuralschema.Record(obj, s)"},
}

// recorder is added to the package of structural schemas.
const recorder = `package schema

import (
	"encoding/json"
	"os"
)

// Record appends an object and its schema to the file that GENERATE_RECORDS names.
func Record(object any, s *Structural) {
	if s == nil {
		return
	}
	text, err := json.Marshal(map[string]any{"schema": s.ToKubeOpenAPI(), "object": object})
	if err != nil {
		return
	}
	file, err := os.OpenFile(os.Getenv("GENERATE_RECORDS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := file.Write(append(text, '\n')); err != nil {
		panic(err)
	}
}
`

// harvest runs upstream's tests of the functions on a copy of upstream's
// module, and returns what they were given. Go refuses to overlay files of its
// module cache; hence the copy.
func harvest(work string) ([]input, error) {
	if work == "" {
		made, err := os.MkdirTemp("", "structural")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(made)
		work = made
	}
	records := filepath.Join(work, "records.jsonl")
	if err := os.RemoveAll(records); err != nil {
		return nil, err
	}
	if err := recordingCopy(work); err != nil {
		return nil, err
	}
	packages := []string{"test", "-mod=mod", "-modfile=" + filepath.Join(work, "go.mod"), "-vet=off", "-count=1"}
	for _, name := range []string{"pruning", "defaulting", "listtype", "objectmeta"} {
		packages = append(packages, module+"/pkg/apiserver/schema/"+name)
	}
	command := exec.Command("go", packages...)
	command.Env = append(os.Environ(), "GENERATE_RECORDS="+records)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("run upstream's tests: %w", err)
	}
	return readRecords(records)
}

func recordingCopy(work string) error {
	found, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("find %s: %w", module, err)
	}
	copied := filepath.Join(work, "module")
	if err := os.CopyFS(copied, os.DirFS(strings.TrimSpace(string(found)))); err != nil {
		return err
	}
	home := filepath.Join(copied, "pkg", "apiserver", "schema")
	if err := os.WriteFile(filepath.Join(home, "record.go"), []byte(recorder), 0o644); err != nil {
		return err
	}
	for _, place := range recorded {
		path := filepath.Join(home, place.file)
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed := strings.Replace(string(source), place.head, place.head+"\n\t"+place.call, 1)
		if changed == string(source) {
			return fmt.Errorf("%s has no %q", place.file, place.head)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if name == "go.mod" {
			lines := strings.Split(string(text), "\n")
			for at, line := range lines {
				if strings.HasPrefix(line, "replace "+module+" =>") {
					lines[at] = "replace " + module + " => " + copied
				}
			}
			text = []byte(strings.Join(lines, "\n"))
		}
		if err := os.WriteFile(filepath.Join(work, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readRecords reads each distinct record once. Upstream's tests record the
// parts of an object too, since the functions call themselves.
func readRecords(path string) ([]input, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var out []input
	seen := map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		if seen[lines.Text()] {
			continue
		}
		seen[lines.Text()] = true
		given := input{From: "upstream"}
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			return nil, err
		}
		if _, err := structuralOf(given.Schema); err != nil {
			return nil, fmt.Errorf("%s: %w", given.Schema, err)
		}
		out = append(out, given)
	}
	return out, lines.Err()
}
