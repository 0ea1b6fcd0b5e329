package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
)

// memory is a store of one object, for subresources that read and write it themselves.
type memory struct {
	detached
	object runtime.Object
}

func (m *memory) get(key string, out runtime.Object) error {
	if m.object == nil {
		return storage.NewKeyNotFoundError(key, 0)
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(m.object.DeepCopyObject()).Elem())
	return nil
}

func (m *memory) Get(_ context.Context, key string, _ storage.GetOptions, out runtime.Object) error {
	return m.get(key, out)
}

func (m *memory) GuaranteedUpdate(_ context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object) error {
	current := reflect.New(reflect.TypeOf(destination).Elem()).Interface().(runtime.Object)
	if err := m.get(key, current); err != nil && !ignoreNotFound {
		return err
	}
	if err := preconditions.Check(key, current); err != nil {
		return err
	}
	version, err := m.Versioner().ObjectResourceVersion(current)
	if err != nil {
		return err
	}
	updated, _, err := tryUpdate(current, storage.ResponseMeta{ResourceVersion: version})
	if err != nil {
		return err
	}
	if err := m.Versioner().UpdateObject(updated, version+1); err != nil {
		return err
	}
	m.object = updated.DeepCopyObject()
	return m.get(key, destination)
}

func (m *memory) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions) error {
	if err := m.get(key, out); err != nil {
		return err
	}
	if err := preconditions.Check(key, out); err != nil {
		return err
	}
	if err := validate(ctx, out); err != nil {
		return err
	}
	m.object = nil
	return nil
}

// budgets are the disruption budgets that evictions see.
type budgets struct {
	items []policyv1.PodDisruptionBudget
}

// client serves the budgets and keeps what becomes of them.
func (b *budgets) client() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("*", "poddisruptionbudgets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action := action.(type) {
		case clienttesting.ListAction:
			return true, &policyv1.PodDisruptionBudgetList{Items: b.items}, nil
		case clienttesting.UpdateAction:
			changed := action.GetObject().(*policyv1.PodDisruptionBudget)
			for i := range b.items {
				if b.items[i].Name == changed.Name {
					b.items[i] = *changed
				}
			}
			return true, changed, nil
		}
		return true, nil, fmt.Errorf("unexpected %s", action.GetVerb())
	})
	return client
}

// subCase is a request to a subresource that is not a view of the whole object.
type subCase struct {
	Op   string            `json:"op"`
	Kind string            `json:"kind"`
	In   json.RawMessage   `json:"in,omitempty"`
	Old  json.RawMessage   `json:"old"`
	With []json.RawMessage `json:"with,omitempty"`
	Out  *subAnswer        `json:"out"`
}

// subAnswer is what came of it: the answer, the object and the budgets afterwards.
type subAnswer struct {
	Status   *metav1.Status    `json:"status,omitempty"`
	Error    string            `json:"error,omitempty"`
	Answer   json.RawMessage   `json:"answer,omitempty"`
	Object   json.RawMessage   `json:"object,omitempty"`
	With     []json.RawMessage `json:"with,omitempty"`
	Accepted bool              `json:"accepted,omitempty"`
}

// subresource asks upstream's own storage of a subresource, with one object in its store.
func (o *oracle) subresource(s *subject, op string, in, old json.RawMessage, with []json.RawMessage) (reply *subAnswer, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	versioned, err := s.decode(old)
	if err != nil {
		return nil, err
	}
	object, err := s.internal(versioned)
	if err != nil {
		return nil, err
	}
	accessor := object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	accessor.SetUID(fixedUID)
	accessor.SetResourceVersion("1")
	o.world.budgets.items = nil
	for _, text := range with {
		var budget policyv1.PodDisruptionBudget
		if err := json.Unmarshal(text, &budget); err != nil {
			return nil, err
		}
		o.world.budgets.items = append(o.world.budgets.items, budget)
	}
	kept := &memory{object: object}
	sub := map[string]string{"scaleget": "scale"}[op]
	if sub == "" {
		sub = op
	}
	handler := s.group.storage[s.resource+"/"+sub]
	store := storeOf(handler)
	before := store.Storage.Storage
	store.Storage.Storage = kept
	defer func() { store.Storage.Storage = before }()
	warnings := &recorder{}
	ctx := s.context(accessor.GetNamespace(), map[string]string{"scaleget": "get", "scale": "update"}[op], sub, accessor.GetName(), warnings)
	reply = &subAnswer{}
	result, err := s.handle(ctx, op, handler, accessor.GetName(), in)
	if err != nil {
		status := apierrors.APIStatus(nil)
		if errors.As(err, &status) {
			full := status.Status()
			reply.Status = &full
		} else {
			reply.Error = err.Error()
		}
	}
	if status, ok := result.(*metav1.Status); ok && err == nil {
		if reply.Accepted = status.Status == metav1.StatusSuccess; !reply.Accepted {
			reply.Status = status
		}
	} else if err == nil {
		if reply.Answer, err = s.encodedAs(result, schema.GroupVersion{Group: "autoscaling", Version: "v1"}); err != nil {
			return nil, err
		}
	}
	if op != "scaleget" && kept.object != nil {
		if reply.Object, err = s.encoded(kept.object); err != nil {
			return nil, err
		}
	}
	for i := range o.world.budgets.items {
		if !reply.Accepted {
			break
		}
		text, err := bare(&o.world.budgets.items[i])
		if err != nil {
			return nil, err
		}
		reply.With = append(reply.With, blankClock(text))
	}
	return reply, nil
}

func (s *subject) encodedAs(internal runtime.Object, version schema.GroupVersion) (json.RawMessage, error) {
	versioned, err := s.group.scheme.ConvertToVersion(internal, version)
	if err != nil {
		return nil, err
	}
	text, err := bare(versioned)
	return blankClock(text), err
}

// handle does what the request handlers do around a subresource's storage.
func (s *subject) handle(ctx context.Context, op string, handler rest.Storage, name string, in json.RawMessage) (runtime.Object, error) {
	if op == "scaleget" {
		return handler.(rest.Getter).Get(ctx, name, &metav1.GetOptions{})
	}
	body, gvk, err := s.codecs.UniversalDeserializer().Decode(in, nil, nil)
	if err != nil {
		return nil, err
	}
	internal, err := s.group.scheme.ConvertToVersion(body, schema.GroupVersion{Group: gvk.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return nil, err
	}
	if op == "scale" {
		result, _, err := handler.(rest.Updater).Update(ctx, name, rest.DefaultUpdatedObjectInfo(internal), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return result, err
	}
	accessor := internal.(metav1.ObjectMetaAccessor).GetObjectMeta()
	if keeper, ok := handler.(rest.SubresourceObjectMetaPreserver); !ok || !keeper.PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() {
		rest.WipeObjectMetaSystemFields(accessor)
	}
	accessor.SetNamespace("default")
	return handler.(rest.NamedCreater).Create(ctx, name, internal, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
}

// replaySubresources asks the cases of a file again.
func (o *oracle) replaySubresources(name string) error {
	podstore.EvictionsRetry = wait.Backoff{Steps: 1}
	return eachLine(name, func(one subCase) error {
		s := o.subjects[kindOfName(one.Kind)]
		if s == nil {
			return fmt.Errorf("%s is not served", one.Kind)
		}
		_, err := o.subresource(s, one.Op, one.In, one.Old, one.With)
		return err
	})
}

// kindOfName reads group.version.Kind.
func kindOfName(name string) schema.GroupVersionKind {
	rest, kind, _ := cutLast(name, ".")
	group, version, _ := cutLast(rest, ".")
	if group == "core" {
		group = ""
	}
	return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

func cutLast(text, at string) (before, after string, found bool) {
	i := strings.LastIndex(text, at)
	if i < 0 {
		return "", text, false
	}
	return text[:i], text[i+len(at):], true
}

// subMaker makes the cases of subresources.
type subMaker struct {
	oracle *oracle
	random *rand.Rand
	seeds  map[schema.GroupVersionKind][]json.RawMessage
	out    map[string][]subCase
}

// writeSubresources writes the cases of scale, binding and eviction.
func (o *oracle) writeSubresources(folder string, seeds map[schema.GroupVersionKind][]json.RawMessage, seed int64, count int) (int, error) {
	// A conflict is answered and not tried again for ten seconds.
	podstore.EvictionsRetry = wait.Backoff{Steps: 1}
	m := &subMaker{oracle: o, random: rand.New(rand.NewSource(seed)), seeds: seeds, out: map[string][]subCase{}}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, err
	}
	for range count {
		if err := m.scale(); err != nil {
			return 0, err
		}
		if err := m.binding(); err != nil {
			return 0, err
		}
		if err := m.eviction(); err != nil {
			return 0, err
		}
	}
	total := 0
	for _, name := range sortedKeysOf(m.out) {
		size, err := writeGzip(filepath.Join(folder, name+".jsonl.gz"), m.out[name])
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(os.Stderr, "subresources/%s: %d cases, %d bytes\n", name, len(m.out[name]), size)
		total += size
	}
	return total, nil
}

// stored is a seed of the kind as it would be stored, with some fields set; nil removes.
func (m *subMaker) stored(s *subject, fields map[string]any) (json.RawMessage, error) {
	of := &maker{oracle: m.oracle, subject: s, random: m.random}
	var text json.RawMessage
	for text == nil {
		text = of.stored(pick(m.random, m.seeds[s.gvk]), nil)
	}
	tree, err := parseTree(text)
	if err != nil {
		return nil, err
	}
	object := tree.(map[string]any)
	for _, path := range sortedKeysOf(fields) {
		at := object
		steps := strings.Split(path, ".")
		for _, one := range steps[:len(steps)-1] {
			next, ok := at[one].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[one] = next
			}
			at = next
		}
		if last := steps[len(steps)-1]; fields[path] == nil {
			delete(at, last)
		} else {
			at[last] = fields[path]
		}
	}
	object["metadata"].(map[string]any)["namespace"] = "default"
	return plainJSON(object)
}

func (m *subMaker) ask(s *subject, name, op string, in map[string]any, old json.RawMessage, with []json.RawMessage) error {
	var body json.RawMessage
	var err error
	if in != nil {
		if body, err = plainJSON(in); err != nil {
			return err
		}
	}
	reply, err := m.oracle.subresource(s, op, body, old, with)
	if err != nil {
		return fmt.Errorf("%s of %s: %w: %s", op, s.gvk, err, body)
	}
	gvk := s.gvk
	m.out[name] = append(m.out[name], subCase{Op: op, Kind: strings.TrimSuffix(fileName(gvk), ".jsonl.gz"), In: body, Old: old, With: with, Out: reply})
	return nil
}

func (m *subMaker) chance(percent int) bool { return m.random.Intn(100) < percent }

// metadata is what a body says of the object that it is for, mostly right.
func (m *subMaker) metadata(old json.RawMessage) map[string]any {
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(old, &object); err != nil {
		panic(err)
	}
	meta := map[string]any{"name": object.Name, "namespace": "default"}
	if m.chance(20) {
		meta["uid"] = pick(m.random, []string{string(fixedUID), "other"})
	}
	if m.chance(20) {
		meta["resourceVersion"] = pick(m.random, []string{"1", "999"})
	}
	return meta
}

func (m *subMaker) scale() error {
	kinds := []schema.GroupVersionKind{{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "apps", Version: "v1", Kind: "ReplicaSet"}, {Group: "apps", Version: "v1", Kind: "StatefulSet"}, {Version: "v1", Kind: "ReplicationController"}}
	s := m.oracle.subjects[pick(m.random, kinds)]
	fields := map[string]any{}
	if m.chance(50) {
		fields["spec.replicas"] = m.random.Intn(4)
	}
	if m.chance(50) {
		fields["status.replicas"] = m.random.Intn(4)
	}
	if s.gvk.Kind == "ReplicationController" {
		if m.chance(50) {
			fields["spec.selector"] = pick(m.random, []any{map[string]any{"b": "x", "a": "y"}, map[string]any{"a": ""}, nil})
		}
	} else if m.chance(60) {
		fields["spec.selector"] = pick(m.random, []any{
			map[string]any{"matchLabels": map[string]any{"z": "1", "a": ""}},
			map[string]any{"matchExpressions": []any{map[string]any{"key": "k", "operator": "In", "values": []any{"b", "a"}}, map[string]any{"key": "a", "operator": "DoesNotExist"}}},
			map[string]any{"matchLabels": map[string]any{"k": "v"}, "matchExpressions": []any{map[string]any{"key": "k", "operator": "NotIn", "values": []any{"x"}}, map[string]any{"key": "e", "operator": "Exists"}}},
			map[string]any{},
		})
	}
	old, err := m.stored(s, fields)
	if err != nil {
		return err
	}
	if m.chance(30) {
		return m.ask(s, "scale", "scaleget", nil, old, nil)
	}
	body := map[string]any{"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": m.metadata(old)}
	if m.chance(95) {
		body["spec"] = map[string]any{"replicas": pick(m.random, []int{-1, 0, 1, 2, 5, 2147483647, -2147483648})}
	}
	if m.chance(20) {
		body["status"] = map[string]any{"replicas": 9, "selector": "not=looked-at"}
	}
	return m.ask(s, "scale", "scale", body, old, nil)
}

func (m *subMaker) pod(fields map[string]any) (*subject, json.RawMessage, error) {
	s := m.oracle.subjects[schema.GroupVersionKind{Version: "v1", Kind: "Pod"}]
	if m.chance(8) {
		fields["metadata.deletionTimestamp"] = fixedTime
		fields["metadata.deletionGracePeriodSeconds"] = 30
	}
	old, err := m.stored(s, fields)
	return s, old, err
}

func condition(kind, status string) map[string]any {
	return map[string]any{"type": kind, "status": status, "lastProbeTime": nil, "lastTransitionTime": fixedTime}
}

func (m *subMaker) binding() error {
	fields := map[string]any{"spec.nodeName": nil, "spec.schedulingGates": nil}
	switch m.random.Intn(10) {
	case 0:
		fields["spec.nodeName"] = "here"
	case 1:
		fields["spec.schedulingGates"] = []any{map[string]any{"name": "example.com/g"}}
	case 2, 3:
		fields["status.nominatedNodeName"] = "hoped"
	case 4, 5:
		fields["status.conditions"] = []any{condition("PodScheduled", pick(m.random, []string{"True", "False"})), condition("Ready", "False")}
	}
	s, old, err := m.pod(fields)
	if err != nil {
		return err
	}
	meta := m.metadata(old)
	if m.chance(40) {
		meta["annotations"] = map[string]any{"example.com/a": "1", "pod.beta.kubernetes.io/init-containers": "[]"}
	}
	if m.chance(40) {
		meta["labels"] = map[string]any{"app": "bound", "zone": "z"}
	}
	if m.chance(5) {
		meta["name"] = pick(m.random, []string{"another", ""})
	}
	target := map[string]any{"kind": "Node", "name": "n1"}
	if m.chance(25) {
		target["name"] = pick(m.random, badStrings)
	}
	if m.chance(25) {
		target["kind"] = pick(m.random, []string{"", "Pod", "node"})
	}
	return m.ask(s, "binding", "binding", map[string]any{"kind": "Binding", "apiVersion": "v1", "metadata": meta, "target": target}, old, nil)
}

func (m *subMaker) eviction() error {
	fields := map[string]any{"metadata.labels": map[string]any{"app": "web"}, "metadata.finalizers": nil, "spec.schedulingGates": nil}
	fields["status.phase"] = pick(m.random, []string{"Running", "Running", "Running", "Running", "Pending", "Succeeded", "Failed", "Unknown"})
	fields["spec.nodeName"] = pick(m.random, []any{"n1", "n1", nil})
	if m.chance(60) {
		fields["status.conditions"] = []any{condition("Ready", pick(m.random, []string{"True", "False", "Unknown"}))}
	}
	if m.chance(10) {
		fields["status.conditions"] = []any{map[string]any{"type": "DisruptionTarget", "status": "False", "reason": "Old", "message": "old", "lastProbeTime": nil, "lastTransitionTime": fixedTime}}
	}
	s, old, err := m.pod(fields)
	if err != nil {
		return err
	}
	var with []json.RawMessage
	for i := range pick(m.random, []int{0, 1, 1, 1, 1, 1, 2}) {
		text, err := m.budget(i)
		if err != nil {
			return err
		}
		with = append(with, text)
	}
	meta := m.metadata(old)
	delete(meta, "resourceVersion")
	if m.chance(6) {
		meta["name"] = pick(m.random, []string{"another", ""})
	}
	body := map[string]any{"kind": "Eviction", "apiVersion": pick(m.random, []string{"policy/v1", "policy/v1", "policy/v1beta1"}), "metadata": meta}
	if m.chance(40) {
		options := map[string]any{}
		if m.chance(40) {
			options["gracePeriodSeconds"] = pick(m.random, []int{0, 1, 30, -1})
		}
		if m.chance(30) {
			options["preconditions"] = pick(m.random, []map[string]any{{"uid": fixedUID}, {"uid": "other"}, {"resourceVersion": "1"}, {"resourceVersion": "999"}, {"uid": fixedUID, "resourceVersion": "1"}})
		}
		if m.chance(20) {
			options["dryRun"] = []string{"All"}
		}
		if m.chance(10) {
			options["propagationPolicy"] = pick(m.random, []string{"Background", "Foreground", "Orphan"})
		}
		if m.chance(8) {
			options["ignoreStoreReadErrorWithClusterBreakingPotential"] = true
		}
		body["deleteOptions"] = options
	}
	return m.ask(s, "eviction", "eviction", body, old, with)
}

func (m *subMaker) budget(i int) (json.RawMessage, error) {
	selector := pick(m.random, []any{map[string]any{"matchLabels": map[string]any{"app": "web"}}, map[string]any{"matchLabels": map[string]any{"app": "web"}}, map[string]any{}, map[string]any{"matchLabels": map[string]any{"app": "other"}}, nil,
		map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": "Exists"}}}})
	spec := map[string]any{"minAvailable": 1}
	if selector != nil {
		spec["selector"] = selector
	}
	if m.chance(30) {
		spec["unhealthyPodEvictionPolicy"] = pick(m.random, []string{"AlwaysAllow", "IfHealthyBudget"})
	}
	status := map[string]any{"disruptionsAllowed": pick(m.random, []int{0, 0, 1, 1, 2, -1}), "currentHealthy": m.random.Intn(4), "desiredHealthy": m.random.Intn(3), "expectedPods": 3, "observedGeneration": pick(m.random, []int{2, 2, 2, 1})}
	if m.chance(40) {
		allowed := condition("DisruptionAllowed", pick(m.random, []string{"True", "False"}))
		delete(allowed, "lastProbeTime")
		allowed["reason"] = pick(m.random, []string{"SyncFailed", "InsufficientPods", "SufficientPods", "Other"})
		allowed["message"] = pick(m.random, []string{"", "because"})
		allowed["observedGeneration"] = 1
		status["conditions"] = []any{allowed}
	}
	if m.chance(15) {
		disrupted, count := map[string]any{}, 1
		if m.chance(10) {
			count = pick(m.random, []int{2000, 2001})
		}
		for at := range count {
			disrupted["gone-"+strconv.Itoa(at)] = fixedTime
		}
		status["disruptedPods"] = disrupted
	}
	name := "budget-" + strconv.Itoa(i)
	return plainJSON(map[string]any{"metadata": map[string]any{"name": name, "namespace": "default", "generation": 2, "uid": name, "resourceVersion": "1", "creationTimestamp": fixedTime}, "spec": spec, "status": status})
}
