package main

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

const (
	probeRounds         = 2400
	constantSeenAtLeast = 20
)

type conditionalDefault struct {
	Definition string         `json:"definition"`
	Field      string         `json:"field"`
	Kinds      []string       `json:"kinds"`
	Unset      int            `json:"unset"`
	Values     map[string]int `json:"values"`
}

// observation is what defaulting did to one field that was absent before.
type observation struct {
	unset, set int
	values     map[string]int
	kinds      map[string]bool
}

type prober struct {
	catalog *catalog
	seen    map[string]map[string]*observation
	// panics counts objects that upstream's own defaulting cannot bear.
	panics int
}

func (c *catalog) enums() map[string][]any {
	out := map[string][]any{}
	for _, d := range c.definitions {
		for i, f := range d.Fields {
			if len(f.Enum) == 0 {
				continue
			}
			if t := leafStringType(d.typ, d.Fields[i].goField); t != nil && t.PkgPath() != "" {
				out[goName(t)] = f.Enum
			}
		}
	}
	return out
}

func leafStringType(t reflect.Type, name string) reflect.Type {
	f, ok := t.FieldByName(name)
	if !ok {
		return nil
	}
	ft := f.Type
	for ft.Kind() == reflect.Pointer || ft.Kind() == reflect.Slice {
		ft = ft.Elem()
	}
	if ft.Kind() != reflect.String {
		return nil
	}
	return ft
}

// probeDefaults runs upstream's defaulting over random objects of every served
// kind and sorts the outcome into constants and values that depend on context.
func (c *catalog) probeDefaults(w *world) []conditionalDefault {
	p := &prober{catalog: c, seen: map[string]map[string]*observation{}}
	enums := c.enums()
	for _, gv := range w.sortedVersions() {
		group := w.groups[gv]
		kinds := group.scheme.KnownTypes(gv)
		names := make([]string, 0, len(kinds))
		for kind := range kinds {
			names = append(names, kind)
		}
		sort.Strings(names)
		for _, kind := range names {
			if strings.HasSuffix(kind, "List") || strings.HasSuffix(kind, "Options") || kind == "WatchEvent" {
				continue
			}
			f := &filler{random: rand.New(rand.NewSource(int64(len(kind)) + 77)), enums: enums}
			for round := range probeRounds {
				f.presence = []float64{0.35, 0.55, 0.8}[round%3]
				p.observe(group.scheme, gv.String()+"/"+kind, f.object(kinds[kind]))
			}
		}
	}
	return p.conclude()
}

func (p *prober) observe(scheme *runtime.Scheme, kind string, before reflect.Value) {
	after := before.Interface().(runtime.Object).DeepCopyObject()
	defer func() {
		if recover() != nil {
			p.panics++
		}
	}()
	scheme.Default(after)
	p.compare(kind, before.Elem(), reflect.ValueOf(after).Elem())
}

func (p *prober) compare(kind string, before, after reflect.Value) {
	if _, leaf := leaves[before.Type()]; leaf {
		return
	}
	switch before.Kind() {
	case reflect.Pointer:
		if !before.IsNil() && !after.IsNil() {
			p.compare(kind, before.Elem(), after.Elem())
		}
	case reflect.Slice:
		for i := range min(before.Len(), after.Len()) {
			p.compare(kind, before.Index(i), after.Index(i))
		}
	case reflect.Map:
		for _, key := range before.MapKeys() {
			if value := after.MapIndex(key); value.IsValid() {
				p.compare(kind, before.MapIndex(key), value)
			}
		}
	case reflect.Struct:
		p.compareStruct(kind, openapiName(before.Type()), before, after)
	}
}

func (p *prober) compareStruct(kind, definition string, before, after reflect.Value) {
	t := before.Type()
	for i := range t.NumField() {
		sf := t.Field(i)
		if !sf.IsExported() || jsonNameOf(sf) == "-" {
			continue
		}
		name := jsonNameOf(sf)
		b, a := before.Field(i), after.Field(i)
		if name == "" && sf.Type.Kind() == reflect.Struct {
			p.compareStruct(kind, definition, b, a)
			continue
		}
		_, leaf := leaves[sf.Type]
		if sf.Type.Kind() == reflect.Struct && !leaf {
			p.compare(kind, b, a)
			continue
		}
		if b.IsZero() || (b.Kind() == reflect.Slice || b.Kind() == reflect.Map) && b.Len() == 0 {
			p.record(kind, definition, name, a)
			continue
		}
		p.compare(kind, b, a)
	}
}

func (p *prober) record(kind, definition, name string, after reflect.Value) {
	fields := p.seen[definition]
	if fields == nil {
		fields = map[string]*observation{}
		p.seen[definition] = fields
	}
	o := fields[name]
	if o == nil {
		o = &observation{values: map[string]int{}, kinds: map[string]bool{}}
		fields[name] = o
	}
	empty := after.IsZero() || (after.Kind() == reflect.Slice || after.Kind() == reflect.Map) && after.Len() == 0
	if empty {
		o.unset++
		return
	}
	o.set++
	o.kinds[kind] = true
	o.values[string(blankClock([]byte(mustJSON(after.Interface()))))]++
}

func (p *prober) conclude() []conditionalDefault {
	conditional := []conditionalDefault{}
	for _, definition := range p.catalog.names() {
		d := p.catalog.definitions[definition]
		for _, f := range d.Fields {
			o := p.seen[definition][f.Name]
			if o == nil || o.set == 0 {
				continue
			}
			if len(o.values) == 1 && o.unset == 0 && o.set >= constantSeenAtLeast {
				for value := range o.values {
					f.Constant = json.RawMessage(value)
				}
				continue
			}
			kinds := make([]string, 0, len(o.kinds))
			for kind := range o.kinds {
				kinds = append(kinds, kind)
			}
			sort.Strings(kinds)
			conditional = append(conditional, conditionalDefault{Definition: definition, Field: f.Name, Kinds: kinds, Unset: o.unset, Values: mostFrequent(o.values, 8)})
		}
	}
	return conditional
}

func mostFrequent(values map[string]int, limit int) map[string]int {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool {
		if values[keys[i]] != values[keys[j]] {
			return values[keys[i]] > values[keys[j]]
		}
		return keys[i] < keys[j]
	})
	out := map[string]int{}
	for _, key := range keys[:min(limit, len(keys))] {
		out[key] = values[key]
	}
	return out
}

func jsonNameOf(sf reflect.StructField) string {
	name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
	return name
}
