// Command diffs writes pairs of documents with the difference that upstream shows of them in errors about
// immutable fields. Many of their lines are equal, so that it takes some of them for noise.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"

	"k8s.io/apimachinery/pkg/util/diff"
)

type pair struct {
	Old  any    `json:"old"`
	New  any    `json:"new"`
	Diff string `json:"diff"`
}

func main() {
	seed := flag.Int64("seed", 1, "seed of the documents")
	path := flag.String("to", "../shared/validation/text_diff/diffs.jsonl", "file to write")
	flag.Parse()
	if err := write(*path, rand.New(rand.NewSource(*seed))); err != nil {
		fmt.Fprintln(os.Stderr, "diffs:", err)
		os.Exit(1)
	}
}

func write(path string, random *rand.Rand) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	// Below and above the number of lines from which on lines that are frequent count as noise.
	for _, items := range []int{1, 3, 10, 30, 45, 60, 60, 90} {
		for kinds := 2; kinds <= 6; kinds += 2 {
			old := list(random, items, kinds)
			changed := change(random, old, kinds)
			line, err := json.Marshal(pair{old, changed, diff.Diff(old, changed)})
			if err != nil {
				return err
			}
			out.Write(append(line, '\n'))
		}
	}
	return out.Flush()
}

func list(random *rand.Rand, items, kinds int) []any {
	var made []any
	for range items {
		made = append(made, item(random, kinds))
	}
	return made
}

func item(random *rand.Rand, kinds int) any {
	if random.Intn(3) == 0 {
		return fmt.Sprint("n", random.Intn(4*kinds))
	}
	return map[string]any{"a": random.Intn(kinds), "b": []int{random.Intn(kinds)}}
}

// change returns a copy in which items were replaced, moved, taken out and put in.
func change(random *rand.Rand, old []any, kinds int) []any {
	changed := append([]any{}, old...)
	for range 1 + len(old)/8 {
		at := random.Intn(len(changed))
		switch random.Intn(4) {
		case 0:
			changed[at] = item(random, kinds)
		case 1:
			other := random.Intn(len(changed))
			changed[at], changed[other] = changed[other], changed[at]
		case 2:
			changed = append(changed[:at], append([]any{item(random, kinds)}, changed[at:]...)...)
		default:
			if len(changed) > 1 {
				changed = append(changed[:at], changed[at+1:]...)
			}
		}
	}
	return changed
}
