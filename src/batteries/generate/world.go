package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"reflect"
	"strings"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdregistry "k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiserviceregistry "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
	endpointsstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplatestore "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	controllerstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
	serviceaccountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	lifecyclerest "k8s.io/kubernetes/pkg/registry/lifecycle/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// world is upstream's API surface assembled without a store: every REST
// storage that a kube-apiserver would install, by group version.
type world struct {
	groups  map[schema.GroupVersion]*groupVersion
	factory *serverstorage.DefaultStorageFactory
	config  *serverstorage.ResourceConfig
	budgets *budgets
}

type groupVersion struct {
	scheme  *runtime.Scheme
	storage map[string]rest.Storage
}

// detached is a storage.Interface that answers only what constructors ask.
type detached struct{ storage.Interface }

func (detached) Versioner() storage.Versioner                        { return storage.APIObjectVersioner{} }
func (detached) ReadinessCheck() error                               { return nil }
func (detached) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }
func (detached) Get(_ context.Context, key string, _ storage.GetOptions, _ runtime.Object) error {
	return storage.NewKeyNotFoundError(key, 0)
}

type optionsGetter struct {
	storageConfig func(schema.GroupResource, runtime.Object) (*storagebackend.ConfigForResource, error)
	prefix        func(schema.GroupResource) string
}

func (g optionsGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := g.storageConfig(resource, example)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	return generic.RESTOptions{
		StorageConfig: config,
		Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return detached{}, func() {}, nil
		},
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          g.prefix(resource),
	}, nil
}

type nobody struct{}

func (nobody) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return nil, false, nil
}

type tokens struct{ serviceaccount.TokenGenerator }

type rules struct{}

func (rules) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, false, nil
}

// newWorld assembles what a kube-apiserver with this choice of group-versions installs.
func newWorld(config *serverstorage.ResourceConfig) (*world, error) {
	etcdOptions := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	etcdOptions.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	factoryConfig := kubeapiserver.NewStorageFactoryConfig()
	factoryConfig.APIResourceConfig = config
	storageFactory, err := factoryConfig.Complete(etcdOptions).New()
	if err != nil {
		return nil, err
	}
	w := &world{budgets: &budgets{}, groups: map[schema.GroupVersion]*groupVersion{}, factory: storageFactory, config: config}
	getter := optionsGetter{storageConfig: storageFactory.NewConfig, prefix: storageFactory.ResourcePrefix}

	clientConfig := &restclient.Config{Host: "http://127.0.0.1:1"}
	client, err := kubernetes.NewForConfig(clientConfig)
	if err != nil {
		return nil, err
	}
	// Resource claims look at the labels of their namespace: every namespace is there, without labels.
	namespaces := fake.NewClientset()
	namespaces.PrependReactor("get", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.GetAction).GetName()
		return true, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	})
	informerFactory := informers.NewSharedInformerFactory(client, 0)
	allow := authorizerfactory.NewAlwaysAllowAuthorizer()
	core := &corerest.GenericConfig{StorageFactory: storageFactory, EventTTL: time.Hour, LoopbackClientConfig: clientConfig, Informers: informerFactory}
	coreInfo, err := core.NewRESTStorage(w.config, getter)
	if err != nil {
		return nil, err
	}
	if err := addCore(coreInfo.VersionedResourcesStorageMap["v1"], getter, client, w.budgets, allow); err != nil {
		return nil, err
	}
	w.add("", legacyscheme.Scheme, coreInfo.VersionedResourcesStorageMap)
	version, err := upstreamVersion()
	if err != nil {
		return nil, err
	}
	evaluator, err := genericapiserver.NewResourceExpirationEvaluator(version)
	if err != nil {
		return nil, err
	}

	for _, provider := range []controlplaneapiserver.RESTStorageProvider{
		authenticationrest.RESTStorageProvider{Authenticator: nobody{}},
		authorizationrest.RESTStorageProvider{Authorizer: allow, RuleResolver: rules{}},
		autoscalingrest.RESTStorageProvider{}, batchrest.RESTStorageProvider{},
		certificatesrest.RESTStorageProvider{Authorizer: allow},
		coordinationrest.RESTStorageProvider{}, discoveryrest.StorageProvider{}, networkingrest.RESTStorageProvider{},
		noderest.RESTStorageProvider{}, policyrest.RESTStorageProvider{}, rbacrest.RESTStorageProvider{Authorizer: allow},
		schedulingrest.RESTStorageProvider{}, storagerest.RESTStorageProvider{}, svmrest.RESTStorageProvider{},
		flowcontrolrest.RESTStorageProvider{InformerFactory: informerFactory}, appsrest.StorageProvider{},
		admissionregistrationrest.RESTStorageProvider{Authorizer: allow, DiscoveryClient: client.Discovery()},
		eventsrest.RESTStorageProvider{TTL: time.Hour}, apiserverinternalrest.StorageProvider{}, lifecyclerest.RESTStorageProvider{},
		resourcerest.RESTStorageProvider{NamespaceClient: namespaces.CoreV1().Namespaces(), Authorizer: allow},
	} {
		info, err := provider.NewRESTStorage(w.config, getter)
		if err != nil {
			return nil, err
		}
		if err := evaluator.RemoveUnavailableKinds(provider.GroupName(), legacyscheme.Scheme, info.VersionedResourcesStorageMap, config); err != nil {
			return nil, err
		}
		w.add(provider.GroupName(), legacyscheme.Scheme, info.VersionedResourcesStorageMap)
	}
	return w, w.addExtensions(getter)
}

func (w *world) add(group string, scheme *runtime.Scheme, versions map[string]map[string]rest.Storage) {
	for version, stores := range versions {
		if len(stores) > 0 {
			w.groups[schema.GroupVersion{Group: group, Version: version}] = &groupVersion{scheme: scheme, storage: stores}
		}
	}
}

// addExtensions adds the two API groups that have servers of their own.
func (w *world) addExtensions(getter optionsGetter) error {
	own := func(scheme *runtime.Scheme, version schema.GroupVersion, codec runtime.Codec) optionsGetter {
		return optionsGetter{prefix: getter.prefix, storageConfig: func(resource schema.GroupResource, _ runtime.Object) (*storagebackend.ConfigForResource, error) {
			config := storagebackend.NewDefaultConfig("/registry", codec)
			config.EncodeVersioner = runtime.NewMultiGroupVersioner(version, schema.GroupKind{Group: version.Group})
			return config.ForResource(resource), nil
		}}
	}
	crdVersion := schema.GroupVersion{Group: apiextensions.GroupName, Version: "v1"}
	crds, err := crdregistry.NewREST(apiextensionsapiserver.Scheme, own(apiextensionsapiserver.Scheme, crdVersion, apiextensionsapiserver.Codecs.LegacyCodec(crdVersion)))
	if err != nil {
		return err
	}
	w.groups[crdVersion] = &groupVersion{scheme: apiextensionsapiserver.Scheme, storage: map[string]rest.Storage{
		"customresourcedefinitions": crds, "customresourcedefinitions/status": crdregistry.NewStatusREST(apiextensionsapiserver.Scheme, crds)}}
	serviceVersion := schema.GroupVersion{Group: apiregistration.GroupName, Version: "v1"}
	services := apiserviceregistry.NewREST(aggregatorscheme.Scheme, own(aggregatorscheme.Scheme, serviceVersion, aggregatorscheme.Codecs.LegacyCodec(serviceVersion)))
	w.groups[serviceVersion] = &groupVersion{scheme: aggregatorscheme.Scheme, storage: map[string]rest.Storage{
		"apiservices": services, "apiservices/status": apiserviceregistry.NewStatusREST(aggregatorscheme.Scheme, services)}}
	return nil
}

// addCore adds the core resources whose upstream constructor would need a live
// store only for address and port allocation; they get allocators in memory.
func addCore(stores map[string]rest.Storage, getter generic.RESTOptionsGetter, client *kubernetes.Clientset, budgets *budgets, allow authorizer.Authorizer) error {
	var failure error
	check := func(err error) {
		if err != nil && failure == nil {
			failure = err
		}
	}
	podTemplates, err := podtemplatestore.NewREST(getter)
	check(err)
	limitRanges, err := limitrangestore.NewREST(getter)
	check(err)
	volumes, volumesStatus, err := pvstore.NewREST(getter)
	check(err)
	claims, claimsStatus, err := pvcstore.NewREST(getter)
	check(err)
	endpoints, err := endpointsstore.NewREST(getter)
	check(err)
	nodes, err := nodestore.NewStorage(getter, kubeletclient.KubeletClientConfig{PreferredAddressTypes: []string{"InternalIP"}}, nil)
	check(err)
	if failure != nil {
		return failure
	}
	pods, err := podstore.NewStorage(getter, nodes.KubeletConnectionInfo, nil, budgets.client().PolicyV1(), allow)
	check(err)
	controllers, err := controllerstore.NewStorage(getter)
	check(err)
	_, network, _ := net.ParseCIDR("10.0.0.0/16")
	addresses, err := ipallocator.NewInMemory(network)
	check(err)
	ports, err := portallocator.NewInMemory(utilnet.PortRange{Base: 30000, Size: 2768})
	check(err)
	services, servicesStatus, servicesProxy, err := servicestore.NewREST(getter, api.IPv4Protocol, map[api.IPFamily]ipallocator.Interface{api.IPv4Protocol: addresses}, ports, nil, pods.Pod, nil)
	check(err)
	accounts, err := serviceaccountstore.NewREST(getter, tokens{}, nil, allow, 0, pods.Pod.Store, stores["secrets"].(rest.Getter), nodes.Node.Store,
		client.AdmissionregistrationV1().ValidatingWebhookConfigurations(), client.AdmissionregistrationV1().MutatingWebhookConfigurations(), false, 0)
	check(err)
	if failure != nil {
		return failure
	}
	for name, store := range map[string]rest.Storage{
		"pods": pods.Pod, "pods/attach": pods.Attach, "pods/status": pods.Status, "pods/log": pods.Log, "pods/exec": pods.Exec,
		"pods/portforward": pods.PortForward, "pods/proxy": pods.Proxy, "pods/binding": pods.Binding, "pods/eviction": pods.Eviction,
		"pods/ephemeralcontainers": pods.EphemeralContainers, "pods/resize": pods.Resize, "bindings": pods.LegacyBinding,
		"podtemplates": podTemplates, "replicationcontrollers": controllers.Controller, "replicationcontrollers/status": controllers.Status,
		"replicationcontrollers/scale": controllers.Scale, "serviceaccounts": accounts, "serviceaccounts/token": accounts.Token,
		"services": services, "services/proxy": servicesProxy, "services/status": servicesStatus, "endpoints": endpoints,
		"nodes": nodes.Node, "nodes/proxy": nodes.Proxy, "nodes/status": nodes.Status, "limitranges": limitRanges,
		"persistentvolumes": volumes, "persistentvolumes/status": volumesStatus, "persistentvolumeclaims": claims, "persistentvolumeclaims/status": claimsStatus,
		"componentstatuses": componentstatus.NewStorage(func() map[string]componentstatus.Server { return nil }),
	} {
		stores[name] = store
	}
	return nil
}

var storeType = reflect.TypeOf(genericregistry.Store{})

// storeOf finds the generic registry store inside a REST storage, or nil.
func storeOf(value any) *genericregistry.Store {
	return findStore(reflect.ValueOf(value), 0)
}

func findStore(v reflect.Value, depth int) *genericregistry.Store {
	if depth > 6 {
		return nil
	}
	switch v.Kind() {
	case reflect.Interface:
		return findStore(v.Elem(), depth)
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		if v.Type().Elem() == storeType {
			return (*genericregistry.Store)(v.UnsafePointer())
		}
		if v.Elem().Kind() == reflect.Struct {
			return findStore(v.Elem(), depth+1)
		}
	case reflect.Struct:
		if !v.CanAddr() {
			copied := reflect.New(v.Type()).Elem()
			copied.Set(v)
			v = copied
		}
		for i := range v.NumField() {
			field := v.Field(i)
			name := v.Type().Field(i)
			if !name.Anonymous && !strings.Contains(strings.ToLower(name.Name), "store") {
				continue
			}
			field = reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
			if found := findStore(field, depth+1); found != nil {
				return found
			}
		}
	}
	return nil
}

var moduleDirs = map[string]string{}

// moduleDir asks the go command where the sources of a module are.
func moduleDir(module string) string {
	if dir, known := moduleDirs[module]; known {
		return dir
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		panic(fmt.Sprintf("go list -m %s: %v", module, err))
	}
	moduleDirs[module] = strings.TrimSpace(string(out))
	return moduleDirs[module]
}
