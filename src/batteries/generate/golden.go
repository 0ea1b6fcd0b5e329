package main

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"hash/fnv"
	"math/big"
	mathrand "math/rand"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// vector is one line of a golden file.
type vector struct {
	Op  string          `json:"op"`
	In  json.RawMessage `json:"in"`
	Old json.RawMessage `json:"old,omitempty"`
	Out *answer         `json:"out"`
}

// runGolden writes ../golden.
func runGolden(arguments []string) error {
	flags := flag.NewFlagSet("golden", flag.ContinueOnError)
	seed := flags.Int64("seed", 1, "seed of all random choices")
	count := flags.Int("count", 240, "cases per kind; kinds with large schemas get twice as many")
	out := flags.String("out", "../golden", "folder to write to")
	only := flags.Bool("subresources", false, "write only the cases of subresources")
	previews := flags.Bool("previews", false, "write only the cases of kinds that are off by default")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *previews {
		return writePreviewGolden(*out, *seed, *count)
	}
	o, err := newOracle()
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
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	if *only {
		_, err := o.writeSubresources(filepath.Join(*out, "subresources"), seeds, *seed, 2**count)
		return err
	}
	total, err := o.writeKinds(c, o.sortedKinds(), seeds, *out, *seed, *count)
	if err != nil {
		return err
	}
	size, err := o.writeSubresources(filepath.Join(*out, "subresources"), seeds, *seed, 2**count)
	if err != nil {
		return err
	}
	total += size
	size, err = writeMachinery(filepath.Join(*out, "machinery"), *seed)
	fmt.Fprintf(os.Stderr, "total %d bytes\n", total+size)
	if err != nil {
		return err
	}
	return writePreviewGolden(*out, *seed, *count)
}

// writeKinds writes the files of some kinds, and returns their size.
func (o *oracle) writeKinds(c *catalog, kinds []schema.GroupVersionKind, seeds map[schema.GroupVersionKind][]json.RawMessage, out string, seed int64, count int) (int, error) {
	total, problems := 0, []string{}
	for _, gvk := range kinds {
		cases := count
		if large[gvk.Kind] {
			cases *= 2
		}
		vectors, err := o.vectors(c, gvk, seeds[gvk], seed, cases)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", gvk, err))
			continue
		}
		size, err := writeGzip(filepath.Join(out, fileName(gvk)), vectors)
		if err != nil {
			return total, err
		}
		total += size
		fmt.Fprintln(os.Stderr, summary(gvk, vectors, size))
	}
	if len(problems) > 0 {
		return total, fmt.Errorf("%s", strings.Join(problems, "\n"))
	}
	return total, nil
}

var large = map[string]bool{"Pod": true, "Deployment": true, "StatefulSet": true, "DaemonSet": true, "Job": true, "Service": true, "Ingress": true,
	"PersistentVolume": true, "CustomResourceDefinition": true, "HorizontalPodAutoscaler": true, "NetworkPolicy": true}

func summary(gvk schema.GroupVersionKind, vectors []vector, size int) string {
	ops, invalid, failures := map[string]int{}, 0, 0
	for _, v := range vectors {
		ops[v.Op]++
		if len(v.Out.Errors) > 0 {
			invalid++
		}
		if v.Out.Failure != "" {
			failures++
		}
	}
	return fmt.Sprintf("%-60s %4d cases %v invalid %d failures %d bytes %d", gvk.GroupVersion().String()+" "+gvk.Kind, len(vectors), ops, invalid, failures, size)
}

// fileName is the name of a kind's golden file.
func fileName(gvk schema.GroupVersionKind) string {
	group := gvk.Group
	if group == "" {
		group = "core"
	}
	return group + "." + gvk.Version + "." + gvk.Kind + ".jsonl.gz"
}

func (o *oracle) sortedKinds() []schema.GroupVersionKind {
	out := make([]schema.GroupVersionKind, 0, len(o.subjects))
	for gvk := range o.subjects {
		out = append(out, gvk)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].String() < out[j].String() })
	return out
}

// readSeeds reads seeds/*.yaml by kind and fills in keys and certificates.
func readSeeds() (map[schema.GroupVersionKind][]json.RawMessage, error) {
	files, err := filepath.Glob("seeds/*.yaml")
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no seeds here (run in the folder of the program): %w", err)
	}
	keys := testKeys()
	out := map[schema.GroupVersionKind][]json.RawMessage{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for i, document := range strings.Split(string(text), "\n---\n") {
			var tree map[string]any
			if err := yaml.Unmarshal([]byte(document), &tree); err != nil {
				return nil, fmt.Errorf("%s, document %d: %w", file, i+1, err)
			}
			apiVersion, _ := tree["apiVersion"].(string)
			kind, _ := tree["kind"].(string)
			gv, err := schema.ParseGroupVersion(apiVersion)
			if err != nil {
				return nil, err
			}
			delete(tree, "apiVersion")
			delete(tree, "kind")
			object, err := plainJSON(tree)
			if err != nil {
				return nil, err
			}
			for name, value := range keys {
				quoted, _ := json.Marshal(value)
				object = bytes.ReplaceAll(object, []byte(`"${`+name+`}"`), quoted)
			}
			out[gv.WithKind(kind)] = append(out[gv.WithKind(kind)], object)
		}
	}
	return out, nil
}

// testKeys makes the same certificate and signing request on every run.
func testKeys() map[string]string {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	name := pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: name, NotBefore: time.Unix(1700000000, 0), NotAfter: time.Unix(2500000000, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: name}, key)
	if err != nil {
		panic(err)
	}
	certificatePEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	requestPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		panic(err)
	}
	encode := base64.StdEncoding.EncodeToString
	return map[string]string{"CERTIFICATE": encode(certificatePEM), "CERTIFICATE_PEM": string(certificatePEM), "CSR": encode(requestPEM), "CSR_DER": encode(stub)}
}

// maker makes the vectors of one kind.
type maker struct {
	oracle     *oracle
	subject    *subject
	definition string
	mutator    *mutator
	random     *mathrand.Rand
	out        []vector
	seen       map[string]bool
	unsteady   int
}

func (o *oracle) vectors(c *catalog, gvk schema.GroupVersionKind, seeds []json.RawMessage, seed int64, count int) ([]vector, error) {
	hash := fnv.New64a()
	hash.Write([]byte(gvk.String()))
	random := mathrand.New(mathrand.NewSource(seed ^ int64(hash.Sum64())))
	s := o.subjects[gvk]
	definition, _ := c.definitionOf(s.group.scheme, gvk)
	f := &filler{random: random, enums: c.enums(), presence: 0.4}
	m := &maker{oracle: o, subject: s, definition: definition, random: random, mutator: &mutator{catalog: c, random: random, filler: f}, seen: map[string]bool{}}
	if len(seeds) == 0 && gvk.Kind != "ComponentStatus" {
		return nil, fmt.Errorf("no seed")
	}
	if len(seeds) > 0 {
		if err := m.fromSeeds(seeds, count); err != nil {
			return nil, err
		}
	}
	for range max(6, count/8) {
		f.presence = pick(random, []float64{0.2, 0.4, 0.6})
		m.fuzzed(f)
	}
	return m.out, nil
}

func (m *maker) fromSeeds(seeds []json.RawMessage, count int) error {
	share := func(percent int) int { return count * percent / 100 }
	if m.subject.gvk.Kind == "Binding" {
		// Creating one changes a pod in the store, which there is none of.
		m.repeat(share(10), func() { m.decode(pick(m.random, seeds)) })
		return nil
	}
	for _, seed := range seeds {
		m.ask("create", seed, nil)
		reply := m.last()
		if reply == nil {
			return fmt.Errorf("seed cannot be asked: %s: %s", seed, mustJSON(m.oracle.ask(m.request("create", seed, nil))))
		}
		if reply.Failure != "" || len(reply.Errors) > 0 || reply.DecodeError != "" {
			return fmt.Errorf("seed is not valid: %s: %s", seed, mustJSON([]any{reply.DecodeError, reply.Failure, reply.Errors}))
		}
	}
	statusSeeds, hasStatus := m.statusSeeds(seeds)
	m.repeat(share(50), func() { m.ask("create", m.mutator.mutate(pick(m.random, seeds), m.definition, ""), nil) })
	if m.subject.store != nil && m.subject.store.UpdateStrategy != nil {
		for _, seed := range seeds {
			if old := m.stored(seed, nil); old != nil {
				m.ask("update", old, old)
			}
		}
		m.repeat(share(28), func() {
			if old := m.stored(pick(m.random, seeds), statusSeeds); old != nil {
				m.ask("update", m.mutator.mutate(old, m.definition, ""), old)
			}
		})
	}
	if hasStatus {
		m.repeat(share(12), func() {
			seed := pick(m.random, seeds)
			old := m.stored(seed, nil)
			if old == nil {
				return
			}
			changed := withStatusOf(old, pick(m.random, append(statusSeeds, seed)))
			if m.random.Intn(4) > 0 {
				changed = m.mutator.mutate(changed, m.definition, ".status")
			}
			m.ask("status", changed, old)
		})
	}
	m.repeat(share(10), func() { m.decode(pick(m.random, seeds)) })
	return nil
}

// repeat tries until that many new cases were found, within reason.
func (m *maker) repeat(wanted int, try func()) {
	goal := len(m.out) + wanted
	for attempt := 0; len(m.out) < goal && attempt < wanted*5; attempt++ {
		try()
	}
}

func (m *maker) last() *answer {
	if len(m.out) == 0 {
		return nil
	}
	return m.out[len(m.out)-1].Out
}

func (m *maker) request(op string, object, old json.RawMessage) *request {
	gvk := m.subject.gvk
	return &request{Op: op, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Object: object, Old: old}
}

// ask adds one case, unless it is a repetition or upstream cannot answer it.
func (m *maker) ask(op string, object, old json.RawMessage) {
	key := op + string(object) + string(old)
	if m.seen[key] {
		return
	}
	m.seen[key] = true
	reply, steady := m.steady(op, object, old)
	if !steady {
		return
	}
	if reply.Failure != "" || reply.DecodeError != "" && (op != "create" || m.random.Intn(8) > 0) {
		return
	}
	m.out = append(m.out, vector{Op: op, In: object, Old: old, Out: reply})
}

// steady asks several times: where upstream walks a Go map the order of its
// errors is a matter of chance, and such a case compares nothing.
func (m *maker) steady(op string, object, old json.RawMessage) (*answer, bool) {
	first := m.oracle.ask(m.request(op, object, old))
	text := mustJSON(first)
	times := 2
	if len(first.Errors) > 1 {
		times = 60
	}
	for range times {
		if mustJSON(m.oracle.ask(m.request(op, object, old))) != text {
			m.unsteady++
			return nil, false
		}
	}
	return first, true
}

// stored is the seed as it would be stored after a create.
func (m *maker) stored(seed json.RawMessage, statuses []json.RawMessage) json.RawMessage {
	reply := m.oracle.ask(m.request("create", seed, nil))
	if reply.Failure != "" || len(reply.Errors) > 0 || reply.Prepared == nil {
		return nil
	}
	text := bytes.ReplaceAll(reply.Prepared, []byte(`"<time>"`), []byte(`"`+fixedTime+`"`))
	text = bytes.ReplaceAll(text, []byte(`"<uid>"`), []byte(`"`+fixedUID+`"`))
	if len(statuses) > 0 && m.random.Intn(2) == 0 {
		text = withStatusOf(text, seed)
	}
	return text
}

func (m *maker) statusSeeds(seeds []json.RawMessage) ([]json.RawMessage, bool) {
	var out []json.RawMessage
	for _, seed := range seeds {
		if bytes.Contains(seed, []byte(`"status":`)) {
			out = append(out, seed)
		}
	}
	status := m.subject.subStore("status")
	return out, status != nil && status.UpdateStrategy != nil
}

func withStatusOf(object, source json.RawMessage) json.RawMessage {
	var to, from map[string]json.RawMessage
	if json.Unmarshal(object, &to) != nil || json.Unmarshal(source, &from) != nil || from["status"] == nil {
		return object
	}
	to["status"] = from["status"]
	text, err := plainJSON(to)
	if err != nil {
		return object
	}
	return text
}

// decode adds a body as bytes on the wire, mostly wrong in type or form.
func (m *maker) decode(seed json.RawMessage) {
	gvk := m.subject.gvk
	apiVersion, kind := gvk.GroupVersion().String(), gvk.Kind
	object := m.mutator.wrongType(seed, m.definition)
	var body string
	head := fmt.Sprintf(`{"kind":%q,"apiVersion":%q,`, kind, apiVersion)
	switch m.random.Intn(9) {
	case 0:
		body = string(object)
	case 1:
		body = strings.Replace(string(seed), "{", fmt.Sprintf(`{"kind":"Wrong%s","apiVersion":%q,`, kind, apiVersion), 1)
	case 2:
		body = strings.Replace(string(seed), "{", fmt.Sprintf(`{"kind":%q,"apiVersion":"example.com/v9",`, kind), 1)
	case 3:
		body = head + string(seed[1:len(seed)-1-m.random.Intn(min(20, len(seed)-2))])
	case 4:
		body = head + `"unknownField":1,"metadata":{"nope":true},` + string(seed[1:])
	case 5:
		body = head + `"KIND":"x",` + strings.Replace(string(seed[1:]), `"name":`, `"Name":"x","name":"first","name":`, 1)
	default:
		body = head + string(object[1:])
	}
	if m.seen["decode"+body] {
		return
	}
	m.seen["decode"+body] = true
	quoted, err := plainJSON(body)
	if err != nil {
		return
	}
	reply := m.oracle.ask(m.request("decode", json.RawMessage(body), nil))
	if reply.Failure != "" {
		return
	}
	m.out = append(m.out, vector{Op: "decode", In: quoted, Out: reply})
}

// fuzzed adds a random object for defaults and the table row only.
func (m *maker) fuzzed(f *filler) {
	t := m.subject.group.scheme.AllKnownTypes()[m.subject.gvk]
	text, err := plainJSON(f.object(t).Interface())
	if err != nil {
		return
	}
	reply := m.oracle.ask(m.request("row", text, nil))
	if reply.Failure != "" || reply.DecodeError != "" {
		reply = m.oracle.ask(m.request("default", text, nil))
		if reply.Failure == "" && reply.DecodeError == "" {
			m.out = append(m.out, vector{Op: "default", In: text, Out: reply})
		}
		return
	}
	m.out = append(m.out, vector{Op: "row", In: text, Out: reply})
}

// writeGzip writes JSON lines, compressed without a time stamp.
func writeGzip[T any](path string, lines []T) (int, error) {
	var buffer bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return 0, err
	}
	for _, line := range lines {
		text, err := plainJSON(line)
		if err != nil {
			return 0, err
		}
		if _, err := compressor.Write(append(text, '\n')); err != nil {
			return 0, err
		}
	}
	if err := compressor.Close(); err != nil {
		return 0, err
	}
	return buffer.Len(), os.WriteFile(path, buffer.Bytes(), 0o644)
}
