package main

import (
	"context"
	"fmt"
	"sort"
	_ "unsafe"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// comparison says which rules are not covered by those that somebody holds.
type comparison struct {
	Held    []rbacv1.PolicyRule `json:"held"`
	Asked   []rbacv1.PolicyRule `json:"asked"`
	Missing []rbacv1.PolicyRule `json:"missing,omitempty"`
	// Texts describe the missing ones, in the order of a refusal.
	Texts []string `json:"texts,omitempty"`
}

func (m maker) comparison() comparison {
	c := comparison{Held: m.rules(5), Asked: []rbacv1.PolicyRule{}}
	if len(c.Held) == 0 || m.chance(40) {
		c.Asked = m.rules(3)
	}
	for _, one := range c.Held {
		switch m.Intn(4) {
		case 0:
			c.Asked = append(c.Asked, one)
		case 1:
			// The same in parts, or with a part more.
			part := *one.DeepCopy()
			if part.Verbs = some(m, part.Verbs, 2); m.chance(25) {
				part.Verbs = some(m, append(part.Verbs, verbs[:4]...), 2)
			}
			if len(part.Resources) > 0 && m.chance(50) {
				part.Resources = some(m, append(part.Resources, "widgets/scale", "*/scale"), 2)
			}
			if m.chance(40) && len(part.APIGroups) > 0 {
				part.ResourceNames = some(m, names, 2)
			}
			if m.chance(20) {
				part.Verbs = append(part.Verbs, part.Verbs[0])
			}
			c.Asked = append(c.Asked, part)
		}
	}
	_, c.Missing = validation.Covers(c.Held, c.Asked)
	compact, err := rbacvalidation.CompactRules(c.Missing)
	if err != nil {
		panic(err)
	}
	seen := map[string]bool{}
	for _, rule := range compact {
		seen[rbacv1helpers.CompactString(rule)] = true
	}
	for text := range seen {
		c.Texts = append(c.Texts, text)
	}
	sort.Strings(c.Texts)
	return c
}

// aggregation is a set of roles, and the rules that the controller writes into each aggregated one.
type aggregation struct {
	ClusterRoles []rbacv1.ClusterRole `json:"clusterRoles"`
	Outcomes     []outcome            `json:"outcomes"`
}

type outcome struct {
	Name string `json:"name"`
	// Written: the controller writes Rules; otherwise the stored ones are right, or the role aggregates nothing.
	Written bool                `json:"written"`
	Rules   []rbacv1.PolicyRule `json:"rules"`
}

//go:linkname syncClusterRole k8s.io/kubernetes/pkg/controller/clusterroleaggregation.(*ClusterRoleAggregationController).syncClusterRole
func syncClusterRole(c *clusterroleaggregation.ClusterRoleAggregationController, ctx context.Context, key string) error

// recorder is the controller's client.
type recorder struct {
	rbacclient.ClusterRoleInterface
	applied *rbacv1ac.ClusterRoleApplyConfiguration
}

func (r *recorder) ClusterRoles() rbacclient.ClusterRoleInterface { return r }

func (r *recorder) Apply(_ context.Context, role *rbacv1ac.ClusterRoleApplyConfiguration, _ metav1.ApplyOptions) (*rbacv1.ClusterRole, error) {
	r.applied = role
	return nil, nil
}

func (m maker) aggregation() (aggregation, error) {
	var a aggregation
	shared := m.rules(3)
	for at := range 2 + m.Intn(6) {
		role := rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("role-%d", m.Intn(4)*10+at)}, Rules: append(m.rules(2), shared[:m.Intn(len(shared)+1)]...)}
		for range m.Intn(3) {
			metav1.SetMetaDataLabel(&role.ObjectMeta, "to-"+pick(m, []string{"admin", "edit", "view"}), pick(m, []string{"true", "false", ""}))
		}
		if m.chance(40) {
			role.AggregationRule = &rbacv1.AggregationRule{}
			for range m.Intn(3) {
				role.AggregationRule.ClusterRoleSelectors = append(role.AggregationRule.ClusterRoleSelectors, m.selector())
			}
		}
		a.ClusterRoles = append(a.ClusterRoles, role)
	}
	// Some are aggregated already.
	for range 2 {
		outcomes, err := a.sync()
		if err != nil {
			return a, err
		}
		for at := range a.ClusterRoles {
			if outcomes[at].Written && m.chance(30) {
				a.ClusterRoles[at].Rules = outcomes[at].Rules
			}
		}
	}
	var err error
	a.Outcomes, err = a.sync()
	return a, err
}

func (m maker) selector() metav1.LabelSelector {
	key := "to-" + pick(m, []string{"admin", "edit", "view"})
	switch m.Intn(5) {
	case 0:
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: pick(m, []metav1.LabelSelectorOperator{"Exists", "DoesNotExist"})}}}
	case 1:
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: pick(m, []metav1.LabelSelectorOperator{"In", "NotIn"}), Values: []string{"true", ""}}}}
	case 2:
		if m.chance(20) {
			return metav1.LabelSelector{}
		}
		fallthrough
	default:
		return metav1.LabelSelector{MatchLabels: map[string]string{key: "true"}}
	}
}

func (a aggregation) sync() ([]outcome, error) {
	informer := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Rbac().V1().ClusterRoles()
	client := &recorder{}
	controller := clusterroleaggregation.NewClusterRoleAggregation(informer, client)
	for at := range a.ClusterRoles {
		if err := informer.Informer().GetIndexer().Add(&a.ClusterRoles[at]); err != nil {
			return nil, err
		}
	}
	var outcomes []outcome
	for _, role := range a.ClusterRoles {
		client.applied = nil
		if err := syncClusterRole(controller, context.Background(), role.Name); err != nil {
			return nil, err
		}
		one := outcome{Name: role.Name, Written: client.applied != nil, Rules: []rbacv1.PolicyRule{}}
		if one.Written {
			for _, rule := range client.applied.Rules {
				one.Rules = append(one.Rules, rbacv1.PolicyRule{Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources,
					ResourceNames: rule.ResourceNames, NonResourceURLs: rule.NonResourceURLs})
			}
		}
		outcomes = append(outcomes, one)
	}
	return outcomes, nil
}
