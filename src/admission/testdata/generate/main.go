// Command generate records what upstream's evaluator of pod security says about the pods that
// upstream publishes for tests. Run it here: go run . ../pod_security.jsonl.gz
package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// latest is the number under which the newest version is recorded.
const latest = 38

type answer struct {
	Level  api.Level `json:"level"`
	From   int       `json:"from"`
	To     int       `json:"to"`
	Reason string    `json:"reason"`
	Detail string    `json:"detail"`
}

type record struct {
	File    string          `json:"file"`
	Pod     json.RawMessage `json:"pod"`
	Answers []answer        `json:"answers"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(target string) error {
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/pod-security-admission").Output()
	if err != nil {
		return err
	}
	data := filepath.Join(strings.TrimSpace(string(folder)), "test", "testdata")
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	var files []string
	err = filepath.Walk(data, func(path string, info os.FileInfo, err error) error {
		if err == nil && strings.HasSuffix(path, ".yaml") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	sort.Strings(files)
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	defer out.Close()
	packed, _ := gzip.NewWriterLevel(out, gzip.BestCompression)
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pod := corev1.Pod{}
		if err := yaml.UnmarshalStrict(text, &pod); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		body, err := json.Marshal(&pod)
		if err != nil {
			return err
		}
		pod.Name = ""
		key, _ := json.Marshal(&pod)
		if seen[string(key)] {
			continue
		}
		seen[string(key)] = true
		name, _ := filepath.Rel(data, file)
		line, err := json.Marshal(record{File: name, Pod: body, Answers: ask(evaluator, &pod)})
		if err != nil {
			return err
		}
		fmt.Fprintf(packed, "%s\n", line)
	}
	return packed.Close()
}

func ask(evaluator policy.Evaluator, pod *corev1.Pod) []answer {
	var answers []answer
	for _, level := range []api.Level{api.LevelBaseline, api.LevelRestricted} {
		for minor := 0; minor <= latest; minor++ {
			version := api.MajorMinorVersion(1, minor)
			if minor == latest {
				version = api.LatestVersion()
			}
			found := policy.AggregateCheckResults(evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: version}, &pod.ObjectMeta, &pod.Spec))
			next := answer{level, minor, minor, found.ForbiddenReason(), found.ForbiddenDetail()}
			if last := len(answers) - 1; last >= 0 && answers[last].Level == level && answers[last].Reason == next.Reason && answers[last].Detail == next.Detail {
				answers[last].To = minor
			} else {
				answers = append(answers, next)
			}
		}
	}
	return answers
}
