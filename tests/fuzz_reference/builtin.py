"""Draws cases about built-in kinds."""

import copy

from mutate import Mutator, drop, paths
from patches import PatchDrawer
from steps import JSON, Case, Step

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
ACCEPTS = [
    "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "*/*", "application/*", TABLE, TABLE + ",application/json", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "text/plain", "", "application/json;q=0.5, application/yaml", "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/json;as=Table;v=v2;g=meta.k8s.io",
    "application/json;as=Nothing;v=v1;g=meta.k8s.io", "application/json;stream=watch", "application/json;pretty=1", "application/xml, application/json", "application/cbor", "application/json;as=Table", "garbage", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
]
LABEL_SELECTORS = [
    "a=b", "a==b", "a!=b", "a in (b,c)", "a notin (b)", "a", "!a", "a=b,c=d", "", ",", "a=", "=b", "a in ()", "a in (", "a in b", "a b", "!", "a>1", "a<x", "a>1,b", "a in (b),", "A_/x=y", "example.com/x=y", "x/y/z=1", "a=b=c", "a = b", "\u00fc=1", "a=-b", "a in (-b)", "a" * 64, "a=" + "b" * 64,
    "a notin ()", "!a=b", "a,!b", "(a)", "a in (a,,b)", "in", "in in (in)", "a exists",
]
FIELD_SELECTORS = [
    "metadata.name=x", "metadata.name!=x", "metadata.namespace=fuzz", "metadata.name", "spec.nodeName=", "status.phase=Running", "status.phase!=Running", "spec.unschedulable=true", "type=Opaque", "metadata.labels=x", "", ",", "=", "a=b", "metadata.name=a\\,b", "metadata.name=a\\", "metadata.name==x", "spec.restartPolicy=Always",
    "involvedObject.name=x", "reason=x", "metadata.name=x,metadata.name=y", "metadata.name=a=b", "spec.clusterIP=None", "status.successful=1", "spec.replicas=1", "spec.signerName=x", "metadata.name in (a)", "!metadata.name", "spec.hostNetwork=true", "status.podIP=1.2.3.4", "spec.serviceAccountName=x", "spec.schedulerName=default-scheduler", "status.nominatedNodeName=",
]
VERSIONS = ["0", "", "1", "-1", "x", "99999999999", "18446744073709551616", "1.5", " 1", "01"]


class Builtin:
    """Draws cases about the kinds that a server has."""

    def __init__(self, dice, schemas, kinds):
        self.dice, self.kinds = dice, kinds
        self.mutator = Mutator(dice, schemas)
        self.patches = PatchDrawer(dice, self.mutator)
        self.drawers = {"create": self.create, "update": self.update, "patch": self.patch, "apply": self.apply, "read": self.read}

    def draw(self, what):
        """Draws a case of one sort."""
        kind = self.dice.choice(self.kinds)
        # Half of the requests are about kinds that matter most, or whose rules are richest.
        rich = [one for one in self.kinds if one.kind in ("Pod", "Service", "Deployment", "StatefulSet", "Job", "CronJob", "HorizontalPodAutoscaler", "PersistentVolume", "Ingress", "ResourceClaim", "CustomResourceDefinition")]
        if rich and self.dice.random() < 0.4:
            kind = self.dice.choice(rich)
        return self.drawers[what](kind)

    def base(self, kind):
        """Draws a valid object."""
        return copy.deepcopy(self.dice.choice(kind.bases))

    def query(self, dry=None):
        """Draws the parameters of a write."""
        dice, query = self.dice, []
        if dry if dry is not None else dice.random() < 0.4:
            query.append(("dryRun", "All"))
        if dice.random() < 0.35:
            query.append(("fieldValidation", dice.choice(["Strict", "Strict", "Warn", "Ignore", "Ignore", "strict", ""])))
        if dice.random() < 0.2:
            query.append(("fieldManager", dice.choice(["m1", "m2", "", "a" * 128, "a" * 129, "\u00fc", "a\nb"])))
        if dice.random() < 0.03:
            query.append(dice.choice([("dryRun", "all"), ("dryRun", ""), ("dryRun", "All"), ("pretty", "true"), ("pretty", "x"), ("unknown", "1"), ("timeout", "1s"), ("timeout", "x"), ("force", "true")]))
        return query

    def headers(self):
        """Draws the headers of a write with a JSON body."""
        headers = [("Content-Type", self.dice.choice(["application/json"] * 30 + ["application/json; charset=utf-8", "application/yaml", "APPLICATION/JSON", "text/plain", ""]))]
        if self.dice.random() < 0.07:
            headers.append(("Accept", self.dice.choice(ACCEPTS)))
        return headers

    def mutated(self, kind, tree):
        """Mutates an object once to thrice."""
        return self.mutator.mutated(tree, kind.schema, self.dice.choice([1, 1, 1, 1, 2, 3]))

    def create(self, kind):
        """Draws a case that creates an object and reads it."""
        tree = self.mutated(kind, self.base(kind))
        dry = True if not kind.is_stored else None
        if self.dice.random() < 0.05 and isinstance(tree.get("metadata"), dict):
            tree["metadata"].update({"generateName": self.dice.choice(["x-", "", "a" * 250, "X_", "x."]), "name": self.dice.choice([None, "", "x"])})
            # What has another name than the case's would not be removed.
            dry = True
        steps = [Step("POST", kind.collection, self.query(dry), self.headers(), tree)]
        if kind.is_stored and not any(key == "dryRun" for key, _ in steps[0].query):
            steps.append(Step("GET", kind.collection + "/{{name}}", headers=[("Accept", self.dice.choice(ACCEPTS[:4] + [TABLE]))]))
        return Case(kind.kind, steps, self.tidy(kind), dry is True)

    def tidy(self, kind):
        """Makes the step that removes what a case has stored."""
        return Step("DELETE", kind.collection + "/{{name}}", [("gracePeriodSeconds", "0"), ("propagationPolicy", "Background")], [JSON])

    def any_stored(self, kind):
        """Returns a kind, or another if its objects are not stored."""
        return kind if kind.is_stored else self.dice.choice([one for one in self.kinds if one.is_stored] or [kind])

    def named(self, kind):
        """Draws the path of an object or of one of its parts."""
        path = kind.collection + "/{{name}}"
        parts = [one for one in kind.subresources if one in ("status", "scale", "resize", "ephemeralcontainers", "approval", "finalize")]
        return path + "/" + self.dice.choice(parts) if parts and self.dice.random() < 0.2 else path

    def after(self, kind, tree, step):
        """Puts a step after the creation of a valid object, and other steps between."""
        steps = [Step("POST", kind.collection, [("fieldManager", "m0")] if self.dice.random() < 0.5 else [], [JSON], tree)]
        between = self.dice.choice([0, 0, 0, 1, 2])
        for _ in range(between):
            steps.append(self.patches.merge(kind, tree, kind.collection + "/{{name}}", self.query(False)))
        steps += [step]
        if self.dice.random() < 0.3:
            steps.append(Step("GET", kind.collection + "/{{name}}", headers=[("Accept", self.dice.choice(["application/json", TABLE]))]))
        if self.dice.random() < 0.3:
            steps.append(self.delete(kind))
        return Case(kind.kind, steps, self.tidy(kind), not kind.is_stored)

    def update(self, kind):
        """Draws a case that replaces a stored object."""
        kind = self.any_stored(kind)
        tree = self.base(kind)
        changed = self.mutated(kind, tree)
        if isinstance(changed.get("metadata"), dict):
            form = self.dice.random()
            if form < 0.75:
                changed["metadata"]["resourceVersion"] = "{{rv}}"
            elif form < 0.8:
                changed["metadata"]["resourceVersion"] = self.dice.choice(VERSIONS)
            if self.dice.random() < 0.1:
                changed["metadata"]["uid"] = self.dice.choice(["{{uid}}", "{{uid}}", "x", "", "11111111-2222-3333-4444-555555555555"])
        return self.after(kind, tree, Step("PUT", self.named(kind), self.query(), self.headers(), changed))

    def patch(self, kind):
        """Draws a case that patches a stored object."""
        kind = self.any_stored(kind)
        tree = self.base(kind)
        draw = self.dice.choice([self.patches.merge, self.patches.strategic, self.patches.strategic, self.patches.json])
        return self.after(kind, tree, draw(kind, tree, self.named(kind), self.query()))

    def apply(self, kind):
        """Draws a case in which two managers apply."""
        kind = self.any_stored(kind)
        tree = self.base(kind)
        steps = []
        if self.dice.random() < 0.5:
            steps.append(Step("POST", kind.collection, [("fieldManager", "m0")], [JSON], tree))
        for _ in range(self.dice.choice([1, 2, 2, 3, 4])):
            applied = self.subset(tree) if self.dice.random() < 0.6 else copy.deepcopy(tree)
            if self.dice.random() < 0.8:
                applied = self.mutated(kind, applied)
            query = [("fieldManager", self.dice.choice(["m1", "m1", "m2", "m0"]))]
            if self.dice.random() < 0.4:
                query.append(("force", self.dice.choice(["true", "true", "false", "1", "x"])))
            if self.dice.random() < 0.15:
                query.append(("dryRun", "All"))
            if self.dice.random() < 0.2:
                query.append(("fieldValidation", self.dice.choice(["Strict", "Warn", "Ignore"])))
            if self.dice.random() < 0.03:
                query = query[1:]
            path = self.named(kind) if self.dice.random() < 0.15 else kind.collection + "/{{name}}"
            steps.append(Step("PATCH", path, query, [("Content-Type", self.dice.choice(["application/apply-patch+yaml"] * 9 + ["application/apply-patch+cbor"]))], applied))
        return Case(kind.kind, steps, self.tidy(kind), not kind.is_stored)

    def subset(self, tree):
        """Returns a part of an object."""
        tree = copy.deepcopy(tree)
        for _ in range(self.dice.randrange(1, 5)):
            places = [path for path in paths(tree) if path[0] not in ("apiVersion", "kind") and path not in (("metadata",), ("metadata", "name"))]
            if places:
                drop(tree, self.dice.choice(places))
        return tree

    def delete(self, kind):
        """Draws a deletion."""
        dice = self.dice
        body = None
        if dice.random() < 0.6:
            body = {"kind": "DeleteOptions", "apiVersion": dice.choice(["v1", "v1", "meta.k8s.io/v1", f"{kind.group}/{kind.version}".lstrip("/"), "x/y", None])}
            choices = [
                ("gracePeriodSeconds", [0, 1, -1, 30, "1", None, 1.5, 2**40]), ("propagationPolicy", ["Orphan", "Background", "Foreground", "", "x", None]), ("orphanDependents", [True, False, "true", None]),
                ("preconditions", [{"uid": "{{uid}}"}, {"uid": "x"}, {"resourceVersion": "{{rv}}"}, {"resourceVersion": "1"}, {}, None, {"uid": "", "resourceVersion": ""}]), ("dryRun", [["All"], [], ["x"], None, ["All", "All"]]),
                ("unknown", [1]), ("ignoreStoreReadErrorWithClusterBreakingPotential", [True, False]),
            ]
            for name, drawn in choices:
                if dice.random() < 0.25:
                    body[name] = dice.choice(drawn)
        query = []
        if dice.random() < 0.3:
            query.append(dice.choice([("gracePeriodSeconds", "0"), ("gracePeriodSeconds", "x"), ("gracePeriodSeconds", "-1"), ("propagationPolicy", "Foreground"), ("propagationPolicy", "x"), ("orphanDependents", "true"), ("dryRun", "All"), ("dryRun", "x"), ("fieldValidation", "Strict")]))
        return Step("DELETE", kind.collection + "/{{name}}", query, [JSON] if body is not None else [], body)

    def read(self, kind):
        """Draws a case of reads, with one object stored."""
        dice = self.dice
        steps = []
        if kind.is_stored and "get" in kind.verbs:
            tree = self.base(kind)
            # A valid object may have labels that are null.
            tree["metadata"]["labels"] = {**(tree["metadata"].get("labels") or {}), "a": "b"}
            steps.append(Step("POST", kind.collection, [], [JSON], tree))
        for _ in range(3):
            path = kind.collection if dice.random() < 0.7 else f"{kind.root}/{kind.resource}" if dice.random() < 0.5 else kind.collection + "/{{name}}"
            query = []
            for name, drawn in [
                ("labelSelector", LABEL_SELECTORS), ("fieldSelector", FIELD_SELECTORS + ["metadata.name={{name}}"] * 5), ("resourceVersion", VERSIONS), ("limit", ["1", "0", "-1", "x", "500", "1.5", ""]),
                ("resourceVersionMatch", ["Exact", "NotOlderThan", "x", ""]), ("continue", ["x", "", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJ4In0"]), ("sendInitialEvents", ["true", "false", "x"]),
                ("timeoutSeconds", ["1", "x", "-1"]), ("pretty", ["true", "false", "1"]), ("allowWatchBookmarks", ["true", "x"]), ("shardSelector", ["x"]), ("includeObject", ["None", "Metadata", "Object", "x"]),
            ]:
                if dice.random() < 0.14:
                    query.append((name, dice.choice(drawn)))
            if dice.random() < 0.05:
                query = [pair for pair in query if pair[0] != "timeoutSeconds"] + [("watch", dice.choice(["true", "1", "0", "false", "x"])), ("timeoutSeconds", "1")]
            steps.append(Step("GET", path, query, [("Accept", dice.choice(ACCEPTS))] if dice.random() < 0.7 else []))
        return Case(kind.kind, steps, self.tidy(kind), not kind.is_stored)
