// Command rbac asks upstream's authorizer, its escalation check and its
// aggregation controller about random roles, and writes the answers for the
// tests of ../../../auth.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	klog.SetLogger(logr.Discard())
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rbac:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("rbac", flag.ContinueOnError)
	out := flags.String("out", "../../auth/testdata", "folder to write to")
	seed := flags.Int64("seed", 1, "seed of the random roles and questions")
	worlds := flags.Int("worlds", 125, "number of random sets of roles and bindings")
	questions := flags.Int("questions", 100, "number of questions about each of them")
	covers := flags.Int("covers", 2000, "number of comparisons of rules")
	aggregations := flags.Int("aggregations", 400, "number of sets of aggregated roles")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	random := maker{rand.New(rand.NewSource(*seed))}
	var decided []*world
	for at := range *worlds {
		w := random.world()
		if at == 0 {
			w = bootstrapWorld()
		}
		if err := random.ask(w, *questions); err != nil {
			return err
		}
		decided = append(decided, w)
	}
	if err := write(*out, "rbac_decisions", decided); err != nil {
		return err
	}
	var compared []comparison
	for range *covers {
		compared = append(compared, random.comparison())
	}
	if err := write(*out, "rbac_covers", compared); err != nil {
		return err
	}
	var aggregated []aggregation
	for range *aggregations {
		one, err := random.aggregation()
		if err != nil {
			return err
		}
		aggregated = append(aggregated, one)
	}
	return write(*out, "rbac_aggregation", aggregated)
}

func write[T any](folder, name string, lines []T) error {
	var buffer bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(compressor)
	encoder.SetEscapeHTML(false)
	for _, line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	if err := compressor.Close(); err != nil {
		return err
	}
	path := filepath.Join(folder, name+".jsonl.gz")
	fmt.Printf("%s: %d lines, %d bytes\n", path, len(lines), buffer.Len())
	return os.WriteFile(path, buffer.Bytes(), 0o644)
}
