// Command harvest collects what upstream's own tests give to upstream's
// validation, one call per line. `generate upstream` makes golden files of it.
package main

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"polyplane.dev/generate/harvest/record"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "harvest:", err)
		os.Exit(1)
	}
}

// run runs upstream's own validation tests on scratch copies of upstream's
// modules, whose validation functions record their arguments. Go refuses to
// overlay files of its module cache; hence the copies.
func run(arguments []string) error {
	flags := flag.NewFlagSet("harvest", flag.ContinueOnError)
	work := flags.String("work", "", "folder for the copies and the records (kept); default a new one")
	only := flags.String("only", "", "regular expression over package folders")
	parallel := flags.Int("p", 1, "test packages built at a time")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *work == "" {
		made, err := os.MkdirTemp("", "harvest")
		if err != nil {
			return err
		}
		*work = made
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	records := filepath.Join(*work, "records")
	if err := os.MkdirAll(records, 0o755); err != nil {
		return err
	}
	packages, err := copyModules(*work)
	if err != nil {
		return err
	}
	kept := packages[:0]
	for _, name := range packages {
		if chosen.MatchString(name) {
			kept = append(kept, name)
		}
	}
	fmt.Fprintf(os.Stderr, "harvest: %d test packages, records in %s\n", len(kept), records)
	command := exec.Command("go", append([]string{"test", "-mod=mod", "-modfile=" + filepath.Join(*work, "go.mod"), "-vet=off", "-count=1", fmt.Sprintf("-p=%d", *parallel),
		"-ldflags=-s -w", "-timeout=10m"}, kept...)...)
	command.Env = append(os.Environ(), record.Folder+"="+records)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		// A test that fails away from upstream's tree still gave its inputs.
		fmt.Fprintln(os.Stderr, "harvest: some packages failed:", err)
	}
	return nil
}

// harvested are the modules whose tests are run, with the folders of the functions that record.
var harvested = map[string]*regexp.Regexp{
	"k8s.io/kubernetes":              regexp.MustCompile(`^pkg/(apis/\w+/validation|registry/\w+/\w+|api/testing)$`),
	"k8s.io/apiextensions-apiserver": regexp.MustCompile(`^pkg/apis/apiextensions/validation$`),
}

var testFolder = regexp.MustCompile(`^(pkg/apis/\w+/validation|pkg/registry/\w+/\w+|test/declarative_validation/\w+/\w+)$`)

// copyModules makes the recording copies and a go.mod that uses them. It
// returns the test packages. Copies that are there are used again.
func copyModules(work string) ([]string, error) {
	modFile, err := os.ReadFile("go.mod")
	if err != nil {
		return nil, err
	}
	var packages []string
	for module, folders := range harvested {
		copied := filepath.Join(work, filepath.Base(module))
		if _, err := os.Stat(copied); err != nil {
			source, err := moduleDir(module)
			if err != nil {
				return nil, fmt.Errorf("find %s: %w", module, err)
			}
			if err := os.CopyFS(copied, os.DirFS(source)); err != nil {
				return nil, fmt.Errorf("copy %s: %w", module, err)
			}
			if err := instrument(copied, module, folders); err != nil {
				return nil, err
			}
		}
		found, err := testPackages(copied, module)
		if err != nil {
			return nil, err
		}
		packages = append(packages, found...)
		old := regexp.MustCompile(`(?m)^replace ` + regexp.QuoteMeta(module) + ` => .*$`)
		modFile = old.ReplaceAll(modFile, nil)
		modFile = fmt.Appendf(modFile, "\nreplace %s => %s\n", module, copied)
	}
	sort.Strings(packages)
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(work, "go.sum"), sums, 0o644); err != nil {
		return nil, err
	}
	return packages, os.WriteFile(filepath.Join(work, "go.mod"), modFile, 0o644)
}

// testPackages lists the packages with tests of validation that need no store.
func testPackages(root, module string) ([]string, error) {
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err == nil && (testFolder.MatchString(folder) || harvested[module].MatchString(folder)) {
			found[module+"/"+folder] = true
		}
		return err
	})
	out := make([]string, 0, len(found))
	for name := range found {
		out = append(out, name)
	}
	return out, err
}

//go:embed record/record.go
var recordSource []byte

// instrument lets the functions that validate or prepare record their arguments.
func instrument(root, module string, folders *regexp.Regexp) error {
	home := filepath.Join(root, "pkg", "generaterecord")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(home, "record.go"), recordSource, 0o644); err != nil {
		return err
	}
	return filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil || !folders.MatchString(folder) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed, err := recording(text, module+"/pkg/generaterecord")
		if err != nil || changed == nil {
			return err
		}
		return os.WriteFile(path, changed, 0o644)
	})
}

var recordedFunction = regexp.MustCompile(`^([Vv]alidate|Verify|PrepareFor)`)

// recording is the source with a recording call at the head of each such function, nil if there is none.
func recording(source []byte, recorder string) ([]byte, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "", source, 0)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	at := 0
	insert := func(position token.Pos, text string) {
		offset := files.Position(position).Offset
		out.Write(source[at:offset])
		out.WriteString(text)
		at = offset
	}
	calls := 0
	insert(parsed.Name.End(), fmt.Sprintf("; import generaterecord %q", recorder))
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Body == nil || !recordedFunction.MatchString(function.Name.Name) {
			continue
		}
		title := function.Name.Name
		if function.Recv != nil {
			// The name of a strategy tells which subresource it is for.
			title = fmt.Sprintf("%s.%s", source[files.Position(function.Recv.List[0].Type.Pos()).Offset:files.Position(function.Recv.List[0].Type.End()).Offset], title)
		}
		names := []string{fmt.Sprintf("%q", title)}
		for _, parameter := range function.Type.Params.List {
			for _, name := range parameter.Names {
				if name.Name != "_" {
					names = append(names, name.Name)
				}
			}
		}
		insert(function.Body.Lbrace+1, " generaterecord.Call("+strings.Join(names, ", ")+");")
		calls++
	}
	if calls == 0 {
		return nil, nil
	}
	out.Write(source[at:])
	return out.Bytes(), nil
}

// moduleDir asks the go command where the sources of a module are.
func moduleDir(module string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	return strings.TrimSpace(string(out)), err
}
