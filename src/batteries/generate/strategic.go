package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/kubernetes/pkg/controlplane"
)

// strategicExamples patches random pods, deployments and services: with patches that a client would compute, and with patches made of directives.
func strategicExamples(r *rand.Rand) []example {
	seeds, err := readSeeds()
	if err != nil {
		panic(err)
	}
	w, err := newWorld(controlplane.DefaultAPIResourceConfigSource())
	if err != nil {
		panic(err)
	}
	c := newCatalog()
	if err := c.addServed(w); err != nil {
		panic(err)
	}
	m := &mutator{catalog: c, random: r, filler: &filler{random: r, enums: c.enums(), presence: 0.4}}
	subjects := []struct {
		kind schema.GroupVersionKind
		typ  any
		name string
	}{
		{corev1.SchemeGroupVersion.WithKind("Pod"), corev1.Pod{}, "io.k8s.api.core.v1.Pod"},
		{appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.Deployment{}, "io.k8s.api.apps.v1.Deployment"},
		{corev1.SchemeGroupVersion.WithKind("Service"), corev1.Service{}, "io.k8s.api.core.v1.Service"},
	}
	var out []example
	for i := range 900 {
		subject := subjects[i%3]
		original := pick(r, seeds[subject.kind])
		changed := m.mutate(m.mutate(original, subject.name, ""), subject.name, "")
		var patch []byte
		if i%2 == 0 {
			patch, err = strategicpatch.CreateTwoWayMergePatch(original, changed, subject.typ)
			if err != nil {
				continue
			}
		} else {
			patch = directed(r, original, changed)
		}
		result, err := patched(original, patch, subject.typ)
		if errors.Is(err, errPanic) || !steadyPatch(original, patch, subject.typ, result, err) {
			continue
		}
		out = append(out, outcome(json.RawMessage(original), map[string]any{"kind": subject.kind.Kind, "patch": json.RawMessage(patch)}, canonical(result), err))
	}
	return out
}

var errPanic = errors.New("upstream panics")

// steadyPatch tells whether the outcome is the same every time; upstream walks Go maps.
func steadyPatch(original, patch []byte, typ any, result []byte, err error) bool {
	times := 16
	if err != nil {
		times = 400
	}
	for range times {
		again, secondErr := patched(original, patch, typ)
		if fmt.Sprint(secondErr) != fmt.Sprint(err) || string(again) != string(result) {
			return false
		}
	}
	return true
}

func patched(original, patch []byte, typ any) (result []byte, err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return strategicpatch.StrategicMergePatch(original, patch, typ)
}

// directed cuts a patch out of an object and puts directives into it.
func directed(r *rand.Rand, original, changed []byte) []byte {
	source := changed
	if r.Intn(2) == 0 {
		source = original
	}
	tree, err := parseTree(source)
	if err != nil {
		return changed
	}
	cut := thin(r, tree, 0)
	text, err := plainJSON(cut)
	if err != nil {
		return changed
	}
	return text
}

func thin(r *rand.Rand, value any, depth int) any {
	switch v := value.(type) {
	case map[string]any:
		return thinObject(r, v, depth)
	case []any:
		out := []any{}
		for _, one := range v {
			if r.Intn(3) > 0 {
				out = append(out, thin(r, one, depth+1))
			}
		}
		if r.Intn(8) == 0 {
			out = append(out, map[string]any{"$patch": pick(r, []any{"replace", "delete", "bogus"})})
		}
		if len(v) > 0 && r.Intn(12) == 0 {
			out = append(out, pick(r, []any{"scalar", map[string]any{}, nil, map[string]any{"name": "added"}}))
		}
		return out
	}
	if r.Intn(10) == 0 {
		return nil
	}
	return value
}

func thinObject(r *rand.Rand, v map[string]any, depth int) any {
	out := map[string]any{}
	keys := sortedKeys(v)
	for _, key := range keys {
		if r.Intn(3) > 0 || depth < 2 || isMergeKey(key) {
			out[key] = thin(r, v[key], depth+1)
		}
		list, isList := v[key].([]any)
		if !isList || len(list) == 0 || r.Intn(5) > 0 {
			continue
		}
		switch r.Intn(3) {
		case 0:
			out["$setElementOrder/"+key] = order(r, list)
		case 1:
			if _, scalar := list[0].(string); scalar {
				out["$deleteFromPrimitiveList/"+key] = []any{list[0]}
			}
		default:
			if r.Intn(8) == 0 {
				out["$retainKeys"] = []any{key}
			}
		}
	}
	if depth > 0 && r.Intn(14) == 0 {
		out["$patch"] = pick(r, []any{"delete", "replace", "merge", "bogus"})
	}
	if r.Intn(60) == 0 {
		kept := []any{}
		for _, key := range keys {
			if r.Intn(2) == 0 {
				kept = append(kept, key)
			}
		}
		out["$retainKeys"] = kept
	}
	return out
}

func isMergeKey(key string) bool {
	at := sort.SearchStrings([]string{"containerPort", "ip", "mountPath", "name", "port", "type", "uid"}, key)
	return at < 7 && []string{"containerPort", "ip", "mountPath", "name", "port", "type", "uid"}[at] == key
}

// order lists elements by their likely merge keys, shuffled now and then.
func order(r *rand.Rand, list []any) []any {
	out := []any{}
	for _, one := range list {
		object, ok := one.(map[string]any)
		if !ok {
			out = append(out, one)
			continue
		}
		entry := map[string]any{}
		for _, key := range []string{"name", "containerPort", "port", "ip", "mountPath"} {
			if value, there := object[key]; there {
				entry[key] = value
				break
			}
		}
		out = append(out, entry)
	}
	if r.Intn(2) == 0 {
		r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return out
}
