package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// example is one line of a machinery file: what went in, and either what came out or the error.
type example struct {
	In    any    `json:"in"`
	With  any    `json:"with,omitempty"`
	Out   any    `json:"out,omitempty"`
	Error string `json:"error,omitempty"`
}

// MarshalJSON writes out even if it is null, unless there is an error.
func (e example) MarshalJSON() ([]byte, error) {
	line := map[string]any{"in": e.In}
	if e.With != nil {
		line["with"] = e.With
	}
	if e.Error != "" {
		line["error"] = e.Error
	} else {
		line["out"] = e.Out
	}
	return plainJSON(line)
}

func outcome(in, with any, out any, err error) example {
	if err != nil {
		return example{In: in, With: with, Error: err.Error()}
	}
	return example{In: in, With: with, Out: out}
}

// writeMachinery writes the vectors that belong to no kind.
func writeMachinery(folder string, seed int64) (int, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, err
	}
	random := func(name string) *rand.Rand {
		return rand.New(rand.NewSource(seed + int64(len(name))*1000 + int64(name[0])))
	}
	total := 0
	for _, file := range []struct {
		name string
		make func(*rand.Rand) []example
	}{
		{"quantity", quantityExamples}, {"label_selector", labelSelectorExamples}, {"label_selector_object", labelSelectorObjectExamples},
		{"field_selector", fieldSelectorExamples}, {"names", nameExamples}, {"strategic_merge_patch", strategicExamples}, {"merge_patch", mergePatchExamples},
		{"json_patch", jsonPatchExamples}, {"number", numberExamples}, {"string", stringExamples}, {"time", timeExamples}, {"intstr", intstrExamples}, {"yaml", yamlExamples},
	} {
		examples := file.make(random(file.name))
		size, err := writeGzip(filepath.Join(folder, file.name+".jsonl.gz"), examples)
		if err != nil {
			return total, fmt.Errorf("%s: %w", file.name, err)
		}
		fmt.Fprintf(os.Stderr, "machinery %-24s %5d examples %d bytes\n", file.name, len(examples), size)
		total += size
	}
	return total, nil
}

func quantityExamples(r *rand.Rand) []example {
	inputs := []string{"", " ", "0", "-0", "+1", "1.", ".5", ".", "-", "1e", "1E", "1E3", "1e3", "1e-3", "1Ee", "1i", "1ki", "1Ki", "1K", "1k", "0.1", "0.0001", "1n", "1u", "1m", "0.5n", "0.1n", "9223372036854775807", "9223372036854775808",
		"-9223372036854775808", "99999999999999999999999", "1e19", "1e18", "12.345Gi", "1.5Ki", "0.5Ki", "1000m", "1001m", "1024", "1024Ki", "1000k", "1e6", "1M", "5Ei", "8Ei", "10E", "1 Gi", "1Gi ", "0x1", "1,000", "١", "Infinity", "NaN", "1e100", "1e-100", "3.0", "3.10",
		"000123", "0010m", "1e+3", "1E-3", "-1.5Gi", "-500m", "100e-1", "1.000000001", "1.0000000001", "0.000000001", "0.0000000001", "1Zi", "1P", "1Pi", "1T", "1Ti"}
	suffixes := []string{"", "", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "n", "u", "E", "Ei", "P", "e3", "E2", "e-2", "x"}
	for range 600 {
		number := strconv.FormatInt(r.Int63n([]int64{10, 1000, 1e6, 1e12, 9e18}[r.Intn(5)]), 10)
		if r.Intn(2) == 0 {
			number += "." + strconv.FormatInt(r.Int63n([]int64{10, 1000, 1e10}[r.Intn(3)]), 10)
		}
		inputs = append(inputs, []string{"", "", "", "-", "+"}[r.Intn(5)]+number+pick(r, suffixes))
	}
	var out []example
	for i, in := range inputs {
		q, err := resource.ParseQuantity(in)
		if err != nil {
			out = append(out, example{In: in, Error: err.Error()})
			continue
		}
		other := resource.MustParse([]string{"1", "1500m", "1Gi", "0", "-3k", "12345678901234567890"}[i%6])
		sum, difference := q.DeepCopy(), q.DeepCopy()
		compared := q.Cmp(other)
		sum.Add(other)
		difference.Sub(other)
		copied := q.DeepCopy()
		copied.RoundUp(0)
		out = append(out, example{In: in, With: other.String(), Out: map[string]any{"string": q.String(), "value": strconv.FormatInt(q.Value(), 10), "milli": strconv.FormatInt(q.MilliValue(), 10), "sign": q.Sign(),
			"cmp": compared, "sum": sum.String(), "difference": difference.String(), "roundUp": copied.String()}})
	}
	for _, text := range []string{`1`, `1.5`, `"1.5"`, `null`, `""`, `1e3`, `true`, `"x"`, `-2`, `0.10`, `100000000000000000000`, `{}`} {
		var q resource.Quantity
		err := json.Unmarshal([]byte(text), &q)
		out = append(out, outcome(map[string]any{"json": text}, nil, q.String(), err))
	}
	return out
}

func labelSelectorExamples(r *rand.Rand) []example {
	inputs := []string{"", "a", "!a", "a=b", "a==b", "a!=b", "a in (b,c)", "a notin (b)", "a in ()", "a in (,b)", "a in", "a=b,c=d", "a,b,!c", "x>1", "x<5", "x>a", "a=", "a==", "a!=", "=b", ",", "a,", ",a", "a b", "a in (b", "a in b)", "(a)", "!", "!a=b", "a!b", "a=b=c", "a = b", " a ",
		"a in (b, c , d)", "A/b=c", "bad key=x", "a=bad value", "a=-x", "-a=x", "example.com/a=b", "example.com/a/b=c", strings.Repeat("k", 64) + "=v", "k=" + strings.Repeat("v", 64), "in=in", "notin notin (notin)", "in in (in)", "a in (in,notin)", "a=in", "exists", "a>1,b<2", "x gt 1", "a=~b", "a=b;c=d", "a=\"b\"", "ü=b", "a=b,a=c", "x>-1", "x>99999999999999999999", "x>1.5", "!(a)", "a in (b)c", "a\t=\tb\n"}
	keys, values, operators := []string{"app", "tier", "example.com/x", "x"}, []string{"web", "db", "", "1", "5", "a.b"}, []string{"=", "==", "!=", " in ", " notin ", ">", "<", "", "!"}
	for range 250 {
		var parts []string
		for range 1 + r.Intn(3) {
			key, value := pick(r, keys), pick(r, values)
			switch operator := pick(r, operators); operator {
			case " in ", " notin ":
				parts = append(parts, key+operator+"("+value+","+pick(r, values)+")")
			case "":
				parts = append(parts, key)
			case "!":
				parts = append(parts, "!"+key)
			default:
				parts = append(parts, key+operator+value)
			}
		}
		inputs = append(inputs, strings.Join(parts, ","))
	}
	var out []example
	for _, in := range inputs {
		selector, err := labels.Parse(in)
		if err != nil {
			out = append(out, example{In: in, Error: err.Error()})
			continue
		}
		sets := []labels.Set{{}, {"app": "web"}, {"app": "db", "tier": "1", "x": "3"}, {"app": "", "example.com/x": "a.b", "x": "7"}}
		matches := []bool{}
		for _, set := range sets {
			matches = append(matches, selector.Matches(set))
		}
		out = append(out, example{In: in, With: sets, Out: map[string]any{"string": selector.String(), "matches": matches, "empty": selector.Empty()}})
	}
	return out
}

func labelSelectorObjectExamples(r *rand.Rand) []example {
	var out []example
	for range 200 {
		in := metav1.LabelSelector{}
		for range r.Intn(3) {
			if in.MatchLabels == nil {
				in.MatchLabels = map[string]string{}
			}
			in.MatchLabels[pick(r, []string{"app", "tier", "bad key", "example.com/x"})] = pick(r, []string{"web", "", "bad value", "x"})
			if len(in.MatchLabels) > 1 {
				break
			}
		}
		for range r.Intn(3) {
			expression := metav1.LabelSelectorRequirement{Key: pick(r, []string{"app", "x", "-bad"}), Operator: pick(r, []metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Bogus", ""})}
			for range r.Intn(3) {
				expression.Values = append(expression.Values, pick(r, []string{"web", "db", "not ok"}))
			}
			in.MatchExpressions = append(in.MatchExpressions, expression)
		}
		selector, err := metav1.LabelSelectorAsSelector(&in)
		if err != nil {
			if len(in.MatchLabels) > 1 {
				// Which of two labels is reported is a matter of chance.
				continue
			}
			out = append(out, example{In: in, Error: err.Error()})
			continue
		}
		out = append(out, example{In: in, Out: selector.String()})
	}
	return out
}

func fieldSelectorExamples(r *rand.Rand) []example {
	inputs := []string{"", "a", "a=b", "a==b", "a!=b", "a=b,c!=d", "=b", "a=", ",", "a=b,", ",a=b", "a=b=c", "a!=", "a=b\\,c", "a=b\\=c", "a=b\\\\c", "a=b\\c", "a=b\\", "a\\=b=c", " a=b", "a = b", "metadata.name=x", "metadata.name=x,metadata.namespace!=y", "a in (b)", "!a", "a>b", "a==b==c", "a=!b", "a!==b", "x=a,x=b", "status.phase!=Failed,spec.nodeName="}
	for range 100 {
		var parts []string
		for range 1 + r.Intn(3) {
			parts = append(parts, pick(r, []string{"metadata.name", "spec.nodeName", "x"})+pick(r, []string{"=", "==", "!="})+pick(r, []string{"a", "", "b\\,c", "d\\=", "e!", "f g"}))
		}
		inputs = append(inputs, strings.Join(parts, ","))
	}
	var out []example
	for _, in := range inputs {
		selector, err := fields.ParseSelector(in)
		if err != nil {
			out = append(out, example{In: in, Error: err.Error()})
			continue
		}
		requirements := []map[string]string{}
		for _, one := range selector.Requirements() {
			requirements = append(requirements, map[string]string{"field": one.Field, "operator": string(one.Operator), "value": one.Value})
		}
		out = append(out, example{In: in, Out: map[string]any{"string": selector.String(), "requirements": requirements}})
	}
	return out
}

func nameExamples(r *rand.Rand) []example {
	functions := map[string]func(string) []string{
		"dns1123label": validation.IsDNS1123Label, "dns1123subdomain": validation.IsDNS1123Subdomain, "dns1123subdomainUnderscore": validation.IsDNS1123SubdomainWithUnderscore, "dns1035label": validation.IsDNS1035Label,
		"wildcard": validation.IsWildcardDNS1123Subdomain, "qualifiedName": content.IsLabelKey, "labelValue": content.IsLabelValue, "path": content.IsPathSegmentName, "pathPrefix": content.IsPathSegmentPrefix,
		"portName": validation.IsValidPortName, "percent": validation.IsValidPercent, "httpHeader": validation.IsHTTPHeaderName, "envVar": validation.IsEnvVarName, "relaxedEnvVar": validation.IsRelaxedEnvVarName,
		"configMapKey": validation.IsConfigMapKey, "nameIsDNSLabelGenerate": func(v string) []string { return apivalidation.NameIsDNSLabel(v, true) }, "nameIsDNSSubdomainGenerate": func(v string) []string { return apivalidation.NameIsDNSSubdomain(v, true) },
		"nameIsDNS1035LabelGenerate": func(v string) []string { return apivalidation.NameIsDNS1035Label(v, true) },
	}
	values := append([]string{"a", "abc", "a1", "1a", "a.b", "a..b", "a.b.", "*.example.com", "*", "*.", "example.com/name", "/name", "example.com/", "a/b/c", "http", "8080", "a--b", "50%", "150%", "%", "-1%", "X-Header", "x header", "A_B", "1A", "A.B", "a=b", ".a", "..a", "...", "kubernetes.io/metadata.name", strings.Repeat("a", 63), strings.Repeat("a", 253), strings.Repeat("a", 15), "abcdefghijklmnopq"}, badStrings...)
	for range 60 {
		n := 1 + r.Intn(20)
		letters := []rune("abcAB019-._/:% ")
		text := make([]rune, n)
		for i := range text {
			text[i] = letters[r.Intn(len(letters))]
		}
		values = append(values, string(text))
	}
	names := make([]string, 0, len(functions))
	for name := range functions {
		names = append(names, name)
	}
	sort.Strings(names)
	var out []example
	for _, name := range names {
		for _, value := range values {
			texts := functions[name](value)
			if texts == nil {
				texts = []string{}
			}
			out = append(out, example{In: value, With: name, Out: texts})
		}
	}
	return out
}

func mergePatchExamples(r *rand.Rand) []example {
	var out []example
	for range 300 {
		original, patch := mustJSON(randomTree(r, 0, true)), mustJSON(randomTree(r, 0, r.Intn(12) > 0))
		if r.Intn(30) == 0 {
			patch = patch[:len(patch)-1]
		}
		result, err := jsonpatch.MergePatch([]byte(original), []byte(patch))
		out = append(out, outcome(original, patch, canonical(result), err))
	}
	return out
}

func canonical(text []byte) any {
	var tree any
	if utiljson.Unmarshal(text, &tree) != nil {
		return string(text)
	}
	return tree
}

func randomTree(r *rand.Rand, depth int, object bool) any {
	if object || depth < 3 && r.Intn(3) == 0 {
		out := map[string]any{}
		for range 1 + r.Intn(3) {
			out[pick(r, []string{"a", "b", "c", "d/e", "f~g", ""})] = randomTree(r, depth+1, false)
		}
		return out
	}
	if depth < 3 && r.Intn(4) == 0 {
		out := []any{}
		for range r.Intn(3) {
			out = append(out, randomTree(r, depth+1, false))
		}
		return out
	}
	return pick(r, []any{nil, nil, true, 1, 2.5, "x", "", "<&>", 10000000000})
}

func jsonPatchExamples(r *rand.Rand) []example {
	var out []example
	badPaths := []string{"", "/", "/a", "/b", "/a/a", "/a/0", "/a/-", "/a/1", "/d~1e", "/f~0g", "/c/b", "/x", "/a/-1", "/a/01", "a", "/b/a/c", "/a/b/c"}
	for range 500 {
		tree := randomTree(r, 0, true)
		original := mustJSON(tree)
		paths := append(treePaths(tree, ""), pick(r, badPaths), pick(r, badPaths))
		operations := []map[string]any{}
		for range 1 + r.Intn(2) {
			operation := map[string]any{"op": pick(r, []string{"add", "remove", "replace", "move", "copy", "test", "add", "replace", "bogus"}), "path": pick(r, paths)}
			switch operation["op"] {
			case "move", "copy":
				operation["from"] = pick(r, paths)
			case "remove":
			default:
				operation["value"] = randomTree(r, 2, false)
			}
			if r.Intn(25) == 0 {
				delete(operation, pick(r, []string{"op", "path", "value", "from"}))
			}
			operations = append(operations, operation)
		}
		text := mustJSON(operations)
		patch, err := jsonpatch.DecodePatch([]byte(text))
		if err != nil {
			out = append(out, example{In: original, With: text, Error: err.Error()})
			continue
		}
		out = append(out, applied(original, text, patch))
	}
	return out
}

// treePaths lists the pointers to every value, and to new places beside them.
func treePaths(value any, at string) []string {
	out := []string{}
	switch v := value.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			path := at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
			out = append(append(out, path), treePaths(v[key], path)...)
		}
		out = append(out, at+"/new")
	case []any:
		for i := range v {
			path := fmt.Sprintf("%s/%d", at, i)
			out = append(append(out, path), treePaths(v[i], path)...)
		}
		out = append(out, at+"/-", fmt.Sprintf("%s/%d", at, len(v)))
	}
	return out
}

// applied runs one JSON patch; a panic of the library is an outcome of its own.
func applied(original, text string, patch jsonpatch.Patch) (result example) {
	defer func() {
		if r := recover(); r != nil {
			result = example{In: original, With: text, Error: fmt.Sprintf("panic: %v", r)}
		}
	}()
	patched, err := patch.Apply([]byte(original))
	return outcome(original, text, canonical(patched), err)
}

// numberExamples: a number read into untyped data and written again, and a float of a typed field.
func numberExamples(r *rand.Rand) []example {
	inputs := []string{"0", "-0", "1", "-1", "1.0", "1.5", "1e3", "1E3", "1e21", "1e20", "1e-6", "1e-7", "0.000001", "0.0000001", "123456789012345678", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551616", "1e400", "0.1", "0.30000000000000004", "1e-400", "5e-324", "1.7976931348623157e308", "100000000000000000000", "1000000000000000000000", "12345678901234567890123", "3.14", "2.50", "1e0", "1e+2", "01", "1.", ".5", "+1", "1e", "--1", "0x10", "1_000", "NaN"}
	for range 200 {
		inputs = append(inputs, strconv.FormatFloat((r.Float64()-0.5)*[]float64{1, 1e3, 1e10, 1e22, 1e-8, 1e300}[r.Intn(6)], pick(r, []byte{'g', 'f', 'e'}), -1, 64))
	}
	var out []example
	for _, in := range inputs {
		var tree any
		untyped := map[string]any{}
		if err := utiljson.Unmarshal([]byte(in), &tree); err != nil {
			untyped["error"] = err.Error()
		} else {
			untyped["text"] = mustJSON(tree)
			untyped["integer"] = fmt.Sprintf("%T", tree) == "int64"
		}
		var float float64
		typed := map[string]any{}
		if err := json.Unmarshal([]byte(in), &float); err != nil {
			typed["error"] = err.Error()
		} else {
			typed["text"] = mustJSON(float)
		}
		out = append(out, example{In: in, Out: map[string]any{"untyped": untyped, "float64": typed}})
	}
	return out
}

func stringExamples(r *rand.Rand) []example {
	inputs := []string{"", "plain", "quote\"", "back\\slash", "</script>", "a&b", "\u0000\u0001\u001f\u007f", "\b\f\n\r\t", "ünï\u2028\u2029", "😀", "\ufffd", "a\u0300", "日本", "\u0085"}
	for range 100 {
		n := r.Intn(12)
		text := make([]rune, n)
		for i := range text {
			text[i] = rune([]int{r.Intn(0x80), r.Intn(0x800), 0x2020 + r.Intn(16), 0x1f600 + r.Intn(50)}[r.Intn(4)])
		}
		inputs = append(inputs, string(text))
	}
	var out []example
	for _, in := range inputs {
		// The encoder of the API server escapes for HTML as Go does by default.
		encoded, _ := json.Marshal(in)
		out = append(out, example{In: in, Out: string(encoded)})
	}
	return out
}

func timeExamples(*rand.Rand) []example {
	texts := []string{"2024-05-06T07:08:09Z", "2024-05-06T07:08:09.5Z", "2024-05-06T07:08:09.123456789Z", "2024-05-06T07:08:09+02:00", "2024-05-06T07:08:09-0700", "2024-05-06 07:08:09Z", "2024-05-06", "2024-13-06T07:08:09Z", "2024-02-30T07:08:09Z", "2024-02-29T23:59:60Z", "", "null", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2024-05-06t07:08:09z", "2024-05-06T07:08:09,5Z", "2024-05-06T07:08:09.1234567Z", "2024-05-06T24:00:00Z", "1969-12-31T23:59:59Z", "2024-05-06T07:08:09.000000Z", "2024-05-06T7:08:09Z", "2024-05-06T07:08:09Z ", "2024-05-06T07:08:09.999999999+05:30", "2024-05-06T07:08:09+24:00", "2024-05-06T07:08:09+23:59", "-2024-05-06T07:08:09Z"}
	var out []example
	for _, text := range texts {
		out = append(out, typedJSON[metav1.Time]("time", text), typedJSON[metav1.MicroTime]("microtime", text))
	}
	for _, text := range []string{"1s", "1h30m", "90m", "1.5h", "-5s", "0", "0s", "1", "1x", "", "100ms", "1us", "1µs", "1ns", "1d", "2562047h47m16.854775807s", "2562048h", "+1m", "1h 2m", ".5s", "1h1h"} {
		out = append(out, typedJSON[metav1.Duration]("duration", text))
	}
	for _, raw := range []string{"null", "1", "true", "{}"} {
		for _, example := range []example{rawJSON[metav1.Time]("time", raw), rawJSON[metav1.MicroTime]("microtime", raw), rawJSON[metav1.Duration]("duration", raw)} {
			out = append(out, example)
		}
	}
	return out
}

// typedJSON reads a JSON string into a type and writes it again.
func typedJSON[T any](name, text string) example {
	quoted, _ := json.Marshal(text)
	return rawJSON[T](name, string(quoted))
}

func rawJSON[T any](name, raw string) example {
	var value T
	if err := json.Unmarshal([]byte(raw), &value); err != nil {
		return example{In: raw, With: name, Error: err.Error()}
	}
	return example{In: raw, With: name, Out: mustJSON(value)}
}

func intstrExamples(*rand.Rand) []example {
	var out []example
	for _, raw := range []string{"1", "-1", "0", "2147483647", "2147483648", "-2147483649", "1.5", "1e2", `"http"`, `""`, `"25%"`, `"150%"`, `"-5%"`, `"%"`, `"5"`, `" 5%"`, `"5 %"`, `"1.5%"`, "null", "true", "{}", "[]", `"0x10"`, `"99999999999%"`} {
		var value intstr.IntOrString
		if err := json.Unmarshal([]byte(raw), &value); err != nil {
			out = append(out, example{In: raw, Error: err.Error()})
			continue
		}
		scaled := map[string]any{"text": mustJSON(value), "int": value.IntValue()}
		for _, total := range []int{0, 1, 10, 33} {
			for name, up := range map[string]bool{"up": true, "down": false} {
				number, err := intstr.GetScaledValueFromIntOrPercent(&value, total, up)
				if err != nil {
					scaled[fmt.Sprintf("%s%d", name, total)] = err.Error()
				} else {
					scaled[fmt.Sprintf("%s%d", name, total)] = number
				}
			}
		}
		out = append(out, example{In: raw, Out: scaled})
	}
	return out
}

func yamlExamples(*rand.Rand) []example {
	var out []example
	for _, in := range []string{"a: b", "a: yes", "a: no", "a: on", "a: y", "a: n", "a: true", "a: True", "a: ~", "a: null", "a:", "a: 1", "a: 1.5", "a: 0o7", "a: 010", "a: 0x1f", "a: 1e3", "a: 1_000", "a: '1'", "a: \"\\u00e9\"", "a: 2024-05-06", "a: 2024-05-06T07:08:09Z", "a: .inf", "a: .nan", "a: -.inf", "1: a", "true: a", "1.5: a", "null: a", "? [a]\n: b",
		"a: &x {b: 1}\nc: *x", "a: &x {b: 1}\nc:\n  <<: *x\n  d: 2", "a: *nope", "a: b\na: c", "a: |\n  x\n  y\n", "a: >\n  x\n  y\n", "a: |-\n  x\n", "a: !!binary aGVsbG8=", "a: !!str 1", "a: !!int \"5\"", "a: !foo b", "- a\n- b", "a", "1", "", "---\na: 1\n---\nb: 2", "%YAML 1.1\n---\na: 1", "a: b: c", "a:\n\tb: 1", "{a: 1, b: [1, 2]}", "{a: 1", "a: [1", "a: 'it''s'", "a: \"x\\ty\"", "a: # comment", "# only comment", "a: 9223372036854775807", "a: 9223372036854775808", "a: 18446744073709551616", "a: -9223372036854775809", "a: 12345678901234567890123", "a: 1.0", "a: 0.1", "a: +1", "a: 1:30", "a: 0b11", "a: @x", "a: `x", "a: %x", "a: x #y", "a: x#y", "a: {}", "a: []", "a: \"\"", "\ufeffa: 1", "a: \"\\x00\"", "a: \u0001", "<<: {a: 1}\nb: 2", "<<: [{a: 1}, {b: 2}]\nc: 3", "a: 1\n...\nb: 2", "a: - b", "- - a\n  - b\n- c", "a: !!float 1", "a: !!bool yes", "a: !!null x", "a: 0.", "a: 1e400", "a: 08", "a: 0888", "a: -0", "a: 0777", "Yes: 1", "a: \"\\/\"", "a: 'x\n  y'", "a: x\n  y", "'a b': 1", "a : 1", "a:1", "http://x: 1"} {
		text, err := yaml.YAMLToJSON([]byte(in))
		strict, strictErr := yaml.YAMLToJSONStrict([]byte(in))
		one := outcome(in, nil, string(text), err)
		if strictErr != nil {
			one.With = map[string]any{"strictError": strictErr.Error()}
		} else if string(strict) != string(text) {
			one.With = map[string]any{"strict": string(strict)}
		}
		out = append(out, one)
	}
	return out
}
