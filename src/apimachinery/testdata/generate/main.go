// Command generate writes the golden vectors of the machinery's leaf modules: what upstream's own
// libraries answer to fixed and to random inputs, one JSON object per line, gzipped.
//
// Usage: go run . <folder of the vectors>
package main

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

var rng = rand.New(rand.NewSource(7))
var dir = os.Args[1]

type M = map[string]any

func out(name string) func(M) {
	f, err := os.Create(dir + "/" + name + ".jsonl.gz")
	if err != nil {
		panic(err)
	}
	w, _ := gzip.NewWriterLevel(f, gzip.BestCompression)
	closers = append(closers, func() { w.Close(); f.Close() })
	return func(m M) {
		b, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		w.Write(append(b, '\n'))
	}
}

var closers []func()

func pick(s ...string) string { return s[rng.Intn(len(s))] }

func randStr() string {
	if rng.Intn(3) == 0 {
		return pick("", "a", "name", "a.b/c", "with space", "é", "\u2028", "<&>", "line\nbreak", "tab\t", "\"q\"", "\\", "\u0001", "😀", "true", "null", "12", "1.5", "~", "yes", "a: b", "- x", "#c", " lead", "trail ")
	}
	n := rng.Intn(9)
	var b strings.Builder
	for i := 0; i < n; i++ {
		b.WriteByte("abcdefghij0189-._/"[rng.Intn(18)])
	}
	return b.String()
}

func randVal(d int) any {
	switch k := rng.Intn(10); {
	case k < 2 && d > 0:
		m := M{}
		for i := rng.Intn(4); i >= 0; i-- {
			m[randStr()] = randVal(d - 1)
		}
		return m
	case k < 4 && d > 0:
		a := []any{}
		for i := rng.Intn(4); i > 0; i-- {
			a = append(a, randVal(d-1))
		}
		return a
	case k == 4:
		return nil
	case k == 5:
		return rng.Intn(2) == 0
	case k == 6:
		return rng.Int63() >> uint(rng.Intn(63))
	case k == 7:
		return json.Number(pick("1.5", "-0.25", "1e21", "1e-7", "123456789.125", "1E3", "18446744073709551616", "0.1e-7", "1.0", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "5e-324", "1.7976931348623157e308", "100000000000000000000", "0.000001", "1e20"))
	}
	return randStr()
}

func enc(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func errText(err error) any {
	if err == nil {
		return nil
	}
	return err.Error()
}

func doJSON() {
	w := out("json")
	one := func(b []byte) {
		var v any
		strict, err := kjson.UnmarshalStrict(b, &v)
		var d []string
		for _, e := range strict {
			var fe kjson.FieldError
			if errors.As(e, &fe) {
				d = append(d, fe.FieldPath())
			}
		}
		m := M{"in": base64.StdEncoding.EncodeToString(b), "err": errText(err)}
		if err == nil {
			m["out"] = string(enc(v))
			m["dups"] = d
		}
		w(m)
	}
	for _, s := range []string{"", " ", "null", "tru", "truex", "nul", "falsy", "[", "[1", "[1,", "[1,]", "[,", "{", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{a", "{,", "{\"a\" 1}", "{\"a\":1 2}", "[1 2]", "1 2", "-", "-x", "01", "1.", "1.x", "1e", "1e+", "1ex", ".5", "+1", "\"", "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\u12", "\"\n\"", "\"\x01\"", "'a'", "{'a':1}", "]", "}", ":", "\xff", "\"\xff\"", "\"a\xc3\"", "\xc3\xa9", "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\ud83d\\ude00\"", "\"\\ude00\\ud83d\"", "\"\\ud800\\ud83d\\ude00\"", "1e999", "[1e999,tru]", "-0", "-0.0e5", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\":1,\"b\":2},\"a\":{\"b\":3}}", "[{\"x\":1,\"x\":1},{\"y\":[[{\"z\":1,\"z\":2,\"z\":3}]]}]", "{\"b\":1,\"a\":2,\"b\":3,\"a\":4}", "\"\\/\\b\\f\\n\\r\\t\\\"\\\\\"", "\"\x7f\"", "{\"a\\u0062\":1,\"ab\":2}", "\ufeff{}", "/*c*/1", "\"\xed\xa0\x80\"", "\"\xf0\x9f\x98\"x"} {
		one([]byte(s))
	}
	for i := 0; i < 250; i++ {
		b := enc(randVal(4))
		one(b)
		if len(b) > 1 {
			switch rng.Intn(3) {
			case 0:
				one(b[:rng.Intn(len(b))])
			case 1:
				c := append([]byte{}, b...)
				c[rng.Intn(len(c))] = byte(rng.Intn(256))
				one(c)
			case 2:
				c := append([]byte{}, b...)
				k := rng.Intn(len(c))
				c = append(c[:k], append([]byte(pick("\"a\":1,", ",", "}", "\\", "0", " ", "\x00")), b[k:]...)...)
				one(c)
			}
		}
	}
}

func doFloat() {
	w := out("float")
	for i := 0; i < 300; i++ {
		var f float64
		if i%2 == 0 {
			f = rng.NormFloat64() * []float64{1e-9, 1e-6, 1e-5, 1, 1e6, 1e20, 1e21, 1e300}[rng.Intn(8)]
		} else {
			f, _ = strconv.ParseFloat(fmt.Sprintf("%de%d", rng.Intn(1000), rng.Intn(60)-30), 64)
		}
		if f == 0 {
			continue
		}
		w(M{"in": strconv.FormatFloat(f, 'e', -1, 64), "json": string(enc(f)), "v": fmt.Sprintf("%v", f), "g": strconv.FormatFloat(f, 'g', -1, 64)})
	}
}

func doQuote() {
	w := out("quote")
	for _, s := range []string{"", "a", "é", "\u0301", "\u00a0", "\u200b", "😀", "\ue000", "\u2028", "\x7f", "\x00", "\v", "\u00ad", "中", "\u0378", "\U0010ffff", "²", "€", "\u1680", "\u202e"} {
		w(M{"in": s, "out": strconv.Quote(s)})
	}
	for i := 0; i < 300; i++ {
		r := rune(rng.Intn(0x3000))
		if i%3 == 0 {
			r = rune(rng.Intn(0x20000))
		}
		if r >= 0xd800 && r < 0xe000 {
			continue
		}
		w(M{"in": string(r), "out": strconv.Quote(string(r))})
	}
}

func doQuantity() {
	w := out("quantity")
	ins := []string{"", "0", "-", "+", ".", "0.", ".0", "+5", "-0", "00", "1.500", "0k", "1000E", "1e3", "1E3", "1e", "1E", "1Ki", "1.5Ki", "0.5Gi", "1Ei", "8Ei", "7Ei", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1n", "0.5n", "1.1n", "-0.5n", "1e-10", "1e-9", "12345678901234567890", "1.23456789012345678901", "100m", "1000m", "1500m", "0.001", "1k", "1K", "1ki", "1kk", "1 ", " 1", "a", "1a", "1e1.5", "1m1", "1e+3", "1e-3", "1Mi5", "--1", "1-", "1..2", "1.2.3", "1024", "1024Ki", "1023Ki", "1025Mi", "1000Ki", "100Gi", "0.1Mi", "0.0000001Ki", "1u", "1P", "1T", "1.5E", "999999999999999999", "1000000000000000000", "1e18", "1e19", "100e-2", "2Pi", "1048576", "5000000000000000000000Ei", "-1.5", "-1.5Ki", "-512", "-2048Ki"}
	for i := 0; i < 250; i++ {
		s := pick("", "", "-", "+") + strconv.FormatInt(rng.Int63()>>uint(rng.Intn(63)), 10)
		if rng.Intn(2) == 0 {
			s += "." + strconv.Itoa(rng.Intn(100000))
		}
		s += pick("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "e-3", "E6", "e12", "x")
		ins = append(ins, s)
	}
	var good []string
	for _, s := range ins {
		q, err := resource.ParseQuantity(s)
		m := M{"in": s, "err": errText(err)}
		if err == nil {
			m["out"] = q.String()
			m["value"] = q.Value()
			m["milli"] = q.MilliValue()
			m["sign"] = q.Sign()
			q2 := q.DeepCopy()
			m["f"] = fmt.Sprint(q2.AsApproximateFloat64())
			good = append(good, s)
		}
		w(m)
	}
	w2 := out("quantity_pairs")
	for i := 0; i < 300; i++ {
		a, b := good[rng.Intn(len(good))], good[rng.Intn(len(good))]
		if strings.Contains(a+b, "1000") && strings.Contains(a+b, "e1000") {
			continue
		}
		if strings.Contains(a+b, "e2147483648") {
			continue
		}
		qa, qb := resource.MustParse(a), resource.MustParse(b)
		c := qa.Cmp(qb)
		s := qa.DeepCopy()
		s.Add(qb)
		d := qa.DeepCopy()
		d.Sub(qb)
		w2(M{"a": a, "b": b, "cmp": c, "sum": s.String(), "diff": d.String()})
	}
}

func doNames() {
	w := out("names")
	rules := map[string]func(string) []string{
		"dns1123_label": validation.IsDNS1123Label, "dns1123_subdomain": validation.IsDNS1123Subdomain, "dns1123_caseless": content.IsDNS1123SubdomainCaseless,
		"dns1123_underscore": validation.IsDNS1123SubdomainWithUnderscore, "dns1035_label": validation.IsDNS1035Label, "wildcard": validation.IsWildcardDNS1123Subdomain,
		"qualified": validation.IsQualifiedName, "label_value": validation.IsValidLabelValue, "path": path.IsValidPathSegmentName, "path_prefix": path.IsValidPathSegmentPrefix,
		"port": validation.IsValidPortName, "c": validation.IsCIdentifier, "percent": validation.IsValidPercent, "header": validation.IsHTTPHeaderName, "env": validation.IsEnvVarName,
		"relaxed_env": validation.IsRelaxedEnvVarName, "config": validation.IsConfigMapKey, "reason": metavalidation.IsValidConditionReason, "decimal": content.IsDecimalInteger,
		"ip": func(s string) []string { return details(validation.IsValidIP(field.NewPath("x"), s)) },
		"ip_legacy": func(s string) []string {
			return details(validation.IsValidIPForLegacyField(field.NewPath("x"), s, false, nil))
		},
		"cidr": func(s string) []string { return details(validation.IsValidCIDR(field.NewPath("x"), s)) },
		"cidr_legacy": func(s string) []string {
			return details(validation.IsValidCIDRForLegacyField(field.NewPath("x"), s, false, nil))
		},
	}
	long := strings.Repeat("a", 64)
	ins := []string{"", "a", "A", "a-b", "-a", "a-", "a.b", "a..b", ".a", "a.", "a_b", "_a", "_a.b", "a/b", "/b", "a/", "a/b/c", "1", "1a", "a1", "A.b/C_d", "*.a", "*.a.b", "*", "*a", ".", "..", "...", "..a", "a%b", "a%/b", "--", "a--b", "80", "http", "http-alt-and-longer", "%", "5%", "5", "x%", "X-H", "X H", "a=b", "é", "FOO", long, long + "/" + long, long + ".b", strings.Repeat("a.", 127), "x/" + long, "a:b", "a,b", "a:", "0", "-0", "01", "-1", "-", "10.0.0.1", "010.0.0.1", "10.0.0", "10.0.0.256", "::1", "::ffff:1.2.3.4", "2001:DB8::1", "2001:0db8::1", "fe80::1%eth0", "10.0.0.0/8", "10.0.0.1/8", "010.0.0.0/8", "10.0.0.0/08", "10.0.0.0/33", "::/0", "2001:DB8::/32", "::ffff:1.2.3.4/120", "1.2.3.4.5", "1.2.3.4/", "/8", "::1.2.3.04", "a b"}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		f := rules[name]
		for _, s := range ins {
			w(M{"rule": name, "in": s, "out": f(s)})
		}
	}
}
func details(l field.ErrorList) []string {
	var o []string
	for _, e := range l {
		o = append(o, e.Detail)
	}
	return o
}

func doLabels() {
	w := out("labels")
	sets := []labels.Set{{}, {"a": "b"}, {"a": "", "n": "5"}, {"x": "y", "a": "c", "n": "12"}}
	ins := []string{"", " ", ",", "a", "!a", "a=b", "a==b", "a!=b", "a in (b)", "a in (b,c)", "a notin (b,c)", "a in ()", "a in (,)", "a in (b,)", "a in (,b)", "a in (b,,c)", "a in b", "a in (b", "a in (b c)", "a in", "a notin", "n>4", "n<6", "n>x", "n>", "n>=4", "a=", "a=,b", "a,b", "a,", "a b", "a=b c", "(a)", "=", "!", "!!a", "!a=b", "a=!b", "a===b", "a=b,,c", "a in (in,notin)", "in", "in in (in)", "notin=x", "a=in", "A_b/c", "-a", "a/b/c", "a=-b", "a=b/c", "a/b=c", "x.y/z in (q)", "a=" + strings.Repeat("z", 64), strings.Repeat("k", 64), "a in (b),c notin (d),!e,f", "a<>b", "a><b", "a>1,a<5", "z,a,m", "a\tin\n(b)", "a=b\x00,c", "\x00", "n>1,n>2", "é", "a=é", "a in ((b))", "a(b)", "a!b", "a=b=c", "a==", "!a,b", "a in (b) c", "a in(b)", "a notin(b)", ")"}
	al := []string{"a", "b", "n", "in", "notin", "=", "==", "!=", "!", "(", ")", ",", " ", ">", "<", "5", "x/y"}
	for i := 0; i < 300; i++ {
		s := ""
		for j := rng.Intn(7); j >= 0; j-- {
			s += al[rng.Intn(len(al))]
			if rng.Intn(3) == 0 {
				s += " "
			}
		}
		ins = append(ins, s)
	}
	for _, s := range ins {
		sel, err := labels.Parse(s)
		m := M{"in": s, "err": errText(err)}
		if err == nil {
			var ms []bool
			for _, st := range sets {
				ms = append(ms, sel.Matches(st))
			}
			m["out"] = sel.String()
			m["match"] = ms
		}
		w(m)
	}
	w2 := out("fields")
	al = []string{"a", "b.c", "=", "==", "!=", ",", "\\", "\\,", "\\=", "\\\\", "x", "!", "é"}
	for i := 0; i < 250; i++ {
		s := ""
		for j := rng.Intn(8); j >= 0; j-- {
			s += al[rng.Intn(len(al))]
		}
		sel, err := fields.ParseSelector(s)
		m := M{"in": s, "err": errText(err)}
		if err == nil {
			m["out"] = sel.String()
		}
		w2(m)
	}
	w3 := out("label_selector")
	for _, s := range []string{`null`, `{}`, `{"matchLabels":{"a":"b"}}`, `{"matchLabels":{"-a":"b"}}`, `{"matchLabels":{"a":"-b"}}`, `{"matchExpressions":[{"key":"a","operator":"In","values":["b","c"]}]}`, `{"matchExpressions":[{"key":"a","operator":"In"}]}`, `{"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]}`, `{"matchExpressions":[{"key":"a","operator":"DoesNotExist"},{"key":"b","operator":"NotIn","values":["-"]}]}`, `{"matchExpressions":[{"key":"a","operator":"Foo<"}]}`, `{"matchExpressions":[{"key":"","operator":"Exists"}]}`, `{"matchLabels":{"z":"1"},"matchExpressions":[{"key":"a","operator":"Exists"}]}`} {
		var ls *metav1.LabelSelector
		if err := json.Unmarshal([]byte(s), &ls); err != nil {
			panic(err)
		}
		sel, err := metav1.LabelSelectorAsSelector(ls)
		m := M{"in": s, "err": errText(err)}
		if err == nil {
			m["out"] = sel.String()
		}
		v := metavalidation.ValidateLabelSelector(ls, metavalidation.LabelSelectorValidationOptions{}, field.NewPath("spec", "selector"))
		var msgs []string
		for _, e := range v {
			msgs = append(msgs, e.Error())
		}
		m["invalid"] = msgs
		w3(m)
	}
}

func doTime() {
	w := out("time")
	ins := []string{"", "2020-01-02T03:04:05Z", "2020-01-02T03:04:05.123Z", "2020-01-02T03:04:05.123456Z", "2020-01-02T03:04:05.123456789+02:00", "2020-01-02T03:04:05,5Z", "2020-01-02t03:04:05z", "2020-01-02 03:04:05Z", "2020-13-02T03:04:05Z", "2020-00-02T03:04:05Z", "2020-02-30T03:04:05Z", "2020-02-29T03:04:05Z", "2021-02-29T03:04:05Z", "2020-01-00T03:04:05Z", "2020-01-32T03:04:05Z", "2020-01-02T24:04:05Z", "2020-01-02T03:60:05Z", "2020-01-02T03:04:60Z", "2020-01-02T03:04:05", "2020-01-02T03:04:05Zx", "2020-01-02T03:04:05+25:00", "2020-01-02T03:04:05+24:00", "2020-01-02T03:04:05+02:61", "2020-01-02T03:04:05+0200", "2020-1-02T03:04:05Z", "2020-01-2T03:04:05Z", "2020-01-02T3:04:05Z", "20-01-02T03:04:05Z", "abc", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "2020-01-02T03:04:05.Z", "2020-01-02", "2020-01-02T", "2020-01-02T03:04:05-00:00", "1969-12-31T23:59:59Z", "2020-01-02T03:04:05.1234567Z", "2020-01-02T03:04:05-07:30", "é020-01-02T03:04:05Z", "2020-1é", "12345-01-02T03:04:05Z"}
	for i := 0; i < 60; i++ {
		ins = append(ins, time.Unix(rng.Int63n(250000000000)-62135596800, rng.Int63n(1e9)).UTC().Format(pick(time.RFC3339, time.RFC3339Nano, metav1.RFC3339Micro)))
	}
	for _, s := range ins {
		t, err := time.Parse(time.RFC3339, s)
		m := M{"in": s, "err": errText(err)}
		if err == nil {
			m["out"] = t.UTC().Format(time.RFC3339)
			m["unix"] = t.Unix()
			m["nano"] = t.Nanosecond()
		}
		t, err = time.Parse(metav1.RFC3339Micro, s)
		m["merr"] = errText(err)
		if err == nil {
			m["mout"] = t.UTC().Format(metav1.RFC3339Micro)
		}
		w(m)
	}
	w2 := out("duration")
	ins = []string{"", "0", "-0", "+0", "1", "1s", "-1s", "1h15m30.5s", "1.5h", ".5s", "1.s", ".s", "s", "1x", "1sx", "1s2", "1us", "1µs", "1μs", "1ns", "1ms", "9223372036854775807ns", "9223372036854775808ns", "-9223372036854775808ns", "-9223372036854775809ns", "2562048h", "1e3s", "1 s", "0.1ns", "0.123456789123456789123s", "é", "3.7m2.1s", "99999999999999999999s", "1d", "+5m", "--5m"}
	for _, s := range ins {
		d, err := time.ParseDuration(s)
		m := M{"in": s, "err": errText(err)}
		if err == nil {
			m["n"] = int64(d)
			m["out"] = d.String()
			m["human"] = duration.HumanDuration(d)
		}
		w2(m)
	}
	for i := 0; i < 200; i++ {
		d := time.Duration(rng.Int63() >> uint(rng.Intn(63)))
		if rng.Intn(5) == 0 {
			d = -d
		}
		if i%2 == 0 {
			d = time.Duration(rng.Int63n(1e9)) * time.Second
		}
		s := d.String()
		w2(M{"in": s, "err": nil, "n": int64(d), "out": s, "human": duration.HumanDuration(d)})
	}
}

func doPatch() {
	w := out("json_patch")
	docs := []string{`{"a":{"b":[1,2,3],"c":null,"d/e":1,"f~g":2},"l":[{"x":1},[4]],"s":"t"}`, `{}`, `{"metadata":{"labels":{"q":"r"}},"n":1.5}`}
	var patches []string
	ops := []string{"add", "remove", "replace", "test", "move", "copy"}
	paths := []string{"", "/", "/a", "/a/b", "/a/b/0", "/a/b/-", "/a/b/-1", "/a/b/-4", "/a/b/3", "/a/b/4", "/a/b/x", "/a/b/01", "/a/b/+1", "/a/c", "/a/c/x", "/a/d~1e", "/a/f~0g", "/a/f~01g", "/zz", "/zz/y", "/s", "/s/x", "/l/0/x", "/l/1/0", "/l/1/-", "a", "a/b", "x/a", "/metadata/labels/q", "/metadata/labels", "/n", "/a/b/99999999999999999999"}
	vals := []string{`1`, `null`, `{"k":[1]}`, `"t"`, `[1,2,3]`, `{}`, `[]`, `1.5`, `{"x":1}`, `true`}
	for _, op := range ops {
		for _, p := range paths {
			e := fmt.Sprintf(`[{"op":%q,"path":%q,"value":%s,"from":%q}]`, op, p, vals[rng.Intn(len(vals))], paths[rng.Intn(len(paths))])
			patches = append(patches, e)
		}
	}
	for i := 0; i < 250; i++ {
		var l []string
		for j := rng.Intn(4); j >= 0; j-- {
			l = append(l, fmt.Sprintf(`{"op":%q,"path":%q,"value":%s,"from":%q}`, pick(ops...), pick(paths...), pick(vals...), pick(paths...)))
		}
		patches = append(patches, "["+strings.Join(l, ",")+"]")
	}
	patches = append(patches, `[]`, `null`, `{}`, `"x"`, `[1]`, `[null]`, `[{}]`, `[{"op":"add"}]`, `[{"op":"remove"}]`, `[{"op":"replace"}]`, `[{"op":"test"}]`, `[{"op":"move"}]`, `[{"op":"copy"}]`, `[{"op":"copy","from":"/a"}]`, `[{"op":"move","from":"/a"}]`, `[{"op":1,"path":"/a"}]`, `[{"op":"add","path":1}]`, `[{"op":"bad","path":"/a"}]`, `[{"op":"add","path":"/q"}]`, `[{"op":"replace","path":"/a"}]`, `[{"op":"test","path":"/zz","value":null}]`, `[{"op":"test","path":"/zz"}]`, `[{"op":"replace","path":1}]`, `[{"op":"replace","path":"","value":3}]`)
	for i, p := range patches {
		d := docs[0]
		if i%4 == 1 {
			d = docs[rng.Intn(3)]
		}
		m := M{"doc": d, "patch": p}
		func() {
			defer func() {
				if r := recover(); r != nil {
					m["panic"] = true
				}
			}()
			o, err := jsonpatch.DecodePatch([]byte(p))
			if err != nil {
				m["decode"] = err.Error()
				return
			}
			r, err := o.Apply([]byte(d))
			m["err"] = errText(err)
			if err == nil {
				m["out"] = string(r)
			}
		}()
		w(m)
	}
	w2 := out("merge_patch")
	for i := 0; i < 300; i++ {
		d, p := randVal(3), randVal(4)
		if _, ok := d.(M); !ok {
			d = M{"a": d}
		}
		if _, ok := p.(M); !ok {
			p = M{"a": p, "b": M{"c": nil}}
		}
		if pm, ok := p.(M); ok {
			for k, v := range d.(M) {
				if _, has := pm[k]; !has || rng.Intn(2) == 0 {
					if rng.Intn(2) == 0 {
						pm[k] = randVal(3)
					} else if rng.Intn(3) == 0 {
						pm[k] = v
					}
				}
			}
		}
		db, pb := enc(d), enc(p)
		r, err := jsonpatch.MergePatch(db, pb)
		if err != nil {
			panic(err)
		}
		w2(M{"doc": string(db), "patch": string(pb), "out": string(r)})
	}
}

func doYAML() {
	w := out("yaml_read")
	one := func(s string) {
		j, err := yaml.YAMLToJSON([]byte(s))
		m := M{"in": s, "err": errText(err)}
		if err == nil {
			var v any
			if e := kjson.UnmarshalCaseSensitivePreserveInts(j, &v); e != nil {
				m["err"] = e.Error()
			} else {
				m["out"] = string(enc(v))
			}
			_, se := yaml.YAMLToJSONStrict([]byte(s))
			m["strict"] = errText(se)
		}
		w(m)
	}
	scal := []string{"y", "Y", "yes", "NO", "on", "Off", "true", "True", "TRUE", "tRUE", "null", "Null", "~", "", "1", "-1", "+1", "017", "08", "0o17", "0x1F", "0b101", "-0b11", "1_000", "1__0", "_1", "1.5", "1.", ".5", "+.5", "-.5", "1e3", "1E3", "1e", "1.5e-3", ".inf", "-.INF", ".nan", "1:30", "190:20:30", "2020-01-02", "2020-01-02T03:04:05Z", "2020-1-2 3:4:5", "2020-99-99", "0x", "0b", "0b2", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "1e400", "<<", "=", "a", "a b", "'x'", "\"x\\ty\"", "!!str 1", "!!int \"3\"", "!!float 3", "!!bool yes", "!!int x", "!!binary aGk=", "!!null x", "!foo 3", "! 3", "0.1e-7", "1e21", "100000000000000000000", "0_7", "0x_1", "1,000", "0.0", "-0", "-0.0", "00", "0", "1e+3", "+0x10", "+017", "0O17", "0X1f", "0B1", "12e03", "1_0.5", "-", "--", "---", "?", ":", "a:b", "a#b", "a #b", ". 5", ".", "..", "...", "1 2", "\"\\u263A\\x41\\U0001F600\"", "''", "\"\"", "@a", "`a", "%a", "&a b", "*a", "|", ">", "[]", "{}", "[a, b]", "{a: b}", "[a,b,]", "{a}", "{a: , b}", "[a b, c: d]", "{\"a\":1}", "{\"a\": [1,2.5,null,true,\"x\"]}"}
	for _, s := range scal {
		one("k: " + s + "\n")
	}
	for _, s := range []string{"", "\n", "# c\n", "---\n", "---\na: 1\n---\nb: 2\n", "a: 1\n...\nb\n", "%YAML 1.1\n---\na: 1\n", "a: 1\na: 2\n", "a:\n  b: 1\n  b: 2\nc: 1\nc: 3\n", "1: a\ntrue: b\n1.5: c\nyes: d\n", "~: a\n", "? [a]\n: b\n", "? {a: b}\n: c\n", "a: &x {b: 1}\nc: *x\n", "a: &x {b: 1, d: 2}\nc:\n  <<: *x\n  b: 3\n", "c:\n  b: 3\n  <<: {b: 1, e: 2}\n", "c:\n  <<: [{a: 1}, {a: 2, b: 3}]\n", "c:\n  <<: 3\n", "a: *nope\n", "a: &a [*a]\n", "- a\n- b\n-\n- - c\n  - d\n", "a: |\n  x\n  y\nb: >\n  x\n  y\n\n  z\nc: |-\n  q\nd: |+\n  r\n\ne: >-\n  s\n", "a: 'it''s'\nb: \"q\\\"\"\n", "a:\n- b\n- c\n", "a:\n\t b\n", "\ta: b\n", "a: b: c\n", "a: [b\n", "a: \"b\n", "a: 'b\n", "{a: b\n", "a\nb: c\n", "a: b\n c\n", "a: b\n  c\n", "- a\nb: c\n", "a: 1\n b: 2\n", "key: \"line1\n  line2\"\n", "key: line1\n  line2\n", "a: \x01\n", "\xff\n", "\ufeffa: 1\n", "a: é😀\n", "<<: {a: 1}\n", "\"<<\": {a: 1}\n", "? a\n? b\n", "a: !!set {b}\n", "0x10: a\n", "017: a\n", "1e3: x\n", "a:\n  - b:\n      c: d\n    e: f\n", "a: # c\n  b\n", "a: |2\n    x\n", "a: \"\\/\"\n", "a: \"\\z\"\n", "\"a\": 1\n'b': 2\n", "a:1\n", "a: -1\n-b: c\n", "a: {b: {c: [1, {d: e}]}}\n", "!!map {a: b}\n", "!!seq [a]\n", "18446744073709551615: a\n"} {
		one(s)
	}
	w2 := out("yaml_write")
	oneW := func(v any) {
		b := enc(v)
		y, err := yaml.JSONToYAML(b)
		if err != nil {
			return
		}
		w2(M{"in": string(b), "out": string(y)})
	}
	long := strings.Repeat("word and more ", 12)
	for _, s := range append(scal, long, strings.TrimSpace(long), "'"+strings.TrimSpace(long), "\t"+long+"x", "it's: "+long+"z", "#"+long+"  two  spaces "+long+"y", "a\nb", "a\nb\n", "a\n\nb\n\n", "\na", " a\nb", "a \nb", "a\n ", "\n", "\n\n", "a\r\nb", "a\u0085b", "a\u2028b", "é", "😀", "\u00a0", "\ufeff", "\u200b", "\x7f", "a\tb", "a\tb\nc", "-----BEGIN\nabc\n-----END\n", "#!/bin/sh\necho hi\n", "  indented\nx\n", "x: |\n  y\n", "a: b", "a:", ":a", "-a", "- a", "?a", "? a", "a,b", "[a", "a]", "{a", "a}", "a#b", "a #b", "*a", "&a", "!a", "|a", ">a", "%a", "@a", "'a", "\"a", "a'b", "a\"b", "a\\b", "=", "<<", "12:30:45", "1:2", "1:99", "0.1.2", "1.2.3.4", "0xZZ", "1e3x", "2020-01-02x", "2020-01-02", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59:43.10", "2001-12-14 21:59:43.10 -5", "1_000", "-.5x", "+", "+1", "+a", ".a", "~a", "nulla", "yesterday", "No", "n", "N", "\"", "'", "`", "a`", "...", "... a", "--- a", "---a", "a---") {
		oneW(s)
		oneW(M{"k": s})
		oneW([]any{s, []any{s}})
		oneW(M{s: M{"n": s}})
	}
	oneW(M{strings.Repeat("k", 128): 1, strings.Repeat("l", 129): M{"a": []any{1, 2}}, "multi\nline": []any{"x"}, "a10": 1, "a9": 1, "a09": 1, "a1b": 1, "B": 1, "a": 1, "-": 1, "1": 1, "10": 1, "2": 1, "é": 1, "a.b": 1, "a/b": 1, "a-b": 1, "ab": 1, "100": 1, "1000": 1, "1001": 1, "010": 1})
	for i := 0; i < 200; i++ {
		oneW(randVal(5))
	}
}

func doStatus() {
	w := out("status")
	gr, gk := schema.GroupResource{Group: "apps", Resource: "deployments"}, schema.GroupKind{Group: "apps", Kind: "Deployment"}
	pods := schema.GroupResource{Resource: "pods"}
	p := field.NewPath("spec")
	e := errors.New("why <not>")
	put := func(n string, s *apierrors.StatusError) {
		st := s.ErrStatus
		st.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w(M{"name": n, "json": string(enc(st))})
	}
	put("not_found", apierrors.NewNotFound(gr, "a\"b"))
	put("not_found_core", apierrors.NewNotFound(pods, "x"))
	put("already_exists", apierrors.NewAlreadyExists(gr, "x"))
	put("generate_name", apierrors.NewGenerateNameConflict(gr, "x", 1))
	put("unauthorized", apierrors.NewUnauthorized(""))
	put("unauthorized_text", apierrors.NewUnauthorized("Unauthorized"))
	put("forbidden", apierrors.NewForbidden(gr, "x", e))
	put("forbidden_list", apierrors.NewForbidden(gr, "", e))
	put("forbidden_none", apierrors.NewForbidden(schema.GroupResource{}, "", e))
	put("conflict", apierrors.NewConflict(gr, "x", e))
	put("gone", apierrors.NewGone("g"))
	put("expired", apierrors.NewResourceExpired("g"))
	put("invalid", apierrors.NewInvalid(gk, "x", field.ErrorList{field.Required(p.Child("a"), ""), field.Invalid(p.Index(1).Key("k"), "v", "bad"), field.Required(p.Child("a"), "")}))
	put("invalid_none", apierrors.NewInvalid(gk, "", nil))
	put("bad_request", apierrors.NewBadRequest("b"))
	put("too_many", apierrors.NewTooManyRequests("t", 3))
	put("unavailable", apierrors.NewServiceUnavailable("s"))
	put("method", apierrors.NewMethodNotSupported(gr, "delete"))
	put("server_timeout", apierrors.NewServerTimeout(gr, "get", 2))
	put("internal", apierrors.NewInternalError(e))
	put("timeout", apierrors.NewTimeoutError("t", 0))
	put("too_large", apierrors.NewRequestEntityTooLargeError("limit is 3"))
	for _, c := range []int{400, 401, 403, 404, 405, 406, 409, 415, 418, 422, 429, 500, 503, 504, 599} {
		put(fmt.Sprintf("generic_%d", c), apierrors.NewGenericServerResponse(c, "GET", gr, "x", "msg", 0, true))
	}
	put("generic_409_post", apierrors.NewGenericServerResponse(409, "POST", gr, "", "msg", 0, false))
	put("generic_404_none", apierrors.NewGenericServerResponse(404, "GET", schema.GroupResource{}, "", "", 0, false))
}

func main() {
	doJSON()
	doFloat()
	doQuote()
	doQuantity()
	doNames()
	doLabels()
	doTime()
	doPatch()
	doYAML()
	doStatus()
	for _, c := range closers {
		c()
	}
}
