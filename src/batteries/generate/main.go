// Command generate asks linked upstream Kubernetes code for everything that
// the built-in API groups of Polyplane are made of. See README.md.
package main

import (
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	klog.SetLogger(logr.Discard())
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: generate data|oracle|golden|upstream|replay [flags]")
		os.Exit(2)
	}
	commands := map[string]func([]string) error{"data": runData, "oracle": runOracle, "golden": runGolden,
		"upstream": runUpstream, "replay": runReplay}
	command, known := commands[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "unknown subcommand %q: want data, oracle, golden, upstream or replay\n", os.Args[1])
		os.Exit(2)
	}
	if err := command(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
