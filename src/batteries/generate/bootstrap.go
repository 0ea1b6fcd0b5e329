package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	schedulingv1helpers "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Stand-ins inside typed objects; the file carries the placeholder instead.
var placeholders = map[string]string{
	"10.0.200.201":     "${CLUSTER_IP}",
	"203.0.113.202":    "${ADVERTISE_ADDRESS}",
	"203.0.113.0/24":   "${SERVICE_CIDR}",
	"marker-client-ca": "${CLIENT_CA}",
	"marker-front-ca":  "${REQUESTHEADER_CA}",
	"marker-serving":   "${SERVING_CA}",
}

const advertisePort = 61443

type bootstrapObject struct {
	Group     string          `json:"group"`
	Version   string          `json:"version"`
	Resource  string          `json:"resource"`
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Object    json.RawMessage `json:"object"`
	Restore   string          `json:"restore"`
}

var systemNamespaces = []string{metav1.NamespaceDefault, corev1.NamespaceNodeLease, metav1.NamespacePublic, metav1.NamespaceSystem}

// bootstrap collects the objects of a fresh control plane from the functions
// that upstream's start-up hooks use, and prepares each as its registry would.
func (o *oracle) bootstrap() ([]bootstrapObject, error) {
	b := &bootstrapper{oracle: o}
	for _, name := range systemNamespaces {
		b.add(kept, "v1/Namespace", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}})
		b.add(controllers, "v1/ServiceAccount", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}})
		b.add(controllers, "v1/ConfigMap", &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: rootcacertpublisher.RootCACertConfigMapName, Namespace: name},
			Data:       map[string]string{"ca.crt": "marker-serving"},
		})
	}
	b.rbac()
	for _, class := range schedulingv1helpers.SystemPriorityClasses() {
		b.add(atStart, "scheduling.k8s.io/v1/PriorityClass", class)
	}
	b.flowcontrol()
	b.add(atStart, "v1/ConfigMap", &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication", Namespace: metav1.NamespaceSystem},
		Data: map[string]string{"client-ca-file": "marker-client-ca", "requestheader-client-ca-file": "marker-front-ca", "requestheader-allowed-names": `["front-proxy-client"]`,
			"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-uid-headers": `["X-Remote-Uid"]`, "requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`},
	})
	if err := b.kubernetesService(); err != nil {
		return nil, err
	}
	b.apiServices()
	sort.SliceStable(b.out, func(i, j int) bool {
		x, y := b.out[i], b.out[j]
		return x.Group+"/"+x.Resource+"/"+x.Namespace+"/"+x.Name < y.Group+"/"+y.Resource+"/"+y.Namespace+"/"+y.Name
	})
	return b.out, b.failure
}

type bootstrapper struct {
	oracle  *oracle
	types   managedfields.TypeConverter
	out     []bootstrapObject
	failure error
}

// The programs that bring the objects. The user agent of a program is its file's name; the names of
// field managers are constants that upstream does not export, but for the consumer's.
var (
	kept        = origin{"now", "kube-apiserver"}
	atStart     = origin{"step", "kube-apiserver"}
	controllers = origin{"now", "kube-controller-manager"}
	flowControl = origin{"now", "api-priority-and-fairness-config-producer-v1"}

	aggregatedRules = later{field: "rules", manager: names.ClusterRoleAggregationController}
	flowStatus      = later{field: "status", manager: utilflowcontrol.ConfigConsumerAsFieldManager, subresource: "status"}
	rangeStatus     = later{field: "status", manager: "kubernetes-service-cidr-controller", subresource: "status"}
)

func (b *bootstrapper) rbac() {
	roles := append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...)
	for i := range roles {
		aggregate(&roles[i], roles)
	}
	// A second pass settles roles that aggregate aggregated roles.
	for range 3 {
		for i := range roles {
			aggregate(&roles[i], roles)
		}
	}
	for i := range roles {
		var parts []later
		if roles[i].AggregationRule != nil {
			parts = append(parts, aggregatedRules)
		}
		b.add(atStart, "rbac.authorization.k8s.io/v1/ClusterRole", &roles[i], parts...)
	}
	bindings := append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...)
	for i := range bindings {
		b.add(atStart, "rbac.authorization.k8s.io/v1/ClusterRoleBinding", &bindings[i])
	}
	for namespace, list := range bootstrappolicy.NamespaceRoles() {
		for i := range list {
			list[i].Namespace = namespace
			b.add(atStart, "rbac.authorization.k8s.io/v1/Role", &list[i])
		}
	}
	for namespace, list := range bootstrappolicy.NamespaceRoleBindings() {
		for i := range list {
			list[i].Namespace = namespace
			b.add(atStart, "rbac.authorization.k8s.io/v1/RoleBinding", &list[i])
		}
	}
}

// aggregate fills the rules of an aggregated role from the roles it selects,
// by name, each distinct rule once.
func aggregate(role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) {
	if role.AggregationRule == nil {
		return
	}
	sorted := append([]rbacv1.ClusterRole{}, all...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	collected := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue
		}
		for _, other := range sorted {
			if other.Name == role.Name || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if !hasRule(collected, rule) {
					collected = append(collected, rule)
				}
			}
		}
	}
	role.Rules = collected
}

func hasRule(list []rbacv1.PolicyRule, rule rbacv1.PolicyRule) bool {
	for _, one := range list {
		if equality.Semantic.DeepEqual(one, rule) {
			return true
		}
	}
	return false
}

func (b *bootstrapper) flowcontrol() {
	for _, level := range flowcontrolbootstrap.MandatoryPriorityLevelConfigurations {
		b.add(flowControl, "flowcontrol.apiserver.k8s.io/v1/PriorityLevelConfiguration", autoUpdated(level.DeepCopy()))
	}
	for _, level := range flowcontrolbootstrap.SuggestedPriorityLevelConfigurations {
		b.add(flowControl, "flowcontrol.apiserver.k8s.io/v1/PriorityLevelConfiguration", autoUpdated(level.DeepCopy()))
	}
	for _, flow := range flowcontrolbootstrap.MandatoryFlowSchemas {
		b.add(flowControl, "flowcontrol.apiserver.k8s.io/v1/FlowSchema", withFoundLevel(autoUpdated(flow.DeepCopy())), flowStatus)
	}
	for _, flow := range flowcontrolbootstrap.SuggestedFlowSchemas {
		b.add(flowControl, "flowcontrol.apiserver.k8s.io/v1/FlowSchema", withFoundLevel(autoUpdated(flow.DeepCopy())), flowStatus)
	}
}

// withFoundLevel sets the condition that the server's flow control sets once it has read both objects.
func withFoundLevel(flow *flowcontrolv1.FlowSchema) *flowcontrolv1.FlowSchema {
	level := flow.Spec.PriorityLevelConfiguration.Name
	flow.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse,
		LastTransitionTime: metav1.Now(), Reason: "Found", Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", level)}}
	return flow
}

func autoUpdated[T metav1.Object](object T) T {
	object.SetAnnotations(map[string]string{"apf.kubernetes.io/autoupdate-spec": "true"})
	return object
}

// kubernetesService lets upstream's controllers create their objects in a client without a server.
func (b *bootstrapper) kubernetesService() error {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	adapter := reconcilers.NewEndpointsAdapter(client.CoreV1(), client.DiscoveryV1())
	controller := kubernetesservice.New(kubernetesservice.Config{PublicIP: net.ParseIP("203.0.113.202"), EndpointReconciler: reconcilers.NewMasterCountEndpointReconciler(1, adapter),
		EndpointInterval: time.Hour, ServiceIP: net.ParseIP("10.0.200.201"), ServicePort: 443, PublicServicePort: advertisePort}, client, factory.Core().V1().Services())
	if err := controller.UpdateKubernetesService(false); err != nil {
		return err
	}
	ctx := context.Background()
	service, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	b.add(kept, "v1/Service", service, later{field: "spec.clusterIPs"}, later{field: "spec.ipFamilies"})
	endpoints, err := client.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	b.add(kept, "v1/Endpoints", endpoints)
	slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	b.add(kept, "discovery.k8s.io/v1/EndpointSlice", slice)
	b.add(kept, "networking.k8s.io/v1/ServiceCIDR", &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultservicecidr.DefaultServiceCIDRName},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"203.0.113.0/24"}},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
			LastTransitionTime: metav1.Now(), Message: "Kubernetes default Service CIDR is ready"}}},
	}, rangeStatus)
	b.add(kept, "networking.k8s.io/v1/IPAddress", &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.200.201", Labels: map[string]string{networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io"}},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "kubernetes"}},
	})
	return nil
}

func (b *bootstrapper) apiServices() {
	for _, gv := range b.oracle.world.sortedVersions() {
		priority, listed := apiVersionPriorities[gv]
		if !listed {
			continue
		}
		service := &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{autoregister.AutoRegisterManagedLabel: "onstart"}},
			Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: priority.Group, VersionPriority: priority.Version},
		}
		apiregistrationhelper.SetAPIServiceCondition(service, apiregistrationhelper.NewLocalAvailableAPIServiceCondition())
		b.add(kept, "apiregistration.k8s.io/v1/APIService", service)
	}
}

// add runs one object through its create strategy, keeps its given status, and adds the managed fields.
func (b *bootstrapper) add(from origin, kind string, object runtime.Object, rest ...later) {
	if b.failure != nil {
		return
	}
	parts := strings.Split(kind, "/")
	gvk := schema.GroupVersionKind{Group: strings.Join(parts[:len(parts)-2], "/"), Version: parts[len(parts)-2], Kind: parts[len(parts)-1]}
	s := b.oracle.subjects[gvk]
	given, err := bare(object)
	if err != nil {
		b.failure = err
		return
	}
	reply := b.oracle.ask(&request{Op: "create", Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Object: given})
	if reply.Failure != "" || reply.DecodeError != "" || len(reply.Errors) > 0 || reply.Status != nil {
		b.failure = fmt.Errorf("bootstrap %s %s: %s", kind, given, mustJSON(reply))
		return
	}
	owners, err := b.owners(s, from, object, rest)
	if err != nil {
		b.failure = fmt.Errorf("owners of %s: %w", kind, err)
		return
	}
	final, err := b.withStatus(s, reply.Prepared, given, owners)
	if err != nil {
		b.failure = err
		return
	}
	accessor := object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	final = withPlaceholders(final)
	b.out = append(b.out, bootstrapObject{Group: gvk.Group, Version: gvk.Version, Resource: s.resource, Kind: gvk.Kind, Namespace: accessor.GetNamespace(),
		Name: string(withPlaceholders([]byte(accessor.GetName()))), Object: final, Restore: from.restore})
}

// withStatus takes the prepared object, without what the store fills in, and
// puts the given status back that a create would have dropped, with the owners of all fields.
func (b *bootstrapper) withStatus(s *subject, prepared, given []byte, owners []metav1.ManagedFieldsEntry) ([]byte, error) {
	text := bytes.ReplaceAll(prepared, []byte(`"<time>"`), []byte(`"`+fixedTime+`"`))
	versioned, err := s.decode(text)
	if err != nil {
		return nil, err
	}
	source, err := s.decode(given)
	if err != nil {
		return nil, err
	}
	copyStatus(versioned, source)
	accessor := versioned.(metav1.ObjectMetaAccessor).GetObjectMeta()
	accessor.SetUID("")
	accessor.SetCreationTimestamp(metav1.Time{})
	accessor.SetManagedFields(owners)
	final, err := bare(versioned)
	return blankClock(final), err
}

func withPlaceholders(text []byte) []byte {
	for marker, placeholder := range placeholders {
		text = bytes.ReplaceAll(text, []byte(marker), []byte(placeholder))
	}
	return bytes.ReplaceAll(text, []byte(fmt.Sprint(advertisePort)), []byte(`"${ADVERTISE_PORT}"`))
}
