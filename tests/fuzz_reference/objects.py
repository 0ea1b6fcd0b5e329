"""Valid objects of every built-in kind: the first ones of the recorded cases of src/batteries/golden."""

import gzip
import json
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent.parent / "src" / "batteries" / "golden"
NAMESPACE = "fuzz"
LOOKED_AT = 40
KEPT = 8
# Stored objects of these kinds change what the reference answers to other requests, or take what there is one of.
DRY_ONLY = {
    "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding", "APIService", "CustomResourceDefinition", "ServiceCIDR", "ResourceQuota", "LimitRange", "PriorityLevelConfiguration", "FlowSchema", "Namespace", "IPAddress",
}


class Kind:
    """A resource of a server: where it is, what can be done to it, and valid objects of it."""

    def __init__(self, group, version, entry, schema):
        self.group, self.version, self.kind = group, version, entry["kind"]
        self.resource, self.verbs = entry["name"], entry["verbs"]
        self.namespaced = entry["namespaced"]
        self.schema = schema
        self.subresources = []
        self.bases = []

    @property
    def root(self):
        """Returns the path of the resource in all namespaces."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def collection(self):
        """Returns the path of the collection that requests are sent to."""
        return f"{self.root}/namespaces/{NAMESPACE}/{self.resource}" if self.namespaced else f"{self.root}/{self.resource}"

    @property
    def is_stored(self):
        """Tells whether objects may be stored."""
        return {"get", "delete", "update", "patch"} <= set(self.verbs) and self.kind not in DRY_ONLY

    @property
    def file(self):
        """Returns the file of the recorded cases."""
        return GOLDEN / f"{self.group or 'core'}.{self.version}.{self.kind}.jsonl.gz"

    def read_bases(self):
        """Reads valid objects."""
        if not self.file.exists():
            return
        for number, line in enumerate(gzip.open(self.file, "rt")):
            case = json.loads(line)
            if number >= LOOKED_AT or case["op"] != "create" or len(self.bases) >= KEPT:
                break
            if isinstance(case["in"], dict) and not {"errors", "error", "failure", "decodeError"} & set(case["out"]):
                self.bases.append(self.placed(case["in"]))

    def placed(self, tree):
        """Returns an object as it is sent: with its kind, in the namespace, named later."""
        tree = {"apiVersion": f"{self.group}/{self.version}" if self.group else self.version, "kind": self.kind, **tree}
        metadata = tree.setdefault("metadata", {})
        metadata.pop("generateName", None)
        metadata.pop("namespace", None)
        if self.namespaced:
            metadata["namespace"] = NAMESPACE
        if self.kind.endswith("Review"):
            metadata.pop("name", None)
            if self.namespaced:
                tree["spec"]["resourceAttributes"]["namespace"] = NAMESPACE
            return tree
        if self.kind in ("APIService", "CustomResourceDefinition", "IPAddress"):
            return tree
        prefix = metadata["name"].rsplit(":", 1)[0] + ":" if self.kind == "ClusterTrustBundle" and ":" in metadata.get("name", "") else ""
        metadata["name"] = prefix + "{{name}}"
        if self.kind == "Pod":
            tree.get("spec", {}).pop("priority", None)
        if self.kind in ("Event",):
            for key in ("involvedObject", "regarding"):
                if key in tree:
                    tree[key]["namespace"] = NAMESPACE
        return tree


def served(server, schemas):
    """Returns the kinds that a server serves."""
    kinds = []
    groups = [("", "v1", "/api/v1")]
    for group in server.get("/apis")["groups"]:
        if "." in group["name"] and not group["name"].endswith(".k8s.io"):
            continue
        groups += [(group["name"], one["version"], f"/apis/{one['groupVersion']}") for one in group["versions"]]
    for group, version, path in groups:
        resources = server.get(path)["resources"]
        own = {}
        for entry in resources:
            if "/" not in entry["name"]:
                own[entry["name"]] = Kind(group, version, entry, schemas.of_kind(group, version, entry["kind"]))
                kinds.append(own[entry["name"]])
        for entry in resources:
            name, _, subresource = entry["name"].partition("/")
            if subresource and name in own:
                own[name].subresources.append(subresource)
    for kind in kinds:
        kind.read_bases()
    return [kind for kind in kinds if kind.bases]
