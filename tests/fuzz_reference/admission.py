"""Draws objects of the kinds by which a server is set up: webhooks, policies, flows, services of APIs, roles.

The reference acts on what is stored: webhooks are stored only with a selector that nothing has, bindings only with a
policy that is not there, everything else in dry runs."""

import copy

import cel
from builtin import Builtin
from cel import POLICY, Grammar
from mutate import at, paths
from steps import JSON, Case, Step

GROUPS = {"admissionregistration.k8s.io", "flowcontrol.apiserver.k8s.io", "apiregistration.k8s.io", "rbac.authorization.k8s.io"}
NOBODY = {"matchLabels": {"nobody.example.com/has": "this"}}
RULE = {"apiGroups": ["nobody.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"]}
CLIENT = {"service": {"namespace": "fuzz", "name": "x", "path": "/a"}}
MATCHES = {"resourceRules": [RULE]}
CONDITIONS = [{"name": "a", "expression": "request.operation == 'CREATE'"}, {"name": "b.example.com/x", "expression": "object.metadata.name != 'x'"}]
V1 = "admissionregistration.k8s.io/v1"
# Objects with more fields than the recorded ones have, by kind.
FULL = {
    "ValidatingWebhookConfiguration": [{"webhooks": [{"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": CLIENT, "rules": [RULE], "matchConditions": CONDITIONS, "timeoutSeconds": 5, "failurePolicy": "Ignore", "matchPolicy": "Exact", "namespaceSelector": NOBODY, "objectSelector": NOBODY},
                                                    {"name": "b.example.com", "sideEffects": "NoneOnDryRun", "admissionReviewVersions": ["v2", "v1"], "clientConfig": {"url": "https://x.example.com/a", "caBundle": ""}, "rules": [{**RULE, "scope": "Namespaced", "resources": ["things", "things/status"]}]}]}],
    "MutatingWebhookConfiguration": [{"webhooks": [{"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": CLIENT, "rules": [RULE], "matchConditions": CONDITIONS, "reinvocationPolicy": "IfNeeded", "objectSelector": NOBODY}]}],
    "ValidatingAdmissionPolicy": [{"spec": {"failurePolicy": "Fail", "matchConstraints": MATCHES, "matchConditions": CONDITIONS, "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "variables": [{"name": "x", "expression": "object.metadata.name"}, {"name": "y", "expression": "variables.x + 'a'"}],
                                            "validations": [{"expression": "variables.x.startsWith('a')", "message": "m", "reason": "Invalid"}, {"expression": "has(object.spec) && params != null", "messageExpression": "'a' + variables.y"}], "auditAnnotations": [{"key": "k", "valueExpression": "variables.x"}]}}],
    "ValidatingAdmissionPolicyBinding": [{"spec": {"policyName": "nobody", "validationActions": ["Deny", "Audit"], "paramRef": {"name": "x", "namespace": "fuzz", "parameterNotFoundAction": "Deny"}, "matchResources": {**MATCHES, "namespaceSelector": NOBODY}}},
                                         {"spec": {"policyName": "nobody", "validationActions": ["Warn"], "paramRef": {"selector": NOBODY, "parameterNotFoundAction": "Allow"}}}],
    "MutatingAdmissionPolicy": [{"spec": {"failurePolicy": "Ignore", "reinvocationPolicy": "Never", "matchConstraints": MATCHES, "matchConditions": CONDITIONS, "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "variables": [{"name": "x", "expression": "'a'"}],
                                          "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: Object.metadata.labels{a: variables.x}}}"}},
                                                        {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/metadata/labels/a', value: 'b'}]"}}]}}],
    "MutatingAdmissionPolicyBinding": [{"spec": {"policyName": "nobody", "paramRef": {"name": "x", "parameterNotFoundAction": "Allow"}, "matchResources": MATCHES}}],
    "FlowSchema": [{"spec": {"priorityLevelConfiguration": {"name": "nobody"}, "matchingPrecedence": 9000, "distinguisherMethod": {"type": "ByUser"}, "rules": [
        {"subjects": [{"kind": "User", "user": {"name": "nobody"}}, {"kind": "Group", "group": {"name": "nobody"}}, {"kind": "ServiceAccount", "serviceAccount": {"namespace": "fuzz", "name": "*"}}],
         "resourceRules": [{"verbs": ["get"], "apiGroups": ["nobody.example.com"], "resources": ["things"], "namespaces": ["fuzz"]}, {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True}], "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/nobody/*"]}]}]}}],
    "PriorityLevelConfiguration": [{"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "lendablePercent": 50, "borrowingLimitPercent": 10, "limitResponse": {"type": "Queue", "queuing": {"queues": 8, "handSize": 2, "queueLengthLimit": 5}}}}},
                                   {"spec": {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 1, "lendablePercent": 5}}}, {"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "limitResponse": {"type": "Reject"}}}}],
    "APIService": [{"metadata": {"name": "v1.nobody.example.com"}, "spec": {"group": "nobody.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 5, "service": {"namespace": "fuzz", "name": "x", "port": 443}, "insecureSkipTLSVerify": True}}],
    "ClusterRole": [{"rules": [{"verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["pods", "deployments/scale"], "resourceNames": ["x"]}, {"verbs": ["get"], "nonResourceURLs": ["/x/*"]}]}, {"aggregationRule": {"clusterRoleSelectors": [NOBODY]}, "rules": []}],
    "Role": [{"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/status", "*"]}]}],
    "ClusterRoleBinding": [{"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nobody"}, "subjects": [{"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}, {"kind": "ServiceAccount", "name": "nobody", "namespace": "fuzz"}]}],
    "RoleBinding": [{"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "nobody"}, "subjects": [{"kind": "Group", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}]}],
}
# Kinds whose objects the reference writes to as soon as they are stored, with an object that is there always.
WRITTEN = {"APIService": "v1.", "FlowSchema": "probes"}
MUTATIONS = [
    "Object{spec: Object.spec{replicas: 3}}", "Object{metadata: Object.metadata{annotations: {'a': 'b'}}}", "Object{spec: Object.spec{x: Object.spec.x{y: [Object.spec.x.y.item{z: 1}]}}}", "Object{}", "Object{a: 1, a: 2}", "Object{kind: 'x'}", "{'spec': {'a': 1}}", "object", "Object.spec{a: 1}", "Object{spec: Object.other{a: 1}}",
    "Object{spec: {'a': 1}}", "has(object.spec) ? Object{spec: Object.spec{a: 1}} : Object{}", "null", "Object{metadata: Object.metadata{name: variables.x}}", "Object", "JSONPatch{op: 'add', path: '/a', value: 1}",
    "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': 'b'}}]", "[JSONPatch{op: 'test', path: '/a', value: null}, JSONPatch{op: 'remove', path: '/a'}]", "[JSONPatch{op: 'move', from: '/a', path: '/b'}]", "[JSONPatch{op: 'x', path: '/a'}]", "[JSONPatch{op: 1}]", "[JSONPatch{other: 'a'}]", "[]", "[1]", "has(object.a) ? [JSONPatch{op: 'add', path: '/a', value: Object.a{b: 1}}] : []",
    "[JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('a/b'), value: string(1)}]", "jsonpatch.escapeKey('a~b')", "object.spec.containers.map(c, JSONPatch{op: 'add', path: '/x', value: c.name})",
]
TYPED = ["object.spec.containers.all(c, c.image.startsWith('a'))", "namespaceObject.metadata.name == 'a'", "request.resource.group == ''", "request.kind.kind == 'Pod' && request.subResource == ''", "request.userInfo.extra['a'].exists(x, x == 'b')", "request.options.dryRun", "request.objects", "request.object.metadata.name == ''", "oldObject == null || oldObject.spec == object.spec",
         "authorizer.group('apps').resource('deployments').namespace('a').name('x').check('get').allowed()", "authorizer.path('/healthz').check('get').reason() == ''", "authorizer.serviceAccount('a', 'b').requestResource.check('x').errored()", "authorizer.requestResource.fieldSelector('a=b').check('list').allowed()", "params.data['x'] == 'y'", "variables.x == variables.y", "variables.z", "self == 1",
         "object.metadata.labels.all(k, object.metadata.labels.all(j, object.metadata.labels.all(l, k == j)))", "[1,2,3].all(x, [1,2,3].all(y, x == y))", "request.requestKind.group == request.requestResource.group", "request.name.size() > 1 && request.uid != ''", "type(object) == type(oldObject)", "object.?spec.?a.orValue(1) == 1", "'x' + 1 == 'x1'", "anyObject == 1"]


class Admission(Builtin):
    """Draws cases of these kinds. They are stored, unlike in other cases, where that does no harm."""

    def __init__(self, dice, schemas, kinds):
        kinds = [copy.copy(kind) for kind in kinds if kind.group in GROUPS]
        super().__init__(dice, schemas, kinds)
        for kind in kinds:
            kind.bases = [*kind.bases, *(self.whole(kind, tree) for tree in FULL.get(kind.kind, []))]

    @staticmethod
    def whole(kind, tree):
        """Completes an object."""
        metadata = {"name": "{{name}}", **({"namespace": "fuzz"} if kind.namespaced else {})}
        return {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, "metadata": metadata, **copy.deepcopy(tree)}

    def draw(self):
        """Draws a case."""
        kind = self.dice.choice(self.kinds)
        if kind.kind in WRITTEN:
            return self.written(kind)
        return self.dice.choice([self.created, self.created, self.updated, self.patched, self.applied])(kind)

    def changed(self, kind, tree):
        """Mutates an object: its expressions by theirs, anything else as in other cases."""
        tree = copy.deepcopy(tree)
        for _ in range(self.dice.choice([1, 1, 1, 2])):
            own = [path for path in paths(tree) if path[-1] in ("expression", "messageExpression", "valueExpression")]
            if own and self.dice.random() < 0.5:
                path = self.dice.choice(own)
                at(tree, path[:-1])[path[-1]] = self.expression(path)
            else:
                tree = self.mutated(kind, tree)
        return tree

    def expression(self, path):
        """Draws an expression for its place."""
        dice = self.dice
        if path[-2] in ("applyConfiguration", "jsonPatch") and dice.random() < 0.9:
            drawn = dice.choice(MUTATIONS)
            return cel.broken(dice, drawn) if dice.random() < 0.15 else drawn
        if path[-1] != "expression" and dice.random() < 0.5:
            return Grammar(dice, POLICY).string(1)
        return dice.choice(TYPED) if dice.random() < 0.4 else cel.expression(dice)

    @staticmethod
    def harmless(kind, tree):
        """Changes an object so that it does nothing when it is stored."""
        if kind.kind.endswith("WebhookConfiguration") and isinstance(tree.get("webhooks"), list):
            for webhook in tree["webhooks"]:
                if isinstance(webhook, dict):
                    webhook["objectSelector"] = copy.deepcopy(NOBODY)
        if kind.kind.endswith("PolicyBinding") and isinstance(tree.get("spec"), dict):
            tree["spec"]["policyName"] = "nobody"
        return tree

    def parameters(self, kind, tree, second=False):
        """Draws parameters: a dry run for what must not be stored as it is."""
        dangerous = second and (kind.kind.endswith("WebhookConfiguration") or kind.kind.endswith("PolicyBinding"))
        query = [("dryRun", "All")] if dangerous or self.dice.random() < 0.3 else []
        if self.dice.random() < 0.2:
            query.append(("fieldValidation", self.dice.choice(["Strict", "Warn", "Ignore"])))
        return query

    def created(self, kind):
        """Draws a creation."""
        tree = self.changed(kind, self.base(kind))
        query = self.parameters(kind, tree)
        tree = tree if query[:1] == [("dryRun", "All")] else self.harmless(kind, tree)
        steps = [Step("POST", kind.collection, query, [JSON], tree)]
        if ("dryRun", "All") not in query:
            steps.append(Step("GET", kind.collection + "/{{name}}", headers=[("Accept", self.dice.choice(["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf"]))]))
        return self.case(kind, steps)

    def case(self, kind, steps):
        """Makes a case, with what it stores removed at its end."""
        return Case(kind.kind, steps, self.tidy(kind), all(("dryRun", "All") in step.query for step in steps if step.method != "GET"))

    def first(self, kind, tree):
        """Makes the creation of a harmless object."""
        return Step("POST", kind.collection, [("fieldManager", "m0")], [JSON], self.harmless(kind, copy.deepcopy(tree)))

    def updated(self, kind):
        """Draws an update, at times of an object that is already odd."""
        tree = self.harmless(kind, self.base(kind))
        before = self.harmless(kind, self.changed(kind, tree)) if self.dice.random() < 0.4 else tree
        after = self.changed(kind, before)
        if isinstance(after.get("metadata"), dict):
            after["metadata"]["resourceVersion"] = "{{rv}}"
        path = kind.collection + "/{{name}}"
        path += "/status" if "status" in kind.subresources and self.dice.random() < 0.15 else ""
        steps = [self.first(kind, before), Step("PUT", path, self.parameters(kind, after, True), [JSON], after)]
        return self.case(kind, steps + [Step("GET", kind.collection + "/{{name}}")])

    def patched(self, kind):
        """Draws a patch."""
        tree = self.harmless(kind, self.base(kind))
        path = kind.collection + "/{{name}}"
        draw = self.dice.choice([self.patches.merge, self.patches.strategic, self.patches.strategic, self.patches.json])
        return self.case(kind, [self.first(kind, tree), draw(kind, tree, path, self.parameters(kind, tree, True)), Step("GET", path)])

    def applied(self, kind):
        """Draws two managers that apply."""
        steps = []
        tree = self.harmless(kind, self.base(kind))
        if self.dice.random() < 0.6:
            steps.append(self.first(kind, tree))
        for _ in range(self.dice.choice([1, 2, 2])):
            part = self.changed(kind, self.subset(tree) if self.dice.random() < 0.5 else tree)
            query = [("fieldManager", self.dice.choice(["m0", "m1", "m2"])), ("force", self.dice.choice(["true", "true", "false"]))]
            steps.append(Step("PATCH", kind.collection + "/{{name}}", query + self.parameters(kind, part, True), [("Content-Type", "application/apply-patch+yaml")], part))
        return self.case(kind, steps)

    def written(self, kind):
        """Draws a case of a kind whose status the reference writes on its own, so versions differ: only dry runs."""
        tree = self.changed(kind, self.base(kind))
        if self.dice.random() < 0.6:
            return self.case(kind, [Step("POST", kind.collection, [("dryRun", "All")], [JSON], tree)])
        path = f"{kind.collection}/{WRITTEN[kind.kind]}"
        query = [("dryRun", "All")]
        if self.dice.random() < 0.3:
            return self.case(kind, [Step("PATCH", path, [*query, ("fieldManager", "m1"), ("force", "true")], [("Content-Type", "application/apply-patch+yaml")], {**tree, "metadata": {"name": WRITTEN[kind.kind]}})])
        draw = self.dice.choice([self.patches.merge, self.patches.strategic, self.patches.json])
        return self.case(kind, [draw(kind, kind.bases[0], path, query)])
