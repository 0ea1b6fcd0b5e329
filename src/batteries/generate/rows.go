package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	_ "unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// The priorities of group versions are a private table of the kube-apiserver command.
//
//go:linkname apiVersionPriorities k8s.io/kubernetes/cmd/kube-apiserver/app.apiVersionPriorities
var apiVersionPriorities map[schema.GroupVersion]controlplaneapiserver.APIServicePriority

type groupRow struct {
	Name      string       `json:"name"`
	Preferred string       `json:"preferred"`
	Priority  int32        `json:"priority"`
	Versions  []versionRow `json:"versions"`
}

type versionRow struct {
	Version   string         `json:"version"`
	Priority  int32          `json:"priority"`
	Resources []*resourceRow `json:"resources"`
}

type resourceRow struct {
	Name         string         `json:"name"`
	Singular     string         `json:"singular"`
	Kind         string         `json:"kind"`
	Namespaced   bool           `json:"namespaced"`
	ShortNames   []string       `json:"shortNames,omitempty"`
	Categories   []string       `json:"categories,omitempty"`
	Verbs        []string       `json:"verbs"`
	Hash         string         `json:"storageVersionHash,omitempty"`
	Definition   string         `json:"definition"`
	ListKind     string         `json:"listKind,omitempty"`
	Storage      *storageRow    `json:"storage,omitempty"`
	Columns      []columnRow    `json:"columns,omitempty"`
	Strategy     *strategyRow   `json:"strategy,omitempty"`
	NameRule     map[string]any `json:"nameRule,omitempty"`
	Selectable   []string       `json:"selectableFields,omitempty"`
	Deprecation  string         `json:"deprecation,omitempty"`
	Gate         string         `json:"gate,omitempty"`
	Subresources []*subRow      `json:"subresources,omitempty"`
}

type storageRow struct {
	Group      string `json:"group"`
	Resource   string `json:"resource"`
	Version    string `json:"version"`
	Kind       string `json:"kind"`
	EtcdPrefix string `json:"etcdPrefix"`
}

type columnRow struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Format   string `json:"format,omitempty"`
	Priority int32  `json:"priority,omitempty"`
}

type strategyRow struct {
	CreateOnUpdate      bool                `json:"createOnUpdate"`
	UnconditionalUpdate bool                `json:"unconditionalUpdate"`
	HasStatus           bool                `json:"hasStatus"`
	Generation          bool                `json:"generation"`
	GracefulDelete      bool                `json:"gracefulDelete"`
	DefaultGC           string              `json:"defaultGCPolicy,omitempty"`
	ReturnDeleted       bool                `json:"returnDeletedObject"`
	Declarative         bool                `json:"declarativeValidation"`
	ResetFields         map[string][]string `json:"resetFields,omitempty"`
	StatusResetFields   map[string][]string `json:"statusResetFields,omitempty"`
}

type subRow struct {
	Name        string              `json:"name"`
	Group       string              `json:"group"`
	Version     string              `json:"version"`
	Kind        string              `json:"kind"`
	Verbs       []string            `json:"verbs"`
	Definition  string              `json:"definition,omitempty"`
	Accepted    []any               `json:"acceptedTypes,omitempty"`
	ResetFields map[string][]string `json:"resetFields,omitempty"`
}

func (w *world) sortedVersions() []schema.GroupVersion {
	out := make([]schema.GroupVersion, 0, len(w.groups))
	for gv := range w.groups {
		out = append(out, gv)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := apiVersionPriorities[out[i]], apiVersionPriorities[out[j]]
		if a.Group != b.Group {
			return a.Group > b.Group
		}
		if out[i].Group != out[j].Group {
			return out[i].Group < out[j].Group
		}
		return a.Version > b.Version
	})
	return out
}

func (w *world) rows(c *catalog) ([]groupRow, error) {
	accepted, order, err := aggregatedDiscovery()
	if err != nil {
		return nil, err
	}
	byGroup := map[string]*groupRow{}
	for _, gv := range w.sortedVersions() {
		priority := apiVersionPriorities[gv]
		if gv.Group == "apiregistration.k8s.io" {
			priority = controlplaneapiserver.APIServicePriority{Group: 18000, Version: 15}
		}
		row := byGroup[gv.Group]
		if row == nil {
			row = &groupRow{Name: gv.Group, Preferred: gv.Version, Priority: priority.Group}
			byGroup[gv.Group] = row
		}
		resources, err := w.resources(c, gv, accepted)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", gv, err)
		}
		row.Versions = append(row.Versions, versionRow{Version: gv.Version, Priority: priority.Version, Resources: resources})
	}
	out := []groupRow{*byGroup[""]}
	for _, group := range order {
		if row := byGroup[group]; row != nil {
			out = append(out, *row)
			delete(byGroup, group)
		}
	}
	delete(byGroup, "")
	if len(byGroup) > 0 {
		return nil, fmt.Errorf("groups without discovery: %v", byGroup)
	}
	return out, nil
}

func discoveryFile(name string) string {
	return filepath.Join(moduleDir("k8s.io/kubernetes"), "api", "discovery", name)
}

// aggregatedDiscovery reads accepted types of subresources and the order of groups.
func aggregatedDiscovery() (map[string][]any, []string, error) {
	text, err := os.ReadFile(discoveryFile("aggregated_v2.json"))
	if err != nil {
		return nil, nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct {
				Version   string
				Resources []struct {
					Resource     string
					Subresources []struct {
						Subresource   string
						AcceptedTypes []any
					}
				}
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, nil, err
	}
	accepted, order := map[string][]any{}, []string{}
	for _, group := range list.Items {
		order = append(order, group.Metadata.Name)
		for _, version := range group.Versions {
			for _, resource := range version.Resources {
				for _, sub := range resource.Subresources {
					accepted[group.Metadata.Name+"/"+version.Version+"/"+resource.Resource+"/"+sub.Subresource] = sub.AcceptedTypes
				}
			}
		}
	}
	return accepted, order, nil
}

func (w *world) resources(c *catalog, gv schema.GroupVersion, accepted map[string][]any) ([]*resourceRow, error) {
	name := "apis__" + gv.Group + "__" + gv.Version + ".json"
	if gv.Group == "" {
		name = "api__" + gv.Version + ".json"
	}
	text, err := os.ReadFile(discoveryFile(name))
	if err != nil {
		return nil, err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	group := w.groups[gv]
	rows, byName := []*resourceRow{}, map[string]*resourceRow{}
	missing := map[string]bool{}
	for name := range group.storage {
		missing[name] = true
	}
	for _, entry := range list.APIResources {
		store, served := group.storage[entry.Name]
		if !served {
			continue
		}
		delete(missing, entry.Name)
		parent, sub, isSub := strings.Cut(entry.Name, "/")
		gvk := gv.WithKind(entry.Kind)
		if entry.Version != "" {
			gvk = schema.GroupVersionKind{Group: entry.Group, Version: entry.Version, Kind: entry.Kind}
		}
		definition, _ := c.definitionOf(group.scheme, gvk)
		if isSub {
			row := &subRow{Name: sub, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Verbs: entry.Verbs, Definition: definition, Accepted: accepted[gv.Group+"/"+gv.Version+"/"+entry.Name]}
			if found := storeOf(store); found != nil {
				row.ResetFields = resetFields(found)
			}
			byName[parent].Subresources = append(byName[parent].Subresources, row)
			continue
		}
		row := &resourceRow{Name: entry.Name, Singular: entry.SingularName, Kind: entry.Kind, Namespaced: entry.Namespaced, ShortNames: entry.ShortNames,
			Categories: entry.Categories, Verbs: entry.Verbs, Hash: entry.StorageVersionHash, Definition: definition}
		if row.Deprecation, err = deprecationOf(group.scheme, gvk); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name, err)
		}
		if err := w.describe(row, group, gv, store); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name, err)
		}
		rows, byName[entry.Name] = append(rows, row), row
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("stores without discovery: %v", missing)
	}
	return rows, nil
}

// describe asks the storage of one resource about itself.
func (w *world) describe(row *resourceRow, group *groupVersion, gv schema.GroupVersion, stored rest.Storage) error {
	if lister, ok := stored.(rest.Lister); ok {
		kinds, _, err := group.scheme.ObjectKinds(lister.NewList())
		if err != nil {
			return err
		}
		row.ListKind = kinds[0].Kind
		row.Selectable = w.selectable(group, gv, row)
	}
	if convertor, ok := stored.(rest.TableConvertor); ok {
		table, err := convertor.ConvertToTable(requestContext(gv, row, "ns"), stored.New(), &metav1.TableOptions{})
		if err == nil {
			for _, column := range table.ColumnDefinitions {
				row.Columns = append(row.Columns, columnRow{Name: column.Name, Type: column.Type, Format: column.Format, Priority: column.Priority})
			}
		}
	}
	store := storeOf(stored)
	if store == nil {
		return nil
	}
	kinds, _, err := group.scheme.ObjectKinds(store.NewFunc())
	if err != nil {
		return err
	}
	if store.StorageVersioner != nil {
		gvk, ok := store.StorageVersioner.KindForGroupVersionKinds(kinds)
		if !ok {
			return fmt.Errorf("no storage version for %v", kinds)
		}
		row.Storage = &storageRow{Group: gvk.Group, Resource: store.DefaultQualifiedResource.Resource, Version: gvk.Version, Kind: gvk.Kind, EtcdPrefix: w.factory.ResourcePrefix(store.DefaultQualifiedResource)}
	}
	ctx := requestContext(gv, row, "ns")
	if !row.Namespaced {
		ctx = requestContext(gv, row, "")
	}
	row.Strategy = w.strategy(ctx, store, group.storage[row.Name+"/status"])
	if store.CreateStrategy != nil {
		row.NameRule = probeNames(ctx, store, row.Namespaced)
	}
	return nil
}

func requestContext(gv schema.GroupVersion, row *resourceRow, namespace string) context.Context {
	ctx := genericapirequest.WithNamespace(context.Background(), namespace)
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: "create", APIPrefix: "apis",
		APIGroup: gv.Group, APIVersion: gv.Version, Resource: row.Name, Namespace: namespace})
}

func (w *world) strategy(ctx context.Context, store *genericregistry.Store, status rest.Storage) *strategyRow {
	row := &strategyRow{HasStatus: status != nil, ReturnDeleted: store.ReturnDeletedObject, ResetFields: resetFields(store)}
	if statusStore := storeOf(status); statusStore != nil {
		row.StatusResetFields = resetFields(statusStore)
	}
	if update := store.UpdateStrategy; update != nil {
		row.CreateOnUpdate, row.UnconditionalUpdate = update.AllowCreateOnUpdate(ctx), update.AllowUnconditionalUpdate(ctx)
	}
	if create := store.CreateStrategy; create != nil {
		_, row.Declarative = create.(rest.DeclarativeValidationStrategy)
		row.Generation = setsGeneration(ctx, store)
	}
	if gc, ok := store.DeleteStrategy.(rest.GarbageCollectionDeleteStrategy); ok {
		row.DefaultGC = string(gc.DefaultGarbageCollectionPolicy(ctx))
	}
	_, row.GracefulDelete = store.DeleteStrategy.(rest.RESTGracefulDeleteStrategy)
	return row
}

func setsGeneration(ctx context.Context, store *genericregistry.Store) (set bool) {
	defer func() { _ = recover() }()
	object := store.NewFunc()
	accessor := object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	defer func() { set = accessor.GetGeneration() == 1 }()
	store.CreateStrategy.PrepareForCreate(ctx, object)
	return
}

func resetFields(store *genericregistry.Store) map[string][]string {
	if store.ResetFieldsStrategy == nil {
		return nil
	}
	out := map[string][]string{}
	for version, set := range store.ResetFieldsStrategy.GetResetFields() {
		paths := []string{}
		set.Iterate(func(path fieldpath.Path) { paths = append(paths, path.String()) })
		sort.Strings(paths)
		out[string(version)] = paths
	}
	return out
}

// selectable finds the field labels that upstream converts for this kind.
func (w *world) selectable(group *groupVersion, gv schema.GroupVersion, row *resourceRow) []string {
	t, ok := group.scheme.AllKnownTypes()[gv.WithKind(row.Kind)]
	if !ok {
		return nil
	}
	candidates := map[string]bool{}
	for _, extra := range []string{"name", "namespace", "involvedObject.kind", "source", "reportingComponent", "metadata.name", "metadata.namespace", "status.phase", "spec.nodeName", "status.successful"} {
		candidates[extra] = true
	}
	jsonPaths(t, "", 0, candidates)
	found := []string{}
	for label := range candidates {
		if _, _, err := group.scheme.ConvertFieldLabel(gv.WithKind(row.Kind), label, "x"); err == nil {
			found = append(found, label)
		}
	}
	sort.Strings(found)
	return found
}

type nameCandidate struct{ key, name string }

func probeNames(ctx context.Context, store *genericregistry.Store, namespaced bool) map[string]any {
	accepts := func(name string) bool { return nameAccepted(ctx, store, namespaced, name) }
	out := map[string]any{}
	candidates := []nameCandidate{{"digitFirst", "1a"}, {"dot", "a.b"}, {"upper", "Ab"}, {"colon", "a:b"}, {"underscore", "a_b"}, {"space", "a b"}, {"percent", "a%b"}, {"slash", "a/b"}, {"dashLast", "a-"}, {"dashFirst", "-a"}, {"unicode", "ä"}}
	for _, candidate := range candidates {
		out[candidate.key] = accepts(candidate.name)
	}
	rule := "other"
	switch {
	case !accepts("a"):
		rule = "special"
	case accepts("a:b") && !accepts("a/b"):
		rule = "path"
	case accepts("a/b"):
		rule = "none"
	case accepts("a.b") && !accepts("Ab"):
		rule = "dns1123subdomain"
	case accepts("1a") && !accepts("a.b"):
		rule = "dns1123label"
	case accepts("a") && !accepts("a.b"):
		rule = "dns1035label"
	}
	out["rule"] = rule
	for length := 1; length <= 300; length++ {
		if !accepts(strings.Repeat("a", length)) {
			out["max"] = length - 1
			break
		}
	}
	return out
}

// nameAccepted tells whether validation of an otherwise empty object complains about this name.
func nameAccepted(ctx context.Context, store *genericregistry.Store, namespaced bool, name string) (accepted bool) {
	defer func() {
		if recover() != nil {
			accepted = false
		}
	}()
	object := store.NewFunc()
	accessor := object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	accessor.SetName(name)
	if namespaced {
		accessor.SetNamespace("ns")
	}
	errs := store.CreateStrategy.Validate(ctx, object)
	for _, err := range errs {
		if err.Field == "metadata.name" || err.Field == "metadata" {
			return false
		}
	}
	return pathSegment(name)
}

func pathSegment(name string) bool {
	return name != "." && name != ".." && !strings.ContainsAny(name, "/%")
}
