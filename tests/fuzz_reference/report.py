"""Groups differences by their signature, and prints each once with the shortest case that shows it."""

import json
import re
import tomllib
from pathlib import Path

import wire
from compare import general
from reduce import Reducer

ACCEPTED = Path(__file__).resolve().parent / "accepted.toml"
SHOWN = 700


class Report:
    """What was found."""

    def __init__(self, player, output=None, accepted_output=None):
        self.player, self.output, self.accepted_output = player, output, accepted_output
        self.classes = tomllib.loads(ACCEPTED.read_text()).get("accepted", [])
        for one in self.classes:
            one["found"] = re.compile(one["pattern"], re.S)
            one["seen"] = {}
        self.accepted = self.different = 0
        self.groups = {}
        # What a case rests on and does not show: the definition of its kind.
        self.context = None

    def accept(self, line):
        """Returns the class that accepts a difference."""
        for one in self.classes:
            if one["found"].search(line):
                return one
        return None

    def add(self, case, found):
        """Counts the differences of a case; a new one is made short and printed."""
        index, signatures, answers = found
        left = []
        for signature in signatures:
            line = f"{case.subject} {case.steps[index].method} {signature}"
            known = self.accept(line)
            if known:
                self.see(known, line, case, index, answers)
            else:
                left.append(signature)
        if not left:
            self.accepted += 1
            return
        self.different += 1
        for signature in left:
            group = self.groups.setdefault(signature, {"count": 0, "kinds": {}})
            group["count"] += 1
            group["kinds"][case.subject] = group["kinds"].get(case.subject, 0) + 1
            if group["count"] == 1:
                self.print_new(signature, case, index, answers, group)

    def see(self, known, line, case, index, answers):
        """Keeps what an accepted class has hidden: each difference with the first requests that showed it."""
        one = known["seen"].setdefault(line, {"count": 0})
        one["count"] += 1
        if one["count"] == 1 and self.accepted_output:
            one["case"] = [step.shown() for step in case.steps[: index + 1]]
            one["answers"] = [self.short(answer) for answer in answers]

    def print_new(self, signature, case, index, answers, group):
        """Prints a difference that was not seen before."""
        del case.steps[index + 1:]
        reducer = Reducer(self.player, signature)
        short = reducer.reduce(case)
        answers = reducer.answers or answers
        group["repeated"] = short is not None
        group["case"] = [step.shown() for step in (short or case).steps]
        group["answers"] = [self.short(answer) for answer in answers]
        print(f"\n### {case.subject}: {signature}" + ("" if short else "\n(not seen again when it was repeated)"))
        if self.context is not None:
            group["context"] = self.context
            print("  " + self.shown_context(signature)[:1500])
        print("\n".join(group["case"]))
        for name, answer in zip("-+", group["answers"]):
            print(f"{name} {answer}")
        print(end="", flush=True)
        self.write()

    def shown_context(self, signature):
        """Returns the schema of a definition, or the rules that a signature names."""
        if "spec" in self.context:
            return json.dumps(self.context["spec"]["versions"][0])
        named = [json.dumps(rule) for message, rule in self.context.items() if general(message) in signature]
        return "\n  ".join(named[:6])

    @staticmethod
    def short(answer):
        """Returns an answer as a reader sees it."""
        shown = answer.body.decode("utf-8", "replace")
        if answer.type.startswith("application/vnd.kubernetes.protobuf"):
            shown = json.dumps(wire.envelope(answer.body), ensure_ascii=False)
        if isinstance(answer.tree, dict) and answer.code >= 400:
            shown = answer.tree.get("message", shown)
        warnings = "".join(f" [warning {line[:300]}]" for line in answer.all("warning"))
        return f"{answer.code} {answer.type}{warnings} {shown[:SHOWN]}"

    def write(self):
        """Writes all groups to the output."""
        if self.output:
            ordered = dict(sorted(self.groups.items(), key=lambda pair: -pair[1]["count"]))
            self.write_file(self.output, ordered)
        if self.accepted_output:
            self.write_file(self.accepted_output, {one["pattern"]: one["seen"] for one in self.classes if one["seen"]})

    @staticmethod
    def write_file(name, tree):
        """Writes a tree to a file."""
        Path(name).write_text(json.dumps(tree, indent=1, ensure_ascii=False, default=str).encode("utf-8", "replace").decode())

    def totals(self):
        """Prints how often each difference was seen, and one line of totals."""
        self.write()
        for signature, group in sorted(self.groups.items(), key=lambda pair: -pair[1]["count"]):
            kinds = ", ".join(sorted(group["kinds"], key=lambda kind: -group["kinds"][kind])[:6])
            print(f"{group['count']:6} {signature[:240]} ({kinds})")
        print(f"fuzz reference: {self.player.pair.sent} requests sent, {self.player.equal} drawn ones equal, {self.accepted} accepted, "
              f"{self.different} different in {len(self.groups)} groups")
