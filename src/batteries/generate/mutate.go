package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"sort"
	"strings"
)

// mutator changes valid objects into mostly invalid ones, knowing their schema.
type mutator struct {
	catalog *catalog
	random  *rand.Rand
	filler  *filler
}

// place is one value inside a JSON tree, with what the schema says about it.
type place struct {
	path   string
	set    func(any)
	drop   func()
	value  any
	typ    string
	field  *fieldRow
	parent map[string]any
	list   []any
}

func parseTree(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var tree any
	err := decoder.Decode(&tree)
	return tree, err
}

// mutate returns a changed copy of the object.
func (m *mutator) mutate(object []byte, definition, under string) []byte {
	tree, err := parseTree(object)
	if err != nil {
		return object
	}
	times := 1
	if m.random.Intn(10) > 6 {
		times = 2
	}
	for range times {
		places := m.places(tree, "ref:"+definition, under)
		if len(places) == 0 {
			break
		}
		m.change(places[m.random.Intn(len(places))])
	}
	text, err := plainJSON(tree)
	if err != nil {
		return object
	}
	return text
}

// places lists what may change: metadata less often than the rest.
func (m *mutator) places(tree any, typ, under string) []*place {
	var all []*place
	m.walk(tree, &place{typ: typ, value: tree, set: func(any) {}, drop: func() {}}, &all)
	kept := all[:0]
	for _, p := range all {
		inMeta := strings.HasPrefix(p.path, ".metadata")
		switch {
		case p.path == "" || p.path == ".metadata":
			if under != "" || m.random.Intn(3) > 0 {
				continue
			}
		case under != "" && !strings.HasPrefix(p.path, under):
			continue
		case inMeta && (len(all) > 12 && m.random.Intn(4) > 0):
			continue
		case strings.HasPrefix(p.path, ".metadata.uid"), strings.HasPrefix(p.path, ".metadata.creationTimestamp"), strings.HasPrefix(p.path, ".metadata.resourceVersion"):
			continue
		}
		kept = append(kept, p)
	}
	return kept
}

func (m *mutator) walk(value any, at *place, all *[]*place) {
	*all = append(*all, at)
	typ := strings.TrimPrefix(at.typ, "*")
	switch v := value.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			child := &place{path: at.path + "." + key, value: v[key], parent: v, set: func(x any) { v[key] = x }, drop: func() { delete(v, key) }}
			if name, ok := strings.CutPrefix(typ, "ref:"); ok && m.catalog.definitions[name] != nil {
				for _, f := range m.catalog.definitions[name].Fields {
					if f.Name == key {
						child.typ, child.field = f.Type, f
					}
				}
			} else if element, ok := strings.CutPrefix(typ, "map:"); ok {
				child.typ = element
			}
			m.walk(v[key], child, all)
		}
	case []any:
		element := strings.TrimPrefix(typ, "[]")
		for i := range v {
			child := &place{path: fmt.Sprintf("%s[%d]", at.path, i), value: v[i], list: v, typ: element, field: at.field, set: func(x any) { v[i] = x }}
			child.drop = func() { at.set(append(append([]any{}, v[:i]...), v[i+1:]...)) }
			m.walk(v[i], child, all)
		}
	}
}

func sortedKeys(v map[string]any) []string {
	keys := make([]string, 0, len(v))
	for key := range v {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

var badStrings = []string{"", "Bad_Name!", "-a", "a-", "a/b/c", "ünï", "a..b", ".", "..", strings.Repeat("a", 64), strings.Repeat("b", 254), strings.Repeat("c.", 140) + "c",
	"with space", "example.com/ok", "UPPER", "1.2.3.4", "300.1.2.3", "010.0.0.1", "::1", "10.0.0.0/33", "10.0.0.1/8", "http://x y", "65536", "kubernetes.io/x", "a,b", "$(x)", "9lives", "None", "tab\there", "a_b", "a:b"}

var badNumbers = []string{"0", "-1", "1", "2", "65535", "65536", "70000", "2147483647", "-2147483648", "100", "101", "601", "3601"}

func pick[T any](r *rand.Rand, list []T) T { return list[r.Intn(len(list))] }

func (m *mutator) change(p *place) {
	r := m.random
	if p.drop != nil && r.Intn(6) == 0 && p.path != "" {
		p.drop()
		return
	}
	switch v := p.value.(type) {
	case map[string]any:
		m.changeObject(p, v)
	case []any:
		m.changeList(p, v)
	case string:
		m.changeString(p)
	case json.Number:
		p.set(json.Number(pick(r, badNumbers)))
		if p.typ == "intstr" && r.Intn(2) == 0 {
			p.set(pick(r, []string{"http", "Bad Port", "101%", "-5%", "x%", "", strings.Repeat("p", 16)}))
		}
	case bool:
		p.set(!v)
	default:
		p.drop()
	}
}

func (m *mutator) changeObject(p *place, v map[string]any) {
	r := m.random
	typ := strings.TrimPrefix(p.typ, "*")
	if name, ok := strings.CutPrefix(typ, "ref:"); ok && r.Intn(4) > 0 {
		m.insertField(name, v)
		return
	}
	switch {
	case strings.HasPrefix(typ, "map:") && r.Intn(3) > 0:
		key := pick(r, []string{"bad key!", "", "a/b/c", "example.com/" + strings.Repeat("k", 64), "ok", "Upper/x", "../x", "..", "kubernetes.io/y", "cpu", "example.com/gpu"})
		v[key] = pick(r, []any{"v", "", "not ok!", strings.Repeat("v", 64), "1", "-1"})
	case p.path != "":
		p.set(map[string]any{})
	}
}

// insertField adds a field that is absent, filled at random.
func (m *mutator) insertField(definition string, v map[string]any) {
	d := m.catalog.definitions[definition]
	if d == nil {
		return
	}
	var absent []*fieldRow
	for _, f := range d.Fields {
		if _, there := v[f.Name]; !there && f.Name != "managedFields" && f.Name != "deletionTimestamp" && f.Name != "deletionGracePeriodSeconds" {
			absent = append(absent, f)
		}
	}
	if len(absent) == 0 {
		return
	}
	f := pick(m.random, absent)
	sf, ok := d.typ.FieldByName(f.goField)
	if !ok {
		return
	}
	t := sf.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	made := reflect.New(t)
	m.filler.presence = 0.3
	m.filler.fill(made.Elem(), f.Name, 8)
	text, err := json.Marshal(made.Interface())
	if err != nil {
		return
	}
	if tree, err := parseTree(text); err == nil {
		v[f.Name] = tree
	}
}

func (m *mutator) changeList(p *place, v []any) {
	r := m.random
	switch choice := r.Intn(4); {
	case choice == 0 || len(v) == 0:
		p.set([]any{})
	case choice == 1:
		p.set(append(append([]any{}, v...), copyTree(pick(r, v))))
	case choice == 2 && len(v) > 1:
		swapped := append([]any{}, v...)
		swapped[0], swapped[len(v)-1] = swapped[len(v)-1], swapped[0]
		p.set(swapped)
	default:
		grown := append([]any{}, v...)
		for range 1 + r.Intn(20) {
			grown = append(grown, copyTree(v[0]))
		}
		p.set(grown)
	}
}

func copyTree(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		return value
	}
	tree, _ := parseTree(text)
	return tree
}

func (m *mutator) changeString(p *place) {
	r := m.random
	switch p.typ {
	case "quantity":
		p.set(pick(r, []string{"0", "-1", "1.5", "100m", "0.1m", "1Ei", "1e20", "9223372036854775807", "1n"}))
		return
	case "time", "microtime":
		p.set(pick(r, []string{"2024-05-01T12:00:00Z", "2030-01-01T00:00:00Z", "1970-01-01T00:00:00Z"}))
		return
	case "bytes":
		p.set(pick(r, []string{"", "YQ==", "AAECAwQF"}))
		return
	case "intstr":
		p.set(pick(r, []any{"101%", "-5%", "x%", "", "Bad Port", json.Number("-1"), json.Number("0"), json.Number("70000"), strings.Repeat("p", 16)}))
		return
	}
	if p.field != nil && len(p.field.Enum) > 0 && r.Intn(2) == 0 {
		p.set(pick(r, append(append([]any{}, p.field.Enum...), "Bogus", "")))
		return
	}
	if p.parent != nil && r.Intn(8) == 0 {
		for _, key := range sortedKeys(p.parent) {
			if other, ok := p.parent[key].(string); ok && other != p.value {
				p.parent[key] = p.value
				p.set(other)
				return
			}
		}
	}
	p.set(pick(r, badStrings))
}

// wrongType puts a value of another JSON type somewhere, for decoding errors.
func (m *mutator) wrongType(object []byte, definition string) []byte {
	tree, err := parseTree(object)
	if err != nil {
		return object
	}
	var all []*place
	m.walk(tree, &place{typ: "ref:" + definition, value: tree, set: func(any) {}, drop: func() {}}, &all)
	p := pick(m.random, all[min(1, len(all)-1):])
	choices := []any{json.Number("7"), json.Number("1.5"), "text", true, nil, []any{}, map[string]any{}, []any{json.Number("1")}, json.Number("99999999999999999999"), "1", "true"}
	p.set(pick(m.random, choices))
	text, err := plainJSON(tree)
	if err != nil {
		return object
	}
	return text
}
