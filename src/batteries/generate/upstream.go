package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"sort"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"polyplane.dev/generate/harvest/record"
)

// runUpstream writes ../golden/upstream from the records of `harvest`.
func runUpstream(arguments []string) error {
	flags := flag.NewFlagSet("upstream", flag.ContinueOnError)
	records := flags.String("records", "", "folder of records that harvest wrote")
	out := flags.String("out", "../golden/upstream", "folder to write to")
	alike := flags.Int("alike", 4, "cases kept with the same set of errors")
	valid := flags.Int("valid", 400, "cases without errors kept per kind and operation")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	o, err := newOracle()
	if err != nil {
		return err
	}
	seeds, err := readSeeds()
	if err != nil {
		return err
	}
	calls, err := readRecords(*records)
	if err != nil {
		return err
	}
	t := newTransplanter(o, seeds)
	cases := map[schema.GroupVersionKind][]request{}
	for _, call := range calls {
		for _, made := range t.requests(call) {
			gvk := schema.GroupVersionKind{Group: made.Group, Version: made.Version, Kind: made.Kind}
			cases[gvk] = append(cases[gvk], made)
		}
	}
	fmt.Fprintf(os.Stderr, "%d calls; not used, by type: %v\n", len(calls), t.unused)
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	total := 0
	for _, gvk := range o.sortedKinds() {
		vectors := o.chosen(gvk, cases[gvk], *alike, *valid)
		if len(vectors) == 0 {
			continue
		}
		size, err := writeGzip(filepath.Join(*out, fileName(gvk)), vectors)
		if err != nil {
			return err
		}
		total += size
		fmt.Fprintf(os.Stderr, "%s of %d\n", summary(gvk, vectors, size), len(cases[gvk]))
	}
	fmt.Fprintf(os.Stderr, "total %d bytes\n", total)
	return nil
}

// readRecords reads all calls, each once, in an order that does not depend on
// which test process made them.
func readRecords(folder string) ([]record.Entry, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no records in %q: run harvest first: %w", folder, err)
	}
	lines := map[string]bool{}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			lines[scanner.Text()] = true
		}
		if err := scanner.Err(); err != nil {
			return nil, err
		}
		file.Close()
	}
	sorted := make([]string, 0, len(lines))
	for line := range lines {
		sorted = append(sorted, line)
	}
	sort.Strings(sorted)
	calls := make([]record.Entry, len(sorted))
	for i, line := range sorted {
		if err := json.Unmarshal([]byte(line), &calls[i]); err != nil {
			return nil, err
		}
	}
	return calls, nil
}

// site is where a type occurs in a kind: fields by index, -1 for the one item of a list.
type site struct {
	subject *subject
	path    []int
}

// transplanter makes requests of recorded arguments. An argument that is a
// part of a kind is put into that kind's first seed.
type transplanter struct {
	oracle *oracle
	// kinds are the subjects of an object's type.
	kinds map[string][]*subject
	// parts are the nearest places of all other types.
	parts  map[string]site
	types  map[string]reflect.Type
	seeds  map[*subject]runtime.Object
	unused map[string]int
}

func newTransplanter(o *oracle, seeds map[schema.GroupVersionKind][]json.RawMessage) *transplanter {
	t := &transplanter{oracle: o, kinds: map[string][]*subject{}, parts: map[string]site{}, types: map[string]reflect.Type{}, seeds: map[*subject]runtime.Object{}, unused: map[string]int{}}
	var queue []struct {
		reflect.Type
		site
	}
	for _, gvk := range o.sortedKinds() {
		s := o.subjects[gvk]
		if s.store == nil {
			// What is never stored has no strategy to compare with.
			continue
		}
		internal := reflect.TypeOf(s.storage.New()).Elem()
		versioned := s.group.scheme.AllKnownTypes()[gvk]
		for _, one := range []reflect.Type{internal, versioned} {
			name := record.TypeName(one)
			t.types[name] = one
			others := t.kinds[name]
			if n := len(others); n > 0 && others[n-1].gvk.Group == gvk.Group {
				// Kinds are sorted: the newest version of a group stands for it.
				others = others[:n-1]
			}
			t.kinds[name] = append(others, s)
		}
		if len(seeds[gvk]) > 0 {
			if object, err := s.decode(seeds[gvk][0]); err == nil {
				s.group.scheme.Default(object)
				if t.seeds[s], err = s.internal(object); err == nil {
					queue = append(queue, struct {
						reflect.Type
						site
					}{internal, site{subject: s}})
				}
			}
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		element := at.Type
		for element.Kind() == reflect.Pointer {
			element = element.Elem()
		}
		name := record.TypeName(element)
		if len(at.path) > 0 {
			if _, known := t.parts[name]; known || t.kinds[name] != nil || len(at.path) > 12 {
				continue
			}
			t.parts[name], t.types[name] = at.site, element
		}
		next := func(child reflect.Type, step int) {
			path := append(append([]int{}, at.path...), step)
			queue = append(queue, struct {
				reflect.Type
				site
			}{child, site{at.subject, path}})
		}
		switch element.Kind() {
		case reflect.Slice:
			if name != "" {
				next(element.Elem(), -1)
			}
		case reflect.Struct:
			if !strings.Contains(element.PkgPath(), "/pkg/apis/") || strings.HasPrefix(element.PkgPath(), "k8s.io/apimachinery") {
				continue
			}
			for i := range element.NumField() {
				if element.Field(i).IsExported() {
					next(element.Field(i).Type, i)
				}
			}
		}
	}
	return t
}

// requests are what a server could be asked to meet the call's arguments.
func (t *transplanter) requests(call record.Entry) []request {
	var out []request
	for i := 0; i < len(call.Arguments); i++ {
		argument := call.Arguments[i]
		if argument.Value == nil {
			continue
		}
		var old json.RawMessage
		if i+1 < len(call.Arguments) && call.Arguments[i+1].Type == argument.Type && call.Arguments[i+1].Value != nil {
			old = call.Arguments[i+1].Value
			i++
		}
		name := strings.TrimLeft(argument.Type, "*")
		made := false
		for _, s := range t.kinds[name] {
			made = true
			out = append(out, s.requests(call, t.whole(name, argument.Value), t.whole(name, old))...)
		}
		if place, known := t.parts[name]; known && !made {
			made = true
			out = append(out, place.subject.requests(call, t.graft(place, name, argument.Value), t.graft(place, name, old))...)
		}
		if !made {
			t.unused[name]++
		}
	}
	return out
}

// requests is the create of an object, or its update if there is an old one.
func (s *subject) requests(call record.Entry, object, old runtime.Object) []request {
	if object == nil {
		return nil
	}
	for _, one := range []runtime.Object{object, old} {
		if one != nil {
			// Field management reads these before a strategy does, and drops what is malformed.
			one.(metav1.ObjectMetaAccessor).GetObjectMeta().SetManagedFields(nil)
		}
	}
	made := request{Op: "create", Group: s.gvk.Group, Version: s.gvk.Version, Kind: s.gvk.Kind}
	if old != nil {
		made.Op = s.updateOf(call)
		stamp, _ := time.Parse(time.RFC3339, fixedTime)
		for _, stored := range []runtime.Object{object, old} {
			// What a client sends back has what the store once gave it.
			accessor := stored.(metav1.ObjectMetaAccessor).GetObjectMeta()
			accessor.SetUID(fixedUID)
			accessor.SetCreationTimestamp(metav1.NewTime(stamp))
			accessor.SetResourceVersion("1")
			// The path of the request names the object.
			before := old.(metav1.ObjectMetaAccessor).GetObjectMeta()
			accessor.SetName(before.GetName())
			accessor.SetNamespace(before.GetNamespace())
		}
		if made.Old = s.sent(old); made.Old == nil {
			return nil
		}
	}
	if made.Object = s.sent(object); made.Object == nil {
		return nil
	}
	return []request{made}
}

// updateOf is the kind of update that a function is for, by the names of the function and of its strategy.
func (s *subject) updateOf(call record.Entry) string {
	names := call.Function
	for _, argument := range call.Arguments {
		if argument.Value == nil {
			names += " " + argument.Type
		}
	}
	names = strings.ToLower(names)
	for _, sub := range []string{"status", "resize", "ephemeralcontainers", "approval", "finalize"} {
		if strings.Contains(names, sub) && s.subStore(sub) != nil {
			return sub
		}
	}
	return "update"
}

// whole is a recorded object, nil if it cannot be read.
func (t *transplanter) whole(name string, value json.RawMessage) runtime.Object {
	made := reflect.New(t.types[name])
	if value == nil || json.Unmarshal(value, made.Interface()) != nil {
		return nil
	}
	return made.Interface().(runtime.Object)
}

// graft is the seed of a kind with a recorded part in place.
func (t *transplanter) graft(place site, name string, value json.RawMessage) runtime.Object {
	made := reflect.New(t.types[name])
	if value == nil || json.Unmarshal(value, made.Interface()) != nil {
		return nil
	}
	object := t.seeds[place.subject].DeepCopyObject()
	at := reflect.ValueOf(object).Elem()
	for _, step := range place.path {
		at = through(at)
		if step >= 0 {
			if oneOf(at.Type()) {
				at.SetZero()
			}
			at = at.Field(step)
			continue
		}
		if at.Len() == 0 {
			at.Set(reflect.MakeSlice(at.Type(), 1, 1))
		}
		at = at.Index(0)
	}
	through(at).Set(made.Elem())
	return object
}

// through follows pointers and makes what they should point to.
func through(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v
}

// oneOf says that of a type's fields one may be set: all are pointers.
func oneOf(t reflect.Type) bool {
	for i := range t.NumField() {
		if t.Field(i).Type.Kind() != reflect.Pointer {
			return false
		}
	}
	return t.NumField() > 1
}

// sent is an object, internal or versioned, as a client would send it, nil if that cannot be.
func (s *subject) sent(object runtime.Object) (text json.RawMessage) {
	defer func() {
		if recover() != nil {
			text = nil
		}
	}()
	versioned, err := s.group.scheme.ConvertToVersion(object, s.gvk.GroupVersion())
	if err != nil {
		return nil
	}
	if text, err = bare(versioned); err != nil {
		return nil
	}
	return steadyClock(text)
}

// steadyClock moves times near the moment of the test run to a fixed moment.
func steadyClock(text []byte) []byte {
	fixed := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	return timestamp.ReplaceAllFunc(text, func(match []byte) []byte {
		at, err := time.Parse(time.RFC3339Nano, string(bytes.Trim(match, `"`)))
		if err != nil || time.Since(at).Abs() > 400*24*time.Hour {
			return match
		}
		moved := fixed.Add(at.Sub(time.Now()).Round(time.Minute))
		if bytes.Contains(match, []byte(".")) {
			return []byte(moved.Format(`"2006-01-02T15:04:05.000000Z"`))
		}
		return []byte(moved.Format(`"` + time.RFC3339 + `"`))
	})
}

var digits = regexp.MustCompile(`\d+`)

// chosen asks all requests and keeps those that differ in their errors.
func (o *oracle) chosen(gvk schema.GroupVersionKind, requests []request, alike, valid int) []vector {
	var out []vector
	seen, kept := map[string]bool{}, map[string]int{}
	// In the order of a hash, a limit does not prefer one function's calls.
	hash := func(r request) uint64 {
		h := fnv.New64a()
		h.Write(r.Object)
		h.Write(r.Old)
		return h.Sum64()
	}
	sort.SliceStable(requests, func(i, j int) bool { return hash(requests[i]) < hash(requests[j]) })
	m := &maker{oracle: o, subject: o.subjects[gvk]}
	for _, r := range requests {
		key := r.Op + string(r.Object) + string(r.Old)
		if seen[key] {
			continue
		}
		seen[key] = true
		reply := o.ask(&r)
		if reply.Failure != "" || reply.DecodeError != "" {
			continue
		}
		signature, limit := r.Op, valid
		for _, one := range reply.Errors {
			signature += "\n" + one.Type + digits.ReplaceAllString(one.Field+one.Detail, "0")
			limit = alike
		}
		if kept[signature] >= limit {
			continue
		}
		if reply, steady := m.steady(r.Op, r.Object, r.Old); steady {
			kept[signature]++
			reply.Defaulted, reply.Row = nil, nil
			if len(reply.Errors) > 0 {
				reply.Prepared, reply.Status = nil, nil
			}
			out = append(out, vector{Op: r.Op, In: r.Object, Old: r.Old, Out: reply})
		}
	}
	return out
}
