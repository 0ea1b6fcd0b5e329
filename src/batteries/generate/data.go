package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
)

// runData writes ../data.
func runData(arguments []string) error {
	flags := flag.NewFlagSet("data", flag.ContinueOnError)
	out := flags.String("out", "../data", "folder to write to")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	o, err := newOracle()
	if err != nil {
		return err
	}
	c := newCatalog()
	if err := c.addServed(o.world); err != nil {
		return err
	}
	conditional := c.probeDefaults(o.world)
	if err := c.addTwins(o); err != nil {
		return err
	}
	rows, err := o.world.rows(c)
	if err != nil {
		return err
	}
	bootstrap, err := o.bootstrap()
	if err != nil {
		return err
	}
	gated, err := o.gatedFields()
	if err != nil {
		return err
	}
	off, err := previewsBeside(o.world, c, gated)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(*out, "previews"), 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"schemas.json":              c.writeSchemas,
		"rows.json":                 func(b *bytes.Buffer) error { return writeRows(b, rows) },
		"conditional_defaults.json": func(b *bytes.Buffer) error { return writeLines(b, conditional) },
		"bootstrap.json":            func(b *bytes.Buffer) error { return writeLines(b, bootstrap) },
		"gates.json":                func(b *bytes.Buffer) error { return writeLines(b, featureGates()) },
		"api_versions.json":         func(b *bytes.Buffer) error { return writeLines(b, apiVersions()) },
		"gated_fields.json":         func(b *bytes.Buffer) error { return writeLines(b, gated) },
		"VERSION":                   writeVersion,

		"previews/schemas.json":              off.catalog.writeSchemas,
		"previews/rows.json":                 func(b *bytes.Buffer) error { return writeRows(b, off.rows) },
		"previews/conditional_defaults.json": func(b *bytes.Buffer) error { return writeLines(b, off.conditional) },
		"previews/gate_needs.json":           func(b *bytes.Buffer) error { return writeLines(b, gateNeeds()) },
		"previews/gated_fields.json":         func(b *bytes.Buffer) error { return writeLines(b, off.gated) },
	} {
		var buffer bytes.Buffer
		if err := write(&buffer); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(*out, name), buffer.Bytes(), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: %d bytes\n", name, buffer.Len())
	}
	fmt.Fprintf(os.Stderr, "%d definitions, %d conditional defaults, %d bootstrap objects\n", len(c.definitions), len(conditional), len(bootstrap))
	return nil
}

func writeVersion(b *bytes.Buffer) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("no build information")
	}
	for _, module := range info.Deps {
		used := module
		if module.Replace != nil {
			used = module.Replace
		}
		switch module.Path {
		case "k8s.io/kubernetes", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiserver", "k8s.io/apiextensions-apiserver", "k8s.io/kube-aggregator":
			fmt.Fprintf(b, "%s %s\n", module.Path, used.Version)
		}
	}
	return nil
}

// writeLines writes a JSON array with one element per line.
func writeLines[T any](b *bytes.Buffer, values []T) error {
	b.WriteString("[\n")
	for i, value := range values {
		if err := writeValue(b, value); err != nil {
			return err
		}
		if i+1 < len(values) {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("]\n")
	return nil
}

func writeValue(b *bytes.Buffer, value any) error {
	text, err := plainJSON(value)
	if err != nil {
		return err
	}
	b.Write(text)
	return nil
}

func (c *catalog) writeSchemas(b *bytes.Buffer) error {
	b.WriteString("{\"definitions\":{\n")
	names := c.names()
	for i, name := range names {
		key, _ := json.Marshal(name)
		b.Write(key)
		b.WriteByte(':')
		if err := writeValue(b, c.definitions[name]); err != nil {
			return err
		}
		if i+1 < len(names) {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("}}\n")
	return nil
}

// writeRows writes one resource per line inside its group and version.
func writeRows(b *bytes.Buffer, groups []groupRow) error {
	b.WriteString("{\"groups\":[\n")
	for i, group := range groups {
		fmt.Fprintf(b, "{\"name\":%q,\"preferred\":%q,\"priority\":%d,\"versions\":[\n", group.Name, group.Preferred, group.Priority)
		for j, version := range group.Versions {
			fmt.Fprintf(b, "{\"version\":%q,\"priority\":%d,\"resources\":", version.Version, version.Priority)
			if err := writeLines(b, version.Resources); err != nil {
				return err
			}
			b.WriteString(closing(j, len(group.Versions), "}"))
		}
		b.WriteString(closing(i, len(groups), "]}"))
	}
	b.WriteString("]}\n")
	return nil
}

func closing(index, count int, text string) string {
	if index+1 < count {
		return text + ",\n"
	}
	return text + "\n"
}
