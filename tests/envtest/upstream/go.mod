// Names the release of Kubernetes whose scripts tests/upstream-scripts runs.
module polyplane.dev/tests/upstream

go 1.26.0

require k8s.io/kubernetes v1.37.0
