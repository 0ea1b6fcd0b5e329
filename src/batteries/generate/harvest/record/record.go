// Package record writes down what upstream's own tests give to upstream's
// validation. `generate harvest` copies it into a scratch copy of upstream's
// modules and calls it at the head of their functions; it is not linked with
// the generator. It knows the standard library only, so that every package
// of upstream may import it.
package record

import (
	"encoding/json"
	"hash/fnv"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
)

// Folder names the environment variable with the folder to write to; unset, nothing is recorded.
const Folder = "GENERATE_HARVEST"

// Argument is one argument of a call. Value is there if the type is of an API group.
type Argument struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Entry is one call.
type Entry struct {
	Function  string     `json:"function"`
	Arguments []Argument `json:"arguments"`
}

var (
	lock sync.Mutex
	file *os.File
	seen = map[uint64]bool{}
)

// bytesMax is the length of the longest call kept: longer ones test a limit of
// size, and a few of them would fill the corpus.
const bytesMax = 64 << 10

// Call records a call if a test made it; calls between upstream's functions are parts of one.
func Call(function string, arguments ...any) {
	folder := os.Getenv(Folder)
	if folder == "" || !byTest() {
		return
	}
	entry, useful := Entry{Function: function}, false
	for _, argument := range arguments {
		one := Argument{}
		if t := reflect.TypeOf(argument); t != nil {
			one.Type = TypeName(t)
			if of(one.Type) {
				if text, err := json.Marshal(argument); err == nil && string(text) != "null" {
					one.Value, useful = text, true
				}
			}
		}
		entry.Arguments = append(entry.Arguments, one)
	}
	line, err := json.Marshal(entry)
	if !useful || err != nil || len(line) > bytesMax {
		return
	}
	hash := fnv.New64a()
	hash.Write(line)
	lock.Lock()
	defer lock.Unlock()
	if seen[hash.Sum64()] {
		return
	}
	seen[hash.Sum64()] = true
	if file == nil {
		if file, err = os.CreateTemp(folder, "*.jsonl"); err != nil {
			panic(err)
		}
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

// byTest says whether the recorded function was called by a test, or for one
// by the request path of the server library.
func byTest() bool {
	callers := make([]uintptr, 4)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	_, more := frames.Next()
	if !more {
		return false
	}
	caller, _ := frames.Next()
	return strings.HasSuffix(caller.File, "_test.go") || strings.Contains(caller.File, "/registry/rest/")
}

func of(name string) bool {
	name = strings.TrimLeft(name, "*[]")
	for _, prefix := range []string{"k8s.io/kubernetes/pkg/apis/", "k8s.io/api/", "k8s.io/apiextensions-apiserver/pkg/apis/", "k8s.io/kube-aggregator/pkg/apis/"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// TypeName is the name of a type with the path of its package.
func TypeName(t reflect.Type) string {
	switch {
	case t.Name() != "":
		return t.PkgPath() + "." + t.Name()
	case t.Kind() == reflect.Pointer:
		return "*" + TypeName(t.Elem())
	case t.Kind() == reflect.Slice:
		return "[]" + TypeName(t.Elem())
	}
	return ""
}
