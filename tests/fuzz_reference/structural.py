"""Draws structural schemas of custom kinds, and values for them."""

FORMATS = ["date", "date-time", "byte", "email", "hostname", "ipv4", "ipv6", "cidr", "uri", "uuid", "uuid4", "mac", "duration", "password", "int32", "hexcolor", "rgbcolor", "creditcard", "isbn", "ssn", "bsonobjectid", "k8s-short-name", "k8s-long-name", "nothing"]
FORMATTED = {
    "date": ["2024-05-01", "2024-13-01"], "date-time": ["2024-05-01T10:00:00Z", "2024-05-01 10:00:00Z", "2024-05-01T10:00:00+02:00", "2024-05-01T10:00Z"], "byte": ["aGVsbG8=", "aGVsbG8", "*", "", "YR=="], "email": ["a@b.c", "a", "A <a@b.c>", "a@b.c (x)"], "hostname": ["a.b", "-a", "a_b", "a" * 64],
    "ipv4": ["10.0.0.1", "010.0.0.1", "::1"], "ipv6": ["::1", "10.0.0.1", "::ffff:1.2.3.4"], "cidr": ["10.0.0.0/8", "10.0.0.1/8", "x"], "uri": ["https://a/b", "a", "/a", "a:b", "http://a b", "*", "http://[::1"], "uuid": ["11111111-2222-3333-4444-555555555555", "11111111222233334444555555555555", "x"],
    "uuid4": ["11111111-2222-4333-8444-555555555555", "11111111-2222-3333-4444-555555555555"], "mac": ["00:11:22:33:44:55", "00-11-22-33-44-55", "001122334455", "0011.2233.4455"], "duration": ["1h", "1 day", "1d", "-1s", "1.5h", "x", "P1D", "1 week"], "hexcolor": ["#fff", "#ffff", "fff"],
    "rgbcolor": ["rgb(1,2,3)", "rgb(1, 2, 300)"], "creditcard": ["4111111111111111", "1"], "isbn": ["9783161484100", "1"], "ssn": ["111-11-1111", "1", "111111111"], "bsonobjectid": ["507f1f77bcf86cd799439011", "x"], "k8s-short-name": ["a", "A", "a.b"], "k8s-long-name": ["a.b", "A"],
}
PATTERNS = ["^a", "[a-z]+", "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "\\d{2}", "a|b", "^$", "(", "(?i)X"]
TEXTS = ["", "a", "ab", "abc", "A", "x-1", "42", "\u00fc\u00fc", "a b", "true"]


class Drawer:
    """Draws schemas and values."""

    def __init__(self, dice):
        self.dice = dice

    def chance(self, share):
        """Tells whether something happens."""
        return self.dice.random() < share

    def schema(self, depth=3):
        """Draws a schema."""
        kinds = ["string", "string", "integer", "number", "boolean", "int-or-string"] + (["object", "object", "object", "array", "array", "map", "open", "embedded"] if depth > 0 else [])
        kind = self.dice.choice(kinds)
        schema = getattr(self, kind.replace("-", "_"))(depth)
        if self.chance(0.15):
            schema["nullable"] = True
        if self.chance(0.2) and kind != "embedded":
            schema["default"] = self.value(schema, 0.1)
        if self.chance(0.05):
            schema[self.dice.choice(["description", "title"])] = "x"
        if self.chance(0.05):
            schema.update(self.dice.choice([{"enum": [self.value(schema, 0) for _ in range(2)]}, {"not": {"enum": [self.value(schema, 0)]}}, {"anyOf": [{"minLength": 2}, {"minimum": 2}]}, {"oneOf": [{"maxLength": 1}, {"minLength": 3}]}, {"allOf": [{"maxLength": 2}]}]))
        if self.chance(0.02):
            schema.update(self.dice.choice([{"uniqueItems": True}, {"type": ""}, {"x-kubernetes-list-type": "bag"}, {"x-kubernetes-int-or-string": True}, {"additionalProperties": False}, {"$ref": "#/x"}, {"items": {}}, {"definitions": {}}, {"example": 1}, {"externalDocs": {"url": "x"}}, {"type": ["string"]},
                                            {"x-kubernetes-preserve-unknown-fields": False}, {"id": "x"}, {"patternProperties": {"a": {}}}, {"dependencies": {}}, {"x-kubernetes-map-type": "atomic"}, {"maximum": 1}, {"pattern": "("}, {"format": "x"}, {"default": None}, {"minLength": -1}]))
        return schema

    def string(self, _depth):
        """Draws the schema of a text."""
        schema = {"type": "string"}
        if self.chance(0.35):
            schema["format"] = self.dice.choice(FORMATS)
        for name, drawn in (("minLength", [0, 1, 2]), ("maxLength", [0, 1, 3, 10]), ("pattern", PATTERNS), ("enum", [["a", "b"], ["a", "a"], [""], ["a", None]])):
            if self.chance(0.12):
                schema[name] = self.dice.choice(drawn)
        return schema

    def integer(self, _depth, kind="integer"):
        """Draws the schema of a number."""
        schema = {"type": kind}
        for name, drawn in (("format", ["int32", "int64", "float", "double"]), ("minimum", [0, 1, -5, 1.5]), ("maximum", [10, 3, 0]), ("multipleOf", [2, 0.1, 1.5, 3]), ("enum", [[1, 2], [1.0, 2], ["1"]]), ("exclusiveMinimum", [True, False]), ("exclusiveMaximum", [True])):
            if self.chance(0.12):
                schema[name] = self.dice.choice(drawn)
        return schema

    def number(self, depth):
        """Draws the schema of a floating number."""
        return self.integer(depth, "number")

    def boolean(self, _depth):
        """Draws the schema of a truth value."""
        return {"type": "boolean"}

    def int_or_string(self, _depth):
        """Draws the schema of a number or a text."""
        return {"x-kubernetes-int-or-string": True, **({"anyOf": [{"type": "integer"}, {"type": "string"}]} if self.chance(0.3) else {}), **({"pattern": "^[0-9]+%?$"} if self.chance(0.2) else {})}

    def object(self, depth):
        """Draws the schema of an object with fields."""
        names = self.dice.sample(["a", "b", "c", "name", "spec", "x-y", "kind", "metadata", "items"], self.dice.randrange(1, 5))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        for name, drawn in (("required", [names[:1], names, ["absent"]]), ("minProperties", [1, 2]), ("maxProperties", [1, 2]), ("x-kubernetes-map-type", ["atomic", "granular"]), ("x-kubernetes-preserve-unknown-fields", [True])):
            if self.chance(0.12):
                schema[name] = self.dice.choice(drawn)
        return schema

    def map(self, depth):
        """Draws the schema of a map."""
        return {"type": "object", "additionalProperties": self.schema(depth - 1) if self.chance(0.9) else True, **({"maxProperties": 2} if self.chance(0.2) else {})}

    def array(self, depth):
        """Draws the schema of a list."""
        kind = self.dice.choice(["", "", "atomic", "set", "map", "map"])
        if kind == "map":
            keys = self.dice.sample(["name", "port", "a"], self.dice.choice([1, 1, 2]))
            properties = {key: {"type": "integer" if key == "port" else "string", **({"default": 80 if key == "port" else "d"} if self.chance(0.25) else {})} for key in keys}
            properties["v"] = self.schema(depth - 1)
            items = {"type": "object", "properties": properties, "required": [key for key in keys if "default" not in properties[key] or self.chance(0.1)]}
            if not items["required"]:
                del items["required"]
            schema = {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys if self.chance(0.95) else keys + ["absent"]}
        else:
            items = self.dice.choice([self.string, self.integer, self.number, self.boolean])(0) if kind == "set" and self.chance(0.9) else self.schema(depth - 1)
            schema = {"type": "array", "items": items, **({"x-kubernetes-list-type": kind} if kind else {})}
        for name, drawn in (("minItems", [0, 1]), ("maxItems", [0, 1, 3])):
            if self.chance(0.12):
                schema[name] = self.dice.choice(drawn)
        return schema

    def open(self, depth):
        """Draws the schema of an object with unknown fields."""
        schema = {"x-kubernetes-preserve-unknown-fields": True}
        if self.chance(0.7):
            schema["type"] = "object"
        if self.chance(0.4):
            schema["properties"] = {"a": self.schema(depth - 1)}
            schema["type"] = "object"
        return schema

    def embedded(self, _depth):
        """Draws the schema of an embedded object."""
        schema = {"type": "object", "x-kubernetes-embedded-resource": True}
        if self.chance(0.7):
            schema["x-kubernetes-preserve-unknown-fields"] = True
        else:
            schema["properties"] = {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}
        return schema

    def value(self, schema, odd=0.15, depth=4):
        """Draws a value for a schema, mostly a valid one."""
        dice = self.dice
        if self.chance(odd / 2):
            return dice.choice([None, {}, [], "", "x", 0, 1.5, True, [None], {"a": 1}])
        if "default" in schema and self.chance(0.1):
            return schema["default"]
        if "enum" in schema and self.chance(0.9):
            return dice.choice(schema["enum"] or [None])
        if schema.get("x-kubernetes-embedded-resource"):
            return dice.choice([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "X_", "labels": {"a": 1}, "unknown": 1}, "data": {"a": None}}, {}, {"kind": "Pod"}, {"apiVersion": "", "kind": ""}, {"apiVersion": "a/b/c", "kind": "x", "spec": {"a": "b", "c": 1}},
                                {"apiVersion": "v1", "kind": "X", "metadata": None}, {"apiVersion": "v1", "kind": "X", "metadata": {"finalizers": [""], "creationTimestamp": None, "ownerReferences": [{}], "annotations": {"a": "b"}}}])
        if schema.get("x-kubernetes-int-or-string"):
            return dice.choice([1, "1", "10%", 2**40, 1.0, True, "x"])
        kind = schema.get("type")
        if kind == "string":
            return dice.choice(FORMATTED.get(schema.get("format"), TEXTS) + TEXTS[1:3])
        if kind in ("integer", "number"):
            return dice.choice([0, 1, 2, 3, 4, -1, 10, 1.5, 0.3, 2.0, 2**31, 2**53 + 1, 2**63, "{{number 1e3}}", "{{number 1.0}}", 1e20])
        if kind == "boolean":
            return dice.choice([True, False])
        if depth <= 0:
            return None
        if kind == "array":
            items = schema.get("items", {})
            drawn = [self.value(items, odd, depth - 1) for _ in range(dice.choice([0, 1, 2, 2, 3]))]
            return drawn
        if kind == "object":
            known = schema.get("properties", {})
            found = {name: self.value(one, odd, depth - 1) for name, one in known.items() if self.chance(0.7) or name in schema.get("required", [])}
            more = schema.get("additionalProperties")
            if isinstance(more, dict):
                found.update({name: self.value(more, odd, depth - 1) for name in dice.sample(["a", "b", "x/y", ""], dice.randrange(3))})
            if self.chance(odd):
                found["unknown"] = dice.choice([1, {"a": 1}, None])
            return found
        return dice.choice([1, "a", None, {"a": {"b": [1, None]}}, [1, "a"], True])
