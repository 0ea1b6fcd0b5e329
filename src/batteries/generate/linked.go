package main

import (
	_ "unsafe"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/apiserver/pkg/endpoints/handlers"
)

// The text of a refused body is made by a private function of the request handlers.
//
//go:linkname transformDecodeError k8s.io/apiserver/pkg/endpoints/handlers.transformDecodeError
func transformDecodeError(typer runtime.ObjectTyper, baseErr error, into runtime.Object, gvk *schema.GroupVersionKind, body []byte) error
