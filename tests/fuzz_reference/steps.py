"""A case is a list of steps; each is a request that both servers get."""

import base64
import copy
import json
import re
import time
from urllib.parse import quote

import wire
from compare import differences
from watching import Watches

JSON = ("Content-Type", "application/json")
# A number in a form of its own, such as {{number 1e3}}.
NUMBER = re.compile(r'"\{\{number ([^}]*)\}\}"')


class Step:
    """A request. `{{name}}`, `{{rv}}`, `{{uid}}` and `{{continue}}` in it stand for the case's name and for what the
    same server answered last, `{{first}}` for the first version that it answered. The method WATCH opens a watch,
    whose events are compared by a later step with the method EVENTS and the same label."""

    label = ""

    def __init__(self, method, path, query=(), headers=(), body=None):
        self.method, self.path = method, path
        self.query, self.headers = list(query), list(headers)
        self.body = body

    def target(self):
        """Returns the path with its query."""
        query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in self.query)
        return self.path + (("&" if "?" in self.path else "?") + query if query else "")

    def text(self):
        """Returns the body as text."""
        if self.body is None or isinstance(self.body, (str, wire.Encoded)):
            return self.body
        return NUMBER.sub(r"\1", json.dumps(self.body, ensure_ascii=False, separators=(",", ":")))

    def shown(self):
        """Returns the request as a reader sees it."""
        lines = [" ".join(part for part in (self.method, self.label, self.target()) if part)] + [f"  {name}: {value}" for name, value in self.headers]
        if self.body is not None:
            body = self.text()
            if isinstance(body, wire.Encoded):
                body = f"{body.version!r} {body.kind!r} {body.fields!r}\n  base64: " + base64.b64encode(body.render(str)).decode()
            lines.append("  " + (body if len(body) < 1500 else body[:1500] + f"… ({len(body)} characters)"))
        return "\n".join(lines)


class Case:
    """Some steps, the kind they are about, and a last step that tidies up."""

    def __init__(self, subject, steps, tidy=None, dry=False):
        self.subject, self.steps, self.tidy = subject, steps, tidy
        # Nothing of it may ever be stored: a shorter form remains a dry run.
        self.dry = dry

    def copy(self):
        """Returns a copy that may be changed."""
        return copy.deepcopy(self)


class Player:
    """Plays cases on both servers."""

    def __init__(self, pair):
        self.pair = pair
        self.named = 0
        self.prefix = f"f{int(time.time()):x}-"
        self.last_codes = []
        self.equal = 0
        # Steps that neither server has answered.
        self.unanswered = 0

    def play(self, case, counted=True):
        """Plays a case up to the first step that differs. Returns the index of that step, its signatures and both
        answers, or None."""
        self.named += 1
        name = f"{self.prefix}{self.named}"
        seen = [{"rv": "1", "uid": "11111111-0000-0000-0000-000000000000", "first": "", "continue": ""} for _ in self.pair.servers]
        watches = Watches()
        found = None
        stored = False
        for index, step in enumerate(case.steps):
            answers, request = self.step(step, name, seen, watches)
            stored = stored or step.method in ("POST", "PATCH", "PUT") and any(answer.code < 300 for answer in answers)
            signatures = differences(answers, request)
            self.unanswered += all(answer.code == 0 for answer in answers)
            self.last_codes = [answer.code for answer in answers]
            if signatures:
                found = index, signatures, answers
                break
            self.equal += counted
        watches.close()
        tidy = case.tidy if isinstance(case.tidy, list) else [case.tidy] if case.tidy else []
        for step in tidy if stored else []:
            self.step(step, name, seen)
        return found

    def step(self, step, name, seen, watches=None):
        """Sends one step and remembers version and uid of what it answers."""
        if step.method == "EVENTS":
            return watches.collect(step.label, step.path == "to the end"), "events"
        requests, texts = [], []
        for known in seen:
            fill = filler(name, known)
            body = step.text()
            shown = ""
            if isinstance(body, wire.Encoded):
                body = body.render(fill)
            elif body is not None:
                shown = fill(body)
                body = shown.encode("utf-8", "surrogatepass")
            texts.append(shown)
            headers = [(key, fill(value)) for key, value in step.headers]
            requests.append((step.method, fill(step.target().replace("%7B%7B", "{{").replace("%7D%7D", "}}")), headers, body))
        if step.method == "WATCH":
            answers = watches.start(self.pair, step.label, [request[1:3] for request in requests])
            return answers, step.target()
        answers = self.pair.send(requests)
        for known, answer in zip(seen, answers):
            metadata = (answer.tree or {}).get("metadata") if isinstance(answer.tree, dict) else None
            if answer.code < 300 and isinstance(metadata, dict):
                known["rv"] = metadata.get("resourceVersion", known["rv"])
                known["uid"] = metadata.get("uid", known["uid"])
                known["continue"] = metadata.get("continue", "")
                known["first"] = known["first"] or known["rv"]
        return answers, texts[0] + step.target()


def filler(name, known):
    """Returns a function that puts what is known in the place of its names in a text."""
    def fill(text):
        text = text.replace("{{name}}", name)
        for key, value in known.items():
            text = text.replace("{{" + key + "}}", value)
        return text
    return fill
