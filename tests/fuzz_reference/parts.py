"""Draws requests to the parts of objects that are no views of them, and requests of other users: scales, tokens,
bindings, evictions, streams, approvals, finalizers, deletions of many."""

import copy

from builtin import ACCEPTS, LABEL_SELECTORS
from steps import JSON, Case, Step

MERGE, STRATEGIC, APPLY = "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"
PODS = "/api/v1/namespaces/fuzz/pods"
CONTAINERS = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m"}}, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]}
TWO = {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}], "initContainers": [{"name": "in", "image": "i"}]}
TEMPLATE = {"metadata": {"labels": {"a": "b", "k": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["y", "x"]}]}
SCALED = {
    "/apis/apps/v1/namespaces/fuzz/deployments": {"replicas": 2, "selector": SELECTOR, "template": TEMPLATE},
    "/apis/apps/v1/namespaces/fuzz/replicasets": {"selector": SELECTOR, "template": TEMPLATE},
    "/apis/apps/v1/namespaces/fuzz/statefulsets": {"serviceName": "x", "selector": SELECTOR, "template": TEMPLATE},
    "/api/v1/namespaces/fuzz/replicationcontrollers": {"selector": {"a": "b"}, "template": TEMPLATE},
}
METADATA = [{"name": ""}, {"name": None}, {"name": "other"}, {"namespace": "other"}, {"namespace": ""}, {"namespace": None}, {"uid": "x"}, {"uid": "{{uid}}"}, {"resourceVersion": "{{rv}}"}, {"resourceVersion": "1"}, {"resourceVersion": "x"}, {"labels": {"x": "y"}}, {"annotations": {"x": "y"}}, {"finalizers": ["a.b/c"]},
            {"generateName": "x-"}, {"managedFields": []}, {"deletionTimestamp": "2024-05-01T10:00:00Z"}, {"creationTimestamp": None}, {"unknown": 1}]
REPLICAS = [0, 1, 5, -1, 2**31 - 1, 2**31, 1.5, "1", None]
TOKENS = [{"audiences": ["a", "b"]}, {"audiences": [""]}, {"expirationSeconds": 600}, {"expirationSeconds": 599}, {"expirationSeconds": 2**32 + 1}, {"expirationSeconds": 0}, {"expirationSeconds": None}, {"expirationSeconds": "x"}, {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "{{name}}"}}, {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "{{name}}", "uid": "{{uid}}"}},
          {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "{{name}}", "uid": "x"}}, {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "absent"}}, {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "absent"}}, {"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "absent"}}, {"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "x"}}, {"boundObjectRef": {}}, {"unknown": 1}]
TARGETS = [{"kind": "Node", "name": "n1"}, {"name": "n1"}, {"kind": "Pod", "name": "n1"}, {"kind": "Node"}, {"name": "x/y"}, {}, {"name": "n1", "apiVersion": "v1", "namespace": "x", "uid": "u"}, None]
OPTIONS = [{"gracePeriodSeconds": 0}, {"gracePeriodSeconds": 5}, {"gracePeriodSeconds": -1}, {"dryRun": ["All"]}, {"dryRun": ["x"]}, {"preconditions": {"uid": "x"}}, {"preconditions": {"uid": "{{uid}}"}}, {"preconditions": {"resourceVersion": "1"}}, {"propagationPolicy": "Orphan"}, {"propagationPolicy": "Foreground"}, {"orphanDependents": True}, {"orphanDependents": True, "propagationPolicy": "Orphan"}, {"kind": "DeleteOptions", "apiVersion": "v1"}, {"kind": "x", "apiVersion": "v1"}, {"unknown": 1}, {}]
PHASES = ["Pending", "Running", "Succeeded", "Failed"]
EPHEMERAL = [{"name": "e1", "image": "i"}, {"name": "c", "image": "i"}, {"name": "e2", "image": "i", "targetContainerName": "c"}, {"name": "e2", "image": "i", "targetContainerName": "absent"}, {"name": "e3", "image": "i", "ports": [{"containerPort": 1}]}, {"name": "e4", "image": "i", "stdin": True, "securityContext": {"privileged": True}}, {"name": "e5"}, {"name": "E", "image": "i"}, {"name": "e1", "$patch": "delete"}]
RESOURCES = [{"requests": {"cpu": "150m"}}, {"requests": {"cpu": "300m"}}, {"limits": {"memory": "32Mi"}}, {"limits": None}, {"requests": None}, {"requests": {"cpu": "0"}}, {"limits": {"example.com/gpu": "1"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}, {"requests": {"ephemeral-storage": "1Gi"}}]
STREAMED = ["", "command=ls&stdout=1", "stdout=1", "stdin=1&tty=1&stderr=1", "stdout=x", "container=absent&stdout=1&command=a", "container=c&stdout=1&command=a", "container=in&stdout=1&command=a", "ports=80", "ports=80,x", "ports=0", "ports=99999", "ports=%2B80"]
LOGGED = ["", "container=c", "container=absent", "container=in", "follow=1", "tailLines=-1", "tailLines=x", "sinceSeconds=0", "sinceTime=x", "sinceTime=2024-01-01T00:00:00Z", "sinceSeconds=5&sinceTime=2024-01-01T00:00:00Z", "limitBytes=0", "previous=true", "timestamps=1", "stream=Stdout", "stream=x", "stream=All&tailLines=1"]
PROXIED = ["pods/{{name}}/proxy", "pods/https:{{name}}:80/proxy/x", "pods/{{name}}:x/proxy", "pods/absent/proxy", "services/{{name}}/proxy", "services/{{name}}:http/proxy", "services/{{name}}:99/proxy", "services/https:{{name}}:http/proxy/", "services/absent/proxy", "services/ftp:{{name}}:1/proxy", "services/a:b:c:d/proxy"]
CONDITIONS = [{"type": "Approved", "status": "True", "reason": "r"}, {"type": "Denied", "status": "True"}, {"type": "Approved", "status": "False"}, {"type": "Failed", "status": "True"}, {"type": "X", "status": "Unknown"}, {"type": "", "status": "True"}, {"type": "Approved"}]
USERS = [[("Impersonate-User", "jane")], [("Impersonate-User", "jane"), ("Impersonate-Group", "dev")], [("Impersonate-User", "system:serviceaccount:fuzz:default")], [("Impersonate-User", "system:node:n1"), ("Impersonate-Group", "system:nodes")], [("Impersonate-User", "system:anonymous")], [("Impersonate-User", "system:kube-scheduler")],
         [("Impersonate-User", "jane"), ("Impersonate-Extra-scopes", "a"), ("Impersonate-Uid", "77")], [("Impersonate-Group", "x")], [("Impersonate-Uid", "b")], [("Impersonate-User", "system:serviceaccount:A:b")]]


class Parts:
    """Draws cases. Each makes the objects that it is about."""

    def __init__(self, dice, builtin):
        self.dice, self.builtin = dice, builtin
        self.forms = [self.scale, self.scale, self.token, self.bind, self.evict, self.ephemeral, self.resize, self.stream, self.proxy, self.approve, self.finalize, self.many, self.user, self.user]

    def draw(self):
        """Draws a case."""
        return self.dice.choice(self.forms)()

    def query(self):
        """Draws the parameters of a write."""
        dice = self.dice
        drawn = [("dryRun", "All"), ("fieldValidation", dice.choice(["Strict", "Warn", "Ignore"])), ("fieldManager", dice.choice(["m1", "m2"])), ("pretty", "1")]
        return [pair for pair in drawn if dice.random() < 0.15]

    def headers(self, sent="application/json"):
        """Draws the headers of a write."""
        headers = [("Content-Type", sent)]
        if self.dice.random() < 0.15:
            headers.append(("Accept", self.dice.choice(ACCEPTS)))
        return headers

    def metadata(self):
        """Draws the metadata of a body: mostly the right name, at times something more."""
        return {"name": "{{name}}", **(copy.deepcopy(self.dice.choice(METADATA)) if self.dice.random() < 0.4 else {})}

    def typed(self, version, kind, tree):
        """Puts version and kind before a body, rarely others or none."""
        version, kind = self.dice.choice([(version, kind)] * 8 + [(None, None), ("v1", kind), (version, "Pod"), ("x/y", kind), ("extensions/v1beta1", kind)])
        return {**({"apiVersion": version, "kind": kind} if version else {}), **tree}

    def pod(self, spec=CONTAINERS, node=0.5, labels=None):
        """Makes a pod, on a node or on none."""
        spec = {**copy.deepcopy(spec), **({"nodeName": "n1"} if self.dice.random() < node else {})}
        return Step("POST", PODS, [], [JSON], {"metadata": {"name": "{{name}}", **({"labels": labels} if labels else {})}, "spec": spec})

    @staticmethod
    def case(subject, steps, path, more=()):
        """Makes a case that looks at the object at its end and removes it."""
        steps = [*steps, Step("GET", path)]
        return Case("part " + subject, steps, [*more, Step("DELETE", path, [("gracePeriodSeconds", "0"), ("propagationPolicy", "Background")])])

    def scale(self):
        """Draws writes and reads of a scale."""
        dice = self.dice
        collection = dice.choice(sorted(SCALED))
        path = collection + "/{{name}}"
        steps = [Step("POST", collection, [("fieldManager", "m0")], [JSON], {"metadata": {"name": "{{name}}"}, "spec": copy.deepcopy(SCALED[collection])})]
        for _ in range(dice.choice([1, 2, 3])):
            tree = {"metadata": self.metadata(), **({"spec": dice.choice([{"replicas": dice.choice(REPLICAS)}] * 4 + [{}, None, {"x": 1}])} if dice.random() < 0.9 else {"status": {"replicas": 3}})}
            form = dice.random()
            if form < 0.15:
                steps.append(Step("GET", path + "/scale", [], [("Accept", dice.choice(ACCEPTS))]))
            elif form < 0.45:
                steps.append(Step("PUT", path + "/scale", self.query(), self.headers(), self.typed("autoscaling/v1", "Scale", tree)))
            elif form < 0.7:
                tree = tree if dice.random() < 0.5 else {key: tree[key] for key in tree if key != "metadata"}
                steps.append(Step("PATCH", path + "/scale", self.query(), self.headers(dice.choice([MERGE, STRATEGIC])), tree))
            elif form < 0.8:
                patch = [{"op": dice.choice(["replace", "add", "test", "remove"]), "path": dice.choice(["/spec/replicas", "/metadata/name", "/status/replicas", "/spec", "/x"]), "value": dice.choice(REPLICAS)}]
                steps.append(Step("PATCH", path + "/scale", self.query(), self.headers("application/json-patch+json"), patch))
            else:
                query = [("fieldManager", dice.choice(["m1", "m2"]))] + ([("force", "true")] if dice.random() < 0.5 else [])
                steps.append(Step("PATCH", path + "/scale", query, self.headers(APPLY), self.typed("autoscaling/v1", "Scale", tree)))
        return self.case("scale", steps, path)

    def token(self):
        """Draws requests for tokens of a service account, beside a pod that they may be bound to."""
        dice = self.dice
        steps = [self.pod()]
        for _ in range(dice.choice([1, 2])):
            tree = {"spec": {**dice.choice(TOKENS), **(dice.choice(TOKENS) if dice.random() < 0.3 else {})}}
            if dice.random() < 0.3:
                tree["metadata"] = dice.choice([{"name": "default"}, {"name": "x"}, {"namespace": "other"}, {"labels": {"a": "b"}}])
            path = "/api/v1/namespaces/fuzz/serviceaccounts/" + dice.choice(["default", "default", "default", "absent"]) + "/token"
            steps.append(Step("POST", path, self.query(), self.headers(), self.typed("authentication.k8s.io/v1", "TokenRequest", tree)))
        return self.case("token", steps, PODS + "/{{name}}")

    def bind(self):
        """Draws bindings of a pod."""
        dice = self.dice
        steps = [self.pod(node=0.2)]
        for _ in range(dice.choice([1, 2])):
            tree = {"metadata": self.metadata(), "target": dice.choice(TARGETS)}
            steps.append(Step("POST", PODS + "/{{name}}/binding", self.query(), self.headers(), self.typed("v1", "Binding", tree)))
        return self.case("binding", steps, PODS + "/{{name}}")

    def evict(self):
        """Draws evictions of a pod in any phase, at times under a budget."""
        dice = self.dice
        steps, more = [self.pod(labels={"evict": "{{name}}"})], []
        steps.append(Step("PATCH", PODS + "/{{name}}/status", [], [("Content-Type", MERGE)], {"status": {"phase": dice.choice(PHASES), "conditions": [{"type": "Ready", "status": dice.choice(["True", "False"])}]}}))
        if dice.random() < 0.5:
            budgets = "/apis/policy/v1/namespaces/fuzz/poddisruptionbudgets"
            spec = {**dice.choice([{"minAvailable": 1}, {"maxUnavailable": 0}, {"maxUnavailable": "50%"}]), "selector": {"matchLabels": {"evict": "{{name}}"}}, **dice.choice([{}, {"unhealthyPodEvictionPolicy": "AlwaysAllow"}])}
            steps.append(Step("POST", budgets, [], [JSON], {"metadata": {"name": "{{name}}"}, "spec": spec}))
            if dice.random() < 0.5:
                status = {"observedGeneration": dice.choice([0, 1]), "disruptionsAllowed": dice.choice([0, 1]), "currentHealthy": 1, "desiredHealthy": dice.choice([0, 1]), "expectedPods": 1}
                steps.append(Step("PATCH", budgets + "/{{name}}/status", [], [("Content-Type", MERGE)], {"status": status}))
            more = [Step("DELETE", budgets + "/{{name}}")]
        for _ in range(dice.choice([1, 2])):
            tree = {"metadata": self.metadata(), **({"deleteOptions": dice.choice(OPTIONS)} if dice.random() < 0.6 else {})}
            steps.append(Step("POST", PODS + "/{{name}}/eviction", self.query(), self.headers(), self.typed(dice.choice(["policy/v1", "policy/v1", "policy/v1beta1"]), "Eviction", tree)))
        return self.case("eviction", steps, PODS + "/{{name}}", more)

    def ephemeral(self):
        """Draws ephemeral containers."""
        return self.containers("ephemeralcontainers", lambda: {"ephemeralContainers": self.dice.choice([[self.dice.choice(EPHEMERAL)], [self.dice.choice(EPHEMERAL), {"name": "e9", "image": "i"}], [], None])})

    def resize(self):
        """Draws resources of a running pod."""
        return self.containers(self.dice.choice(["resize", "resize", ""]), lambda: {"containers": [{"name": "c", **self.dice.choice([{"resources": self.dice.choice(RESOURCES)}] * 6 + [{"image": "j"}, {"resizePolicy": []}])}]})

    def containers(self, part, spec):
        """Draws patches of a pod's containers."""
        dice = self.dice
        path = PODS + "/{{name}}"
        steps = [self.pod(dice.choice([CONTAINERS, CONTAINERS, TWO]))]
        for _ in range(dice.choice([1, 2, 3])):
            tree = {"spec": copy.deepcopy(spec()), **({"metadata": self.metadata()} if dice.random() < 0.3 else {})}
            sent, query = dice.choice([STRATEGIC, STRATEGIC, MERGE]), self.query()
            if dice.random() < 0.2:
                sent, query, tree = APPLY, [("fieldManager", "m1")], {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{{name}}"}, **tree}
            steps.append(Step("PATCH", f"{path}/{part}".rstrip("/"), query, self.headers(sent), tree))
        return self.case(part or "containers", steps, path)

    def stream(self):
        """Draws logs of pods and streams to them, which end before any node is reached."""
        dice = self.dice
        steps = [self.pod(dice.choice([CONTAINERS, TWO]))]
        for _ in range(3):
            part = dice.choice(["log", "exec", "attach", "portforward"])
            path = f"{PODS}/{dice.choice(['{{name}}', '{{name}}', '{{name}}', 'absent'])}/{part}"
            headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")] if dice.random() < 0.2 else []
            steps.append(Step("GET" if part == "log" else dice.choice(["GET", "POST"]), path + "?" + dice.choice(LOGGED if part == "log" else STREAMED), [], headers))
        return self.case("stream", steps, PODS + "/{{name}}")

    def proxy(self):
        """Draws proxies to a pod and to a service without endpoints."""
        dice, services = self.dice, "/api/v1/namespaces/fuzz/services"
        steps = [self.pod(), Step("POST", services, [], [JSON], {"metadata": {"name": "{{name}}"}, "spec": {"clusterIP": "None", "ports": [{"port": 80, "name": "http"}]}})]
        steps += [Step(dice.choice(["GET", "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]), "/api/v1/namespaces/fuzz/" + dice.choice(PROXIED)) for _ in range(3)]
        return self.case("proxy", steps, PODS + "/{{name}}", [Step("DELETE", services + "/{{name}}")])

    def approve(self):
        """Draws approvals of a request for a certificate."""
        dice, path = self.dice, "/apis/certificates.k8s.io/v1/certificatesigningrequests/{{name}}"
        bases = [kind.bases for kind in self.builtin.kinds if kind.kind == "CertificateSigningRequest"]
        if not bases:
            return self.stream()
        steps = [Step("POST", path.rsplit("/", 1)[0], [], [JSON], copy.deepcopy(dice.choice(bases[0])))]
        for _ in range(dice.choice([1, 2, 3])):
            status = {"conditions": [dice.choice(CONDITIONS) for _ in range(dice.choice([0, 1, 1, 2]))]}
            part = dice.choice(["/approval", "/approval", "/status", ""])
            if part == "/status" and dice.random() < 0.4:
                status["certificate"] = dice.choice(["eA==", "x", "", None])
            steps.append(Step("PATCH", path + part, self.query(), self.headers(MERGE), {"status": status, **({"metadata": self.metadata()} if dice.random() < 0.2 else {})}))
        return self.case("approval", steps, path)

    def finalize(self):
        """Draws finalizers of a namespace and its deletions."""
        dice, path = self.dice, "/api/v1/namespaces/{{name}}"
        steps = [Step("POST", "/api/v1/namespaces", [], [JSON], {"metadata": {"name": "{{name}}"}})]
        for _ in range(dice.choice([2, 3, 4])):
            finalizers = dice.choice([[], ["kubernetes"], ["kubernetes", "a.b/c"], ["bad"], None])
            steps.append(dice.choice([
                Step("PUT", path + "/finalize", self.query(), self.headers(), self.typed("v1", "Namespace", {"metadata": self.metadata(), "spec": {"finalizers": finalizers}})),
                Step("PATCH", path + "/status", self.query(), self.headers(MERGE), {"status": {"phase": dice.choice(["Terminating", "Active", "x"])}}),
                Step("DELETE", path, [], [JSON], dice.choice(OPTIONS)), Step("POST", path + "/configmaps", [], [JSON], {"metadata": {"name": "x"}}), Step("PATCH", path, self.query(), self.headers(MERGE), {"spec": {"finalizers": finalizers}}),
            ]))
        last = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "{{name}}"}, "spec": {"finalizers": []}}
        return self.case("finalize", steps, path, [Step("DELETE", path + "/configmaps/x"), Step("DELETE", path), Step("PUT", path + "/finalize", [], [JSON], last)])

    def many(self):
        """Draws deletions of many, of kinds that are stored, with selectors that only the case's object can have."""
        dice = self.dice
        kinds = [kind for kind in self.builtin.kinds if kind.is_stored and "deletecollection" in kind.verbs]
        if not kinds:
            return self.stream()
        kind = dice.choice(kinds)
        tree = self.builtin.base(kind)
        tree["metadata"]["labels"] = {"many": "{{name}}"}
        query = [("labelSelector", "many={{name}}" + dice.choice(["", "", ",a", ",!a"]))] + ([("dryRun", "All")] if dice.random() < 0.2 else [])
        if dice.random() < 0.1:
            query = [("labelSelector", "many={{name}}," + dice.choice(LABEL_SELECTORS))]
        body = dice.choice([None, *OPTIONS])
        steps = [Step("POST", kind.collection, [], [JSON], tree), Step("DELETE", kind.collection, query, ([JSON] if body is not None else []) + ([("Accept", dice.choice(ACCEPTS))] if dice.random() < 0.3 else []), body)]
        steps.append(Step("GET", kind.collection + "/{{name}}"))
        return Case("part many " + kind.kind, steps, self.builtin.tidy(kind))

    def user(self):
        """Draws requests of users without rights, or with some of their own. What they may write is not stored."""
        dice = self.dice
        kind, headers = dice.choice(self.builtin.kinds), dice.choice(USERS)
        steps = []
        for _ in range(3):
            path = dice.choice([kind.collection, kind.collection + "/x", f"{kind.root}/{kind.resource}"])
            if path.endswith("/x") and kind.subresources and dice.random() < 0.4:
                path += "/" + dice.choice(kind.subresources)
            method = dice.choice(["GET", "GET", "POST", "PUT", "PATCH", "DELETE"])
            body = None if method in ("GET", "DELETE") else self.builtin.base(kind) if method != "PATCH" else {}
            query = [("dryRun", "All")] if method != "GET" else dice.choice([[], [], [("fieldSelector", "metadata.name=x")], [("watch", "1"), ("timeoutSeconds", "1"), ("labelSelector", "nobody=has")]])
            # One without a name would be the whole collection.
            method = "GET" if method == "DELETE" and "/x" not in path else method
            sent = [("Content-Type", MERGE if method == "PATCH" else "application/json")] if body is not None else []
            steps.append(Step(method, path, query if method != "GET" or query != [("dryRun", "All")] else [], sent + headers, body))
        attributes = {"namespace": "fuzz", "verb": dice.choice(["get", "list", "create", "*"]), "group": kind.group, "resource": kind.resource}
        steps.append(Step("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", [], [JSON] + headers, {"spec": {"resourceAttributes": attributes}}))
        return Case("part user " + kind.kind, steps, dry=True)
