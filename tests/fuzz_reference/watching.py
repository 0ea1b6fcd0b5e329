"""Watches that are open while other requests are sent, and what they have brought."""

import json
import socket
import threading
import time

import wire
from normalize import without_own
from servers import Answer

# How long nothing comes before a watch is taken to be complete, and how long if one server's has fewer events.
QUIET = 0.3
LATE = 1.2
END = 8
FIRST = b"k8s.io/initial-events-end"


class Stream:
    """A watch on one server, read by a thread of its own."""

    def __init__(self, server, target, headers):
        self.server, self.target, self.headers = server.another(), target, headers
        self.socket = None
        self.code, self.answered, self.data = None, [], b""
        self.started = self.last = time.monotonic()
        self.opened, self.ended = threading.Event(), threading.Event()
        # Set if the answer has come to its end, and did not break off.
        self.whole = False
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """Reads until the watch ends."""
        try:
            response = self.server.request("GET", self.target, self.headers, None, self.keep)
            self.code, self.answered = response.status, response.getheaders()
            if self.code == 200:
                self.opened.set()
            while chunk := response.read1(65536):
                self.data += chunk
                self.last = time.monotonic()
            self.whole = True
        except Exception as error:
            self.code = self.code or 0
            self.data += b"" if self.code else type(error).__name__.encode()
        self.last = time.monotonic()
        self.ended.set()
        self.opened.set()

    def keep(self, connection):
        """Keeps the socket, by which the watch can be ended."""
        self.socket = connection.sock

    def end(self):
        """Ends the watch."""
        try:
            if self.socket:
                self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def answer(self):
        """Returns what was answered before any event."""
        return Answer(self.code, self.answered, b"" if self.code == 200 else self.data)

    def end_seen(self):
        """Returns how the watch has ended."""
        return ("whole" if self.whole else "broken off") if self.ended.is_set() else "still open"

    def events(self):
        """Returns the events, bookmarks apart: only one that ends the initial events has its place among others."""
        found, bookmarks = [], []
        for one in self.frames():
            bookmark = one.get("type") == "BOOKMARK" if isinstance(one, dict) else False
            if bookmark and FIRST.decode() not in json.dumps(one):
                bookmarks.append(one)
            else:
                found.append(one)
        return found, bookmarks

    def frames(self):
        """Splits what was read into events."""
        kind = next((value for name, value in self.answered if name.lower() == "content-type"), "")
        if kind.startswith("application/json"):
            return [self.parsed(line) for line in self.data.split(b"\n") if line]
        if self.data.startswith(wire.MAGIC):
            return [{"object": without_own(wire.envelope(self.data))}]
        if kind.startswith("application/vnd.kubernetes.protobuf"):
            return list(self.messages())
        return [{"text": part.decode("utf-8", "replace")} for part in self.data.split(b"---\n") if part]

    @staticmethod
    def parsed(line):
        """Reads one event."""
        try:
            return json.loads(line)
        except ValueError:
            return {"text": line.decode("utf-8", "replace")}

    def messages(self):
        """Reads events with their lengths before them."""
        at = 0
        while at + 4 <= len(self.data):
            size = int.from_bytes(self.data[at:at + 4], "big")
            frame = self.data[at + 4:at + 4 + size]
            at += 4 + size
            try:
                fields = wire.read_outer(frame)
                tree = {"type": fields[0][2].decode(), "object": without_own(wire.envelope(wire.read_outer(fields[1][2])[0][2]))}
                yield {**tree, **({"more": len(fields)} if len(fields) > 2 else {})}
            except (wire.Broken, IndexError):
                yield {"text": repr(frame[:200])}


class Watches:
    """The watches of a case, by their labels."""

    def __init__(self):
        self.open = {}

    def start(self, pair, label, requests):
        """Opens a watch on both servers and returns what they answered at once."""
        pair.sent += 1
        streams = [Stream(server, target, headers) for server, (target, headers) in zip(pair.servers, requests)]
        for stream in streams:
            stream.opened.wait(20)
        self.open[label] = streams
        return [stream.answer() for stream in streams]

    def collect(self, label, to_end):
        """Waits until nothing more comes, and returns both servers' events as answers."""
        streams = self.open.get(label)
        if streams is None or any(stream.code != 200 for stream in streams):
            return [Answer(200, [], b"")] * 2
        end = time.monotonic() + END
        while time.monotonic() < end:
            quiet = time.monotonic() - max(stream.last for stream in streams)
            counts = [len(stream.events()[0]) for stream in streams]
            if all(stream.ended.is_set() for stream in streams):
                break
            if not to_end and quiet > (QUIET if counts[0] == counts[1] else LATE):
                break
            time.sleep(0.05)
        events = [stream.events() for stream in streams]
        # Bookmarks come now and then: only their form can be compared.
        both = all(bookmarks for _, bookmarks in events)
        answers = []
        for stream, (found, bookmarks) in zip(streams, events):
            tree = {"kind": "Events", **by_object(found), "bookmark": bookmarks[:1] if both else []}
            if to_end:
                tree["end"] = stream.end_seen()
            answers.append(Answer(200, [("Content-Type", "application/json")], json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogatepass")))
        return answers

    def close(self):
        """Ends all watches."""
        for streams in self.open.values():
            for stream in streams:
                stream.end()
        self.open = {}


def name_of(event):
    """Returns the name of an event's object in any of its forms, or an empty text."""
    tree = event.get("object")
    if isinstance(tree, dict) and tree.get("kind") == "Table" and tree.get("rows"):
        tree = tree["rows"][0].get("object")
    if not isinstance(tree, dict):
        return ""
    if "raw" in tree:
        tree = {"metadata": {"name": (tree["raw"].get("1") or [{}])[0].get("1", [""])[0] if isinstance((tree["raw"].get("1") or [{}])[0], dict) else ""}}
    metadata = tree.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def by_object(events):
    """Groups events by their objects: between objects a server may take its own order. The initial ones are those
    before the bookmark that ends them."""
    first = next((index for index, one in enumerate(events) if one.get("type") == "BOOKMARK"), -1)
    grouped = {}
    for event in events:
        grouped.setdefault(name_of(event), []).append(event)
    return {"initial": sorted(name_of(event) for event in events[: first + 1]), "events": dict(sorted(grouped.items()))}
