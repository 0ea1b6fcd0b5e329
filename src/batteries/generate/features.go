package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// gateRow is a feature gate at this version of upstream.
type gateRow struct {
	Name    string `json:"name"`
	Default bool   `json:"default"`
	Stage   string `json:"stage"`
	// Locked says that the gate cannot be set otherwise.
	Locked bool `json:"locked,omitempty"`
}

// needRow says which gates have to be on if one is.
type needRow struct {
	Gate  string   `json:"gate"`
	Needs []string `json:"needs"`
}

// gateNeeds are the gates that need others, by name.
func gateNeeds() []needRow {
	out := []needRow{}
	for name, needs := range utilfeature.DefaultMutableFeatureGate.Dependencies() {
		row := needRow{Gate: string(name)}
		for _, need := range needs {
			row.Needs = append(row.Needs, string(need))
		}
		if len(needs) > 0 {
			out = append(out, row)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Gate < out[j].Gate })
	return out
}

// featureGates are all gates that upstream registers, aside from those that
// stand for all of a stage.
func featureGates() []gateRow {
	out := []gateRow{}
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		if name == "AllAlpha" || name == "AllBeta" {
			continue
		}
		stage := string(spec.PreRelease)
		if stage == "" {
			stage = "GA"
		}
		out = append(out, gateRow{Name: string(name), Default: spec.Default, Stage: stage, Locked: spec.LockToDefault})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// gatedRow says what becomes of the fields of a feature that is off.
type gatedRow struct {
	Gate string `json:"gate"`
	// Kinds maps stored resources to the path below which the fields are.
	Kinds map[string]string `json:"kinds"`
	// Counted says that metadata.generation grows by a change that is dropped.
	Counted bool `json:"counted,omitempty"`
	// Fields stay if the old object uses any of them.
	Fields []gatedField `json:"fields"`
}

type gatedField struct {
	Path string `json:"path"`
	// Uses is the prefix that the old object needs to have for the field to stay; default Path.
	Uses string `json:"uses,omitempty"`
	// Drops is the prefix that goes together with the field; default Path.
	Drops string `json:"drops,omitempty"`
	// Emptied is the prefix that goes too if nothing else is in it.
	Emptied string `json:"emptied,omitempty"`
}

// step leads from a value to one inside: a field by index, an item or a map's value.
type step struct {
	field int
	name  string
}

const (
	stepItem  = -1
	stepValue = -2
)

type fieldPath []step

func (p fieldPath) String() string {
	var text strings.Builder
	for _, one := range p {
		switch {
		case one.field == stepItem:
			text.WriteString("[]")
		case one.field == stepValue:
			text.WriteString("{}")
		case one.name != "":
			if text.Len() > 0 {
				text.WriteByte('.')
			}
			text.WriteString(one.name)
		}
	}
	return text.String()
}

// fieldPaths lists the paths of all fields of a type; recursion ends at a type
// that is around itself.
func fieldPaths(t reflect.Type, at fieldPath, around []reflect.Type, out *[]fieldPath) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, leaf := leaves[t]; leaf {
		return
	}
	next := func(t reflect.Type, one step) {
		path := append(append(fieldPath{}, at...), one)
		*out = append(*out, path)
		fieldPaths(t, path, around, out)
	}
	switch t.Kind() {
	case reflect.Slice:
		fieldPaths(t.Elem(), append(append(fieldPath{}, at...), step{field: stepItem}), around, out)
	case reflect.Map:
		fieldPaths(t.Elem(), append(append(fieldPath{}, at...), step{field: stepValue}), around, out)
	case reflect.Struct:
		if t == reflect.TypeFor[metav1.ObjectMeta]() && len(at) < 2 {
			return
		}
		for _, outer := range around {
			if outer == t {
				return
			}
		}
		around = append(append([]reflect.Type{}, around...), t)
		for i := range t.NumField() {
			sf := t.Field(i)
			name := jsonNameOf(sf)
			switch {
			case !sf.IsExported() || name == "-" || sf.Type == reflect.TypeFor[metav1.TypeMeta]():
			case name == "":
				fieldPaths(sf.Type, append(append(fieldPath{}, at...), step{field: i}), around, out)
			default:
				next(sf.Type, step{field: i, name: name})
			}
		}
	}
}

// put sets what is at the path to something that is not empty.
func put(v reflect.Value, path fieldPath) {
	v = through(v)
	if len(path) == 0 {
		notEmpty(v)
		return
	}
	one, rest := path[0], path[1:]
	switch one.field {
	case stepItem:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		put(v.Index(0), rest)
	case stepValue:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.SetString("example.com/k")
		if known := v.MapIndex(key); known.IsValid() {
			value.Set(known)
		}
		put(value, rest)
		v.SetMapIndex(key, value)
	default:
		put(v.Field(one.field), rest)
	}
}

func notEmpty(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		notEmpty(through(v.Index(0)))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		put(v, fieldPath{{field: stepValue}})
	case reflect.Struct:
		if _, leaf := leaves[v.Type()]; leaf {
			fixed(v)
		}
	}
}

// found says whether JSON has a value at a path, be it empty.
func found(tree any, path fieldPath) bool {
	for i, one := range path {
		switch at := tree.(type) {
		case map[string]any:
			switch {
			case one.field == stepValue:
				for _, value := range at {
					if found(value, path[i+1:]) {
						return true
					}
				}
				return false
			case one.name != "":
				tree = at[one.name]
			}
		case []any:
			for _, value := range at {
				if found(value, path[i+1:]) {
					return true
				}
			}
			return false
		}
		if tree == nil {
			return false
		}
	}
	return true
}

// chosenGates answers for upstream's feature gates in a probe.
type chosenGates struct {
	featuregate.FeatureGate
	on func(name string) bool
}

func (c chosenGates) Enabled(name featuregate.Feature) bool { return c.on(string(name)) }

// withGates runs a probe while upstream's code sees other gates.
func withGates[T any](on func(string) bool, run func() T) T {
	before := utilfeature.DefaultFeatureGate
	utilfeature.DefaultFeatureGate = chosenGates{before, on}
	defer func() { utilfeature.DefaultFeatureGate = before }()
	return run()
}

// gateProber asks the strategies of a kind which fields they drop.
type gateProber struct {
	subject *subject
	seed    runtime.Object
	off     []string
}

// made is a small object of the kind with something at the given paths.
func (g *gateProber) made(paths ...fieldPath) runtime.Object {
	object, err := g.subject.group.scheme.New(g.subject.gvk)
	if g.seed != nil {
		object = g.seed.DeepCopyObject()
	} else if err != nil {
		panic(err)
	}
	for _, path := range paths {
		put(reflect.ValueOf(object).Elem(), path)
	}
	accessor := object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	accessor.SetName("a")
	accessor.SetUID(fixedUID)
	accessor.SetResourceVersion("1")
	if g.subject.namespaced {
		accessor.SetNamespace("default")
	}
	return object
}

// writing is a write in which a strategy prepares an object.
type writing struct {
	sub   string
	store *registry.Store
	// creates says that there is no old object.
	creates bool
}

// prepared is what a strategy makes of an object; nil if it cannot bear it.
func (g *gateProber) prepared(w writing, versioned, versionedOld runtime.Object) (tree any) {
	defer func() {
		if recover() != nil {
			tree = nil
		}
	}()
	s := g.subject
	internal := func(object runtime.Object) runtime.Object {
		object = object.DeepCopyObject()
		s.group.scheme.Default(object)
		made, err := s.internal(object)
		if err != nil {
			panic(err)
		}
		return made
	}
	object := internal(versioned)
	namespace := ""
	if s.namespaced {
		namespace = "default"
	}
	if w.creates {
		w.store.CreateStrategy.PrepareForCreate(s.context(namespace, "create", w.sub, "a", &recorder{}), object)
	} else {
		w.store.UpdateStrategy.PrepareForUpdate(s.context(namespace, "update", w.sub, "a", &recorder{}), object, internal(versionedOld))
	}
	text, err := s.encoded(object)
	if err != nil {
		panic(err)
	}
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err)
	}
	return tree
}

// writings are the ways in which a field gets into the store. Other
// subresources drop by the rules of the update.
func (g *gateProber) writings() []writing {
	out := []writing{{store: g.subject.store, creates: true}, {store: g.subject.store}}
	if status := g.subject.subStore("status"); status != nil {
		out = append(out, writing{sub: "status", store: status})
	}
	kept := out[:0]
	for _, w := range out {
		if w.creates || w.store.UpdateStrategy != nil {
			kept = append(kept, w)
		}
		if g.prepared(w, g.made(), g.made()) == nil {
			fmt.Fprintf(os.Stderr, "%s %s: cannot be probed\n", g.subject.resource, w.sub)
		}
	}
	return kept
}

// keeps says whether a field of a new object stays in a write, the old object having some fields.
func (g *gateProber) keeps(w writing, path fieldPath, old ...fieldPath) bool {
	return found(g.prepared(w, g.made(path), g.made(old...)), path)
}

// gatesOf are the gates without which a write drops a field that it keeps with
// all of them.
func (g *gateProber) gatesOf(w writing, path fieldPath) []string {
	keeps := func(on func(string) bool) bool {
		return withGates(on, func() bool { return g.keeps(w, path) })
	}
	if g.keeps(w, path) || !keeps(func(string) bool { return true }) {
		return nil
	}
	var gates []string
	for _, gate := range g.off {
		if !keeps(func(name string) bool { return name != gate }) {
			gates = append(gates, gate)
		}
	}
	return gates
}

// dropped is a field that a write drops while a gate is off.
type dropped struct {
	gatedField
	path    fieldPath
	in      writing
	counted bool
}

// probe finds the gated fields of the kind, by gate.
func (g *gateProber) probe() (map[string][]dropped, error) {
	var paths []fieldPath
	fieldPaths(g.subject.group.scheme.AllKnownTypes()[g.subject.gvk], nil, nil, &paths)
	out := map[string][]dropped{}
	var known []string
	writings := g.writings()
	for _, path := range paths {
		text := path.String()
		inside := func(outer string) bool {
			return strings.HasPrefix(text, outer) && strings.ContainsRune(".[{", rune(text[len(outer)]))
		}
		if anyOf(known, inside) {
			continue
		}
		var dropping []writing
		var gate string
		for _, w := range writings {
			gates := g.gatesOf(w, path)
			if len(gates) == 0 {
				continue
			}
			if gate = gates[0]; len(gates) > 1 {
				fmt.Fprintf(os.Stderr, "%s %s: gates %v\n", g.subject.resource, text, gates)
			}
			dropping = append(dropping, w)
		}
		if len(dropping) == 0 {
			continue
		}
		// The data does not tell writes apart: what a create drops, an update drops too.
		last := dropping[len(dropping)-1]
		if last.creates || last.sub == "" && len(dropping) == 1 {
			return nil, fmt.Errorf("%s: %s is dropped by %v only", g.subject.resource, text, last)
		}
		known = append(known, text)
		one := dropped{gatedField: gatedField{Path: text}, path: path, in: last}
		g.extent(&one)
		out[gate] = append(out[gate], one)
	}
	return out, nil
}

func anyOf[T any](list []T, test func(T) bool) bool {
	for _, one := range list {
		if test(one) {
			return true
		}
	}
	return false
}

// extent finds what goes together with a field, and which part of the old object keeps it.
func (g *gateProber) extent(one *dropped) {
	tree := g.prepared(one.in, g.made(one.path), g.made())
	gone := len(one.path)
	for length := 1; length < len(one.path); length++ {
		around := one.path[:length]
		if around[length-1].name == "" || found(tree, around) {
			continue
		}
		// Is it that nothing is left in it, or does all of it go?
		full := g.made(one.path)
		fillBeside(reflect.ValueOf(full).Elem(), around, one.path[length])
		if found(g.prepared(one.in, full, g.made()), around) {
			one.Emptied = around.String()
		} else {
			one.Drops = around.String()
		}
		gone = length
		break
	}
	rest := g.made(one.path[:gone-1])
	one.counted = generationOf(g.prepared(one.in, g.made(one.path), rest)) != generationOf(g.prepared(one.in, rest, rest))
	for length := len(one.path) - 1; length > 0; length-- {
		if one.path[length-1].name == "" {
			continue
		}
		if g.keeps(one.in, one.path, one.path[:length]) {
			one.Uses = one.path[:length].String()
		}
	}
}

func generationOf(tree any) any {
	object, _ := tree.(map[string]any)
	meta, _ := object["metadata"].(map[string]any)
	return meta["generation"]
}

// fillBeside fills the first field of the struct at a path that is not the one given.
func fillBeside(v reflect.Value, path fieldPath, but step) {
	for _, one := range path {
		v = through(v)
		switch one.field {
		case stepItem:
			v = v.Index(0)
		case stepValue:
			return
		default:
			v = v.Field(one.field)
		}
	}
	v = through(v)
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		if i != but.field && v.Type().Field(i).IsExported() {
			put(v, fieldPath{{field: i}})
			return
		}
	}
}

// together splits the fields of a gate into those of which any one in the old object keeps all.
func (g *gateProber) together(gate string, fields []dropped) ([][]dropped, error) {
	var groups [][]dropped
	keeps := func(field, other dropped) bool { return g.keeps(field.in, field.path, other.path) }
next:
	for _, field := range fields {
		for i, group := range groups {
			if field.in != group[0].in || field.counted != group[0].counted || !keeps(field, group[0]) {
				continue
			}
			for _, other := range group {
				if !keeps(field, other) || !keeps(other, field) {
					return nil, fmt.Errorf("%s, %s: %s and %s do not keep each other as the rest does", g.subject.resource, gate, field.Path, other.Path)
				}
			}
			groups[i] = append(group, field)
			continue next
		}
		groups = append(groups, []dropped{field})
	}
	return groups, nil
}

// gatedFields probes all kinds and puts those together whose fields differ in the path to them only.
func (o *oracle) gatedFields() ([]gatedRow, error) {
	var off []string
	for _, gate := range featureGates() {
		if !gate.Default {
			off = append(off, gate.Name)
		}
	}
	rows := map[string]*gatedRow{}
	for _, gvk := range o.sortedKinds() {
		s := o.subjects[gvk]
		if s.store == nil || s.store.CreateStrategy == nil || !o.isStored(s) {
			continue
		}
		g := &gateProber{subject: s, off: off}
		fields, err := g.probe()
		if err != nil {
			return nil, err
		}
		resource := s.store.DefaultQualifiedResource
		for gate, fields := range fields {
			groups, err := g.together(gate, fields)
			if err != nil {
				return nil, err
			}
			for _, group := range groups {
				row, at := asRow(gate, group)
				key := gate + mustJSON(row)
				kind := resource.Group + "/" + resource.Resource
				for rows[key] != nil && has(rows[key].Kinds, kind) {
					// The same fields stand at another path of the kind too.
					key += "+"
				}
				if rows[key] == nil {
					rows[key] = row
				}
				rows[key].Kinds[kind] = at
			}
		}
	}
	out := []gatedRow{}
	for _, key := range sortedKeysOf(rows) {
		out = append(out, *rows[key])
	}
	return out, nil
}

func has[T any](values map[string]T, key string) bool {
	_, known := values[key]
	return known
}

// asRow writes the paths of fields below the struct that they are all in.
func asRow(gate string, fields []dropped) (*gatedRow, string) {
	row := &gatedRow{Gate: gate, Counted: fields[0].counted, Kinds: map[string]string{}}
	at := commonStart(fields)
	for _, one := range fields {
		field := one.gatedField
		for _, text := range []*string{&field.Path, &field.Uses, &field.Drops, &field.Emptied} {
			*text = strings.TrimPrefix(*text, at)
		}
		row.Fields = append(row.Fields, field)
	}
	sort.Slice(row.Fields, func(i, j int) bool { return row.Fields[i].Path < row.Fields[j].Path })
	return row, at
}

func sortedKeysOf[T any](values map[string]T) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// isStored says that a kind is served in the version in which upstream stores it.
func (o *oracle) isStored(s *subject) bool {
	kinds, _, err := s.group.scheme.ObjectKinds(s.store.NewFunc())
	if err != nil || s.store.StorageVersioner == nil {
		return false
	}
	stored, ok := s.store.StorageVersioner.KindForGroupVersionKinds(kinds)
	return ok && stored.GroupVersion() == s.gvk.GroupVersion()
}

// commonStart is the path to the struct in which all fields are.
func commonStart(fields []dropped) string {
	start := fields[0].Path
	for _, one := range fields {
		for _, text := range []string{one.Path, one.Uses, one.Drops, one.Emptied} {
			if text == "" {
				continue
			}
			for !strings.HasPrefix(text, start) || start != "" && !strings.HasSuffix(start, ".") {
				start = start[:strings.LastIndexByte(strings.TrimSuffix(start, "."), '.')+1]
			}
		}
	}
	return start
}
