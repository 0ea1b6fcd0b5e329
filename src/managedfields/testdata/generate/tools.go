//go:build tools

// Package main names the module whose tests are run, so that go.mod keeps it.
package main

import _ "sigs.k8s.io/structured-merge-diff/v6/merge"
