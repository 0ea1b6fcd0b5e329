"""Draws watches beside writes of objects that enter and leave their selectors, and lists in pages."""

import copy

from builtin import ACCEPTS, FIELD_SELECTORS, LABEL_SELECTORS
from steps import JSON, Case, Step

MERGE = [("Content-Type", "application/merge-patch+json")]
APPLY = [("Content-Type", "application/apply-patch+yaml")]
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PROTOBUF = "application/vnd.kubernetes.protobuf"
STREAM = PROTOBUF + ";stream=watch"
OTHER = "fuzz-other"
NAMES = ["a", "b", "c", "d"]
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "watched.fuzz.example.com"},
    "spec": {"group": "fuzz.example.com", "scope": "Namespaced", "names": {"plural": "watched", "kind": "Watched"}, "versions": [{
        "name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}],
        "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}, {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string"}, "size": {"type": "integer"}}}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]},
}


class Watched:
    """A kind that is watched: a small object, fields that selectors know, and changes of these."""

    def __init__(self, root, resource, tree, selectors, changes, namespaced=True):
        self.root, self.resource, self.tree, self.selectors, self.changes, self.namespaced = root, resource, tree, selectors, changes, namespaced

    def collection(self, namespace="fuzz"):
        """Returns the path of a collection."""
        return f"{self.root}/namespaces/{namespace}/{self.resource}" if self.namespaced and namespace else f"{self.root}/{self.resource}"


def kind_of(version, kind, more):
    """Returns an object without metadata."""
    return {"apiVersion": version, "kind": kind, **more}


CONTAINERS = {"containers": [{"name": "c", "image": "i"}]}
KINDS = [
    Watched("/api/v1", "configmaps", kind_of("v1", "ConfigMap", {"data": {"a": "1"}}), [], [("", {"data": {"a": "2"}}), ("", {"immutable": True})]),
    Watched("/api/v1", "secrets", kind_of("v1", "Secret", {"type": "x/y"}), ["type=x/y", "type!=x/y", "type=Opaque"], [("", {"stringData": {"a": "b"}})]),
    Watched("/api/v1", "pods", kind_of("v1", "Pod", {"spec": CONTAINERS}), ["status.phase=Running", "status.phase!=Running", "status.phase=Pending", "spec.nodeName=", "spec.nodeName!=n", "spec.restartPolicy=Always", "status.podIP=1.2.3.4", "spec.schedulerName=default-scheduler,status.phase=Running"],
            [("/status", {"status": {"phase": "Running"}}), ("/status", {"status": {"phase": "Pending"}}), ("/status", {"status": {"podIP": "1.2.3.4", "podIPs": [{"ip": "1.2.3.4"}]}}), ("", {"spec": {"activeDeadlineSeconds": 5}})]),
    Watched("/api/v1", "nodes", kind_of("v1", "Node", {}), ["spec.unschedulable=true", "spec.unschedulable=false", "spec.unschedulable!=true"], [("", {"spec": {"unschedulable": True}}), ("", {"spec": {"unschedulable": None}}), ("/status", {"status": {"phase": "Running"}})], False),
    Watched("/api/v1", "events", kind_of("v1", "Event", {"involvedObject": {"namespace": "fuzz", "kind": "Pod", "name": "x"}, "reason": "r", "type": "Normal"}), ["reason=r", "reason=s", "involvedObject.name=x", "type=Normal", "involvedObject.kind!=Pod", "source="], [("", {"reason": "s"}), ("", {"type": "Warning"}), ("", {"count": 2})]),
    Watched("/apis/apps/v1", "deployments", kind_of("apps/v1", "Deployment", {"spec": {"selector": {"matchLabels": {"x": "y"}}, "template": {"metadata": {"labels": {"x": "y"}}, "spec": CONTAINERS}}}), [], [("", {"spec": {"replicas": 2}}), ("/scale", {"spec": {"replicas": 3}}), ("/status", {"status": {"replicas": 1}})]),
    Watched("/apis/batch/v1", "jobs", kind_of("batch/v1", "Job", {"spec": {"template": {"spec": {**CONTAINERS, "restartPolicy": "Never"}}}}), ["status.successful=0", "status.successful=1", "status.successful!=1"], [("/status", {"status": {"succeeded": 1}}), ("", {"spec": {"suspend": True}})]),
    Watched("/api/v1", "services", kind_of("v1", "Service", {"spec": {"ports": [{"port": 80}], "clusterIP": "None"}}), ["spec.clusterIP=None", "spec.type=ClusterIP", "spec.type!=ClusterIP", "spec.type=ExternalName"], [("", {"spec": {"sessionAffinity": "ClientIP"}})]),
    Watched("/apis/fuzz.example.com/v1", "watched", kind_of("fuzz.example.com/v1", "Watched", {"spec": {"color": "red", "size": 1}}), ["spec.color=red", "spec.color!=red", "spec.size=1", "spec.size=2,spec.color=red", "spec.color="], [("", {"spec": {"color": "blue"}}), ("", {"spec": {"color": "red"}}), ("", {"spec": {"color": None}}), ("", {"spec": {"size": 2}}), ("/status", {"status": {"x": 1}})]),
    Watched("/apis/coordination.k8s.io/v1", "leases", kind_of("coordination.k8s.io/v1", "Lease", {"spec": {}}), [], [("", {"spec": {"holderIdentity": "x"}})]),
    Watched("/apis/rbac.authorization.k8s.io/v1", "clusterroles", kind_of("rbac.authorization.k8s.io/v1", "ClusterRole", {"rules": []}), [], [("", {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["x"]}]})], False),
]


class WatchDrawer:
    """Draws cases of watches and lists."""

    def __init__(self, dice, pair, kinds=""):
        self.dice, self.pair = dice, pair
        self.kinds = [kind for kind in KINDS if not kinds or kind.tree["kind"] in kinds.split(",")]

    def prepare(self):
        """Makes the other namespace and the custom kind."""
        self.pair.both("POST", "/api/v1/namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": OTHER}})
        self.pair.both("POST", f"/api/v1/namespaces/{OTHER}/serviceaccounts", {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}})
        self.pair.both("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
        for _ in range(200):
            if all(answer.code == 200 for answer in self.pair.both("GET", "/apis/fuzz.example.com/v1/watched")):
                return

    def draw(self):
        """Draws a case."""
        kind, form = self.dice.choice(self.kinds), self.dice.random()
        custom = [one for one in self.kinds if one.tree["kind"] == "Watched"]
        if form < 0.06 and custom:
            return self.expired(custom[0])
        return self.watches(kind) if form < 0.6 else self.lists(kind)

    def placed(self, kind, namespace=None):
        """Draws the path of a collection and a name in it."""
        return kind.collection(namespace or self.dice.choice(["fuzz"] * 4 + [OTHER])), "{{name}}-" + self.dice.choice(NAMES)

    def created(self, kind, name=None):
        """Draws a creation."""
        path, drawn = self.placed(kind)
        tree = copy.deepcopy(kind.tree)
        tree["metadata"] = {"name": "{{name}}-" + name if name else drawn, "labels": {"case": "{{name}}", **self.labels()}}
        if tree["kind"] == "Event":
            tree["involvedObject"]["namespace"] = path.split("/")[4]
        if self.dice.random() < 0.15:
            tree["metadata"]["finalizers"] = ["example.com/f"]
        return Step("POST", path, [], [JSON], tree)

    def labels(self):
        """Draws labels."""
        return self.dice.choice([{}, {"a": "b"}, {"a": "c"}, {"a": "b", "c": "d"}, {"e": "5"}])

    def written(self, kind):
        """Draws a write."""
        dice = self.dice
        path, name = self.placed(kind)
        form = dice.random()
        if form < 0.2:
            return self.created(kind)
        if form < 0.4:
            return Step("PATCH", f"{path}/{name}", [], MERGE, {"metadata": {"labels": dice.choice([{"a": "b"}, {"a": "c"}, {"a": None}, {"c": "d"}, {"e": "0"}])}})
        if form < 0.65:
            part, change = dice.choice(kind.changes)
            return Step("PATCH", f"{path}/{name}{part}", [], MERGE, change)
        if form < 0.75:
            tree = {**copy.deepcopy(kind.tree), "metadata": {"name": name, "labels": {"case": "{{name}}", **self.labels()}}}
            return Step("PATCH", f"{path}/{name}", [("fieldManager", "m"), ("force", "true")], APPLY, tree)
        if form < 0.8:
            return Step("PATCH", f"{path}/{name}", [], MERGE, {"metadata": {"finalizers": dice.choice([None, ["example.com/f"]])}})
        if form < 0.84:
            return self.swept(kind)
        if form < 0.88:
            return Step("PATCH", f"{path}/{name}", [("dryRun", "All")], MERGE, {"metadata": {"labels": {"a": "b"}}})
        body = dice.choice([None, None, {"propagationPolicy": "Orphan"}, {"propagationPolicy": "Foreground"}])
        return Step("DELETE", f"{path}/{name}", dice.choice([[], [("gracePeriodSeconds", "0")]]), [JSON] if body else [], body)

    def swept(self, kind):
        """Draws a deletion of many."""
        dice = self.dice
        query = [("labelSelector", dice.choice(["case={{name}}", "case={{name}},a=b", "case={{name}},a notin (b)", "case={{name}},a"]))]
        if dice.random() < 0.4:
            query.append(("fieldSelector", dice.choice(kind.selectors + ["metadata.name={{name}}-a", "metadata.name!={{name}}-a", "metadata.namespace=fuzz", "metadata.namespace=x"])))
        for name, drawn in (("dryRun", ["All", "x"]), ("limit", ["1", "2"]), ("resourceVersion", ["0", "{{rv}}", "1"]), ("gracePeriodSeconds", ["0"]), ("propagationPolicy", ["Orphan", "Background"]), ("resourceVersionMatch", ["Exact", "NotOlderThan"]), ("continue", ["x"])):
            if dice.random() < 0.1:
                query.append((name, dice.choice(drawn)))
        return Step("DELETE", kind.collection(), query, dice.choice([[], [("Accept", dice.choice([TABLE, PARTIAL, PROTOBUF]))]]))

    def selectors(self, kind, query):
        """Draws selectors into a query, at least one that keeps other cases' objects away."""
        dice = self.dice
        # Roles and namespaces that the servers have made themselves differ a little.
        if dice.random() < 0.08 and kind.namespaced:
            query.append(("labelSelector", dice.choice(LABEL_SELECTORS)))
        else:
            query.append(("labelSelector", "case={{name}}" + dice.choice(["", "", ",a=b", ",a!=b", ",a", ",!a", ",a in (b,c)", ",a notin (b)", ",e>1", ",e<1"])))
        if dice.random() < 0.45:
            query.append(("fieldSelector", dice.choice(kind.selectors * 2 + ["metadata.name={{name}}-a", "metadata.name!={{name}}-a", "metadata.namespace=fuzz", "metadata.name={{name}}-a,metadata.namespace=" + OTHER])))
            if dice.random() < 0.05:
                query[-1] = ("fieldSelector", dice.choice(FIELD_SELECTORS))

    def watch(self, kind, label):
        """Draws a watch."""
        dice, query = self.dice, []
        path = dice.choice([kind.collection(), kind.collection(), kind.collection(""), kind.collection(OTHER)])
        single = dice.random() < 0.12
        if single:
            path = f"{kind.collection()}/{{{{name}}}}-a"
        if dice.random() < 0.1:
            path = path.replace("/v1/", "/v1/watch/", 1)
        if "/watch/" not in path or dice.random() < 0.2:
            query.append(("watch", dice.choice(["true", "true", "true", "1", "True", "", "yes", "false"]) if dice.random() < 0.2 else "true"))
        if not single or dice.random() < 0.3:
            self.selectors(kind, query)
        if dice.random() < 0.7:
            query.append(("resourceVersion", dice.choice(["", "0", "0", "{{rv}}", "{{rv}}", "{{first}}", "{{first}}", "{{first}}"] if dice.random() < 0.9 else ["x", "99999999", "-1", "00"])))
        if dice.random() < 0.25:
            query += [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")] + ([("allowWatchBookmarks", "true")] if dice.random() < 0.85 else [])
        else:
            for name, drawn in (("sendInitialEvents", ["true", "false", "x", ""]), ("resourceVersionMatch", ["NotOlderThan", "Exact", "x", ""]), ("allowWatchBookmarks", ["true", "false", "x"]), ("limit", ["1", "0"]), ("continue", ["x"])):
                if dice.random() < 0.07:
                    query.append((name, dice.choice(drawn)))
        # None that ends while there are writes: which events come before its end is chance.
        # Both servers wait three seconds for a version that is not there yet.
        seconds = "5" if ("resourceVersion", "99999999") in query else "3"
        query.append(("timeoutSeconds", seconds if dice.random() < 0.97 else dice.choice(["x", "1.5", "", "9223372036854775808"])))
        accept = dice.choice([None, None, None, "application/json", TABLE, TABLE, PARTIAL, PARTIAL, PROTOBUF, STREAM, "application/json;stream=watch", "application/yaml", dice.choice(ACCEPTS)])
        if accept == TABLE and dice.random() < 0.4:
            query.append(("includeObject", dice.choice(["None", "Metadata", "Object", "x"])))
        step = Step("WATCH", path, query, [("Accept", accept)] if accept is not None else [])
        step.label = label
        return step

    def watches(self, kind):
        """Draws a case of watches that are open while there are writes."""
        dice = self.dice
        steps = [self.created(kind, name) for name in NAMES[: dice.randrange(1, 4)]]
        steps += [self.written(kind) for _ in range(dice.randrange(3))]
        labels = [f"w{number}" for number in range(dice.choice([4, 8, 10]))]
        steps += [self.watch(kind, label) for label in labels]
        steps += [self.written(kind) for _ in range(dice.randrange(2, 9))]
        to_end = dice.random() < 0.1
        for label in labels:
            steps.append(Step("EVENTS", "to the end" if to_end else ""))
            steps[-1].label = label
        return Case("watch " + kind.tree["kind"], steps, self.tidy(kind))

    def expired(self, kind):
        """Draws a case of watches from before a custom kind was there. A server that has just been started may still
        have all events of a built-in one."""
        dice = self.dice
        steps = [self.created(kind, "a")]
        labels = [f"w{number}" for number in range(3)]
        for label in labels:
            step = self.watch(kind, label)
            step.query = [pair for pair in step.query if pair[0] not in ("resourceVersion", "sendInitialEvents", "resourceVersionMatch", "limit", "continue", "timeoutSeconds")]
            step.query += [("resourceVersion", dice.choice(["1", "1", "2"])), ("timeoutSeconds", "3")]
            steps.append(step)
        for label in labels:
            steps.append(Step("EVENTS", "to the end"))
            steps[-1].label = label
        return Case("watch " + kind.tree["kind"], steps, self.tidy(kind))

    def lists(self, kind):
        """Draws a case of lists in pages, with writes between them."""
        dice = self.dice
        steps = [self.created(kind, name) for name in NAMES[: dice.randrange(2, 5)]]
        for _ in range(dice.randrange(2, 6)):
            query = []
            self.selectors(kind, query)
            for name, drawn in (("resourceVersion", ["", "0", "{{rv}}", "{{first}}", "{{first}}", "1", "x", "99999999"]), ("limit", ["1", "2", "2", "3", "0"]), ("resourceVersionMatch", ["Exact", "NotOlderThan", "x", ""])):
                if dice.random() < 0.4:
                    query.append((name, dice.choice(drawn)))
            accept = dice.choice([[], [], [("Accept", dice.choice([TABLE, PARTIAL.replace("Metadata", "MetadataList"), PROTOBUF, PARTIAL, "application/yaml"]))]])
            path = kind.collection(dice.choice(["fuzz", "fuzz", ""]))
            steps.append(Step("GET", path, query, accept))
            if dice.random() < 0.4:
                steps.append(self.written(kind))
            elif dice.random() < 0.6:
                following = [pair for pair in query if pair[0] in ("labelSelector", "fieldSelector", "limit") or dice.random() < 0.1] + [("continue", "{{continue}}")]
                steps.append(Step("GET", path, following, accept))
        return Case("list " + kind.tree["kind"], steps, self.tidy(kind))

    @staticmethod
    def tidy(kind):
        """Makes the steps that remove what a case has stored."""
        steps = []
        for namespace in ("fuzz", OTHER) if kind.namespaced else ("",):
            path = kind.collection(namespace)
            steps += [Step("PATCH", f"{path}/{{{{name}}}}-{name}", [], MERGE, {"metadata": {"finalizers": None}}) for name in NAMES]
            steps.append(Step("DELETE", path, [("labelSelector", "case={{name}}"), ("gracePeriodSeconds", "0"), ("propagationPolicy", "Background")]))
        return steps
