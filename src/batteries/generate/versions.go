package main

import (
	"sort"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
)

// apiVersionRow is a group-version that --runtime-config may name.
type apiVersionRow struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	// Default says whether the group-version is on by default; absent if no server serves it.
	Default *bool `json:"default,omitempty"`
}

// apiVersions are all group-versions that the three servers of kube-apiserver register.
func apiVersions() []apiVersionRow {
	out := []apiVersionRow{}
	for _, server := range []struct {
		scheme *runtime.Scheme
		config *serverstorage.ResourceConfig
	}{
		{legacyscheme.Scheme, controlplane.DefaultAPIResourceConfigSource()},
		{apiextensionsapiserver.Scheme, apiextensionsapiserver.DefaultAPIResourceConfigSource()},
		{aggregatorscheme.Scheme, aggregator.DefaultAPIResourceConfigSource()},
	} {
		for _, gv := range server.scheme.PrioritizedVersionsAllGroups() {
			row := apiVersionRow{Group: gv.Group, Version: gv.Version}
			if on, known := server.config.GroupVersionConfigs[gv]; known {
				row.Default = &on
			}
			if gv != (schema.GroupVersion{Version: "v1"}) || row.Default != nil {
				out = append(out, row)
			}
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Group != out[j].Group {
			return out[i].Group < out[j].Group
		}
		return out[i].Version < out[j].Version
	})
	return out
}
