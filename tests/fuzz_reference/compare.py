"""Compares two answers, and names each difference by a signature that is the same for the same cause."""

import json
import re

from normalize import ABSENT, normalized, trees_differ

PLACES = 3
# Between the causes in a message.
PARTS = re.compile(r", |: \[|\]$")
POD = re.compile(r"^(spec\.jobTemplate\.spec\.template\.spec|spec\.template\.spec|template\.spec|spec)(?=\.(containers|initContainers|ephemeralContainers|volumes|securityContext|affinity|tolerations|dns|host|topologySpread|resource|scheduling|overhead|os|readiness|restart|service|termination|active|node|priority|preemption|image|enable|share|automount|set)|$)")


def general(message):
    """Returns a message without the values in it."""
    message = re.sub(r'"(?:[^"\\]|\\.)*"', '"…"', message)
    message = re.sub(r"'[^']*'", "'…'", message)
    message = re.sub(r"\b\d+(\.\d+)?\b", "N", message)
    message = re.sub(r"\{.*\}", "{…}", message, flags=re.S)
    return message[:300]


def place(path):
    """Returns the name of a place without indexes and keys, the same for a pod and a template of pods."""
    if not isinstance(path, str):
        path = ".".join("[]" if isinstance(key, int) else key if re.match(r"^[\w:$-]+$", key) else "{}" for key in path)
        path = path.replace(".[]", "[]")
    path = re.sub(r"\[[^\]]*\]", "[]", path)
    return POD.sub("<podspec>", path)


def form(value):
    """Returns what kind of a value it is."""
    if value is ABSENT:
        return "(absent)"
    if isinstance(value, (dict, list)) and not value or value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return value if value.startswith("<") else "text" if value else '""'
    return {dict: "{…}", list: "[…]", int: "int", float: "float"}.get(type(value), "?")


def causes(tree):
    """Returns the causes of a refusal, as a set."""
    found = (tree.get("details") or {}).get("causes") or []
    return {(cause.get("field", ""), cause.get("reason", ""), cause.get("message", "")) for cause in found}


def why(tree):
    """Returns in general words why a request was refused."""
    if not isinstance(tree, dict):
        return general(str(tree))[:100]
    if tree.get("kind") != "Status" or tree.get("status") == "Success":
        return "accepted"
    found = sorted({f"{reason} {place(path)}: {general(message)}" for path, reason, message in causes(tree)})
    return "; ".join(found[:3]) if found else general(tree.get("message", ""))


def differences(answers, request):
    """Returns the signatures of all differences between two answers."""
    one, two = answers
    trees = [normalized(answer, request) for answer in answers]
    if one.code != two.code:
        # What is behind a refusal by headers alone does not matter.
        other = "" if one.code in (406, 415) else f" → {why(trees[1])}"
        return [f"status {one.code} → {two.code if other else 'other'}: {why(trees[0])}{other}"]
    found = []
    if not (isinstance(trees[0], dict) and isinstance(trees[1], dict)):
        if trees[0] != trees[1]:
            found.append(f"text of {one.code}: {text_difference(str(trees[0]), str(trees[1]))}")
    elif one.code >= 400:
        found += refusals(trees)
    else:
        found += objects(trees)
    return found + warnings(answers) + headers(answers)


def text_difference(one, two):
    """Returns in general words the first place at which two texts differ."""
    at = next((index for index, pair in enumerate(zip(one, two)) if pair[0] != pair[1]), min(len(one), len(two)))
    start = max(0, at - 20)
    return f"{general(one[start:at + 40])!r} → {general(two[start:at + 40])!r}"


def refusals(trees):
    """Compares two refusals."""
    one, two = causes(trees[0]), causes(trees[1])
    found = []
    for path, reason, message in sorted(one - two):
        alike = [other for other in two - one if other[:2] == (path, reason)]
        if alike:
            found.append(f"text of cause {reason} {place(path)}: {general(message)} → {general(alike[0][2])}")
        else:
            found.append(f"cause absent: {reason} {place(path)}: {general(message)}")
    for path, reason, message in sorted(two - one):
        if not any(other[:2] == (path, reason) for other in one - two):
            found.append(f"cause added: {reason} {place(path)}: {general(message)}")
    # A patch that one server cannot read has no other causes there.
    found = [line for line in found if re.match(r"cause (added|absent): FieldValueInvalid patch:", line)] or found
    if found:
        return found
    for path, left, right in trees_differ(trees[0], trees[1]):
        if path == ("message",):
            if one and sorted(PARTS.split(left)) == sorted(PARTS.split(right)):
                found.append(f"order of causes in the message {unordered(trees)}")
            elif sorted(left.splitlines()) == sorted(right.splitlines()):
                found.append("order of lines in the message")
            else:
                found.append(f"message: {general(left)} → {general(right)}" if general(left) != general(right) else f"message: {text_difference(left, right)}")
        elif path[:2] == ("details", "causes"):
            line = f"order of causes {unordered(trees)}"
            found.append(line) if line not in found else None
        else:
            found.append(f"refusal at {place(path)}: {left!r:.80} → {right!r:.80}")
    return found


def unordered(trees):
    """Names the first places of which causes stand in another order."""
    lists = [(tree.get("details") or {}).get("causes") or [] for tree in trees]
    moved = {place(cause.get("field", "")) for pair in zip(*lists) if pair[0] != pair[1] for cause in pair}
    return ", ".join(sorted(moved)[:4])


def objects(trees):
    """Compares two objects, lists or tables."""
    found = [(place(path), form(left), form(right), left, right) for path, left, right in trees_differ(*trees)]
    shown = []
    for path, left, right, left_value, right_value in found:
        if left == right:
            left, right = (json.dumps(value)[:60] if left != "text" else repr(value)[:60] for value in (left_value, right_value))
        line = f"object at {path}: {left} → {right}"
        if line not in shown:
            shown.append(line)
    return shown[:PLACES]


def warnings(answers):
    """Compares the warnings."""
    one, two = (answer.all("warning") for answer in answers)
    if one == two:
        return []
    if sorted(one) == sorted(two):
        return ["order of warnings"]
    found = [f"warning absent: {general_warning(line)}" for line in one if line not in two]
    found += [f"warning added: {general_warning(line)}" for line in two if line not in one]
    return sorted(set(found)) or ["number of a warning"]


def general_warning(line):
    """Returns a warning without the values in it."""
    line = re.sub(r'^299 - "(.*)"$', r"\1", line)
    return general(re.sub(r"[\w.\[\]]+\[\d+\][\w.\[\]]*", lambda found: place(found.group()), line.replace('\\"', "'")))


def headers(answers):
    """Compares headers that clients act on."""
    found = []
    for name in ("content-type", "location", "retry-after", "allow", "www-authenticate"):
        one, two = (answer.header(name) for answer in answers)
        if one != two:
            found.append(f"header {name}: {one!r} → {two!r}")
    return found
