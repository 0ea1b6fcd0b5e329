"""Draws objects that are sent as protobuf: those that a server answers, with fields dropped, doubled, reordered and
broken."""

import copy
import random

import values
import wire
from steps import JSON, Case, Step
from wire import BYTES, FIXED32, FIXED64, VARINT, Encoded

PROTOBUF = "application/vnd.kubernetes.protobuf"
SENT = ("Content-Type", PROTOBUF)
NAME = "zz-fuzz-sample"
NUMBERS = [0, 1, 2, 3, 7, 100, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2**31, 2**64 - 2**31 - 1]
ODD = [b"", b"\xff\xfe", b"a\x80", b"\x00", b"\xed\xa0\x80", b"\n\x00", b"\x08", b"\x0a\x05ab", "ü".encode(), b"x" * 300, b"null", b"{}", b"{{name}}"]
# How an envelope may be broken, by its kind of fault.
ENVELOPES = {
    "magic": lambda data: b"k8s\x01" + data[4:], "no magic": lambda data: data[4:], "only magic": lambda data: data[:4], "json": lambda data: b'{"kind":"ConfigMap"}', "empty": lambda data: b"",
    "no type": lambda data: data[:4] + data[4 + 2 + data[5]:], "content type": lambda data: data[:-2] + wire.write([[4, BYTES, PROTOBUF.encode()]]), "json type": lambda data: data[:-2] + wire.write([[4, BYTES, b"application/json"]]),
    "encoding": lambda data: data[:-4] + wire.write([[3, BYTES, b"gzip"]]), "unknown field": lambda data: data + wire.write([[9, BYTES, b"x"]]), "twice": lambda data: data + data[4:], "tail": lambda data: data + b"\x00", "bare": lambda data: data[:-4],
}
OPTIONS = [[], [[1, VARINT, 0]], [[1, VARINT, 2**64 - 1]], [[2, BYTES, [[1, BYTES, b"x"]]]], [[2, BYTES, [[2, BYTES, b"1"]]]], [[3, VARINT, 1]], [[4, BYTES, b"Orphan"]], [[4, BYTES, b"x"]], [[5, BYTES, b"All"]], [[5, BYTES, b"x"]], [[1, BYTES, b"x"]], [[9, VARINT, 1]], [[2, BYTES, b""]], [[6, VARINT, 1]]]

# What a pod is bound to: a reference with its kind, namespace, name, uid and version.
TARGETS = [
    [[1, BYTES, b"Node"], [3, BYTES, b"n1"]], [[3, BYTES, b"n1"]], [[1, BYTES, b"Node"], [3, BYTES, b"n1"], [5, BYTES, b"v1"]], [[1, BYTES, b"Pod"], [3, BYTES, b"n1"]], [[1, BYTES, b"Node"]], [[1, BYTES, b"Node"], [3, BYTES, b"x/y"]],
    [[1, BYTES, b"Node"], [2, BYTES, b"fuzz"], [3, BYTES, b"n1"], [4, BYTES, b"11111111-0000-0000-0000-000000000000"]], [],
]
# Version and kind of the parts of an object that have kinds of their own.
PARTS = {"scale": [b"autoscaling/v1", b"Scale"], "eviction": [b"policy/v1", b"Eviction"], "binding": [b"v1", b"Binding"]}


class Protobuf:
    """Draws cases. Its objects are those of kinds with a form in protobuf."""

    def __init__(self, dice, pair, builtin):
        self.dice, self.pair, self.builtin = dice, pair, builtin
        self.samples = {}

    def draw(self):
        """Draws a case."""
        part = self.part() if self.dice.random() < 0.15 else None
        if part:
            return part
        while True:
            kind = self.dice.choice(self.builtin.kinds)
            fields = self.sample(kind)
            if fields:
                break
        form = self.dice.random()
        if form < 0.06 and kind.is_stored:
            return self.deletion(kind, fields)
        if form < 0.55 or not kind.is_stored:
            return self.create(kind, fields)
        return self.update(kind, fields)

    def sample(self, kind):
        """Returns the fields of a drawn object as one of the servers answers it, or None. Half of the time it is a
        mutated object."""
        base = self.builtin.base(kind)
        if self.dice.random() < 0.5:
            base = self.builtin.mutated(kind, base)
        step = Step("POST", kind.collection, [("dryRun", "All")], [JSON, ("Accept", PROTOBUF)], base)
        try:
            body = step.text().replace("{{name}}", NAME).encode()
        except UnicodeEncodeError:
            return None
        answers = self.pair.send([("POST", step.target(), step.headers, body)] * 2)
        answer = self.dice.choice(answers)
        if answer.code not in (200, 201) or not answer.type.startswith(PROTOBUF):
            return None
        try:
            top = wire.read_top(answer.body)
        except wire.Broken:
            return None
        fields = without_managers(top.get("raw", []))
        version = f"{kind.group}/{kind.version}" if kind.group else kind.version
        return [version.encode(), kind.kind.encode(), named(fields)]

    def encoded(self, sample):
        """Returns a mutated object."""
        version, kind, fields = copy.deepcopy(sample)
        dice = self.dice
        for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
            self.mutate(fields)
        form, after = dice.random(), None
        if form < 0.06:
            after = ENVELOPES[dice.choice(sorted(ENVELOPES))]
        elif form < 0.10:
            seed = dice.random()
            after = lambda data: data[: random.Random(seed).randrange(len(data))]
        elif form < 0.14:
            version, kind = dice.choice([(b"", kind), (version, b""), (b"", b""), (b"v9", kind), (version, b"Other"), (b"v1", b"ConfigMap"), (b"a/b/c", kind), (b"v1", b"Status"), (b"\xff", kind)])
        return Encoded(version, kind, fields, after)

    def mutate(self, fields):
        """Changes one place of a message."""
        dice = self.dice
        places = list(wire.places(fields))
        # The name stays mostly, so that the object is found again.
        places = [path for path in places if path[:1] != (0,) or dice.random() < 0.3] or places
        if not places:
            return
        path = dice.choice(places)
        within = wire.holder(fields, path)
        number, kind, value = within[path[-1]]
        form = dice.randrange(12)
        if form == 0:
            del within[path[-1]]
        elif form == 1:
            within.insert(dice.randrange(len(within) + 1), copy.deepcopy(within[path[-1]]))
        elif form == 2:
            dice.shuffle(within)
        elif form == 3:
            within.append(dice.choice([[99, VARINT, 5], [99, BYTES, b"x"], [500, FIXED32, b"1234"], [99, FIXED64, b"12345678"], [19000, BYTES, [[1, VARINT, 1]]], [2**28, BYTES, b""]]))
        elif form == 4:
            within[path[-1]] = [number, dice.choice([VARINT, FIXED64, BYTES, 3, 4, FIXED32, 6, 7]), value]
        elif form == 5:
            within[path[-1]] = [dice.choice([1, 2, 3, 4, 5, number + 1, 0]), kind, value]
        elif form == 6:
            within[path[-1]] = [number, *dice.choice([[VARINT, 7], [FIXED64, b"12345678"], [FIXED32, b"1234"], [BYTES, b""], [BYTES, b"abc"]])]
        elif form == 7 and isinstance(value, list):
            # A message in two parts, which a reader joins.
            cut = dice.randrange(len(value) + 1)
            within[path[-1]:path[-1] + 1] = [[number, kind, value[:cut]], [number, kind, value[cut:]]]
        elif form == 8 and isinstance(value, list):
            within[path[-1]] = [number, kind, wire.write(value)[:-1]]
        elif isinstance(value, int):
            within[path[-1]] = [number, kind, dice.choice(NUMBERS)]
        elif isinstance(value, bytes):
            text = values.text(dice).encode("utf-8", "replace")
            within[path[-1]] = [number, kind, dice.choice(ODD) if dice.random() < 0.4 else text]
        else:
            within[path[-1]] = [number, kind, dice.choice([[], b"", b"x", value + value])]

    def headers(self):
        """Draws headers."""
        headers = [SENT]
        if self.dice.random() < 0.1:
            headers = [("Content-Type", self.dice.choice([PROTOBUF + ";stream=watch", PROTOBUF + "; charset=utf-8", "application/json", PROTOBUF.upper()]))]
        if self.dice.random() < 0.6:
            headers.append(("Accept", self.dice.choice([PROTOBUF, PROTOBUF, "application/json", PROTOBUF + ",application/json", PROTOBUF + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"])))
        return headers

    def query(self):
        """Draws parameters."""
        return [pair for pair in [("fieldValidation", self.dice.choice(["Strict", "Warn", "Ignore"])), ("fieldManager", "m1")] if self.dice.random() < 0.2]

    def create(self, kind, sample):
        """Draws a creation and a look at what is stored."""
        body = self.encoded(sample)
        # What has lost its name could not be removed again.
        named_still = [one for one in body.fields if one[0] == 1] == [one for one in sample[2] if one[0] == 1]
        query = self.query() + ([] if kind.is_stored and named_still and self.dice.random() < 0.8 else [("dryRun", "All")])
        steps = [Step("POST", kind.collection, query, self.headers(), body)]
        if ("dryRun", "All") not in query:
            steps.append(Step("GET", kind.collection + "/{{name}}", headers=[("Accept", self.dice.choice([PROTOBUF, "application/json"]))]))
        return Case("protobuf " + kind.kind, steps, self.builtin.tidy(kind), ("dryRun", "All") in query)

    def update(self, kind, sample):
        """Draws a creation and an update, both in protobuf."""
        path = kind.collection + "/{{name}}"
        changed = self.encoded(sample)
        if self.dice.random() < 0.7 and isinstance(changed.fields, list) and changed.fields and isinstance(changed.fields[0][2], list):
            changed.fields[0][2].append([6, BYTES, b"{{rv}}"])
        steps = [Step("POST", kind.collection, [], [SENT], Encoded(*copy.deepcopy(sample)))]
        steps.append(Step("PUT", self.builtin.named(kind), self.query(), self.headers(), changed))
        steps.append(Step("GET", path, headers=[("Accept", self.dice.choice([PROTOBUF, "application/json"]))]))
        if self.dice.random() < 0.2:
            steps.append(Step("GET", kind.collection, [("fieldSelector", "metadata.name={{name}}")], [("Accept", PROTOBUF)]))
        return Case("protobuf " + kind.kind, steps, self.builtin.tidy(kind))

    def part(self):
        """Draws a write of a part of a stored object, or None if no kind has the part."""
        name = self.dice.choice(["status", "scale", "eviction", "binding"])
        kinds = [kind for kind in self.builtin.kinds if kind.is_stored and name in kind.subresources]
        if not kinds:
            return None
        kind = self.dice.choice(kinds)
        sample = self.sample(kind) if name == "status" else [*PARTS[name], self.fields_of_part(name)]
        if not sample:
            return None
        path, query = kind.collection + "/{{name}}", self.query()
        part = f"{path}/{name}"
        if name == "binding" and self.dice.random() < 0.3:
            part = kind.collection.rsplit("/", 1)[0] + "/bindings"
        if name == "eviction" or self.dice.random() < 0.15:
            query.append(("dryRun", "All"))
        steps = [Step("POST", kind.collection, [], [JSON], self.builtin.base(kind))]
        steps.append(Step("POST" if name in ("eviction", "binding") else "PUT", part, query, self.headers(), self.encoded(sample)))
        if name in ("status", "scale"):
            steps.append(Step("GET", part, headers=[("Accept", self.dice.choice([PROTOBUF, "application/json"]))]))
        steps.append(Step("GET", path, headers=[("Accept", self.dice.choice([PROTOBUF, "application/json"]))]))
        return Case(f"protobuf {kind.kind}/{name}", steps, self.builtin.tidy(kind))

    def fields_of_part(self, name):
        """Draws the fields of a scale, an eviction or a binding."""
        dice = self.dice
        metadata = [[1, BYTES, b"{{name}}"], [3, BYTES, b"fuzz"]]
        if dice.random() < 0.3:
            metadata.append([6, BYTES, dice.choice([b"{{rv}}", b"{{rv}}", b"1", b"x"])])
        if name == "eviction":
            within = copy.deepcopy(dice.choice(OPTIONS))
        elif name == "scale":
            within = dice.choice([[], [[1, VARINT, dice.choice(NUMBERS)]]])
        else:
            within = copy.deepcopy(dice.choice(TARGETS))
        return [[1, BYTES, metadata], [2, BYTES, within]]

    def deletion(self, kind, sample):
        """Draws a deletion with options in protobuf."""
        version = self.dice.choice([b"v1", b"v1", b"meta.k8s.io/v1", sample[0], b"", b"x/y"])
        body = Encoded(version, self.dice.choice([b"DeleteOptions"] * 4 + [b"", b"Status"]), copy.deepcopy(self.dice.choice(OPTIONS)))
        steps = [Step("POST", kind.collection, [], [SENT], Encoded(*copy.deepcopy(sample)))]
        steps.append(Step("DELETE", kind.collection + "/{{name}}", [], self.headers(), body))
        return Case("protobuf " + kind.kind, steps, self.builtin.tidy(kind))


def without_managers(fields):
    """Leaves out what a server has put into metadata: version, uid, time and managers of fields."""
    if fields and fields[0][0] == 1 and isinstance(fields[0][2], list):
        fields[0][2] = [one for one in fields[0][2] if one[0] not in (5, 6, 8, 17)]
    return fields


def named(fields):
    """Puts the placeholder of the name in the place of the sample's."""
    out = []
    for number, kind, value in fields:
        if isinstance(value, list):
            value = named(value)
        elif isinstance(value, bytes):
            value = value.replace(NAME.encode(), b"{{name}}")
        out.append([number, kind, value])
    return out
