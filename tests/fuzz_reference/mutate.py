"""Mutations of objects, drawn by the types of their fields."""

import copy

import cel
import values
from schemas import type_of

# Fields in whose place the server puts something of its own, or that say where an object is stored.
FIXED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid"), ("metadata", "resourceVersion")}
SELECTORS = {"selector", "labelSelector", "podSelector", "namespaceSelector", "objectSelector", "matchLabelKeys"}


def paths(tree, path=()):
    """Lists the paths of all places below the root of a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(pairs):
        yield path + (key,)
        yield from paths(value, path + (key,))


def at(tree, path):
    """Returns what stands at a path."""
    for key in path:
        tree = tree[key]
    return tree


def put(tree, path, value):
    """Sets what stands at a path."""
    at(tree, path[:-1])[path[-1]] = copy.deepcopy(value)


def drop(tree, path):
    """Removes what stands at a path."""
    del at(tree, path[:-1])[path[-1]]


class Mutator:
    """Draws mutations of objects by their schemas."""

    def __init__(self, dice, schemas):
        self.dice = dice
        self.schemas = schemas

    def schema_at(self, schema, path):
        """Returns the schema of a place."""
        for key in path:
            schema = self.schemas.child(schema, key)
        return self.schemas.resolved(schema)

    def mutated(self, tree, schema, times=1):
        """Returns a copy of a tree with some mutations."""
        tree = copy.deepcopy(tree)
        for _ in range(times):
            self.mutate(tree, schema)
        return tree

    def mutate(self, tree, schema):
        """Changes one place of a tree, mostly one below metadata's siblings."""
        places = [path for path in paths(tree) if path not in FIXED and path[0] not in ("apiVersion", "kind")]
        inner = [path for path in places if path[0] != "metadata"]
        if inner and self.dice.random() < 0.85:
            places = inner
        action = self.dice.random()
        if action < 0.35 or not places:
            return self.add_field(tree, schema)
        path = self.dice.choice(places)
        if action < 0.47:
            return drop(tree, path)
        if action < 0.80:
            return put(tree, path, self.value(self.schema_at(schema, path), path[-1], at(tree, path)))
        if action < 0.85:
            return put(tree, path, self.dice.choice(values.WRONG))
        return self.reshape(tree, path, places)

    def add_field(self, tree, schema):
        """Adds a field that an object of the tree lacks, or an unknown one."""
        objects = [()] + [path for path in paths(tree) if isinstance(at(tree, path), dict)]
        weighted = [path for path in objects if path[:1] != ("metadata",)] * 4 + objects
        for _ in range(10):
            path = self.dice.choice(weighted)
            known = self.schema_at(schema, path)
            absent = sorted(set(known.get("properties", {})) - set(at(tree, path)) - {"managedFields", "selfLink"})
            if self.dice.random() < 0.03:
                at(tree, path)[self.dice.choice(["unknown", "Name", "metadata", "Spec", "x-y"])] = copy.deepcopy(self.dice.choice(values.WRONG))
                return
            if isinstance(known.get("additionalProperties"), dict):
                key = self.dice.choice(values.KEYS + ["cpu", "memory", "example.com/gpu", "requests.cpu", "hugepages-2Mi", "storage", "pods"])
                put(tree, path + (key,), self.value(self.schemas.child(known, key), key, None))
                return
            if absent:
                key = self.dice.choice(absent)
                put(tree, path + (key,), self.value(self.schemas.child(known, key), key, None))
                return

    def reshape(self, tree, path, places):
        """Repeats, reorders, empties or exchanges."""
        value = at(tree, path)
        if isinstance(value, list) and value:
            form = self.dice.randrange(5)
            if form == 0:
                value.append(copy.deepcopy(self.dice.choice(value)))
            elif form == 1:
                value.reverse()
            elif form == 2:
                value.append(copy.deepcopy(self.dice.choice(values.WRONG)))
            elif form == 3:
                value.clear()
            else:
                value.insert(0, copy.deepcopy(value[-1]))
                self.mutate_inside(value)
        elif isinstance(value, dict) and self.dice.random() < 0.5:
            value.clear()
        else:
            other = self.dice.choice(places)
            if other[: len(path)] != path and path[: len(other)] != other:
                one, two = copy.deepcopy(value), copy.deepcopy(at(tree, other))
                put(tree, path, two)
                put(tree, other, one)
            else:
                put(tree, path, [value] if self.dice.random() < 0.3 else self.dice.choice(values.WRONG))

    def mutate_inside(self, items):
        """Changes one scalar of the first item, so that two items differ in it alone."""
        if isinstance(items[0], dict) and items[0]:
            items[0][self.dice.choice(sorted(items[0]))] = self.dice.choice(values.TEXTS + values.NUMBERS)

    def value(self, schema, name, old, depth=0):
        """Draws a value for a field."""
        dice = self.dice
        schema = self.schemas.resolved(schema)
        kind = type_of(schema)
        if name in SELECTORS and dice.random() < 0.5:
            return values.selector(dice)
        if name in ("labels", "annotations", "matchLabels", "nodeSelector"):
            return values.labels(dice)
        if name == "finalizers":
            return [dice.choice(values.RANDOM_FINALIZERS) for _ in range(dice.choice([1, 1, 2]))]
        if name in ("expression", "messageExpression", "valueExpression") and dice.random() < 0.8:
            return cel.expression(dice)
        if schema.get("enum") and dice.random() < 0.7:
            return dice.choice(schema["enum"])
        if kind == "string" and schema.get("format") == "date-time" and dice.random() < 0.7:
            return dice.choice(["2024-05-01T10:00:00Z", "2024-05-01T10:00:00.5Z", "2024-05-01T10:00:00.123456Z", "2024-05-01T12:00:00+02:00", "2024-13-01T10:00:00Z", "2024-05-01", "", 0, None])
        if kind == "array" and depth < 4 and dice.random() < 0.85:
            return [self.value(schema.get("items", {}), name, None, depth + 1) for _ in range(dice.choice([0, 1, 1, 1, 2]))]
        if kind == "object" and depth < 4 and dice.random() < 0.85:
            return self.object(schema, depth)
        if isinstance(old, str) and dice.random() < 0.15:
            return dice.choice([old.upper(), old + " ", old + "x", old[:-1], old * 2, " " + old])
        return values.of_type(dice, kind)

    def object(self, schema, depth):
        """Draws an object: the required fields and some others."""
        known = schema.get("properties", {})
        if not known:
            more = schema.get("additionalProperties")
            inner = more if isinstance(more, dict) else {}
            return {self.dice.choice(values.KEYS): self.value(inner, "", None, depth + 1) for _ in range(self.dice.randrange(3))}
        optional = sorted(set(known) - set(schema.get("required", [])))
        chosen = list(schema.get("required", []))
        chosen += self.dice.sample(optional, min(len(optional), self.dice.choice([0, 1, 1, 2, 3])))
        if self.dice.random() < 0.1 and chosen:
            chosen.pop()
        return {key: self.value(known.get(key, {}), key, None, depth + 1) for key in chosen}
