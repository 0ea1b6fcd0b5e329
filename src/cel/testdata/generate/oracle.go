package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"encoding/json"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

// methods are called on every constant list of upstream's cost tests.
var methods = []string{
	".isSorted()", ".sum()", ".max()", ".min()", ".sort()", ".distinct()", ".reverse()", ".flatten()",
	".indexOf(1)", ".slice(1, 2)", ".join()", ".join(',')", ".map(x, x)", ".filter(x, true)", ".exists(x, x == x)",
	".all(i, x, x == x)", ".transformList(i, x, x)", ".sortBy(x, x)", ".includes(1)", ".first()", "[0]", "[?9]",
}

// ask writes what the environment of Kubernetes says of expressions that upstream's tests use: the
// complaint, the estimated cost, and the cost and the outcome of an evaluation.
func ask(apiserver string) error {
	env, err := environment.MustBaseEnvSet(version.MajorMinor(1, 37)).Env(environment.StoredExpressions)
	if err != nil {
		return err
	}
	expressions, err := expressions(apiserver)
	if err != nil {
		return err
	}
	own, err := os.ReadFile("../expressions.txt")
	if err != nil {
		return err
	}
	all := append(strings.Split(strings.TrimSpace(string(own)), "\n"), expressions...)
	sort.Strings(all)
	lines := []object{}
	for _, expression := range slices.Compact(all) {
		line := object{"expr": expression}
		lines = append(lines, line)
		compiled, issues := env.Compile(expression)
		if issues.Err() != nil {
			line["complaint"] = issues.String()
			continue
		}
		line["type"] = checker.FormatCELType(compiled.OutputType())
		estimate, err := env.EstimateCost(compiled, &library.CostEstimator{}, checker.PresenceTestHasCost(false))
		if err != nil {
			return err
		}
		line["estimate"] = []string{fmt.Sprint(estimate.Min), fmt.Sprint(estimate.Max)}
		program, err := env.Program(compiled)
		if err != nil {
			line["fault"] = err.Error()
			continue
		}
		value, details, err := program.Eval(map[string]any{})
		if details != nil && details.ActualCost() != nil {
			line["cost"] = fmt.Sprint(*details.ActualCost())
		}
		// Go walks through maps in any order, and what that costs says nothing.
		for range 20 {
			_, again, _ := program.Eval(map[string]any{})
			if again != nil && again.ActualCost() != nil && fmt.Sprint(*again.ActualCost()) != line["cost"] {
				delete(line, "cost")
				break
			}
		}
		if err != nil {
			line["fault"] = err.Error()
		} else if value.Type() == types.BoolType {
			line["bool"] = value == types.True
		}
	}
	fmt.Printf("%-16s %4d\n", "kubernetes", len(lines))
	if err := write("../kubernetes.jsonl", lines); err != nil {
		return err
	}
	wrong := []object{}
	for _, expression := range broken(expressions) {
		line := object{"expr": expression}
		if _, issues := env.Compile(expression); issues.Err() != nil {
			line["complaint"], _, _ = strings.Cut(issues.String(), "\n")
		}
		wrong = append(wrong, line)
	}
	fmt.Printf("%-16s %4d\n", "broken", len(wrong))
	return write("../broken.jsonl", wrong)
}

var words = regexp.MustCompile(`[A-Za-z_0-9]+|'[^']*'|"[^"]*"|\S`)

// broken takes one word out of each expression, or puts another one in its place.
func broken(expressions []string) []string {
	substitutes := []string{"", "", "x", "1", "'s'", ")", "[", "true", ".", "?", "in"}
	found := map[string]bool{}
	for number, expression := range expressions {
		places := words.FindAllStringIndex(expression, -1)
		if len(expression) > 100 || len(places) < 2 || number%2 == 1 {
			continue
		}
		place := places[(number*7+len(expression))%len(places)]
		substitute := substitutes[(number/2)%len(substitutes)]
		found[expression[:place[0]]+substitute+expression[place[1]:]] = true
	}
	sorted := []string{}
	for expression := range found {
		sorted = append(sorted, expression)
	}
	sort.Strings(sorted)
	return sorted
}

func expressions(apiserver string) ([]string, error) {
	found := map[string]bool{}
	cases, err := filepath.Glob("../conformance/*.jsonl")
	if err != nil {
		return nil, err
	}
	for _, path := range cases {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
			var test map[string]any
			if json.Unmarshal([]byte(line), &test) != nil || test["bindings"] != nil || test["container"] != nil {
				continue
			}
			expression, _ := test["expr"].(string)
			if strings.Contains(expression, "proto") || len(expression) > 400 {
				continue
			}
			found[expression] = true
		}
	}
	tests, err := filepath.Glob(filepath.Join(apiserver, "pkg/cel/library/*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range tests {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			expr, ok := node.(ast.Expr)
			if !ok {
				return true
			}
			text, ok := constant(expr)
			if !ok {
				return true
			}
			if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
				for _, method := range methods {
					found[text+method] = true
				}
			} else if strings.Contains(text, "(") && strings.HasSuffix(text, ")") && !strings.Contains(text, "authorizer") && !strings.Contains(text, "%") {
				found[text] = true
			}
			return false
		})
	}
	sorted := []string{}
	for expression := range found {
		sorted = append(sorted, expression)
	}
	sort.Strings(sorted)
	return sorted, nil
}
