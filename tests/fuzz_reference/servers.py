"""The two servers: sends one request to both and reads their answers."""

import copy
import http.client
import json
import re
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import wire

TIMEOUT = 60


class Answer:
    """What a server answered: status, headers, body, and the body as a tree if it is JSON."""

    def __init__(self, code, headers, body):
        self.code = code
        self.headers = headers
        self.body = body
        self.type = self.header("content-type")
        self.tree = None
        if self.type.startswith("application/json"):
            try:
                self.tree = json.loads(body)
            except ValueError:
                pass
        elif self.type.startswith("application/vnd.kubernetes.protobuf") and code >= 400:
            self.tree = wire.status(body)

    def header(self, name):
        """Returns the first value of a header, or an empty text."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    def all(self, name):
        """Returns all values of a header."""
        return [value for key, value in self.headers if key.lower() == name]


class Server:
    """A connection to the server that a kubeconfig names, as its first user."""

    def __init__(self, kubeconfig):
        text = open(kubeconfig).read()
        address = urlsplit(field(text, "server"))
        self.host, self.port = address.hostname, address.port
        self.tls = ssl.create_default_context(cafile=field(text, "certificate-authority"))
        self.tls.check_hostname = False
        self.token = field(text, "token")
        self.connection = None

    def open(self):
        """Opens the connection, if none is open."""
        if self.connection is None:
            self.connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT, context=self.tls)
        return self.connection

    def close(self):
        """Closes the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def send(self, method, target, headers, body):
        """Sends a request once, or twice if the connection had ended, and returns its Answer."""
        for attempt in range(3):
            try:
                return self.send_once(method, target, headers, body)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                failure = error
                if isinstance(error, TimeoutError):
                    break
                time.sleep(0.05 * attempt)
        return Answer(0, [], repr(type(failure).__name__).encode())

    def another(self):
        """Returns a further connection to the same server."""
        other = copy.copy(self)
        other.connection = None
        return other

    def send_once(self, method, target, headers, body):
        """Sends a request and reads the answer."""
        response = self.request(method, target, headers, body)
        answer = Answer(response.status, response.getheaders(), response.read())
        if response.will_close:
            self.close()
        return answer

    def request(self, method, target, headers, body, keep=None):
        """Writes the request as it is given, with a length if it has a body, and returns the response, unread.
        `keep` gets the connection while it has its socket."""
        connection = self.open()
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", f"{self.host}:{self.port}")
        names = {name.lower() for name, _ in headers}
        if "authorization" not in names:
            connection.putheader("Authorization", f"Bearer {self.token}")
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        if keep:
            keep(connection)
        return connection.getresponse()

    def get(self, target):
        """Returns the tree that a GET answers."""
        answer = self.send("GET", target, [("Accept", "application/json")], None)
        if answer.code != 200:
            raise SystemExit(f"fuzz-reference: GET {target} answered {answer.code}: {answer.body[:300]!r}")
        return json.loads(answer.body)


class Pair:
    """Both servers, which get every request at the same time."""

    def __init__(self, reference, tested):
        self.servers = [Server(reference), Server(tested)]
        self.pool = ThreadPoolExecutor(2)
        self.sent = 0

    def send(self, requests):
        """Sends one request to each server and returns both answers, the reference's first."""
        self.sent += 1
        tasks = [self.pool.submit(server.send, *request) for server, request in zip(self.servers, requests)]
        return [task.result() for task in tasks]

    def both(self, method, target, tree=None, headers=()):
        """Sends the same request with a JSON body to both."""
        headers = list(headers)
        body = None
        if tree is not None:
            body = json.dumps(tree).encode()
            if not any(name == "Content-Type" for name, _ in headers):
                headers.append(("Content-Type", "application/json"))
        return self.send([(method, target, headers, body)] * 2)


def field(text, name):
    """Returns the value of a field of a kubeconfig as tests/reference-up writes it."""
    found = re.search(rf'{name}: "?([^\s,"}}]+)', text)
    if not found:
        raise SystemExit(f"fuzz-reference: a kubeconfig has no {name}")
    return found.group(1)
