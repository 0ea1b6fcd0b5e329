// Command coverage prints, per package, which share of the branches of
// upstream's validation the golden files reach. Run it in the generator's folder.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

// run builds the generator with counters in upstream's validation, replays the
// golden files and prints a table. Branches are the blocks that Go counts.
func run(arguments []string) error {
	flags := flag.NewFlagSet("coverage", flag.ContinueOnError)
	work := flags.String("work", "", "folder for the program and its counters (kept); default a new one")
	parallel := flags.Int("p", 2, "packages built at a time")
	missed := flags.String("missed", "", "also print the blocks not reached of files whose name ends so")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	folders := flags.Args()
	if len(folders) == 0 {
		folders = []string{"../golden", "../golden/upstream", "../golden/subresources"}
	}
	if *work == "" {
		made, err := os.MkdirTemp("", "coverage")
		if err != nil {
			return err
		}
		*work = made
	}
	packages, err := validationPackages()
	if err != nil {
		return err
	}
	program := filepath.Join(*work, "generate")
	// Go writes the counters at the end only if the main package is counted too.
	if err := command(nil, "go", "build", fmt.Sprintf("-p=%d", *parallel), "-cover", "-coverpkg=.,"+strings.Join(packages, ","), "-o", program, "."); err != nil {
		return err
	}
	var counters []string
	var tables []map[string]*reach
	for i, folder := range folders {
		counter := filepath.Join(*work, fmt.Sprintf("counters%d", i))
		if err := os.RemoveAll(counter); err != nil {
			return err
		}
		if err := os.MkdirAll(counter, 0o755); err != nil {
			return err
		}
		if err := command([]string{"GOCOVERDIR=" + counter}, program, "replay", folder); err != nil {
			return err
		}
		counters = append(counters, counter)
		text := filepath.Join(*work, "profile.txt")
		if err := command(nil, "go", "tool", "covdata", "textfmt", "-i="+strings.Join(counters, ","), "-o="+text); err != nil {
			return err
		}
		profile, err := os.ReadFile(text)
		if err != nil {
			return err
		}
		shown := ""
		if i+1 == len(folders) {
			shown = *missed
		}
		table, err := countReached(profile, shown)
		if err != nil {
			return err
		}
		tables = append(tables, table)
	}
	printTable(folders, tables)
	return nil
}

func command(environment []string, name string, arguments ...string) error {
	made := exec.Command(name, arguments...)
	made.Env = append(os.Environ(), environment...)
	made.Stdout, made.Stderr = os.Stderr, os.Stderr
	if err := made.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, arguments[0], err)
	}
	return nil
}

var validationPackage = regexp.MustCompile(`^k8s\.io/((kubernetes/pkg/apis/\w+|apiextensions-apiserver/pkg/apis/apiextensions|kube-aggregator/pkg/apis/apiregistration)/validation|kubernetes/pkg/registry/(core/pod|core/replicationcontroller|apps/deployment|apps/replicaset|apps/statefulset)/storage)$`)

// validationPackages are the packages that the generator links of handwritten
// validation, and of subresources that read and write the store themselves.
func validationPackages() ([]string, error) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []string
	for _, name := range strings.Fields(string(out)) {
		if validationPackage.MatchString(name) {
			packages = append(packages, name)
		}
	}
	return packages, nil
}

type reach struct{ blocks, reached int }

func (r *reach) add(reached bool) {
	r.blocks++
	if reached {
		r.reached++
	}
}

// countReached reads Go's text profile: `file:from,to statements count` per block.
// The key of all packages together is empty.
func countReached(profile []byte, missed string) (map[string]*reach, error) {
	table := map[string]*reach{"": {}}
	scanner := bufio.NewScanner(bytes.NewReader(profile))
	for scanner.Scan() {
		parts := strings.Fields(scanner.Text())
		if len(parts) != 3 {
			continue // the line that names the mode
		}
		file, _, _ := strings.Cut(parts[0], ":")
		if !validationPackage.MatchString(path.Dir(file)) {
			continue
		}
		name := strings.TrimSuffix(path.Dir(file), "/validation")
		if table[name] == nil {
			table[name] = &reach{}
		}
		table[name].add(parts[2] != "0")
		table[""].add(parts[2] != "0")
		if missed != "" && parts[2] == "0" && strings.HasSuffix(file, missed) {
			fmt.Fprintln(os.Stderr, parts[0])
		}
	}
	return table, scanner.Err()
}

// printTable writes a column for each folder; a column counts the folders before it too.
func printTable(folders []string, tables []map[string]*reach) {
	fmt.Print("# Branches of upstream's validation that the golden files reach\n\nWritten by `go run ./coverage`; see `../generate/README.md`.\n\n")
	fmt.Printf("| validation of | branches | %s |\n", strings.Join(folders, " | + "))
	fmt.Println("|---|---" + strings.Repeat("|---", len(folders)) + "|")
	names := make([]string, 0, len(tables[0]))
	for name := range tables[0] {
		names = append(names, name)
	}
	// All together come last.
	sort.Slice(names, func(i, j int) bool { return names[i] != "" && (names[j] == "" || names[i] < names[j]) })
	for _, name := range names {
		title := "`" + name + "`"
		if name == "" {
			title = "all"
		}
		fmt.Printf("| %s | %d |", title, tables[0][name].blocks)
		for _, table := range tables {
			fmt.Printf(" %d (%.1f %%) |", table[name].reached, 100*float64(table[name].reached)/float64(table[name].blocks))
		}
		fmt.Println()
	}
}
