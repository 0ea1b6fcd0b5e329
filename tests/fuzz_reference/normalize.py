"""Replaces what must differ between two servers, and compares what is left."""

import base64
import datetime
import json
import re
import time

import wire

UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
VERSION = re.compile(r'((?:\\*"|)resourceVersion(?:\\*"|):\s?\\*")\d+(?=\\*")')
# A version in a message.
RECORDED = re.compile(r"current: \d+|(precondition|record|ResourceVersion|object meta): ?\(?\d+\)?|(precondition|record) \(\d+\)")
# The versions in what a server says of a version that it no longer has.
TOO_OLD = re.compile(r"too old resource version: \d+ \(\d+\)")
TIME = re.compile(r"\b" + str(datetime.datetime.now(datetime.timezone.utc).year) + r"-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
TOKEN_VOLUME = re.compile(r"kube-api-access-[a-z0-9]{5}\b")
AGE = re.compile(r"^(\d+[smh])+$")
CONTINUE = re.compile(r'("continue":\s?")[^"]+"|(?m:^(\s*continue: )\S+$)')
# A token of a service account: a header, claims and a signature.
TOKEN = re.compile(r"eyJ[\w-]+\.(eyJ[\w-]+)\.[\w-]+")
# The first bytes of a body in protobuf, among them lengths that versions and names change.
FIRST_BYTES = re.compile(r"\(6b3873[0-9a-f]+ \.\.\.\)")
DESCRIPTION = re.compile(r'"description":"(?:[^"\\]|\\.)*"')
ADDRESS = re.compile(r"^10\.0\.\d+\.\d+$")
STATUS_WRITERS = {"kube-apiserver", "api-priority-and-fairness-config-consumer-v1"}
PROTOBUF = "application/vnd.kubernetes.protobuf"
GENERATED = re.compile(r'"generateName": ?"([^"]{1,300})"')
YAML_ADDRESS = re.compile(r"(?m)^(\s*(?:- |clusterIP: ))10\.0\.\d+\.\d+$")
YAML_PORT = re.compile(r"(?m)^(\s*(?:- )?(?:nodePort|healthCheckNodePort): )\d+$")
YAML_STATUS = re.compile(r"(?m)^status:.*\n(?:[ -].*\n?)*")
YAML_ENTRY = re.compile(r"(?m)^  - apiVersion: .*\n(?:    .*\n)*")
SOURCE = re.compile(r"[\w/.@-]{1,200}\.go:\d+")


def normalized(answer, request):
    """Returns the tree or text of an answer without what must differ. `request` is the text of the request:
    what it names itself stays."""
    if answer.type.startswith(PROTOBUF):
        tree = answer.tree or wire.envelope(answer.body)
        if isinstance(tree, dict) and (b"CustomResourceDefinition" in answer.body or b"FlowSchema" in answer.body):
            unestablished_wire(tree)
        body = json.dumps(without_own(tree), ensure_ascii=False)
    else:
        tree, body = answer.tree, answer.body.decode("utf-8", "replace")
    body = text(body)
    # A list has objects of other requests; of their prefixes only the cut ones cannot be taken for a part of a name.
    cut = [prefix for prefix in GENERATED.findall(body) if len(prefix) > 58]
    for prefix in dict.fromkeys(GENERATED.findall(request) + cut):
        body = re.sub(re.escape(prefix[:58]) + r"[a-z0-9]{5}\b", prefix[:58].replace("\\", "") + "<drawn>", body)
    if tree is None:
        if re.search(r"(?m)^kind: (CustomResourceDefinition|FlowSchema)$", body):
            body = unestablished_yaml(body)
        body = DESCRIPTION.sub('"description":""', body)
        return YAML_ADDRESS.sub(r"\1<address>", YAML_PORT.sub(r"\1<port>", body))
    tree = json.loads(body)
    if isinstance(tree, dict) and tree.get("kind") in ("CustomResourceDefinition", "FlowSchema"):
        unestablished(tree)
    allocated(tree, request)
    return tree


def without_own(tree):
    """Replaces versions, times, addresses, ports and ages in an object that was read without its schema."""
    if isinstance(tree, dict):
        metadata = (tree.get("1") or [None])[0]
        if isinstance(metadata, dict):
            # The version of an object, and that of a list.
            for key in ("2", "6"):
                if len(metadata.get(key, [])) == 1 and str(metadata[key][0]).isdigit():
                    metadata[key] = ["<version>"]
        seconds = tree.get("1")
        if seconds and isinstance(seconds[0], int) and abs(seconds[0] - time.time()) < 86400 and set(tree) <= {"1", "2"}:
            return "<time>"
        return {key: without_own(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [without_own(value) for value in tree]
    if isinstance(tree, str) and tree.startswith("eyJ2Ijoi"):
        return "<continue>"
    if isinstance(tree, str) and (ADDRESS.match(tree) or AGE.match(tree.strip('"'))):
        return "<drawn>"
    return "<port>" if isinstance(tree, int) and 30000 <= tree <= 32767 else tree


def unestablished(tree):
    """Leaves out the status of a definition or a flow, which one server has written when it answers and the other has
    not."""
    tree.pop("status", None)
    metadata = tree.get("metadata", {})
    metadata["managedFields"] = [entry for entry in metadata.get("managedFields", []) if entry.get("manager") not in STATUS_WRITERS]


def unestablished_wire(tree):
    """Does the same with a definition in protobuf, or with its metadata alone."""
    raw = tree.get("raw")
    metadata = (raw.get("1") or [None])[0] if isinstance(raw, dict) else None
    if isinstance(metadata, dict):
        raw.pop("3", None)
        metadata["17"] = [entry for entry in metadata.get("17", []) if not STATUS_WRITERS & set(entry.get("1", []))]


def unestablished_yaml(body):
    """Does the same with a definition in YAML."""
    managers = [f"    manager: {name}\n" for name in STATUS_WRITERS]
    body = YAML_STATUS.sub("", body)
    return YAML_ENTRY.sub(lambda found: "" if any(line in found[0] for line in managers) else found[0], body)


def text(body):
    """Replaces uids, times, versions and drawn names in a text."""
    body = TOKEN.sub(claims, body)
    body = UUID.sub(lambda found: found.group() if found.group().startswith("11111111") else "<uid>", body)
    body = VERSION.sub(r"\1<version>", body)
    body = RECORDED.sub("<version>", body)
    body = TOO_OLD.sub("too old resource version: <version>", body)
    body = CONTINUE.sub(lambda found: f'{found[1]}<continue>"' if found[1] else f"{found[2]}<continue>", body)
    body = FIRST_BYTES.sub("(<bytes> ...)", body)
    body = TIME.sub("<time>", body)
    if ".go:" in body:
        body = SOURCE.sub("<source>", body)
    body = re.sub(r"\b(selfType)(\d+|\.spec\b)", r"\1", body)
    return TOKEN_VOLUME.sub("kube-api-access-<drawn>", body)


def claims(found):
    """Returns a token as its claims, with its lifetime in place of its times."""
    try:
        data = json.loads(base64.urlsafe_b64decode(found[1] + "=="))
    except ValueError:
        return found[0]
    lasts = data.pop("exp", 0) - data.pop("iat", 0)
    for name in ("nbf", "jti"):
        data.pop(name, None)
    # In single quotes, since it stands in a text.
    return f"<token {json.dumps(data, sort_keys=True)} for {lasts} s>".replace('"', "'")


def allocated(tree, request):
    """Replaces addresses, ports, ages and drawn names in a tree."""
    if isinstance(tree, list):
        for item in tree:
            allocated(item, request)
        return
    if not isinstance(tree, dict):
        return
    metadata = tree.get("metadata")
    if isinstance(metadata, dict) and metadata.get("generateName") and isinstance(metadata.get("name"), str):
        if metadata["name"].startswith(metadata["generateName"]):
            metadata["name"] = metadata["generateName"] + "<drawn>"
    if isinstance(metadata, dict) and isinstance(metadata.get("managedFields"), list):
        for entry in metadata["managedFields"]:
            if isinstance(entry, dict):
                entry.pop("time", None)
        metadata["managedFields"].sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    for key, value in tree.items():
        if key in ("nodePort", "healthCheckNodePort") and isinstance(value, int) and str(value) not in request:
            tree[key] = "<port>"
        elif key == "clusterIP" and isinstance(value, str) and ADDRESS.match(value) and f'"{value}"' not in request:
            tree[key] = "<address>"
        elif key == "clusterIPs" and isinstance(value, list):
            tree[key] = ["<address>" if isinstance(one, str) and ADDRESS.match(one) and f'"{one}"' not in request else one for one in value]
        elif key == "cells" and isinstance(value, list):
            tree[key] = ["<age>" if isinstance(cell, str) and AGE.match(cell) else "<address>" if isinstance(cell, str) and ADDRESS.match(cell) else cell for cell in value]
        elif key == "name" and isinstance(value, str) and tree.get("kind") == "Status":
            pass
        elif key == "columnDefinitions" and isinstance(value, list):
            for column in value:
                column.pop("description", None)
        else:
            allocated(value, request)


def trees_differ(one, two, path=()):
    """Lists the places at which two trees differ, as (path, reference's value, tested server's value)."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(set(one) | set(two)):
            if key not in one:
                yield path + (key,), ABSENT, two[key]
            elif key not in two:
                yield path + (key,), one[key], ABSENT
            else:
                yield from trees_differ(one[key], two[key], path + (key,))
    elif isinstance(one, list) and isinstance(two, list):
        for index in range(max(len(one), len(two))):
            if index >= len(one):
                yield path + (index,), ABSENT, two[index]
            elif index >= len(two):
                yield path + (index,), one[index], ABSENT
            else:
                yield from trees_differ(one[index], two[index], path + (index,))
    elif type(one) is not type(two) or one != two:
        yield path, one, two


class Absent:
    """Stands for no value."""

    def __repr__(self):
        return "(absent)"


ABSENT = Absent()
