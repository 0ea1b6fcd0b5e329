package main

import (
	"context"
	"fmt"
	"sort"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// world is one line of the decisions: roles and bindings, and the answers to questions about them.
type world struct {
	Roles               []rbacv1.Role               `json:"roles"`
	RoleBindings        []rbacv1.RoleBinding        `json:"roleBindings"`
	ClusterRoles        []rbacv1.ClusterRole        `json:"clusterRoles"`
	ClusterRoleBindings []rbacv1.ClusterRoleBinding `json:"clusterRoleBindings"`
	Questions           []question                  `json:"questions"`
	Reviews             []review                    `json:"reviews"`
	Escalations         []escalation                `json:"escalations"`
}

// subject is the user of a question.
type subject struct {
	User   string              `json:"user"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

func (s subject) info() user.Info {
	return &user.DefaultInfo{Name: s.User, UID: s.UID, Groups: s.Groups, Extra: s.Extra}
}

// question is one access with upstream's decision on it.
type question struct {
	subject
	// Method and URL are given if upstream made the attributes of a request.
	Method        string `json:"method,omitempty"`
	URL           string `json:"url,omitempty"`
	Verb          string `json:"verb"`
	Group         string `json:"group,omitempty"`
	Version       string `json:"version,omitempty"`
	Resource      string `json:"resource,omitempty"`
	Subresource   string `json:"subresource,omitempty"`
	Namespace     string `json:"namespace,omitempty"`
	Name          string `json:"name,omitempty"`
	Path          string `json:"path,omitempty"`
	FieldSelector string `json:"fieldSelector,omitempty"`
	LabelSelector string `json:"labelSelector,omitempty"`
	Allowed       bool   `json:"allowed"`
	// Reasons has the reason that upstream gives for each binding that allows it, sorted; which it
	// gives depends on the order in which it reads the bindings.
	Reasons []string `json:"reasons,omitempty"`
	// Reason is what upstream says if it does not allow it.
	Reason string `json:"reason,omitempty"`
}

// review is what a user may do in a namespace.
type review struct {
	subject
	Namespace        string              `json:"namespace"`
	ResourceRules    []rbacv1.PolicyRule `json:"resourceRules"`
	NonResourceRules []rbacv1.PolicyRule `json:"nonResourceRules"`
	Error            string              `json:"error,omitempty"`
}

// escalation is an attempt of a user to put rules into a role.
type escalation struct {
	subject
	Namespace string              `json:"namespace,omitempty"`
	Rules     []rbacv1.PolicyRule `json:"rules"`
	Error     string              `json:"error,omitempty"`
}

// lists answers upstream's resolver out of a world, bindings by name. The
// errors of missing roles name `kinds`: the authorizer's listers say the
// singular, the storage that checks escalation the plural.
type lists struct {
	*world
	role, clusterRole string
}

func (l lists) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	for i := range l.Roles {
		if namespace != "" && l.Roles[i].Namespace == namespace && l.Roles[i].Name == name {
			return &l.Roles[i], nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: l.role}, name)
}

func (l lists) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	for i := range l.ClusterRoles {
		if l.ClusterRoles[i].Name == name {
			return &l.ClusterRoles[i], nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: l.clusterRole}, name)
}

func (l lists) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	var found []*rbacv1.RoleBinding
	for i := range l.RoleBindings {
		if l.RoleBindings[i].Namespace == namespace {
			found = append(found, &l.RoleBindings[i])
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Name < found[j].Name })
	return found, nil
}

func (l lists) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	var found []*rbacv1.ClusterRoleBinding
	for i := range l.ClusterRoleBindings {
		found = append(found, &l.ClusterRoleBindings[i])
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Name < found[j].Name })
	return found, nil
}

// decide fills in upstream's decision on the access that `attributes` describe.
func (w *world) decide(q *question, attributes authorizer.Attributes) error {
	l := lists{w, "role", "clusterrole"}
	decision, reason, err := rbac.New(l, l, l, l).Authorize(context.Background(), attributes)
	if err != nil {
		return err
	}
	q.Verb, q.Group, q.Version = attributes.GetVerb(), attributes.GetAPIGroup(), attributes.GetAPIVersion()
	q.Resource, q.Subresource = attributes.GetResource(), attributes.GetSubresource()
	q.Namespace, q.Name = attributes.GetNamespace(), attributes.GetName()
	if !attributes.IsResourceRequest() {
		q.Path = attributes.GetPath()
	}
	if requirements, err := attributes.GetFieldSelector(); err == nil {
		for _, one := range requirements {
			q.FieldSelector += fmt.Sprintf("%s%s%s,", one.Field, one.Operator, one.Value)
		}
	}
	if requirements, err := attributes.GetLabelSelector(); err == nil {
		for _, one := range requirements {
			q.LabelSelector += one.String() + ","
		}
	}
	q.Allowed = decision == authorizer.DecisionAllow
	if !q.Allowed {
		q.Reason = reason
		return nil
	}
	seen := map[string]bool{}
	validation.NewDefaultRuleResolver(l, l, l, l).VisitRulesFor(context.Background(), attributes.GetUser(), attributes.GetNamespace(),
		func(source fmt.Stringer, rule *rbacv1.PolicyRule, _ error) bool {
			if rule != nil && rbac.RuleAllows(attributes, rule) {
				seen["RBAC: allowed by "+source.String()] = true
			}
			return true
		})
	for one := range seen {
		q.Reasons = append(q.Reasons, one)
	}
	sort.Strings(q.Reasons)
	if !seen[reason] {
		return fmt.Errorf("the reason %q is none of %q", reason, q.Reasons)
	}
	return nil
}

func (w *world) review(s subject, namespace string) review {
	l := lists{w, "role", "clusterrole"}
	resources, paths, _, err := rbac.New(l, l, l, l).RulesFor(context.Background(), s.info(), namespace)
	answer := review{subject: s, Namespace: namespace, ResourceRules: []rbacv1.PolicyRule{}, NonResourceRules: []rbacv1.PolicyRule{}}
	for _, one := range resources {
		answer.ResourceRules = append(answer.ResourceRules, rbacv1.PolicyRule{Verbs: one.GetVerbs(), APIGroups: one.GetAPIGroups(),
			Resources: one.GetResources(), ResourceNames: one.GetResourceNames()})
	}
	for _, one := range paths {
		answer.NonResourceRules = append(answer.NonResourceRules, rbacv1.PolicyRule{Verbs: one.GetVerbs(), NonResourceURLs: one.GetNonResourceURLs()})
	}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

func (w *world) escalation(s subject, namespace string, rules []rbacv1.PolicyRule) escalation {
	l := lists{w, "roles", "clusterroles"}
	ctx := request.WithNamespace(request.WithUser(context.Background(), s.info()), namespace)
	answer := escalation{subject: s, Namespace: namespace, Rules: rules}
	if err := validation.ConfirmNoEscalation(ctx, validation.NewDefaultRuleResolver(l, l, l, l), rules); err != nil {
		answer.Error = err.Error()
	}
	return answer
}

// bootstrapWorld has upstream's own policy, aggregated roles left as they are written by hand.
func bootstrapWorld() *world {
	w := &world{
		ClusterRoles:        append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...),
		ClusterRoleBindings: append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...),
	}
	for _, namespace := range sortedKeys(bootstrappolicy.NamespaceRoles()) {
		for _, role := range bootstrappolicy.NamespaceRoles()[namespace] {
			role.Namespace = namespace
			w.Roles = append(w.Roles, role)
		}
	}
	for _, namespace := range sortedKeys(bootstrappolicy.NamespaceRoleBindings()) {
		for _, binding := range bootstrappolicy.NamespaceRoleBindings()[namespace] {
			binding.Namespace = namespace
			w.RoleBindings = append(w.RoleBindings, binding)
		}
	}
	return w
}

func sortedKeys[T any](of map[string]T) []string {
	var keys []string
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
