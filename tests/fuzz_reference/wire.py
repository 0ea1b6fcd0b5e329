"""Reads and writes messages of protobuf without their schemas: fields by number, and texts told from messages by
their look."""

MAGIC = b"k8s\x00"
VARINT, FIXED64, BYTES, START, END, FIXED32 = range(6)


class Broken(Exception):
    """Bytes that are no message."""


def read_varint(data, at):
    """Reads a number, and returns it with the place after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Broken
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
        shift += 7


def varint(value):
    """Writes a number."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def is_text(data):
    """Tells whether bytes look like a text."""
    try:
        shown = data.decode()
    except UnicodeDecodeError:
        return False
    return all(one.isprintable() or one in "\n\t" for one in shown) and not shown.startswith(("\n", "\t"))


def read(data, depth=20):
    """Reads a message: a list of [number, wire type, value], where a value is a number, bytes or a list of fields."""
    fields, at = [], 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0 or number > 20000 or depth == 0:
            raise Broken
        if kind == VARINT:
            value, at = read_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            value, at = data[at:at + size], at + size
        elif kind == BYTES:
            size, at = read_varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            raise Broken
        if at > len(data):
            raise Broken
        fields.append([number, kind, inner(value, depth) if kind == BYTES else value])
    return fields


def inner(value, depth=20):
    """Reads bytes as a message if they look like one."""
    if value.startswith(MAGIC):
        return value
    if value and not is_text(value):
        try:
            return read(value, depth - 1)
        except Broken:
            pass
    return value


def write(fields):
    """Writes a message. A wire type is written as it stands, whatever its value is."""
    out = b""
    for number, kind, value in fields:
        out += varint(number << 3 | kind)
        if isinstance(value, int):
            out += varint(value)
            continue
        data = write(value) if isinstance(value, list) else value
        out += varint(len(data)) + data if kind == BYTES else data
    return out


def places(fields, path=()):
    """Lists the paths of all fields of a message, as indexes."""
    for index, (_, _, value) in enumerate(fields):
        yield path + (index,)
        if isinstance(value, list):
            yield from places(value, path + (index,))


def holder(fields, path):
    """Returns the list of fields in which a path ends."""
    for index in path[:-1]:
        fields = fields[index][2]
    return fields


def shown(fields):
    """Returns a message as a tree: texts and lists of values by numbers. The order of fields of different numbers
    does not matter."""
    if isinstance(fields, bytes):
        if fields.startswith(MAGIC):
            return envelope(fields)
        return fields.decode("utf-8", "backslashreplace")
    if not isinstance(fields, list):
        return fields
    tree = {}
    for number, kind, value in fields:
        tree.setdefault(str(number) if kind in (VARINT, BYTES) else f"{number}:{kind}", []).append(shown(value))
    return tree


def envelope(data):
    """Returns an object of the API with its envelope as a tree, or a text if it cannot be read."""
    try:
        fields = read_top(data)
    except Broken:
        return repr(data[:200])
    return {"apiVersion": "", "kind": "", **{name: shown(value) for name, value in fields.items()}}


def read_top(data):
    """Reads an envelope: kind, version and the object's fields."""
    if not data.startswith(MAGIC):
        raise Broken
    found = {}
    for number, kind, value in read_outer(data[4:]):
        if number == 1:
            for inner_number, _, text in read_outer(value):
                found[{1: "apiVersion", 2: "kind"}.get(inner_number, str(inner_number))] = text
        elif number == 2:
            found["raw"] = read(value)
        elif value not in (b"", 0):
            found[f"envelope {number}"] = value
    return found


def read_outer(data):
    """Reads the fields of a message and leaves its bytes as they are."""
    at, fields = 0, []
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 != BYTES:
            raise Broken
        size, at = read_varint(data, at)
        if at + size > len(data):
            raise Broken
        fields.append((tag >> 3, tag & 7, data[at:at + size]))
        at += size
    return fields


def wrapped(version, kind, raw):
    """Puts the bytes of an object into an envelope."""
    return MAGIC + write([[1, BYTES, [[1, BYTES, version], [2, BYTES, kind]]], [2, BYTES, raw], [3, BYTES, b""], [4, BYTES, b""]])


def status(data):
    """Returns a refusal as the tree that it is in JSON, or None if it is none."""
    try:
        found = read_top(data)
    except Broken:
        return None
    if found.get("kind") != b"Status":
        return None
    names = {2: "status", 3: "message", 4: "reason", 5: "details", 6: "code"}
    return named(found.get("raw", []), names, {"details": {1: "name", 2: "group", 3: "kind", 4: "causes", 5: "retryAfterSeconds", 6: "uid"}, "causes": {1: "reason", 2: "message", 3: "field"}})


def named(fields, names, further):
    """Returns a message as a tree with names in place of numbers, without empty values."""
    tree = {"kind": "Status"} if "status" in names.values() else {}
    for number, _, value in fields:
        name = names.get(number, f"field {number}")
        if name in further:
            value = named(value if isinstance(value, list) else [], further[name], further)
        else:
            value = shown(value)
        if name == "causes":
            tree.setdefault(name, []).append(value)
        elif value not in ("", 0, {}):
            tree[name] = value
    return tree


class Encoded:
    """An object of the API as it is sent. `after` changes its bytes last of all."""

    def __init__(self, version, kind, fields, after=None):
        self.version, self.kind, self.fields, self.after = version, kind, fields, after

    def render(self, fill):
        """Writes the object with its placeholders replaced."""
        data = wrapped(self.version, self.kind, write(filled(self.fields, fill)))
        return self.after(data) if self.after else data


def filled(fields, fill):
    """Replaces placeholders in all texts of a message."""
    out = []
    for number, kind, value in fields:
        if isinstance(value, list):
            value = filled(value, fill)
        elif isinstance(value, bytes) and b"{{" in value and is_text(value):
            value = fill(value.decode()).encode()
        out.append([number, kind, value])
    return out
