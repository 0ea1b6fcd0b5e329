"""Draws odd forms of paths, methods, headers and bodies."""

from builtin import ACCEPTS
from steps import Case, Step

METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "get", "FOO"]
# Without those that may end the namespace or leave something in it.
READING = ["GET", "HEAD", "OPTIONS", "POST", "TRACE", "get", "FOO"]
BODIES = [
    "", "null", "{}", "[]", "1", "\"x\"", "{", "}", "{\"kind\":", "{'a': 1}", "kind: ConfigMap", "---\n", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n---\nkind: Pod\n",
    "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"}} ", "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"}}{}", "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"}}x",
    "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\",\"name\":\"y\"}}", "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"},\"data\":{\"a\":\"1\",\"a\":\"2\"}}",
    "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"},\"Data\":{\"a\":\"1\"}}", "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"},\"data\":{\"a\":1}}", "{\"kind\":\"Secret\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"},\"data\":{\"a\":\"***\"}}",
    "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"}}", "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v2\",\"metadata\":{\"name\":\"x\"}}", "{\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"x\"}}", "{\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"}}", "{\"metadata\":{\"name\":\"x\"}}",
    "{\"kind\":\"ConfigMap\",\"apiVersion\":\"a/b/c\",\"metadata\":{\"name\":\"x\"}}", "{\"kind\":1,\"apiVersion\":\"v1\"}", "{\"kind\":\"List\",\"apiVersion\":\"v1\",\"items\":[]}", "{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"items\":[]}", "{\"kind\":\"Status\",\"apiVersion\":\"v1\"}",
    "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"\\ud800\"}}", "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"},\"data\":{\"a\":\"\\u0000\"}}", "\ufeff{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\"}}",
    "a: &x 1\nb: *x\n", "a: 1\na: 2\n", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata: {a: 1}\n", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata: {a: yes, b: \"yes\"}\n", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata: {a: 'x', a: 'y'}\n",
    "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata: {1: x}\n", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata:\n  a: |\n    x\n   y\n", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata:\n\ta: x\n", "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: x\n  annotations: {a: 0o17, b: 2024-01-01, c: ~, d: 1_000, e: .inf, f: 0x1F, g: !!str 1, h: 1e3}\n",
    "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: x\nbinaryData: {a: !!binary aGVsbG8=}\n", "<<: {a: 1}\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n", "%YAML 1.2\n---\nkind: ConfigMap\n", "k8s\u0000\n", "# nothing", "kind: ConfigMap\r\napiVersion: v1\r\nmetadata:\r\n  name: x\r\n",
]
TYPES = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/json-patch+json", "application/cbor", "text/plain", "", "application/json; charset=latin1", "*/*", "application/json, application/yaml", "application/x-yaml", "x"]
PATHS = [
    "/", "/api", "/api/", "/apis", "/apis/", "/api/v1", "/api/v1/", "/api/v2", "/apis/apps", "/apis/apps/", "/apis/apps/v1", "/apis/apps/v2", "/apis/nothing.example.com", "/apis/nothing.example.com/v1/things", "//api/v1", "/api//v1", "/api/v1//namespaces", "/api/v1/namespaces/", "/api/v1/namespaces//pods",
    "/api/v1/namespaces/fuzz/", "/api/v1/namespaces/fuzz/pods/", "/api/v1/namespaces/fuzz/pods/x/", "/api/v1/namespaces/fuzz/pods/x/y", "/api/v1/namespaces/fuzz/pods/x/status/y", "/api/v1/namespaces/fuzz/nothing", "/api/v1/namespaces/absent/pods", "/api/v1/namespaces/absent/configmaps/x", "/api/v1/pods/x", "/api/v1/configmaps", "/api/v1/nodes", "/api/v1/namespaces/fuzz/nodes",
    "/api/v1/namespaces/fuzz/configmaps/..", "/api/v1/namespaces/fuzz/configmaps/%2e%2e", "/api/v1/namespaces/fuzz/configmaps/a%2Fb", "/api/v1/namespaces/fuzz/configmaps/a%20b", "/api/v1/namespaces/fuzz/configmaps/%00", "/api/v1/namespaces/fuzz/configmaps/%", "/api/v1/namespaces/fuzz/configmaps/%zz", "/api/v1/namespaces/fuzz/configmaps/a;b", "/api/v1/namespaces/fuzz/configmaps/%C3%BC",
    "/api/v1/namespaces/fuzz/configmaps?limit=1&limit=2", "/api/v1/namespaces/fuzz/configmaps?limit", "/api/v1/namespaces/fuzz/configmaps?&&", "/api/v1/namespaces/fuzz/configmaps?a=%zz", "/api/v1/namespaces/fuzz/configmaps?labelSelector=a;b", "/api/v1/namespaces/fuzz/configmaps?labelSelector=a+in+(b)", "/api/v1/namespaces/fuzz/configmaps?fieldSelector=metadata.name%3Dx#f", "/api/v1/namespaces/fuzz/configmaps?watch=1&timeoutSeconds=1&fieldSelector=x",
    "/api/v1/watch/namespaces/fuzz/configmaps/x?timeoutSeconds=1&fieldSelector=x%3Dy", "/api/v1/watch/nothing", "/api/v1/namespaces/fuzz/services/x/proxy", "/api/v1/namespaces/fuzz/pods/x/log", "/api/v1/namespaces/fuzz/pods/x/exec", "/api/v1/namespaces/fuzz/pods/x/attach?stdin=1", "/api/v1/namespaces/fuzz/pods/x/portforward", "/api/v1/namespaces/fuzz/pods/x/proxy/a", "/api/v1/nodes/x/proxy/", "/api/v1/namespaces/fuzz/pods/x/eviction",
    "/api/v1/namespaces/fuzz/pods/x/binding", "/api/v1/namespaces/fuzz/bindings", "/api/v1/namespaces/fuzz/serviceaccounts/default/token", "/api/v1/namespaces/fuzz/finalize", "/api/v1/namespaces/fuzz/status", "/api/v1/componentstatuses", "/api/v1/componentstatuses/x", "/apis/apps/v1/namespaces/fuzz/deployments/x/scale", "/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/fuzz/deployments/x/rollback",
    "/version", "/version/", "/healthz", "/healthz/ping", "/healthz/nothing", "/livez", "/livez?exclude=ping", "/readyz/etcd", "/metrics/x", "/openapi/v2/x", "/openapi/v3/x", "/openapi/v3/api/v9", "/openapi/v3/apis/nothing/v1", "/logs", "/logs/", "/debug/pprof", "/swagger.json", "/.well-known/openid-configuration", "/openid/v1/jwks", "/nothing", "/favicon.ico", "/apis/apps/v1/watch", "/api/v1/proxy", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "/apis/authentication.k8s.io/v1/tokenreviews",
    "/apis/authentication.k8s.io/v1/selfsubjectreviews", "/flagz", "/statusz", "/healthz?verbose", "/livez/ping?verbose=1", "/api/v1/namespaces/fuzz/configmaps/x?resourceVersion=x", "/api/v1/namespaces/fuzz/configmaps?resourceVersion=99999999&timeoutSeconds=1", "/apis/discovery.k8s.io/v1/namespaces/fuzz/endpointslices?limit=-1", "*", "/api/v1/namespaces/fuzz/secrets?fieldSelector=type%3DOpaque,type!%3Dx", "/apis/events.k8s.io/v1/events?fieldSelector=reason%3Dx",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x.y", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions", "/apis/policy/v1/namespaces/fuzz/podsecuritypolicies", "/api/v1/namespaces/fuzz/replicationcontrollers/x/scale", "/apis/batch/v1beta1/cronjobs", "/apis/autoscaling/v1/namespaces/fuzz/horizontalpodautoscalers", "/apis/autoscaling/v2beta2/horizontalpodautoscalers",
]
HEADERS = [
    ("Accept-Encoding", "gzip"), ("Authorization", "Bearer x"), ("Authorization", "Basic eDp5"), ("Authorization", ""), ("Authorization", "Bearer"), ("Impersonate-User", "jane"), ("Impersonate-Group", "x"), ("Impersonate-User", "system:serviceaccount:fuzz:default"), ("Impersonate-Uid", "1"), ("Impersonate-Extra-a", "b"), ("Impersonate-User", ""), ("Impersonate-User", "system:anonymous"), ("If-Match", "x"), ("Origin", "https://x"),
    ("Expect", "100-continue"), ("Connection", "close"), ("Upgrade", "websocket"), ("X-Remote-User", "x"), ("Content-Encoding", "gzip"), ("Accept-Charset", "x"), ("User-Agent", ""), ("User-Agent", "kubectl/v1.37.0 (x) y"), ("User-Agent", "a" * 300 + "/b"), ("Range", "bytes=0-1"), ("X-HTTP-Method-Override", "DELETE"), ("Audit-ID", "x"),
]


class Raw:
    """Draws cases of one odd request."""

    def __init__(self, dice, builtin):
        self.dice, self.builtin = dice, builtin

    def draw(self):
        """Draws a case."""
        dice = self.dice
        headers = []
        if dice.random() < 0.4:
            headers.append(("Accept", dice.choice(ACCEPTS)))
        if dice.random() < 0.3:
            headers.append(dice.choice(HEADERS))
        form = dice.random()
        if form < 0.45:
            return Case("raw path", [Step(dice.choice(["GET"] * 6 + READING), dice.choice(PATHS), headers=headers)])
        headers.append(("Content-Type", dice.choice(TYPES[:2] * 6 + TYPES)))
        query = self.builtin.query(True)
        if form < 0.85:
            path, method = "/api/v1/namespaces/fuzz/configmaps", "POST"
            if dice.random() < 0.3:
                path, method = path + "/x", dice.choice(["PUT", "PATCH", "DELETE"])
                headers[-1] = ("Content-Type", dice.choice(TYPES))
            return Case("raw body", [Step(method, path, query, headers, dice.choice(BODIES))], dry=True)
        path = dice.choice(PATHS)
        return Case("raw write", [Step(dice.choice(METHODS[3:7]), path + ("&" if "?" in path else "?") + "dryRun=All", query[1:], headers, dice.choice(BODIES))], dry=True)
