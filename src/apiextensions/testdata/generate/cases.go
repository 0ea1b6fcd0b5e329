package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// markCases lets the tests of a folder say which case of their tables begins, so that cases are counted
// by running the table, and calls are known to belong to a case.
func markCases(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		marked, err := marking(source)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.WriteFile(file, marked, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// marking is the source of a test file with a call at the beginning of each case.
func marking(source []byte) ([]byte, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "", source, 0)
	if err != nil {
		return nil, err
	}
	at := map[int]string{}
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Recv != nil || function.Body == nil || !strings.HasPrefix(function.Name.Name, "Test") {
			continue
		}
		parameters := function.Type.Params.List
		if len(parameters) != 1 || len(parameters[0].Names) != 1 {
			continue
		}
		for _, body := range caseBodies(function) {
			at[files.Position(body.begin).Offset] = fmt.Sprintf("; caserecord.Begin(%s.Name());", body.testing)
		}
	}
	if len(at) == 0 {
		return source, nil
	}
	at[files.Position(parsed.Name.End()).Offset] = fmt.Sprintf("; import caserecord %q", module+"/pkg/record")
	offsets := make([]int, 0, len(at))
	for offset := range at {
		offsets = append(offsets, offset)
	}
	sort.Ints(offsets)
	var out bytes.Buffer
	from := 0
	for _, offset := range offsets {
		out.Write(source[from:offset])
		out.WriteString(at[offset])
		from = offset
	}
	out.Write(source[from:])
	return out.Bytes(), nil
}

// caseBody is where a case begins, and the name of its testing.T.
type caseBody struct {
	begin   token.Pos
	testing string
}

// caseBodies are the innermost functions that a test runs as subtests; in a test without subtests the
// bodies of its loops over a table, or the test itself.
func caseBodies(function *ast.FuncDecl) []caseBody {
	var out []caseBody
	ast.Inspect(function.Body, func(node ast.Node) bool {
		if body := subtest(node); body != nil && !hasSubtest(body.Body) {
			out = append(out, caseBody{begin: beginOf(body.Body), testing: body.Type.Params.List[0].Names[0].Name})
		}
		return true
	})
	own := function.Type.Params.List[0].Names[0].Name
	if len(out) > 0 {
		return out
	}
	for _, statement := range function.Body.List {
		if loop, ok := statement.(*ast.RangeStmt); ok && isTable(loop.X) {
			out = append(out, caseBody{begin: beginOf(loop.Body), testing: own})
		}
	}
	if len(out) == 0 {
		out = append(out, caseBody{begin: beginOf(function.Body), testing: own})
	}
	return out
}

// subtest is the function that a call of Run is given.
func subtest(node ast.Node) *ast.FuncLit {
	call, ok := node.(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return nil
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	body, isFunction := call.Args[1].(*ast.FuncLit)
	if !ok || !isFunction || selector.Sel.Name != "Run" {
		return nil
	}
	parameters := body.Type.Params.List
	if len(parameters) != 1 || len(parameters[0].Names) != 1 {
		return nil
	}
	return body
}

func hasSubtest(body ast.Node) bool {
	found := false
	ast.Inspect(body, func(node ast.Node) bool {
		found = found || subtest(node) != nil
		return !found
	})
	return found
}

// isTable says whether a loop is over a table.
func isTable(expression ast.Expr) bool {
	switch expression.(type) {
	case *ast.Ident, *ast.CompositeLit:
		return true
	}
	return false
}

// beginOf is the position behind the brace, and behind a first statement that lets the case wait for others.
func beginOf(body *ast.BlockStmt) token.Pos {
	if len(body.List) > 0 {
		statement, ok := body.List[0].(*ast.ExprStmt)
		if ok {
			call, isCall := statement.X.(*ast.CallExpr)
			if isCall {
				if selector, ok := call.Fun.(*ast.SelectorExpr); ok && selector.Sel.Name == "Parallel" {
					return call.End()
				}
			}
		}
	}
	return body.Lbrace + 1
}
