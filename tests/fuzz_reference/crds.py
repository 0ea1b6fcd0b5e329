"""Draws custom kinds: definitions with drawn schemas, objects of them, and rules in CEL."""

import copy
import re
import time

import cel
from mutate import Mutator
from patches import PatchDrawer
from steps import JSON, Case, Step
from structural import Drawer

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DRY = ("dryRun", "All")
OBJECTS = 30
RULES = 30
WAIT = 20
# Functions and operators in an expression, which name the cause of a difference.
FUNCTIONS = re.compile(r"([a-zA-Z]\w+)\(|([<>=!]=|[-+*/%<>?])")
# The fields that rules of cel.FIELDS read.
TEXT = {"type": "string", "maxLength": 20}
RULED = {
    "s": TEXT, "t": TEXT, "i": {"type": "integer"}, "j": {"type": "integer", "format": "int32"}, "d": {"type": "number"}, "b": {"type": "boolean"}, "big": {"type": "string", "maxLength": 100},
    "names": {"type": "array", "maxItems": 5, "items": TEXT}, "numbers": {"type": "array", "maxItems": 5, "items": {"type": "integer"}}, "m": {"type": "object", "maxProperties": 5, "additionalProperties": TEXT},
    "items": {"type": "array", "maxItems": 4, "items": {"type": "object", "properties": {"name": TEXT, "count": {"type": "integer"}}}}, "when": {"type": "string", "format": "date-time"}, "span": {"type": "string", "format": "duration"},
    "raw": {"type": "string", "format": "byte"}, "any": {"x-kubernetes-preserve-unknown-fields": True}, "port": {"x-kubernetes-int-or-string": True}, "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "o": {"type": "object", "nullable": True, "properties": {"x": {"type": "integer"}}},
}


class Defined:
    """A custom kind, with what patches need to know of it."""

    def __init__(self, group, tree):
        self.group, self.version, self.kind = group, "v1", "Thing"
        self.schema = tree["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        self.subresources = [name for name in ("status", "scale") if name in tree["spec"]["versions"][0].get("subresources", {})]
        self.collection = f"/apis/{group}/v1/namespaces/fuzz/things"

    @staticmethod
    def at_its_version(tree):
        """Makes an object an update of what is stored."""
        if isinstance(tree.get("metadata"), dict):
            tree["metadata"]["resourceVersion"] = "{{rv}}"
        return tree

    def object(self, tree):
        """Puts a drawn tree into an object of the kind."""
        return {"apiVersion": f"{self.group}/v1", "kind": "Thing", "metadata": {"name": "{{name}}"}, **(tree if isinstance(tree, dict) else {"spec": tree})}


class Custom:
    """Draws and plays cases about custom kinds."""

    def __init__(self, dice, schemas, player, report, seed):
        self.dice, self.player, self.report = dice, player, report
        self.drawer = Drawer(dice)
        self.mutator = Mutator(dice, schemas)
        self.patches = PatchDrawer(dice, self.mutator)
        self.group_prefix = f"g{int(time.time()):x}s{seed}"
        self.made = 0

    def definition(self, schema, more=()):
        """Returns a definition with a schema."""
        self.made += 1
        group = f"{self.group_prefix}n{self.made}.example.com"
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **dict(more)}
        spec = {"group": group, "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}, "versions": [version]}
        return group, {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"things.{group}"}, "spec": spec}

    def case(self, case, context=None):
        """Plays a case and reports it with what it rests on: the definition of its kind, or rules by their messages."""
        found = self.player.play(case)
        if found:
            self.report.context = context
            self.report.add(case, found)
            self.report.context = None

    def established(self, tree, collection):
        """Creates a definition on both servers and waits until it is served. Tells whether it is."""
        pair = self.player.pair
        if any(answer.code != 201 for answer in pair.both("POST", DEFINITIONS, tree)):
            self.removed(tree)
            return False
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if all(answer.code == 200 for answer in pair.both("GET", collection)):
                return True
            time.sleep(0.05)
        return False

    def removed(self, tree):
        """Removes a definition."""
        self.player.pair.both("DELETE", f"{DEFINITIONS}/{tree['metadata']['name']}")

    def crd(self):
        """Draws a definition and cases about its objects."""
        properties = {"spec": self.drawer.object(3), "status": self.drawer.object(1)}
        if self.drawer.chance(0.3):
            properties["data"] = self.drawer.schema(2)
        if self.drawer.chance(0.2):
            properties["metadata"] = {"type": "object", **self.dice.choice([{}, {"properties": {"name": {"type": "string", "maxLength": 30}}}])}
        schema = {"type": "object", "properties": properties, **({"required": ["spec"]} if self.drawer.chance(0.2) else {})}
        more = {}
        if self.drawer.chance(0.5):
            more["subresources"] = self.dice.choice([{"status": {}}, {"status": {}, "scale": {"specReplicasPath": ".spec.a", "statusReplicasPath": ".status.a"}}, {"scale": {"specReplicasPath": ".spec.a", "statusReplicasPath": ".status.b", "labelSelectorPath": ".status.c"}}])
        if self.drawer.chance(0.4):
            more["additionalPrinterColumns"] = [{"name": "A", "type": self.dice.choice(["string", "integer", "number", "boolean", "date"]), "jsonPath": self.dice.choice([".spec.a", ".spec.b", ".spec", ".metadata.name", ".spec.items[0]", ".spec.c['a']", ".spec..a", ".spec[*]", ".status.a", "{.spec.a}", ".spec.items[?(@.name==\"a\")].v"])}]
        if self.drawer.chance(0.2):
            more["selectableFields"] = [{"jsonPath": self.dice.choice([".spec.a", ".spec.b", ".spec.name", ".spec.c.a"])}]
        group, tree = self.definition(schema, more.items())
        self.case(Case("CustomResourceDefinition", [Step("POST", DEFINITIONS, [DRY], [JSON], tree)], dry=True))
        kind = Defined(group, tree)
        if self.established(tree, kind.collection):
            for _ in range(OBJECTS):
                self.case(self.about(kind), tree)
            self.removed(tree)

    def about(self, kind):
        """Draws a case about an object of a custom kind."""
        dice = self.dice
        path = kind.collection + "/{{name}}"
        tidy = Step("DELETE", path)
        valid = kind.object(self.drawer.value(kind.schema, 0.03))
        query = [pair for pair in [("fieldValidation", dice.choice(["Strict", "Warn", "Ignore"])), DRY] if dice.random() < 0.25]
        form = dice.random()
        if form < 0.5:
            steps = [Step("POST", kind.collection, query, [JSON], kind.object(self.drawer.value(kind.schema, 0.15)))]
            if DRY not in query:
                steps.append(Step("GET", path, headers=[("Accept", dice.choice(["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml"]))]))
            return Case("custom", steps, tidy)
        steps = [Step("POST", kind.collection, [], [JSON], valid)]
        part = path + "/" + dice.choice(kind.subresources) if kind.subresources and dice.random() < 0.25 else path
        if form < 0.65:
            changed = kind.at_its_version(kind.object(self.drawer.value(kind.schema, 0.1)))
            steps.append(Step("PUT", part, query, [JSON], changed))
        elif form < 0.8:
            steps.append(dice.choice([self.patches.merge, self.patches.json])(kind, valid, part, query))
        else:
            steps = steps if dice.random() < 0.4 else []
            for _ in range(dice.choice([2, 3])):
                applied = kind.object(self.drawer.value(kind.schema, 0.05))
                steps.append(Step("PATCH", path, [("fieldManager", dice.choice(["m1", "m2"])), ("force", dice.choice(["true", "false"]))], [("Content-Type", "application/apply-patch+yaml")], applied))
        return Case("custom", steps, tidy)

    def cel(self):
        """Draws rules: compiles each by itself, then asks all that compile about drawn objects."""
        rules = [self.rule(number) for number in range(RULES)]
        good = []
        for rule in rules:
            _, tree = self.definition(self.ruled([rule]))
            self.case(Case("rule", [Step("POST", DEFINITIONS, [DRY], [JSON], tree)], dry=True))
            if self.player.last_codes == [201, 201]:
                good.append(rule)
        while good:
            group, tree = self.definition(self.ruled(good))
            kind = Defined(group, tree)
            if self.established(tree, kind.collection):
                break
            good = good[: len(good) // 2]
        if not good:
            return
        for _ in range(OBJECTS):
            case = Case("ruled", [Step("POST", kind.collection, [], [JSON], kind.object({"spec": self.ruled_value()}))], Step("DELETE", kind.collection + "/{{name}}"))
            if self.dice.random() < 0.3:
                changed = kind.at_its_version(kind.object({"spec": self.ruled_value()}))
                case.steps.append(Step("PUT", kind.collection + "/{{name}}", [], [JSON], changed))
            self.case(case, {rule["message"]: rule for rule in good})
        self.removed(tree)

    def rule(self, number):
        """Draws a rule, whose message names it and its functions."""
        expression = cel.rule(self.dice)
        functions = " ".join(sorted({name or operator for name, operator in FUNCTIONS.findall(expression)}))
        rule = {"rule": expression, "message": f"rule #{number} {functions}"}
        if self.dice.random() < 0.1:
            rule["messageExpression"] = cel.Grammar(self.dice, cel.FIELDS).string(1)
        if self.dice.random() < 0.1:
            rule["reason"] = self.dice.choice(["FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden", "FieldValueDuplicate", "x"])
        if self.dice.random() < 0.1:
            rule["fieldPath"] = self.dice.choice([".s", ".m.a", ".items[0].name", ".o.x", ".absent", "s", ".m['a']", ".names"])
        if self.dice.random() < 0.1:
            rule["rule"] = rule["rule"].replace("self", "oldSelf", 1)
            rule["optionalOldSelf"] = self.dice.choice([True, False])
        return rule

    @staticmethod
    def ruled(rules):
        """Returns the schema that has rules about `spec`."""
        return {"type": "object", "properties": {"spec": {"type": "object", "properties": copy.deepcopy(RULED), "x-kubernetes-validations": rules}}}

    def ruled_value(self):
        """Draws a value that rules are asked about."""
        dice = self.dice
        text = lambda: dice.choice(["", "a", "A", "hello world", "a,b,c", "\u00fcn\u00ef", "1", "-1", "1.5", "10.0.0.1", "1Gi", "true", " a ", "\U0001f600x", "a.b"])
        whole = {
            "s": text(), "t": text(), "i": dice.choice([0, 1, -1, 7, 2**31, 2**63 - 1]), "j": dice.choice([0, 1, 5]), "d": dice.choice([0, 0.5, 1, -2.5, 1e10]), "b": dice.choice([True, False]), "big": text() * 5, "names": [text() for _ in range(dice.randrange(4))], "numbers": [dice.choice([0, 1, 3, -1]) for _ in range(dice.randrange(4))],
            "m": {key: text() for key in dice.sample(["a", "b", "c"], dice.randrange(3))}, "items": [{"name": text(), "count": dice.choice([0, 1, 2])} for _ in range(dice.randrange(3))], "when": dice.choice(["2024-05-01T10:00:00Z", "2024-02-29T23:59:59.5+02:00"]), "span": dice.choice(["1h", "90s", "1 day"]),
            "raw": "aGVsbG8=", "any": dice.choice([1, "a", [1], {"a": 1}, True, 1.5]), "port": dice.choice([1, "a"]), "open": dice.choice([{}, {"a": 1, "b": "x"}]), "o": dice.choice([None, {}, {"x": 1}]),
        }
        return {key: value for key, value in whole.items() if dice.random() < 0.8}
