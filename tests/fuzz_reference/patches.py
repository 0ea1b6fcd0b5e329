"""Draws patches of objects."""

import copy

from mutate import at, paths
from steps import Step


def merge_patch(old, new):
    """Returns the merge patch between two trees."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return copy.deepcopy(new)
    patch = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = copy.deepcopy(value)
        elif old[key] != value or type(old[key]) is not type(value):
            patch[key] = merge_patch(old[key], value)
    return patch


class PatchDrawer:
    """Draws patches."""

    def __init__(self, dice, mutator):
        self.dice, self.mutator = dice, mutator

    def merge(self, kind, tree, path, query):
        """Draws a merge patch: mostly the difference to a mutated object."""
        changed = self.mutator.mutated(tree, kind.schema, self.dice.choice([1, 1, 2]))
        patch = merge_patch(tree, changed)
        if self.dice.random() < 0.08:
            patch.setdefault("metadata", {})
            if isinstance(patch["metadata"], dict):
                patch["metadata"].update(self.dice.choice([
                    {"resourceVersion": "{{rv}}"}, {"resourceVersion": "1"}, {"uid": "x"}, {"name": "other"}, {"namespace": "other"}, {"generation": 7}, {"creationTimestamp": None}, {"managedFields": []}, {"managedFields": [{}]},
                    {"deletionTimestamp": "2024-05-01T10:00:00Z"}, {"finalizers": ["example.com/f"]}, {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]}, {"selfLink": "/x"}, {"generateName": "x"},
                ]))
        if self.dice.random() < 0.03:
            patch = self.dice.choice([[], "x", None, 1, {"kind": "Other"}, {"apiVersion": "v9"}, {"kind": ""}, {"apiVersion": None}])
        return Step("PATCH", path, query, [("Content-Type", "application/merge-patch+json")], patch)

    def strategic(self, kind, tree, path, query):
        """Draws a strategic merge patch, with directives."""
        patch = merge_patch(tree, self.mutator.mutated(tree, kind.schema, self.dice.choice([1, 1, 2])))
        for _ in range(self.dice.choice([0, 1, 1, 2])):
            self.direct(patch, tree)
        return Step("PATCH", path, query, [("Content-Type", "application/strategic-merge-patch+json")], patch)

    def direct(self, patch, tree):
        """Adds a directive about a place of the object."""
        dice = self.dice
        places = [path for path in paths(tree) if isinstance(at(tree, path), (dict, list)) and path[0] != "metadata" or path == ("metadata", "labels")]
        if not places:
            return
        path = dice.choice([one for one in places if not any(isinstance(key, int) for key in one)] or places)
        parent = patch
        for key in path[:-1]:
            if not isinstance(parent, dict) or isinstance(key, int):
                return
            parent = parent.setdefault(key, {})
        if not isinstance(parent, dict):
            return
        old, key = at(tree, path), path[-1]
        if isinstance(old, dict):
            inner = {name: old[name] for name in old if dice.random() < 0.4}
            parent[key] = {**inner, dice.choice(["$patch", "$patch", "$retainKeys"]): dice.choice(["delete", "replace", "merge", "x", 1, list(old)[:1], ["x"]])}
            return
        form = dice.randrange(5)
        # A value may be null.
        old = old or []
        if old and isinstance(old[0], dict):
            names = [name for name in ("name", "containerPort", "port", "mountPath", "key", "ip", "type", "uid", "topologyKey", "devicePath") if name in old[0]]
            name = dice.choice(names or sorted(old[0]) or ["name"])
            item = {name: old[0].get(name, "x")}
            if form == 0:
                parent[key] = [{**item, "$patch": dice.choice(["delete", "replace", "merge", "x"])}]
            elif form == 1:
                parent[key] = [{"$patch": "replace"}, copy.deepcopy(old[-1])]
            elif form == 2:
                parent[f"$setElementOrder/{key}"] = [item, {name: "new"}][: dice.choice([1, 2])]
                parent[key] = [{name: "new"}] if dice.random() < 0.5 else []
            elif form == 3:
                parent[key] = [{**item, dice.choice(["image", "x", "value", "protocol", "$retainKeys"]): dice.choice(["y", ["name"], None, 1])}]
            else:
                parent[key] = dice.choice([[{"$patch": "delete"}], [{}], [None], ["x"], [item, item], None])
        elif form < 2:
            parent[f"$deleteFromPrimitiveList/{key}"] = dice.choice([old[:1], ["x"], old, "x", [1], []])
        elif form == 2:
            parent[f"$setElementOrder/{key}"] = list(reversed(old)) + dice.choice([[], ["x"]])
        else:
            parent[key] = dice.choice([["new"], old, [], None, ["$patch"], [{"$patch": "replace"}], [1]])

    def json(self, kind, tree, path, query):
        """Draws a JSON patch."""
        patch = [self.operation(kind, tree) for _ in range(self.dice.choice([1, 1, 2, 3]))]
        if self.dice.random() < 0.03:
            patch = self.dice.choice([{}, [], None, "x", [[]], [{}], [None], patch * 200, patch * 5001])
        return Step("PATCH", path, query, [("Content-Type", "application/json-patch+json")], patch)

    def operation(self, kind, tree):
        """Draws one operation."""
        dice = self.dice
        places = list(paths(tree))
        drawn = dice.choice(places)
        pointer = self.pointer(drawn)
        if dice.random() < 0.2:
            pointer = dice.choice([pointer + "/-", pointer + "/0", pointer + "/x", pointer + "/-1", pointer + "/01", pointer + "/99", "", "/", "x", pointer + "/", "/metadata/labels/a~1b", "/metadata/annotations/x", "/spec", "/metadata/~2", "/status"])
        action = dice.choice(["add", "add", "remove", "replace", "replace", "move", "copy", "test", "x", ""])
        one = {"op": action, "path": pointer}
        if action in ("add", "replace", "test", "x"):
            schema = self.mutator.schema_at(kind.schema, drawn)
            one["value"] = copy.deepcopy(at(tree, drawn)) if dice.random() < 0.4 else self.mutator.value(schema, drawn[-1], at(tree, drawn))
        if action in ("move", "copy"):
            one["from"] = self.pointer(dice.choice(places))
        if dice.random() < 0.05:
            one.pop(dice.choice(sorted(one)))
        if dice.random() < 0.03:
            one[dice.choice(["from", "value", "extra", "Op", "PATH"])] = dice.choice(["/metadata/name", None, 1])
        return one

    @staticmethod
    def pointer(path):
        """Returns a path as a JSON pointer."""
        return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)
