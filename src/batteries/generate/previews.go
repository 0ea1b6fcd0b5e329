package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/controlplane"
)

// previews are the kinds of group-versions that are off by default.
type previews struct {
	catalog     *catalog
	rows        []groupRow
	conditional []conditionalDefault
	gated       []gatedRow
}

// upstreamVersion is the release of Kubernetes that this program is linked with.
func upstreamVersion() (*version.Version, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("no build information")
	}
	for _, module := range info.Deps {
		if module.Path == "k8s.io/kubernetes" {
			return version.ParseGeneric(module.Version)
		}
	}
	return nil, fmt.Errorf("not linked with k8s.io/kubernetes")
}

// allVersions is the choice that api/all=true of --runtime-config makes.
func allVersions() *serverstorage.ResourceConfig {
	config := controlplane.DefaultAPIResourceConfigSource()
	config.EnableMatchingVersions(func(schema.GroupVersion) bool { return true })
	return config
}

// previewGates are the gates that are off by default and without which resources of these versions are
// not there, with those resources.
func previewGates() (map[string][]schema.GroupVersionResource, error) {
	var off []string
	for _, gate := range featureGates() {
		if !gate.Default {
			off = append(off, gate.Name)
		}
	}
	asked := map[string]bool{}
	all, err := worldWith(func(name string) bool {
		asked[name] = true
		return true
	})
	if err != nil {
		return nil, err
	}
	out := map[string][]schema.GroupVersionResource{}
	for _, gate := range off {
		if !asked[gate] {
			continue
		}
		without, err := worldWith(func(name string) bool { return name != gate })
		if err != nil {
			return nil, err
		}
		for gvr := range all.resourceNames() {
			if !without.resourceNames()[gvr] {
				out[gate] = append(out[gate], gvr)
			}
		}
	}
	return out, nil
}

func worldWith(on func(string) bool) (w *world, err error) {
	withGates(on, func() *world {
		w, err = newWorld(allVersions())
		return w
	})
	return w, err
}

// resourceNames are the resources of a world, without subresources.
func (w *world) resourceNames() map[schema.GroupVersionResource]bool {
	out := map[schema.GroupVersionResource]bool{}
	for gv, group := range w.groups {
		for name := range group.storage {
			if !strings.Contains(name, "/") {
				out[gv.WithResource(name)] = true
			}
		}
	}
	return out
}

// newPreviewOracle also knows the kinds that are off by default. From then on, upstream's code sees the
// gates of these kinds as on.
func newPreviewOracle() (*oracle, error) {
	gates, err := previewGates()
	if err != nil {
		return nil, err
	}
	utilfeature.DefaultFeatureGate = previewGateSet{utilfeature.DefaultFeatureGate, gates}
	w, err := newWorld(allVersions())
	if err != nil {
		return nil, err
	}
	return oracleOf(w)
}

// previewGateSet has the gates of preview kinds on, and all others as they were.
type previewGateSet struct {
	featuregate.FeatureGate
	on map[string][]schema.GroupVersionResource
}

func (s previewGateSet) Enabled(name featuregate.Feature) bool {
	return s.on[string(name)] != nil || s.FeatureGate.Enabled(name)
}

// previewsBeside describes what is off by default, as far as the data of the kinds that are on has not got it.
func previewsBeside(base *world, known *catalog, gatedKnown []gatedRow) (*previews, error) {
	before := utilfeature.DefaultFeatureGate
	defer func() { utilfeature.DefaultFeatureGate = before }()
	o, err := newPreviewOracle()
	if err != nil {
		return nil, err
	}
	gates := utilfeature.DefaultFeatureGate.(previewGateSet).on
	out := &previews{catalog: newCatalog()}
	if err := out.catalog.addServed(o.world); err != nil {
		return nil, err
	}
	conditional := out.catalog.probeDefaults(o.world)
	if err := out.catalog.addTwins(o); err != nil {
		return nil, err
	}
	rows, err := o.world.rows(out.catalog)
	if err != nil {
		return nil, err
	}
	out.rows = rowsBeside(rows, base, gates)
	for name := range known.definitions {
		delete(out.catalog.definitions, name)
	}
	for _, one := range conditional {
		if out.catalog.definitions[one.Definition] != nil {
			out.conditional = append(out.conditional, one)
		}
	}
	// The storages are there; which fields they drop is asked with the gates as they are.
	utilfeature.DefaultFeatureGate = before
	gated, err := o.gatedFields()
	if err != nil {
		return nil, err
	}
	out.gated = gatedBeside(gated, gatedKnown)
	return out, nil
}

// rowsBeside are the rows of resources that a world has not got, each with the gate without which it is not there.
func rowsBeside(rows []groupRow, base *world, gates map[string][]schema.GroupVersionResource) []groupRow {
	have := base.resourceNames()
	gateOf := map[schema.GroupVersionResource]string{}
	for gate, resources := range gates {
		for _, gvr := range resources {
			gateOf[gvr] = gate
		}
	}
	out := []groupRow{}
	for _, group := range rows {
		versions := []versionRow{}
		for _, one := range group.Versions {
			added := []*resourceRow{}
			for _, row := range one.Resources {
				gvr := schema.GroupVersionResource{Group: group.Name, Version: one.Version, Resource: row.Name}
				if !have[gvr] {
					row.Gate = gateOf[gvr]
					added = append(added, row)
				}
			}
			if len(added) > 0 {
				versions = append(versions, versionRow{Version: one.Version, Priority: one.Priority, Resources: added})
			}
		}
		if len(versions) > 0 {
			out = append(out, groupRow{Name: group.Name, Preferred: group.Preferred, Priority: group.Priority, Versions: versions})
		}
	}
	return out
}

// gatedBeside are the gated fields of kinds that the known ones have not got.
func gatedBeside(rows, known []gatedRow) []gatedRow {
	have := map[string]bool{}
	for _, row := range known {
		for kind := range row.Kinds {
			have[row.Gate+" "+kind] = true
		}
	}
	out := []gatedRow{}
	for _, row := range rows {
		kinds := map[string]string{}
		for kind, at := range row.Kinds {
			if !have[row.Gate+" "+kind] {
				kinds[kind] = at
			}
		}
		if row.Kinds = kinds; len(kinds) > 0 {
			out = append(out, row)
		}
	}
	return out
}

// writePreviewGolden writes the golden files of the kinds that are off by default.
func writePreviewGolden(out string, seed int64, count int) error {
	base, err := newOracle()
	if err != nil {
		return err
	}
	o, err := newPreviewOracle()
	if err != nil {
		return err
	}
	c := newCatalog()
	if err := c.addServed(o.world); err != nil {
		return err
	}
	seeds, err := readSeeds()
	if err != nil {
		return err
	}
	kinds := slices.DeleteFunc(o.sortedKinds(), func(gvk schema.GroupVersionKind) bool { return base.subjects[gvk] != nil })
	total, err := o.writeKinds(c, kinds, seeds, out, seed, count)
	fmt.Fprintf(os.Stderr, "total %d bytes\n", total)
	return err
}

// deprecationOf is the warning that clients of a kind get; empty if it is not deprecated.
func deprecationOf(scheme *runtime.Scheme, gvk schema.GroupVersionKind) (string, error) {
	now, err := upstreamVersion()
	if err != nil {
		return "", err
	}
	object, err := scheme.New(gvk)
	if err != nil {
		return "", err
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	if !deprecation.IsDeprecated(object, int(now.Major()), int(now.Minor())) {
		return "", nil
	}
	return deprecation.WarningMessage(object), nil
}
