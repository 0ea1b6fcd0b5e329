"""Draws requests, sends them to the reference and to the tested server, and reports how the answers differ.
tests/fuzz-reference starts it."""

import argparse
import json
import os
import random
import sys
import time

from admission import Admission
from builtin import Builtin
from crds import Custom
from objects import NAMESPACE, served
from parts import Parts
from protobuf import Protobuf
from raw import Raw
from report import Report
from schemas import Schemas
from servers import Pair
from steps import JSON, Player, Step
from watch import WatchDrawer

SORTS = {"create": 30, "update": 22, "patch": 22, "apply": 14, "read": 6, "raw": 3, "crd": 2, "cel": 1, "watch": 2, "protobuf": 8, "admission": 10, "part": 10}
# The share of requests that may stay without an answer of either server: the reference panics at some of them.
UNANSWERED_MAX = 0.01
RBAC = "/apis/rbac.authorization.k8s.io/v1"
# A grant to users that only the tested server has.
OWN_GRANT = f"{RBAC}/clusterrolebindings/polyplane:cluster-admins"


def arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="fuzz-reference")
    parser.add_argument("reference")
    parser.add_argument("tested")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--only", default="", choices=["", *SORTS], help="one of " + ", ".join(SORTS))
    return parser.parse_args()


def prepare(pair):
    """Makes the namespace and the accounts that objects name, where they are not there yet."""
    made = [("/api/v1/namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}})]
    for name in ("default", "builder"):
        made.append((f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": name}}))
    for path, tree in made:
        for answer in pair.both("POST", path, tree):
            if answer.code not in (201, 409):
                sys.exit(f"fuzz-reference: {path} answered {answer.code}: {answer.body[:300]!r}")


def align_roles(pair):
    """Makes the roles that both servers begin with alike. No controller runs beside the reference, so its aggregated
    roles are filled here, in the name of the one that would."""
    reference, tested = pair.servers
    for name in ("admin", "edit", "view"):
        target = f"{RBAC}/clusterroles/{name}"
        rules = tested.get(target)["rules"]
        filled = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
        target += "?fieldManager=clusterrole-aggregation-controller&force=true"
        answer = reference.send("PATCH", target, [("Content-Type", "application/apply-patch+yaml")], json.dumps(filled).encode())
        if answer.code != 200:
            sys.exit(f"fuzz-reference: {target} answered {answer.code}: {answer.body[:300]!r}")


def take_own_grant(tested):
    """Deletes the grant that only the tested server has. Returns it as a new one is written, or nothing if there is none."""
    grant = tested.send("GET", OWN_GRANT, [("Accept", "application/json")], None)
    if grant.code == 404:
        return None
    # Nothing is deleted that is not known.
    answer = tested.send("DELETE", OWN_GRANT, [], None) if grant.code == 200 else grant
    if answer.code != 200:
        sys.exit(f"fuzz-reference: {OWN_GRANT} answered {answer.code}: {answer.body[:300]!r}")
    kept = ("name", "labels", "annotations")
    metadata = {name: value for name, value in grant.tree["metadata"].items() if name in kept}
    return {**grant.tree, "metadata": metadata}


def give_own_grant(tested, grant):
    """Makes a grant again that was taken, because somebody else may use the server."""
    body = json.dumps(grant).encode()
    answer = tested.send("POST", f"{RBAC}/clusterrolebindings", [("Content-Type", "application/json")], body)
    # With 409 the server has made it by itself.
    if answer.code not in (201, 409):
        print(f"fuzz-reference: {OWN_GRANT} was deleted and cannot be made again: {answer.code} {answer.body[:300]!r}", file=sys.stderr)


def checked(kinds, pair):
    """Leaves out objects that the reference refuses as they are."""
    for kind in kinds:
        good = []
        for base in kind.bases:
            step = Step("POST", kind.collection, [("dryRun", "All")], [JSON], base)
            answer = pair.servers[0].send("POST", step.target(), step.headers, step.text().replace("{{name}}", "base").encode())
            good += [base] if answer.code in (200, 201) else []
        if not good:
            print(f"fuzz-reference: no valid object of {kind.group}/{kind.version} {kind.kind}: {answer.body[:200]!r}", file=sys.stderr)
        kind.bases = good
    return [kind for kind in kinds if kind.bases]


def main():
    """Runs the command."""
    wanted = arguments()
    pair = Pair(wanted.reference, wanted.tested)
    prepare(pair)
    align_roles(pair)
    tested = pair.servers[1]
    grant = take_own_grant(tested)
    try:
        compare(pair, wanted)
    finally:
        if grant:
            give_own_grant(tested, grant)


def compare(pair, wanted):
    """Sends the requests, reports the differences, and ends with 1 if there are any."""
    schemas = Schemas(pair.servers[0])
    kinds = checked(served(pair.servers[0], schemas), pair)
    if wanted.kinds:
        kinds = [kind for kind in kinds if kind.kind in wanted.kinds.split(",")]
    dice = random.Random(wanted.seed)
    player = Player(pair)
    report = Report(player, os.environ.get("RESULTS"), os.environ.get("ACCEPTED"))
    builtin = Builtin(dice, schemas, kinds)
    custom = Custom(dice, schemas, player, report, wanted.seed)
    drawers = {"raw": Raw(dice, builtin), "watch": WatchDrawer(dice, pair, wanted.kinds), "protobuf": Protobuf(dice, pair, builtin), "admission": Admission(dice, schemas, kinds), "part": Parts(dice, builtin)}
    sorts = [wanted.only] if wanted.only else [sort for sort in SORTS if getattr(drawers.get(sort), "kinds", True)]
    for name in set(sorts) & set(drawers):
        if hasattr(drawers[name], "prepare"):
            drawers[name].prepare()
    weights = [SORTS[sort] for sort in sorts]
    sent, started = pair.sent, time.monotonic()
    while pair.sent - sent < wanted.requests:
        sort = dice.choices(sorts, weights)[0]
        if sort in ("crd", "cel"):
            getattr(custom, sort)()
            continue
        case = drawers[sort].draw() if sort in drawers else builtin.draw(sort)
        found = player.play(case)
        if found:
            report.add(case, found)
    report.totals()
    print(f"({time.monotonic() - started:.0f} s)", file=sys.stderr)
    # Two servers that are gone answer alike.
    if player.unanswered > wanted.requests * UNANSWERED_MAX:
        sys.exit(f"fuzz-reference: {player.unanswered} requests had no answer from either server")
    sys.exit(1 if report.groups else 0)


if __name__ == "__main__":
    main()
