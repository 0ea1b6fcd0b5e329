// Command nodes asks upstream's node authorizer about random nodes, pods and
// volumes, and writes the answers for the tests of ../../../batteries.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// world is a set of objects, with upstream's answers about it.
type world struct {
	Pods         []*corev1.Pod                           `json:"pods"`
	Volumes      []*corev1.PersistentVolume              `json:"persistentvolumes"`
	Attachments  []*storagev1.VolumeAttachment           `json:"volumeattachments"`
	Slices       []*resourcev1.ResourceSlice             `json:"resourceslices"`
	Certificates []*certificatesv1.PodCertificateRequest `json:"podcertificaterequests"`
	Questions    []question                              `json:"questions"`
}

type question struct {
	User        string   `json:"user"`
	Groups      []string `json:"groups,omitempty"`
	Verb        string   `json:"verb"`
	Path        string   `json:"path,omitempty"`
	Group       string   `json:"group,omitempty"`
	Version     string   `json:"version,omitempty"`
	Resource    string   `json:"resource,omitempty"`
	Subresource string   `json:"subresource,omitempty"`
	Namespace   string   `json:"namespace,omitempty"`
	Name        string   `json:"name,omitempty"`
	Fields      string   `json:"fields,omitempty"`
	Allowed     bool     `json:"allowed,omitempty"`
	Reason      string   `json:"reason,omitempty"`
}

var (
	nodes      = []string{"n1", "n2", "n3"}
	namespaces = []string{"a", "b"}
	names      = []string{"x", "y", "z", "p-x", "q"}
	pods       = []string{"p", "q", "p-x", "r"}
	verbs      = []string{"get", "get", "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	resources  = [][2]string{
		{"", "secrets"}, {"", "secrets"}, {"", "secrets"}, {"", "configmaps"}, {"", "configmaps"},
		{"", "persistentvolumeclaims"}, {"", "persistentvolumeclaims"}, {"", "persistentvolumes"},
		{"resource.k8s.io", "resourceclaims"}, {"resource.k8s.io", "resourceclaims"},
		{"storage.k8s.io", "volumeattachments"}, {"", "serviceaccounts"}, {"", "serviceaccounts"},
		{"coordination.k8s.io", "leases"}, {"storage.k8s.io", "csinodes"}, {"resource.k8s.io", "resourceslices"},
		{"", "nodes"}, {"", "pods"}, {"", "pods"}, {"certificates.k8s.io", "podcertificaterequests"},
		{"", "services"}, {"", "events"}, {"certificates.k8s.io", "certificatesigningrequests"}, {"apps", "deployments"},
		{"storage.k8s.io", "csidrivers"}, {"", "endpoints"}, {"node.k8s.io", "runtimeclasses"},
	}
)

type maker struct{ *rand.Rand }

func main() {
	klog.SetLogger(logr.Discard())
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("nodes", flag.ContinueOnError)
	out := flags.String("out", "../tests/nodes", "folder to write to")
	seed := flags.Int64("seed", 1, "seed of the random objects and questions")
	worlds := flags.Int("worlds", 60, "number of random sets of objects")
	questions := flags.Int("questions", 200, "number of questions about each of them")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	random := maker{rand.New(rand.NewSource(*seed))}
	var buffer bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(compressor)
	allowed := 0
	for range *worlds {
		w := random.world()
		allowed += random.ask(w, *questions)
		if err := encoder.Encode(w); err != nil {
			return err
		}
	}
	if err := compressor.Close(); err != nil {
		return err
	}
	path := filepath.Join(*out, "decisions.jsonl.gz")
	fmt.Printf("%s: %d questions, %d allowed, %d bytes\n", path, *worlds**questions, allowed, buffer.Len())
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, buffer.Bytes(), 0o644)
}

func pick[T any](m maker, items []T) T { return items[m.Intn(len(items))] }

func (m maker) chance(percent int) bool { return m.Intn(100) < percent }

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func (m maker) world() *world {
	w := &world{}
	for _, namespace := range namespaces {
		for _, name := range pods {
			if m.chance(80) {
				w.Pods = append(w.Pods, m.pod(namespace, name))
			}
		}
	}
	for _, name := range names {
		if m.chance(70) {
			w.Volumes = append(w.Volumes, m.volume(name))
		}
		if m.chance(60) {
			w.Attachments = append(w.Attachments, &storagev1.VolumeAttachment{ObjectMeta: meta("", name), Spec: storagev1.VolumeAttachmentSpec{NodeName: pick(m, nodes)}})
		}
		if m.chance(60) {
			slice := &resourcev1.ResourceSlice{ObjectMeta: meta("", name)}
			if m.chance(70) {
				slice.Spec.NodeName = new(pick(m, nodes))
			}
			w.Slices = append(w.Slices, slice)
		}
		if m.chance(60) {
			request := &certificatesv1.PodCertificateRequest{ObjectMeta: meta(pick(m, namespaces), name)}
			request.Spec.NodeName = types.NodeName(pick(m, nodes))
			w.Certificates = append(w.Certificates, request)
		}
	}
	return w
}

func (m maker) pod(namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta(namespace, name)}
	if m.chance(10) {
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	}
	if m.chance(85) {
		pod.Spec.NodeName = pick(m, nodes)
	}
	if m.chance(60) {
		pod.Spec.ServiceAccountName = pick(m, names)
	}
	if m.chance(20) {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: pick(m, names)})
	}
	container := corev1.Container{Name: "c"}
	local := func() corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: pick(m, names)} }
	if m.chance(20) {
		container.Env = append(container.Env, corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local(), Key: "k"}}})
	}
	if m.chance(20) {
		container.Env = append(container.Env, corev1.EnvVar{Name: "B", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local(), Key: "k"}}})
	}
	if m.chance(15) {
		container.EnvFrom = append(container.EnvFrom, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local()}})
	}
	if m.chance(15) {
		container.EnvFrom = append(container.EnvFrom, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local()}})
	}
	switch m.Intn(3) {
	case 0:
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	case 1:
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
	default:
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "c", Env: container.Env, EnvFrom: container.EnvFrom}})
	}
	for range m.Intn(4) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: pick(m, names), VolumeSource: m.source()})
	}
	m.claims(pod)
	return pod
}

func (m maker) claims(pod *corev1.Pod) {
	for _, name := range []string{"one", "two"} {
		if !m.chance(25) {
			continue
		}
		claim := corev1.PodResourceClaim{Name: name}
		if m.chance(50) {
			claim.ResourceClaimName = new(pick(m, names))
		} else {
			claim.ResourceClaimTemplateName = new("t")
		}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, claim)
		if m.chance(60) {
			status := corev1.PodResourceClaimStatus{Name: name}
			if m.chance(80) {
				status.ResourceClaimName = new(pick(m, names))
			}
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, status)
		}
	}
	if m.chance(10) {
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: pick(m, names)}
	}
}

func (m maker) source() corev1.VolumeSource {
	name := pick(m, names)
	local := &corev1.LocalObjectReference{Name: name}
	switch m.Intn(14) {
	case 0:
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
	case 1:
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *local}}
	case 2, 3, 4:
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	case 5, 6:
		return corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}
	case 7:
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: *local}}}}}
	case 8:
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: *local}}}}}
	case 9:
		return corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: name}}
	case 10:
		return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d", NodePublishSecretRef: local}}
	case 11:
		return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{SecretRef: local}}
	case 12:
		return corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: local}}
	default:
		return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local}}
	}
}

func (m maker) volume(name string) *corev1.PersistentVolume {
	volume := &corev1.PersistentVolume{ObjectMeta: meta("", name)}
	if m.chance(85) {
		volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: pick(m, namespaces), Name: pick(m, names)}
	}
	secret := func() *corev1.SecretReference {
		reference := &corev1.SecretReference{Name: pick(m, names)}
		if m.chance(60) {
			reference.Namespace = pick(m, namespaces)
		}
		return reference
	}
	source := &volume.Spec.PersistentVolumeSource
	switch m.Intn(7) {
	case 0:
		source.AzureFile = &corev1.AzureFilePersistentVolumeSource{SecretName: pick(m, names)}
		if m.chance(50) {
			source.AzureFile.SecretNamespace = new(pick(m, namespaces))
		}
	case 1:
		source.CephFS = &corev1.CephFSPersistentVolumeSource{SecretRef: secret()}
	case 2:
		source.Cinder = &corev1.CinderPersistentVolumeSource{SecretRef: secret()}
	case 3:
		source.FlexVolume = &corev1.FlexPersistentVolumeSource{SecretRef: secret()}
	case 4:
		source.StorageOS = &corev1.StorageOSPersistentVolumeSource{SecretRef: &corev1.ObjectReference{Namespace: pick(m, namespaces), Name: pick(m, names)}}
	default:
		source.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
		for _, reference := range []**corev1.SecretReference{&source.CSI.ControllerPublishSecretRef, &source.CSI.NodePublishSecretRef, &source.CSI.NodeStageSecretRef, &source.CSI.ControllerExpandSecretRef, &source.CSI.NodeExpandSecretRef} {
			if m.chance(40) {
				*reference = secret()
			}
		}
	}
	return volume
}

func (w *world) graph() *node.Graph {
	graph := node.NewGraph()
	for _, pod := range w.Pods {
		if pod.Spec.NodeName != "" {
			graph.AddPod(pod)
		}
	}
	for _, volume := range w.Volumes {
		graph.AddPV(volume)
	}
	for _, attachment := range w.Attachments {
		graph.AddVolumeAttachment(attachment.Name, attachment.Spec.NodeName)
	}
	for _, slice := range w.Slices {
		name := ""
		if slice.Spec.NodeName != nil {
			name = *slice.Spec.NodeName
		}
		graph.AddResourceSlice(slice.Name, name)
	}
	for _, request := range w.Certificates {
		graph.AddPodCertificateRequest(request)
	}
	return graph
}

func (m maker) ask(w *world, count int) int {
	asked := node.NewAuthorizer(w.graph(), nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
	allowed := 0
	for len(w.Questions) < count {
		q := m.question()
		attributes := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: q.User, Groups: q.Groups}, Verb: q.Verb, Path: q.Path,
			APIGroup: q.Group, APIVersion: q.Version, Resource: q.Resource, Subresource: q.Subresource,
			Namespace: q.Namespace, Name: q.Name, ResourceRequest: q.Path == "",
		}
		if q.Fields != "" {
			if selector, err := fields.ParseSelector(q.Fields); err == nil {
				attributes.FieldSelectorRequirements = selector.Requirements()
			}
		}
		decision, reason, _ := asked.Authorize(context.Background(), attributes)
		q.Allowed, q.Reason = decision == authorizer.DecisionAllow, reason
		if q.Allowed {
			allowed++
		} else if m.chance(60) {
			// Most random questions are denied, and few of those answers say much.
			continue
		}
		w.Questions = append(w.Questions, q)
	}
	return allowed
}

func (m maker) question() question {
	q := question{User: "system:node:" + pick(m, nodes), Groups: []string{"system:nodes", "system:authenticated"}, Verb: pick(m, verbs)}
	switch m.Intn(50) {
	case 0:
		q.User = "system:node:"
	case 1:
		q.User = "jane"
	case 2:
		q.Groups = q.Groups[1:]
	case 3:
		q.Path = "/healthz"
		return q
	}
	resource := pick(m, resources)
	q.Group, q.Version, q.Resource = resource[0], "v1", resource[1]
	if m.chance(90) {
		q.Name = pick(m, append(names, append(nodes, pods...)...))
	}
	if m.chance(90) {
		q.Namespace = pick(m, namespaces)
	}
	switch q.Resource {
	case "nodes", "csinodes":
		q.Name = pick(m, append(nodes, ""))
		if m.chance(30) {
			q.Subresource = pick(m, []string{"status", "proxy"})
		}
	case "leases":
		q.Namespace = pick(m, []string{"kube-node-lease", "kube-node-lease", "a"})
		q.Name = pick(m, append(nodes, ""))
	case "serviceaccounts":
		if m.chance(60) {
			q.Verb, q.Subresource = "create", "token"
		}
	case "persistentvolumeclaims", "podcertificaterequests":
		if m.chance(40) {
			q.Subresource = "status"
		}
	case "pods":
		if m.chance(40) {
			q.Subresource = pick(m, []string{"status", "eviction", "log", "exec"})
		}
	default:
		if m.chance(5) {
			q.Subresource = "status"
		}
	}
	switch q.Verb {
	case "list", "watch", "deletecollection":
		if m.chance(60) {
			q.Fields = pick(m, []string{"spec.nodeName=" + pick(m, nodes), "spec.nodeName==" + pick(m, nodes) + ",metadata.name=x", "spec.nodeName!=" + pick(m, nodes), "status.phase=Running", "nonsense"})
			if m.chance(50) {
				q.Name = ""
			}
		}
	}
	return q
}
