package envtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var boat = schema.GroupVersionKind{Group: "harbour.example.com", Version: "v1", Kind: "Boat"}

func newBoat(name string, crew int64) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(boat)
	object.SetNamespace("default")
	object.SetName(name)
	if err := unstructured.SetNestedField(object.Object, crew, "spec", "crew"); err != nil {
		panic(err)
	}
	return object
}

func start(t *testing.T, env *envtest.Environment) *rest.Config {
	t.Helper()
	config, err := env.Start()
	if err != nil {
		t.Fatalf("the environment does not start: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("the environment does not stop: %v", err)
		}
	})
	return config
}

func connect(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	connected, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return connected
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Definitions from a folder, their rules, defaults and status; users; webhook objects; a controller.
func TestAnOperatorsSuiteFindsWhatItNeeds(t *testing.T) {
	ctx := context.Background()
	env := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("testdata", "crds")},
		ErrorIfCRDPathMissing: true,
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{filepath.Join("testdata", "webhooks")}},
	}
	config := start(t, env)
	admin := connect(t, config)

	must(t, "create", admin.Create(ctx, newBoat("one", 3)))
	got := newBoat("one", 0)
	must(t, "get", admin.Get(ctx, client.ObjectKeyFromObject(got), got))
	if seats, _, _ := unstructured.NestedInt64(got.Object, "spec", "seats"); seats != 4 {
		t.Errorf("the default is %d", seats)
	}
	err := admin.Create(ctx, newBoat("full", 5))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "a boat has a seat for everybody") {
		t.Errorf("the rule does not hold: %v", err)
	}

	groups, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerGroups()
	must(t, "discovery", err)
	for _, group := range groups.Groups {
		if strings.Contains(group.Name, "polyplane") {
			t.Errorf("discovery shows %s", group.Name)
		}
	}
	accounts := &corev1.ServiceAccountList{}
	must(t, "list", admin.List(ctx, accounts))
	if len(accounts.Items) != 0 {
		t.Errorf("there are service accounts without a controller manager: %v", accounts.Items)
	}

	user, err := env.AddUser(envtest.User{Name: "jane", Groups: []string{"sailors"}}, nil)
	must(t, "add user", err)
	jane := connect(t, user.Config())
	err = jane.Get(ctx, client.ObjectKeyFromObject(got), got)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "jane" cannot get resource "boats"`) {
		t.Errorf("a user without rights: %v", err)
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "sailor"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{boat.Group}, Resources: []string{"boats"}, Verbs: []string{"get"}}},
	}
	must(t, "role", admin.Create(ctx, role))
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sailors"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "sailor"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "sailors"}},
	}
	must(t, "binding", admin.Create(ctx, binding))
	must(t, "get with a right", jane.Get(ctx, client.ObjectKeyFromObject(got), got))

	stranger := rest.AnonymousClientConfig(config)
	_, err = kubernetes.NewForConfigOrDie(stranger).CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "system:anonymous"`) {
		t.Errorf("a stranger: %v", err)
	}

	seesEventsAtOnce(t, config)
	reconcileUntilDone(t, config, admin)
}

// A watch that begins with a list, as informers open it. Go's transport takes gzip unless told otherwise, and its reader
// hands out what it has only where the server has flushed.
func seesEventsAtOnce(t *testing.T, config *rest.Config) {
	ctx := t.Context()
	core := kubernetes.NewForConfigOrDie(config).CoreV1()
	watch := core.RESTClient().Get().Resource("namespaces").SetHeader("Accept", "application/json")
	for _, parameter := range []string{"watch", "sendInitialEvents", "allowWatchBookmarks"} {
		watch.Param(parameter, "true")
	}
	stream, err := watch.Param("resourceVersionMatch", "NotOlderThan").Stream(ctx)
	must(t, "watch", err)
	defer stream.Close()
	lines := make(chan string, 100)
	go func() {
		scanner := bufio.NewScanner(stream)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	// Later it would come with the next bookmark.
	sees := func(what string) {
		late := time.After(20 * time.Second)
		for {
			select {
			case line := <-lines:
				if strings.Contains(line, what) {
					return
				}
			case <-late:
				t.Fatalf("never seen: %s", what)
			}
		}
	}
	sees("k8s.io/initial-events-end")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "seen-at-once"}}
	_, err = core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	must(t, "namespace", err)
	sees("seen-at-once")
}

// A manager with a cache and a controller, which writes the status of each object.
func reconcileUntilDone(t *testing.T, config *rest.Config, admin client.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	manager, err := ctrl.NewManager(config, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	must(t, "manager", err)
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(boat)
	reconciler := reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(boat)
		if err := manager.GetClient().Get(ctx, request.NamespacedName, object); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if err := unstructured.SetNestedField(object.Object, "Afloat", "status", "phase"); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, manager.GetClient().Status().Update(ctx, object)
	})
	skip := true
	options := controller.Options{SkipNameValidation: &skip}
	must(t, "controller", ctrl.NewControllerManagedBy(manager).For(kind).WithOptions(options).Complete(reconciler))
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	for i := range 20 {
		must(t, "create", admin.Create(ctx, newBoat(fmt.Sprintf("afloat-%d", i), 1)))
	}
	eventually(t, "the status of all boats", func() bool {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(boat)
		if admin.List(ctx, list) != nil {
			return false
		}
		afloat := 0
		for _, item := range list.Items {
			if phase, _, _ := unstructured.NestedString(item.Object, "status", "phase"); phase == "Afloat" {
				afloat++
			}
		}
		return afloat == 21
	})
	cancel()
	must(t, "the manager's end", <-done)
}

func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// The state is in etcd: an API server that starts again has it, and watches go on where they were.
func TestAnAPIServerStartsAgainWithItsState(t *testing.T) {
	ctx := context.Background()
	env := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join("testdata", "crds")}}
	folder := t.TempDir()
	env.ControlPlane.GetAPIServer().CertDir = folder
	config := start(t, env)
	admin := connect(t, config)
	before := newBoat("stays", 2)
	must(t, "create", admin.Create(ctx, before))

	for round := range 3 {
		must(t, "stop", env.ControlPlane.GetAPIServer().Stop())
		must(t, "start", env.ControlPlane.GetAPIServer().Start())
		after := newBoat("stays", 0)
		user, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, config)
		must(t, "add user", err)
		admin = connect(t, user.Config())
		must(t, "get", admin.Get(ctx, client.ObjectKeyFromObject(after), after))
		if after.GetResourceVersion() != before.GetResourceVersion() || after.GetUID() != before.GetUID() {
			t.Errorf("round %d: another object: %v", round, after)
		}
		events, err := kubernetes.NewForConfigOrDie(user.Config()).CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
		must(t, "watch", err)
		name := fmt.Sprintf("round-%d", round)
		must(t, "create", admin.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}))
		for seen := ""; seen != name; {
			event := <-events.ResultChan()
			object, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				t.Fatalf("round %d: %v", round, event)
			}
			seen = object.Name
		}
		events.Stop()
	}
}

// Environments side by side share nothing.
func TestEnvironmentsRunInParallel(t *testing.T) {
	for number := range 4 {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			env := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join("testdata", "crds")}}
			admin := connect(t, start(t, env))
			for i := range 20 {
				must(t, "create", admin.Create(ctx, newBoat(fmt.Sprintf("%d-%d", number, i), 1)))
			}
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(boat)
			must(t, "list", admin.List(ctx, list))
			if len(list.Items) != 20 {
				t.Errorf("%d boats", len(list.Items))
			}
			for _, item := range list.Items {
				if !strings.HasPrefix(item.GetName(), fmt.Sprintf("%d-", number)) {
					t.Errorf("another environment's boat: %s", item.GetName())
				}
			}
		})
	}
}

// Prints how long an environment takes to start and to stop.
func TestStartIsQuick(t *testing.T) {
	began := time.Now()
	env := &envtest.Environment{}
	if _, err := env.Start(); err != nil {
		t.Fatal(err)
	}
	started := time.Since(began)
	must(t, "stop", env.Stop())
	fmt.Fprintf(os.Stdout, "envtest: started in %v, stopped in %v\n", started, time.Since(began)-started)
}
