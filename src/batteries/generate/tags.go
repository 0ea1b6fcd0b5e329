package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// sourceTags reads the declarative validation tags from upstream's sources.
type sourceTags struct {
	packages map[string]*packageTags
}

type packageTags struct {
	types  map[string][]string
	fields map[string]map[string][]string
}

func newSourceTags() *sourceTags { return &sourceTags{packages: map[string]*packageTags{}} }

func (s *sourceTags) ofType(t reflect.Type) map[string]any {
	return structureTags(s.load(t.PkgPath()).types[t.Name()])
}

// ofField gives the tags above a field of t, and those that its value brings
// along because they stand above a named type that is no struct.
func (s *sourceTags) ofField(t reflect.Type, name string, value reflect.Type) map[string]any {
	lines := s.load(t.PkgPath()).fields[t.Name()][name]
	for _, line := range s.ofValue(value) {
		if !slices.Contains(lines, line) {
			lines = append(slices.Clip(lines), line)
		}
	}
	return structureTags(lines)
}

func (s *sourceTags) ofValue(t reflect.Type) []string {
	var lines []string
	if t.PkgPath() != "" && t.Kind() != reflect.Struct {
		lines = slices.Clip(s.load(t.PkgPath()).types[t.Name()])
	}
	if t.Kind() == reflect.Pointer {
		return s.ofValue(t.Elem())
	}
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		for _, line := range s.ofValue(t.Elem()) {
			lines = append(lines, "+k8s:eachVal="+line)
		}
	}
	if t.Kind() == reflect.Map {
		for _, line := range s.ofValue(t.Key()) {
			lines = append(lines, "+k8s:eachKey="+line)
		}
	}
	return lines
}

func (s *sourceTags) load(path string) *packageTags {
	if loaded, ok := s.packages[path]; ok {
		return loaded
	}
	loaded := &packageTags{types: map[string][]string{}, fields: map[string]map[string][]string{}}
	s.packages[path] = loaded
	parts := strings.SplitN(path, "/", 3)
	if len(parts) < 3 {
		return loaded
	}
	dir := filepath.Join(moduleDir(parts[0]+"/"+parts[1]), parts[2])
	entries, err := os.ReadDir(dir)
	if err != nil {
		return loaded
	}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "zz_") || strings.HasPrefix(name, "generated") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			continue
		}
		loaded.read(file)
	}
	return loaded
}

func (p *packageTags) read(file *ast.File) {
	// Tags of a type may stand in a comment block of their own above its doc.
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok || general.Tok != token.TYPE {
			continue
		}
		for _, s := range general.Specs {
			typeSpec := s.(*ast.TypeSpec)
			p.types[typeSpec.Name.Name] = append(tagLines(general.Doc), tagLines(typeSpec.Doc)...)
			structure, ok := typeSpec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			fields := map[string][]string{}
			for _, f := range structure.Fields.List {
				lines := tagLines(f.Doc)
				for _, name := range f.Names {
					fields[name.Name] = lines
				}
			}
			p.fields[typeSpec.Name.Name] = fields
		}
	}
}

func tagLines(doc *ast.CommentGroup) []string {
	if doc == nil {
		return nil
	}
	var lines []string
	for _, comment := range doc.List {
		line := strings.TrimSpace(strings.TrimPrefix(comment.Text, "//"))
		if strings.HasPrefix(line, "+k8s:") && !strings.Contains(line, "-gen") {
			if at := strings.Index(line, " #"); at > 0 {
				line = strings.TrimSpace(line[:at])
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// structureTags turns tag lines into data: name to argument, or to a list when
// a tag repeats. A stage wrapper (alpha, beta) keeps what it wraps as text.
func structureTags(lines []string) map[string]any {
	if len(lines) == 0 {
		return nil
	}
	out := map[string]any{}
	for _, line := range lines {
		name, value := splitTag(line)
		if old, repeated := out[name]; repeated {
			if list, ok := old.([]any); ok {
				out[name] = append(list, value)
			} else {
				out[name] = []any{old, value}
			}
			continue
		}
		out[name] = value
	}
	return out
}

// splitTag splits "+k8s:name(args)=value"; arguments stay part of the value.
func splitTag(line string) (string, any) {
	body := strings.TrimPrefix(line, "+k8s:")
	end := strings.IndexAny(body, "(=")
	if end < 0 {
		return body, true
	}
	name, rest := body[:end], body[end:]
	if rest[0] == '=' {
		return name, tagValue(rest[1:])
	}
	depth := 0
	for i, r := range rest {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			out := map[string]any{"arg": rest[1:i]}
			if after := strings.TrimPrefix(rest[i+1:], "="); after != "" {
				out["value"] = tagValue(after)
			}
			return name, out
		}
	}
	return name, rest
}

func tagValue(text string) any {
	text = strings.TrimSpace(text)
	if number, err := strconv.ParseInt(text, 10, 64); err == nil {
		return number
	}
	if unquoted, err := strconv.Unquote(text); err == nil {
		return unquoted
	}
	return text
}
