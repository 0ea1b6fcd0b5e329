"""Makes a case shorter as long as it shows the same difference."""

from mutate import drop, paths, put, at
from wire import Encoded, holder, places

ATTEMPTS = 60


class Reducer:
    """Tries shorter forms of a case."""

    def __init__(self, player, signature):
        self.player, self.signature = player, signature
        self.left = ATTEMPTS
        self.answers = None

    def shows(self, case):
        """Tells whether a case still shows the difference."""
        if self.left <= 0:
            return False
        self.left -= 1
        found = self.player.play(case, counted=False)
        if found is None or self.signature not in found[1]:
            return False
        del case.steps[found[0] + 1:]
        self.answers = found[2]
        return True

    def reduce(self, case):
        """Returns the shortest case found, or None if the difference does not show again."""
        case = case.copy()
        if not self.shows(case):
            return None
        for remove in (self.without_steps, self.without_parameters, self.without_places, self.with_short_texts):
            case = remove(case)
        return case

    def without_steps(self, case):
        """Leaves out steps before the last: first all watches but the one that the last step is about."""
        watched = case.steps[-1].label
        if watched:
            other = case.copy()
            other.steps = [step for step in case.steps if step.label in ("", watched)]
            case = other if self.shows(other) else case
        for index in reversed(range(len(case.steps) - 1)):
            other = case.copy()
            del other.steps[index]
            if self.shows(other):
                case = other
        return case

    def without_parameters(self, case):
        """Leaves out parameters and headers."""
        for number in range(len(case.steps)):
            for part in ("query", "headers"):
                for index in reversed(range(len(getattr(case.steps[number], part)))):
                    other = case.copy()
                    name = getattr(other.steps[number], part)[index][0]
                    # A watch that is read as one answer has to end.
                    if name == "Content-Type" or name == "dryRun" and case.dry or name == "timeoutSeconds" and case.steps[number].method == "GET":
                        continue
                    del getattr(other.steps[number], part)[index]
                    if self.shows(other):
                        case = other
        return case

    def without_places(self, case):
        """Leaves out places of bodies, those with most below them first."""
        for number in reversed(range(len(case.steps))):
            if isinstance(case.steps[number].body, Encoded):
                case = self.without_fields(case, number)
            tried = set()
            while self.left > 0 and isinstance(case.steps[number].body, (dict, list)):
                body = case.steps[number].body
                open_paths = [path for path in paths(body) if path not in tried and path not in (("apiVersion",), ("kind",), ("metadata",), ("metadata", "name"))]
                if not open_paths:
                    break
                path = max(open_paths, key=lambda one: (len(str(at(body, one))), -len(one)))
                tried.add(path)
                other = case.copy()
                drop(other.steps[number].body, path)
                if self.shows(other):
                    case = other
                    tried = {one for one in tried if one[: len(path) - 1] != path[:-1] or isinstance(path[-1], str)}
        return case

    def without_fields(self, case, number):
        """Leaves out fields of a body in protobuf, those with most below them first."""
        tried = 0
        while self.left > 0:
            fields = case.steps[number].body.fields
            open_paths = sorted(places(fields), key=lambda path: (len(path), path), reverse=True)
            open_paths.sort(key=lambda path: -len(str(holder(fields, path)[path[-1]])))
            if tried >= len(open_paths):
                break
            path = open_paths[tried]
            other = case.copy()
            del holder(other.steps[number].body.fields, path)[path[-1]]
            if self.shows(other):
                case = other
            else:
                tried += 1
        return case

    def with_short_texts(self, case):
        """Shortens long texts."""
        for step_number in range(len(case.steps)):
            body = case.steps[step_number].body
            if not isinstance(body, (dict, list)):
                continue
            for path in [path for path in paths(body) if isinstance(at(body, path), str) and len(at(body, path)) > 60]:
                other = case.copy()
                put(other.steps[step_number].body, path, at(body, path)[:40])
                if self.shows(other):
                    case = other
        return case
