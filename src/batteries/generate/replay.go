package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// runReplay asks all cases of golden files again and compares nothing: it is
// there to be run with upstream's coverage counters.
func runReplay(arguments []string) error {
	o, err := newPreviewOracle()
	if err != nil {
		return err
	}
	for _, folder := range arguments {
		files, err := filepath.Glob(filepath.Join(folder, "*.jsonl.gz"))
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := o.replay(file); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

func (o *oracle) replay(name string) error {
	if filepath.Base(filepath.Dir(name)) == "subresources" {
		return o.replaySubresources(name)
	}
	gvk, ok := o.kindOf(filepath.Base(name))
	if !ok {
		return fmt.Errorf("kind is not served")
	}
	return eachLine(name, func(one vector) error {
		o.ask(&request{Op: one.Op, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Object: one.In, Old: one.Old})
		return nil
	})
}

// eachLine reads a golden file.
func eachLine[T any](name string, use func(T) error) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	expanded, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(expanded)
	for {
		var one T
		if err := decoder.Decode(&one); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := use(one); err != nil {
			return err
		}
	}
}

// kindOf is the kind whose golden file has this name.
func (o *oracle) kindOf(name string) (schema.GroupVersionKind, bool) {
	for gvk := range o.subjects {
		if fileName(gvk) == name {
			return gvk, true
		}
	}
	return schema.GroupVersionKind{}, false
}
