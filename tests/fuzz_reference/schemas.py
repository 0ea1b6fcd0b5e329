"""The types of built-in kinds, as the reference's OpenAPI documents have them."""

PREFIX = "#/components/schemas/"


class Schemas:
    """All schemas by name, and the name of the schema of each kind."""

    def __init__(self, server):
        self.named = {}
        self.kinds = {}
        for path, document in server.get("/openapi/v3")["paths"].items():
            # Those of custom kinds come and go.
            if path.startswith("api") and ".example.com" not in path:
                self.read(server.get(document["serverRelativeURL"]))

    def read(self, document):
        """Adds the schemas of a document."""
        for name, schema in document.get("components", {}).get("schemas", {}).items():
            self.named[name] = schema
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                self.kinds.setdefault((kind["group"], kind["version"], kind["kind"]), name)

    def of_kind(self, group, version, kind):
        """Returns the schema of a kind, or an empty one."""
        return self.named.get(self.kinds.get((group, version, kind), ""), {})

    def resolved(self, schema):
        """Returns a schema without reference, with the annotations that stood beside the reference."""
        for _ in range(8):
            target = schema.get("$ref")
            if target is None and len(schema.get("allOf", [])) == 1:
                target = schema["allOf"][0].get("$ref")
            if target is None:
                return schema
            beside = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
            schema = {**self.named.get(target.removeprefix(PREFIX), {}), **beside}
        return schema

    def child(self, schema, key):
        """Returns the schema of a field, of a map's value or of a list's item."""
        schema = self.resolved(schema)
        if isinstance(key, int):
            return self.resolved(schema.get("items", {}))
        if key in schema.get("properties", {}):
            return self.resolved(schema["properties"][key])
        more = schema.get("additionalProperties")
        return self.resolved(more) if isinstance(more, dict) else {}

    def is_quantity(self, schema):
        """Tells whether a schema is that of quantities."""
        return "oneOf" in schema and schema.get("type") is None


def type_of(schema):
    """Returns the type by which values are drawn."""
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    if "oneOf" in schema:
        kinds = {one.get("type") for one in schema["oneOf"]}
        return "quantity" if kinds == {"string", "number"} else "int-or-string"
    return schema.get("type", "any")
