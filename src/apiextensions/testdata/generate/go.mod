module polyplane.dev/apiextensions/testdata/generate

go 1.26.0
