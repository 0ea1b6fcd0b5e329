package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/common"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// field is one JSON field of a definition; README.md explains each key.
type fieldRow struct {
	Name     string          `json:"n"`
	Type     string          `json:"t"`
	Omit     string          `json:"o,omitempty"`
	Pointer  int             `json:"p,omitempty"`
	Named    string          `json:"nm,omitempty"`
	GoType   string          `json:"gt,omitempty"`
	GoName   string          `json:"gn,omitempty"`
	Embedded string          `json:"em,omitempty"`
	Proto    int             `json:"pb,omitempty"`
	ProtoIn  []int           `json:"pbin,omitempty"`
	Wire     string          `json:"pbt,omitempty"`
	ListType string          `json:"lt,omitempty"`
	ListKeys []string        `json:"lk,omitempty"`
	MapType  string          `json:"mt,omitempty"`
	Strategy string          `json:"ps,omitempty"`
	MergeKey string          `json:"pk,omitempty"`
	Enum     []any           `json:"enum,omitempty"`
	Format   string          `json:"fmt,omitempty"`
	Required int             `json:"req,omitempty"`
	Default  any             `json:"def,omitempty"`
	ZeroMark any             `json:"zd,omitempty"`
	Constant json.RawMessage `json:"cd,omitempty"`
	Tags     map[string]any  `json:"tags,omitempty"`
	goField  string
}

type definition struct {
	Go       string           `json:"go"`
	Kinds    []map[string]any `json:"gvk,omitempty"`
	Required []string         `json:"required,omitempty"`
	Unions   any              `json:"unions,omitempty"`
	Ext      map[string]any   `json:"x,omitempty"`
	TypeTags map[string]any   `json:"tags,omitempty"`
	Meta     int              `json:"tm,omitempty"`
	MetaIn   []int            `json:"tmpb,omitempty"`
	Shared   int              `json:"sh,omitempty"`
	Internal []twinField      `json:"in,omitempty"`
	Fields   []*fieldRow      `json:"fields"`
	typ      reflect.Type
}

type catalog struct {
	definitions map[string]*definition
	openapi     map[string]common.OpenAPIDefinition
	namer       *openapinamer.DefinitionNamer
	queue       []reflect.Type
	tags        *sourceTags
}

var schemes = []*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme}

func newCatalog() *catalog {
	refs := func(path string) spec.Ref { return spec.MustCreateRef("#/definitions/" + path) }
	return &catalog{
		definitions: map[string]*definition{},
		openapi:     generatedopenapi.GetOpenAPIDefinitions(refs),
		namer:       openapinamer.NewDefinitionNamer(schemes...),
		tags:        newSourceTags(),
	}
}

// leaves are the Go types whose JSON form is not made of their fields.
var leaves = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():                                  "time",
	reflect.TypeFor[metav1.MicroTime]():                             "microtime",
	reflect.TypeFor[metav1.Duration]():                              "duration",
	reflect.TypeFor[resource.Quantity]():                            "quantity",
	reflect.TypeFor[intstr.IntOrString]():                           "intstr",
	reflect.TypeFor[runtime.RawExtension]():                         "raw",
	reflect.TypeFor[metav1.FieldsV1]():                              "fieldsv1",
	reflect.TypeFor[apiextensionsv1.JSON]():                         "json",
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool]():        "jsonschemapropsorbool",
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray]():       "jsonschemapropsorarray",
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray](): "jsonschemapropsorstringarray",
	reflect.TypeFor[[]byte]():                                       "bytes",
}

func goName(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

// openapiName is the name under which upstream publishes a type.
func openapiName(t reflect.Type) string {
	if named, ok := reflect.New(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return openapiutil.ToRESTFriendlyName(goName(t))
}

func (c *catalog) openapiOf(t reflect.Type) (common.OpenAPIDefinition, bool) {
	for _, name := range []string{openapiName(t), goName(t), openapiutil.ToCanonicalName(goName(t))} {
		if found, ok := c.openapi[name]; ok {
			return found, true
		}
	}
	return common.OpenAPIDefinition{}, false
}

func (c *catalog) enqueue(t reflect.Type) string {
	name := openapiName(t)
	if _, known := c.definitions[name]; !known {
		c.definitions[name] = nil
		c.queue = append(c.queue, t)
	}
	return name
}

// addServed adds every type that the schemes know for the served versions.
func (c *catalog) addServed(w *world) error {
	for gv, group := range w.groups {
		for kind, t := range group.scheme.KnownTypes(gv) {
			if t.Kind() != reflect.Struct || kind == "WatchEvent" && t.PkgPath() != "k8s.io/apimachinery/pkg/apis/meta/v1" {
				continue
			}
			c.enqueue(t)
		}
	}
	for _, t := range []reflect.Type{
		reflect.TypeFor[metav1.Table](), reflect.TypeFor[metav1.PartialObjectMetadata](), reflect.TypeFor[metav1.PartialObjectMetadataList](),
		reflect.TypeFor[metav1.Status](), reflect.TypeFor[metav1.APIVersions](), reflect.TypeFor[metav1.APIGroupList](), reflect.TypeFor[metav1.APIGroup](),
		reflect.TypeFor[metav1.APIResourceList](), reflect.TypeFor[metav1.WatchEvent](), reflect.TypeFor[metav1.List](),
	} {
		c.enqueue(t)
	}
	for len(c.queue) > 0 {
		t := c.queue[0]
		c.queue = c.queue[1:]
		built, err := c.build(t)
		if err != nil {
			return err
		}
		c.definitions[openapiName(t)] = built
	}
	return nil
}

func (c *catalog) build(t reflect.Type) (*definition, error) {
	d := &definition{Go: goName(t), typ: t, Fields: []*fieldRow{}, TypeTags: c.tags.ofType(t)}
	_, extensions := c.namer.GetDefinitionName(goName(t))
	if _, ok := extensions["x-kubernetes-group-version-kind"]; !ok {
		_, extensions = c.namer.GetDefinitionName(openapiName(t))
	}
	if kinds, ok := extensions["x-kubernetes-group-version-kind"]; ok {
		text, _ := json.Marshal(kinds)
		if err := json.Unmarshal(text, &d.Kinds); err != nil {
			return nil, err
		}
		sort.Slice(d.Kinds, func(i, j int) bool { return mustJSON(d.Kinds[i]) < mustJSON(d.Kinds[j]) })
	}
	var published spec.Schema
	if found, ok := c.openapiOf(t); ok {
		published = found.Schema
		d.Required = append([]string{}, published.Required...)
		for key, value := range published.Extensions {
			switch key {
			case "x-kubernetes-unions":
				d.Unions = value
			case "x-kubernetes-group-version-kind":
			default:
				if d.Ext == nil {
					d.Ext = map[string]any{}
				}
				d.Ext[key] = value
			}
		}
	}
	if err := c.flatten(d, t, way{}, &published); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Go, err)
	}
	return d, nil
}

// way is what lies around a flattened field: the protobuf numbers and the Go
// names of the embedded structs, outermost first.
type way struct {
	numbers []int
	names   []string
}

func (w way) into(f reflect.StructField, number int) way {
	inner := way{w.numbers, append(append([]string{}, w.names...), f.Name)}
	if number > 0 {
		inner.numbers = append(append([]int{}, w.numbers...), number)
	}
	return inner
}

func (c *catalog) flatten(d *definition, t reflect.Type, within way, published *spec.Schema) error {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		number, wire := protoTag(f.Tag.Get("protobuf"))
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() && (name == "" && (f.Anonymous)) {
			d.Meta = 1
			if number > 0 {
				d.MetaIn = within.into(f, number).numbers
			}
			if len(d.Kinds) == 0 {
				// Not the root of a kind: kind and apiVersion are plain data.
				if err := c.flatten(d, f.Type, within.into(f, number), published); err != nil {
					return err
				}
			}
			continue
		}
		if name == "" && (f.Anonymous || strings.Contains(options, "inline")) {
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			if err := c.flatten(d, embedded, within.into(f, number), published); err != nil {
				return err
			}
			continue
		}
		if name == "" {
			return fmt.Errorf("field %s has no JSON name", f.Name)
		}
		out := &fieldRow{Name: name, Proto: number, Wire: wire, ProtoIn: within.numbers, Embedded: strings.Join(within.names, "."), goField: f.Name}
		if f.Name != strings.ToUpper(name[:1])+name[1:] {
			out.GoName = f.Name
		}
		for _, option := range strings.Split(options, ",") {
			switch option {
			case "omitempty":
				out.Omit = "empty"
			case "omitzero":
				if out.Omit == "" {
					out.Omit = "zero"
				} else {
					out.Omit = "emptyzero"
				}
			}
		}
		ft := f.Type
		if ft.Kind() == reflect.Pointer {
			out.Pointer, ft = 1, ft.Elem()
		}
		var err error
		if out.Type, out.Named, err = c.typeOf(ft); err != nil {
			return fmt.Errorf("field %s: %w", f.Name, err)
		}
		if out.Named != "" {
			out.GoType = ft.String()
		}
		out.Tags = c.tags.ofField(t, f.Name, ft)
		applyOpenAPI(out, d, published)
		d.Fields = append(d.Fields, out)
	}
	return nil
}

func protoTag(tag string) (int, string) {
	parts := strings.Split(tag, ",")
	if len(parts) < 2 {
		return 0, ""
	}
	number, err := strconv.Atoi(parts[1])
	if err != nil {
		return 0, ""
	}
	return number, parts[0]
}

func (c *catalog) typeOf(t reflect.Type) (string, string, error) {
	if leaf, ok := leaves[t]; ok {
		return leaf, "", nil
	}
	named := ""
	if t.PkgPath() != "" {
		named = t.Name()
	}
	if t.Kind() != reflect.Slice && t.Kind() != reflect.Map {
		if _, custom := reflect.New(t).Interface().(json.Marshaler); custom {
			return "", "", fmt.Errorf("type %s has its own JSON form", t)
		}
	}
	switch t.Kind() {
	case reflect.String:
		return "string", named, nil
	case reflect.Bool:
		return "bool", named, nil
	case reflect.Int32:
		return "int32", named, nil
	case reflect.Int64, reflect.Int:
		return "int64", named, nil
	case reflect.Float64:
		return "float64", named, nil
	case reflect.Struct:
		return "ref:" + c.enqueue(t), "", nil
	case reflect.Interface:
		return "any", named, nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes", named, nil
		}
		element := t.Elem()
		inner, innerName, err := c.typeOfElement(element)
		if named == "" {
			named = innerName
		}
		return "[]" + inner, named, err
	case reflect.Map:
		inner, innerName, err := c.typeOfElement(t.Elem())
		if named == "" && t.Key().PkgPath() != "" {
			named = t.Key().Name()
		}
		if named == "" {
			named = innerName
		}
		return "map:" + inner, named, err
	}
	return "", "", fmt.Errorf("unexpected kind %s of %s", t.Kind(), t)
}

func (c *catalog) typeOfElement(t reflect.Type) (string, string, error) {
	if t.Kind() == reflect.Pointer {
		inner, name, err := c.typeOf(t.Elem())
		return "*" + inner, name, err
	}
	return c.typeOf(t)
}

func applyOpenAPI(out *fieldRow, d *definition, published *spec.Schema) {
	property, ok := published.Properties[out.Name]
	if !ok {
		return
	}
	text := func(key string) string {
		value, _ := property.Extensions[key].(string)
		return value
	}
	out.ListType, out.MapType = text("x-kubernetes-list-type"), text("x-kubernetes-map-type")
	out.Strategy, out.MergeKey = text("x-kubernetes-patch-strategy"), text("x-kubernetes-patch-merge-key")
	switch keys := property.Extensions["x-kubernetes-list-map-keys"].(type) {
	case []string:
		out.ListKeys = keys
	case []any:
		for _, key := range keys {
			out.ListKeys = append(out.ListKeys, fmt.Sprint(key))
		}
	}
	out.Enum, out.Format = property.Enum, property.Format
	if property.Items != nil && property.Items.Schema != nil {
		if len(out.Enum) == 0 {
			out.Enum = property.Items.Schema.Enum
		}
		if out.Format == "" {
			out.Format = property.Items.Schema.Format
		}
	}
	if values := property.AdditionalProperties; values != nil && values.Schema != nil && len(out.Enum) == 0 {
		out.Enum = values.Schema.Enum
	}
	for _, name := range d.Required {
		if name == out.Name {
			out.Required = 1
		}
	}
	if property.Default != nil {
		if isZeroMark(property.Default) {
			out.ZeroMark = property.Default
		} else {
			out.Default = property.Default
		}
	}
}

func isZeroMark(value any) bool {
	text, _ := json.Marshal(value)
	switch string(text) {
	case `""`, `{}`, `0`, `false`, `[]`, `null`:
		return true
	}
	return false
}

func (c *catalog) names() []string {
	names := make([]string, 0, len(c.definitions))
	for name := range c.definitions {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (c *catalog) definitionOf(scheme *runtime.Scheme, gvk schema.GroupVersionKind) (string, bool) {
	if t, ok := scheme.AllKnownTypes()[gvk]; ok {
		return openapiName(t), true
	}
	return "", false
}
