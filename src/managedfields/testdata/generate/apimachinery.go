package main

import (
	"os"
	"os/exec"
	"path/filepath"
)

const (
	apimachinery  = "k8s.io/apimachinery@v0.37.0"
	kubernetes    = "k8s.io/kubernetes@v1.37.0"
	managedFields = "pkg/util/managedfields"
)

// harvestApimachinery runs the tests of field management on the level of metadata.
func harvestApimachinery(out string) {
	folder := must(os.MkdirTemp("", "apimachinery"))
	defer os.RemoveAll(folder)
	// The tests read the API's documents where the repository of Kubernetes has them.
	root := filepath.Join(folder, "staging/src/k8s.io/apimachinery")
	copyModule(apimachinery, root)
	documents := filepath.Join("api", "openapi-spec", "swagger.json")
	if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(documents)), 0o755); err != nil {
		panic(err)
	}
	swagger := must(os.ReadFile(filepath.Join(moduleFolder(kubernetes), documents)))
	if err := os.WriteFile(filepath.Join(folder, documents), swagger, 0o644); err != nil {
		panic(err)
	}
	here := filepath.Join(root, managedFields)
	rename(filepath.Join(here, "internal/managedfields.go"), "", [][2]string{
		{"DecodeManagedFields", "decodeManagedFieldsUnrecorded"}, {"BuildManagerIdentifier", "buildManagerIdentifier"},
	})
	rename(filepath.Join(here, "internal/capmanagers.go"), `\(f \*capManagersManager\) `, [][2]string{
		{"capUpdateManagers", "capUpdateManagersUnrecorded"},
	})
	rename(filepath.Join(here, "internal/conflict.go"), "", [][2]string{{"NewConflictError", "newConflictError"}})
	rename(filepath.Join(here, "internal/testing/testfieldmanager.go"), `\(f \*TestFieldManagerImpl\) `, [][2]string{
		{"Apply", "apply"}, {"Update", "update"}, {"NewTestFieldManagerImpl", "newTestFieldManagerImpl"},
	})
	rename(filepath.Join(here, "scalehandler.go"), `\(h \*ScaleHandler\) `, [][2]string{
		{"ToSubresource", "toSubresource"}, {"ToParent", "toParent"},
	})
	place(root, "apimachinery/record", managedFields+"/internal/record/record.go")
	place(root, "apimachinery/internal", managedFields+"/internal/zz_record.go")
	place(root, "apimachinery/testing", managedFields+"/internal/testing/zz_record.go")
	place(root, "apimachinery/managedfields", managedFields+"/zz_record.go")
	raw := filepath.Join(folder, "recorded.jsonl")
	test := exec.Command("go", "test", "-count=1", "./"+managedFields+"/...")
	test.Dir = root
	test.Env = append(os.Environ(), "SMD_RECORD="+raw, "GOFLAGS=-mod=mod")
	test.Stdout, test.Stderr = os.Stderr, os.Stderr
	if err := test.Run(); err != nil {
		panic(err)
	}
	files = map[string][]string{
		"metadata": {"decode", "identity", "cap", "conflict_error", "update", "apply", "to_scale", "with_scale"},
	}
	write(out, must(os.ReadFile(raw)))
}
