package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// filler makes random but decodable versioned objects.
type filler struct {
	random *rand.Rand
	// enums maps a named string type to the values upstream publishes for it.
	enums map[string][]any
	// presence is the chance that an optional part is there.
	presence float64
}

var words = []string{"", "a", "web", "my-app", "example.com", "nginx:1.27", "registry.example.com/app:latest", "app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
	"10.1.2.3", "2001:db8::1", "10.0.0.0/8", "/var/lib/x", "UPPER", "with space", "a.b.c/d", "https://example.com/x", "true", "80", "system:masters", "None", "v1"}

func (f *filler) object(t reflect.Type) reflect.Value {
	out := reflect.New(t)
	f.fill(out.Elem(), "", 0)
	return out
}

func (f *filler) word() string {
	if f.random.Intn(4) == 0 {
		letters := "abcdefghijklmnopqrstuvwxyz0123456789-"
		n := 1 + f.random.Intn(12)
		out := make([]byte, n)
		for i := range out {
			out[i] = letters[f.random.Intn(len(letters))]
		}
		return string(out)
	}
	return words[f.random.Intn(len(words))]
}

func (f *filler) number() int64 {
	return []int64{0, 0, 1, 2, 3, 10, 80, 443, 8080, 30000, 65535, -1, 3600}[f.random.Intn(13)]
}

func (f *filler) leaf(v reflect.Value) bool {
	switch target := v.Addr().Interface().(type) {
	case *metav1.Time:
		if f.random.Intn(2) == 0 {
			*target = metav1.NewTime(time.Unix(1700000000+int64(f.random.Intn(1e6)), 0).UTC())
		}
	case *metav1.MicroTime:
		if f.random.Intn(2) == 0 {
			*target = metav1.NewMicroTime(time.Unix(1700000000, int64(f.random.Intn(1e6))*1000).UTC())
		}
	case *metav1.Duration:
		target.Duration = time.Duration(f.number()) * time.Second
	case *resource.Quantity:
		*target = resource.MustParse([]string{"0", "1", "100m", "250m", "1Gi", "64Mi", "1500m", "2", "1e3", "0.5"}[f.random.Intn(10)])
	case *intstr.IntOrString:
		if f.random.Intn(2) == 0 {
			*target = intstr.FromInt32(int32(f.number()))
		} else {
			*target = intstr.FromString([]string{"http", "25%", "", "100%"}[f.random.Intn(4)])
		}
	case *runtime.RawExtension:
		target.Raw = []byte(`{"apiVersion":"example.com/v1","kind":"Thing","x":1}`)
	case *metav1.FieldsV1:
		target.Raw = []byte(`{}`)
	case *apiextensionsv1.JSON:
		target.Raw = []byte([]string{`"x"`, `1`, `true`, `{"a":[1,2]}`, `null`}[f.random.Intn(5)])
	case *[]byte:
		if f.random.Float64() < f.presence {
			*target = []byte(f.word())
		}
	default:
		return false
	}
	return true
}

// fixed sets a leaf to the same value always.
func fixed(v reflect.Value) {
	switch target := v.Addr().Interface().(type) {
	case *metav1.Time:
		*target = metav1.NewTime(time.Unix(1700000000, 0).UTC())
	case *metav1.MicroTime:
		*target = metav1.NewMicroTime(time.Unix(1700000000, 0).UTC())
	case *metav1.Duration:
		target.Duration = time.Second
	case *resource.Quantity:
		*target = resource.MustParse("1")
	case *intstr.IntOrString:
		*target = intstr.FromInt32(1)
	case *runtime.RawExtension:
		target.Raw = []byte(`{"apiVersion":"example.com/v1","kind":"Thing"}`)
	case *metav1.FieldsV1:
		target.Raw = []byte(`{}`)
	case *apiextensionsv1.JSON:
		target.Raw = []byte(`1`)
	}
}

func (f *filler) fill(v reflect.Value, jsonName string, depth int) {
	if f.leaf(v) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		if values := f.enums[goName(v.Type())]; len(values) > 0 && f.random.Intn(5) > 0 {
			v.SetString(fmt.Sprint(values[f.random.Intn(len(values))]))
			return
		}
		if f.random.Intn(5) > 1 || jsonName == "name" && f.random.Intn(4) > 0 {
			v.SetString(f.word())
		}
	case reflect.Bool:
		v.SetBool(f.random.Intn(2) == 0)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(f.number())
	case reflect.Float64:
		v.SetFloat(float64(f.number()) / 4)
	case reflect.Pointer:
		if depth < 14 && f.random.Float64() < f.presence {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem(), jsonName, depth+1)
		}
	case reflect.Slice:
		if depth < 14 && f.random.Float64() < f.presence {
			n := f.random.Intn(3)
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				f.fill(v.Index(i), jsonName, depth+1)
			}
		}
	case reflect.Map:
		if depth < 14 && f.random.Float64() < f.presence {
			v.Set(reflect.MakeMap(v.Type()))
			for range f.random.Intn(3) {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				f.fill(key, "", depth+1)
				f.fill(value, jsonName, depth+1)
				v.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		f.fillStruct(v, depth)
	case reflect.Interface:
	default:
		panic("cannot fill " + v.Type().String())
	}
}

func (f *filler) fillStruct(v reflect.Value, depth int) {
	t := v.Type()
	if t == reflect.TypeFor[metav1.ObjectMeta]() {
		meta := v.Addr().Interface().(*metav1.ObjectMeta)
		meta.Name = "obj-" + fmt.Sprint(f.random.Intn(100))
		if f.random.Intn(2) == 0 {
			meta.Labels = map[string]string{"app": f.word()}
		}
		if f.random.Intn(3) == 0 {
			meta.Annotations = map[string]string{"example.com/note": f.word()}
		}
		return
	}
	for i := range t.NumField() {
		sf := t.Field(i)
		name := jsonNameOf(sf)
		if !sf.IsExported() || name == "-" || sf.Type == reflect.TypeFor[metav1.TypeMeta]() || sf.Type == reflect.TypeFor[metav1.ListMeta]() {
			continue
		}
		// JSON schemas nest without end.
		if t == reflect.TypeFor[apiextensionsv1.JSONSchemaProps]() && depth > 8 && sf.Type.Kind() != reflect.String {
			continue
		}
		f.fill(v.Field(i), name, depth+1)
	}
}

func mustJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%q", err.Error())
	}
	return string(text)
}

// jsonPaths collects the dotted JSON paths of scalar fields outside lists.
func jsonPaths(t reflect.Type, prefix string, depth int, into map[string]bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, leaf := leaves[t]; leaf || t.Kind() != reflect.Struct || depth > 5 {
		if prefix != "" {
			into[prefix] = true
		}
		return
	}
	for i := range t.NumField() {
		sf := t.Field(i)
		name := jsonNameOf(sf)
		switch {
		case name == "-" || !sf.IsExported():
		case name == "":
			jsonPaths(sf.Type, prefix, depth, into)
		case prefix == "":
			jsonPaths(sf.Type, name, depth+1, into)
		default:
			jsonPaths(sf.Type, prefix+"."+name, depth+1, into)
		}
	}
}

// copyStatus copies the Status field of one object to another of its type.
func copyStatus(to, from runtime.Object) {
	target := reflect.ValueOf(to).Elem().FieldByName("Status")
	if target.IsValid() && target.CanSet() {
		target.Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
	}
}
