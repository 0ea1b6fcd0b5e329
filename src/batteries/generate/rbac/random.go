package main

import (
	"context"
	"fmt"
	"math/rand"
	"net/http"
	"net/url"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
)

var (
	allUsers      = []string{"jane", "bob", "system:serviceaccount:a:robot", "system:serviceaccount:b:robot", "system:serviceaccount:a:robot2", "system:serviceaccount::robot", "system:anonymous", "robot"}
	allGroups     = []string{"dev", "ops", "system:authenticated", "system:serviceaccounts", "system:serviceaccounts:a", "system:masters"}
	allNamespaces = []string{"a", "b", "kube-system"}
	apiGroups     = []string{"", "apps", "batch", "rbac.authorization.k8s.io", "example.com"}
	resources     = []string{"pods", "pods/log", "pods/exec", "deployments", "deployments/scale", "deployments/status", "secrets", "namespaces", "nodes", "nodes/proxy", "clusterroles", "widgets", "widgets/scale"}
	patterns      = []string{"*/scale", "*/status", "*/log", "*/*", "pods/*", "*/", "/scale", "*/scale/x"}
	verbs         = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate", "use", "approve", "GET"}
	names         = []string{"x", "y", "web", "web-1", "*", "system:node:n1"}
	urls          = []string{"/healthz", "/healthz/*", "/healthz*", "/api", "/api/*", "/apis/*", "/logs**", "*", "/*", "/metrics", "/version/", "*/x", "", "/api/*/x"}
	pathVerbs     = []string{"get", "post", "put", "delete", "head"}
)

type maker struct{ *rand.Rand }

func (m maker) chance(percent int) bool { return m.Intn(100) < percent }

func pick[T any](m maker, from []T) T { return from[m.Intn(len(from))] }

// some returns between one and most different items.
func some(m maker, from []string, most int) []string {
	var found []string
	for range 1 + m.Intn(most) {
		if one := pick(m, from); !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found
}

func (m maker) rule() rbacv1.PolicyRule {
	rule := rbacv1.PolicyRule{Verbs: some(m, verbs, 3)}
	if m.chance(12) {
		rule.Verbs = []string{"*"}
	}
	if m.chance(15) {
		rule.NonResourceURLs = some(m, urls, 2)
		rule.Verbs = some(m, pathVerbs, 2)
		if m.chance(20) {
			rule.Verbs = []string{"*"}
		}
		// No validated rule has both, but a rule that was stored otherwise may.
		if !m.chance(5) {
			return rule
		}
	}
	rule.APIGroups, rule.Resources = some(m, apiGroups, 2), some(m, resources, 3)
	if m.chance(15) {
		rule.APIGroups = []string{"*"}
	}
	if m.chance(20) {
		rule.Resources = append(rule.Resources, pick(m, patterns))
	}
	if m.chance(8) {
		rule.Resources = []string{"*"}
	}
	if m.chance(30) {
		rule.ResourceNames = some(m, names, 2)
	}
	return rule
}

func (m maker) rules(most int) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for range m.Intn(most + 1) {
		rules = append(rules, m.rule())
	}
	return rules
}

func (m maker) subjects() []rbacv1.Subject {
	var found []rbacv1.Subject
	for range 1 + m.Intn(3) {
		switch one := m.Intn(10); {
		case one < 4:
			found = append(found, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: pick(m, allUsers)})
		case one < 7:
			found = append(found, rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: pick(m, allGroups)})
		case one < 9:
			found = append(found, rbacv1.Subject{Kind: "ServiceAccount", Namespace: pick(m, []string{"a", "b", ""}), Name: pick(m, []string{"robot", "robot2"})})
		default:
			found = append(found, rbacv1.Subject{Kind: pick(m, []string{"user", "Other", ""}), Name: pick(m, allUsers)})
		}
	}
	return found
}

// roleRef returns a reference to a role that is usually there.
func (m maker) roleRef(kind string) rbacv1.RoleRef {
	if m.chance(3) {
		kind = pick(m, []string{"Role", "role", ""})
	}
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: fmt.Sprintf("role-%d", m.Intn(6))}
}

func (m maker) world() *world {
	w := &world{}
	for at := range 1 + m.Intn(6) {
		w.ClusterRoles = append(w.ClusterRoles, rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("role-%d", at)}, Rules: m.rules(4)})
	}
	for _, namespace := range allNamespaces {
		for at := range m.Intn(6) {
			w.Roles = append(w.Roles, rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("role-%d", at)}, Rules: m.rules(3)})
		}
		for at := range m.Intn(5) {
			w.RoleBindings = append(w.RoleBindings, rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("binding-%d", at)},
				Subjects: m.subjects(), RoleRef: m.roleRef(pick(m, []string{"Role", "ClusterRole"}))})
		}
	}
	for at := range 1 + m.Intn(5) {
		w.ClusterRoleBindings = append(w.ClusterRoleBindings, rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("binding-%d", at)},
			Subjects: m.subjects(), RoleRef: m.roleRef("ClusterRole")})
	}
	return w
}

// ask adds questions, reviews and attempts to escalate.
func (m maker) ask(w *world, questions int) error {
	w.Questions = []question{}
	for range questions {
		q, attributes, err := m.question(w)
		if err != nil {
			return err
		}
		if err := w.decide(q, attributes); err != nil {
			return err
		}
		w.Questions = append(w.Questions, *q)
	}
	for range 6 {
		who, namespace, _ := m.grant(w)
		w.Reviews = append(w.Reviews, w.review(who, pick(m, append([]string{namespace}, allNamespaces...))))
		who, namespace, rules := m.grant(w)
		if m.chance(40) {
			rules = append(slices.Clone(rules), m.rules(1)...)
		}
		w.Escalations = append(w.Escalations, w.escalation(who, namespace, rules))
	}
	return nil
}

// grant returns a user whom a random binding names, its namespace and the rules that it grants, most
// times some.
func (m maker) grant(w *world) (subject, string, []rbacv1.PolicyRule) {
	for range 4 {
		if who, namespace, rules := m.anyGrant(w); len(rules) > 0 {
			return who, namespace, rules
		}
	}
	return m.anyGrant(w)
}

func (m maker) anyGrant(w *world) (subject, string, []rbacv1.PolicyRule) {
	at := m.Intn(len(w.RoleBindings) + len(w.ClusterRoleBindings))
	var subjects []rbacv1.Subject
	var ref rbacv1.RoleRef
	namespace := ""
	if at < len(w.RoleBindings) {
		binding := w.RoleBindings[at]
		subjects, ref, namespace = binding.Subjects, binding.RoleRef, binding.Namespace
	} else {
		binding := w.ClusterRoleBindings[at-len(w.RoleBindings)]
		subjects, ref = binding.Subjects, binding.RoleRef
	}
	var rules []rbacv1.PolicyRule
	for _, role := range w.ClusterRoles {
		if ref.Kind == "ClusterRole" && role.Name == ref.Name {
			rules = role.Rules
		}
	}
	for _, role := range w.Roles {
		if ref.Kind == "Role" && role.Name == ref.Name && role.Namespace == namespace {
			rules = role.Rules
		}
	}
	who := subject{User: pick(m, allUsers)}
	if m.chance(50) {
		who.Groups = some(m, allGroups, 2)
	}
	if len(subjects) > 0 {
		switch one := pick(m, subjects); one.Kind {
		case "Group":
			who.Groups = append(who.Groups, one.Name)
		case "ServiceAccount":
			in := one.Namespace
			if in == "" {
				in = namespace
			}
			who.User = "system:serviceaccount:" + in + ":" + one.Name
		default:
			who.User = one.Name
		}
	}
	if m.chance(10) {
		who.UID, who.Extra = "7", map[string][]string{"example.com/key": {"x"}}
	}
	return who, namespace, rules
}

// question returns an access that a rule allows, or one that differs from such a one in one part.
func (m maker) question(w *world) (*question, authorizer.Attributes, error) {
	who, namespace, rules := m.grant(w)
	rule := m.rule()
	if len(rules) > 0 {
		rule = pick(m, rules)
	}
	if namespace == "" && m.chance(60) {
		namespace = pick(m, allNamespaces)
	}
	record := authorizer.AttributesRecord{Verb: pick(m, rule.Verbs)}
	if record.Verb == "*" {
		record.Verb = pick(m, verbs)
	}
	if len(rule.NonResourceURLs) > 0 {
		record.Path = pick(m, rule.NonResourceURLs)
		if strings.HasSuffix(record.Path, "*") {
			record.Path = strings.TrimRight(record.Path, "*") + pick(m, []string{"", "x", "/x", "*"})
		}
		if record.Path == "" {
			record.Path = "/"
		}
	} else {
		record.ResourceRequest, record.Namespace = true, namespace
		m.resource(&record, rule)
	}
	if m.chance(50) {
		m.mutate(&record, &who)
	}
	if !record.ResourceRequest {
		// No request for a path has these.
		record = authorizer.AttributesRecord{Verb: record.Verb, Path: record.Path}
	}
	record.User = who.info()
	asked := &question{subject: who}
	if m.chance(60) {
		if attributes, err := m.viaRequest(asked, record); attributes != nil || err != nil {
			return asked, attributes, err
		}
	}
	return asked, record, nil
}

// resource fills in a resource that the rule matches.
func (m maker) resource(record *authorizer.AttributesRecord, rule rbacv1.PolicyRule) {
	record.APIVersion, record.APIGroup = "v1", pick(m, rule.APIGroups)
	if record.APIGroup == "*" {
		record.APIGroup = pick(m, apiGroups)
	}
	full := pick(m, rule.Resources)
	if full == "*" {
		full = pick(m, resources)
	}
	if rest, found := strings.CutPrefix(full, "*/"); found {
		full = "widgets/" + rest
	}
	record.Resource, record.Subresource, _ = strings.Cut(full, "/")
	if len(rule.ResourceNames) > 0 {
		record.Name = pick(m, rule.ResourceNames)
	} else if m.chance(60) {
		record.Name = pick(m, names)
	}
}

// mutate changes one part.
func (m maker) mutate(record *authorizer.AttributesRecord, who *subject) {
	if !record.ResourceRequest && m.chance(60) {
		if record.Path = record.Path[:len(record.Path)-1]; record.Path == "" || m.chance(50) {
			record.Path = strings.TrimRight(pick(m, urls), "*") + "/x"
		}
		return
	}
	switch m.Intn(9) {
	case 0, 1:
		record.Verb = pick(m, verbs)
	case 2:
		record.APIGroup = pick(m, apiGroups)
	case 3:
		record.Resource, record.Subresource, _ = strings.Cut(pick(m, resources), "/")
	case 4:
		record.Subresource = pick(m, []string{"", "scale", "status", "log", "*", "scale/x"})
	case 5:
		record.Name = pick(m, append([]string{""}, names...))
	case 6:
		record.Namespace = pick(m, append([]string{""}, allNamespaces...))
	case 7:
		who.User = pick(m, allUsers)
	default:
		if len(who.Groups) > 0 {
			who.Groups = who.Groups[:len(who.Groups)-1]
		} else {
			who.Groups = some(m, allGroups, 1)
		}
	}
}

var methods = map[string]string{"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE",
	"post": "POST", "put": "PUT", "head": "HEAD"}

// viaRequest lets upstream make the attributes out of a request, if one can ask for them.
func (m maker) viaRequest(asked *question, record authorizer.AttributesRecord) (authorizer.Attributes, error) {
	method, known := methods[record.Verb]
	target := url.URL{Scheme: "https", Host: "server", Path: record.Path}
	if record.ResourceRequest {
		known = known && record.Resource != "" && !strings.ContainsAny(record.Resource+record.Subresource, "*/") && !strings.ContainsAny(record.Name, "*/")
		target.Path = "/apis/" + record.APIGroup + "/v1"
		if record.APIGroup == "" {
			target.Path = "/api/v1"
		}
		if record.Namespace != "" && record.Resource != "namespaces" {
			target.Path += "/namespaces/" + record.Namespace
		}
		target.Path += "/" + record.Resource
		values := url.Values{}
		switch record.Verb {
		case "list", "watch", "deletecollection":
			known = known && record.Subresource == ""
			if record.Name != "" {
				values.Set("fieldSelector", "metadata.name="+record.Name)
			} else if m.chance(20) {
				values.Set("fieldSelector", pick(m, []string{"spec.nodeName=n1", "metadata.name!=x", "metadata.name=x,status.phase=Running", "metadata.name=", "="}))
			}
			if m.chance(25) {
				values.Set("labelSelector", pick(m, []string{"app=web", "app in (a,b),!old", "tier", "(("}))
			}
			if record.Verb == "watch" {
				values.Set("watch", "true")
			}
		case "create":
			known = known && (record.Name == "") == (record.Subresource == "")
		default:
			known = known && record.Name != ""
		}
		if record.Name != "" && len(values) == 0 && record.Verb != "list" && record.Verb != "watch" && record.Verb != "deletecollection" {
			target.Path += "/" + record.Name
		}
		if record.Subresource != "" {
			target.Path += "/" + record.Subresource
		}
		target.RawQuery = values.Encode()
	}
	if !known || !strings.HasPrefix(target.Path, "/") {
		return nil, nil
	}
	made, err := http.NewRequest(method, target.String(), nil)
	if err != nil {
		return nil, err
	}
	factory := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(made)
	if err != nil {
		return nil, err
	}
	asked.Method, asked.URL = method, target.RequestURI()
	ctx := request.WithRequestInfo(request.WithUser(context.Background(), record.User), info)
	return filters.GetAuthorizerAttributes(ctx)
}
