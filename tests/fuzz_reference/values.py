"""Odd values: texts, numbers, quantities and selectors that rules are about."""

TEXTS = [
    "", " ", "a", "A", "-a", "a-", "a.b", "a..b", "a_b", "a/b", "/x", "x/", "example.com/x", "example.com/x/y", "a" * 15, "a" * 16,
    "a" * 63, "a" * 64, "a" * 253, "a" * 254, "a" * 1025, "\u00fcn\u00ef", "a\nb", "a\tb", " a", "a ", "true", "null", "0", "1", "80", "65535",
    "65536", "1.5", "-1", "10%", "0%", "101%", "%", "*", "*.example.com", "a.*.com", "..", ".", "../x", "/abs/../x", "/abs", "C:\\x", "$(VAR)",
    "10.0.0.1", "010.0.0.1", "10.0.0.256", "0.0.0.0", "127.0.0.1", "224.0.0.1", "169.254.1.1", "255.255.255.255", "::1", "::", "fd00::1", "FD00::1", "::ffff:1.2.3.4", "fe80::1",
    "10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/33", "fd00::/64", "fd00::1/64", "0.0.0.0/0", "::/0",
    "2024-05-01T10:00:00Z", "2024-05-01T10:00:00.123456Z", "2024-05-01T10:00:00+02:00", "2024-05-01", "0001-01-01T00:00:00Z", "https://example.com", "http://example.com/a?b#c",
    "ftp://x", "foo:bar", "1h", "1h30m", "5s", "1d", "-5s", "kubernetes.io/x", "k8s.io/x", "x.kubernetes.io/y", "node-role.kubernetes.io/x", "nginx:1.27",
    "nginx@sha256:" + "e3" * 32, "TCP", "tcp", "UDP", "SCTP", "http", "HTTP", "Always", "Never", "OnFailure", "IfNotPresent", "system:x", "system:masters", "ServiceAccount",
    "CREATE", "v1", "v1beta1", "apps/v1", "metadata.name", "metadata.labels['a']", "status.podIP", "limits.cpu", "aGVsbG8=", "aGVsbG8", "****", "NoSchedule", "Exists", "Equal",
    "In", "DoesNotExist", "Gt", "* * * * *", "@daily", "*/5 * * * *", "TZ=UTC * * * * *", "60 * * * *", "Europe/Berlin", "Local", "UTC", "0777", "\u2028", "\x00", "\U0001f600", "<&>",
]

QUANTITIES = [
    "0", "1", "-1", "0.5", "1.5", "100m", "1500m", "0.1m", "1n", "1u", "1k", "1K", "1Ki", "1.5Gi", "1e3", "1E3", "1e-3", "1E", "1Ei", "9223372036854775807", "9223372036854775808",
    "1e30", "0.0001", ".5", "5.", "-0", "", " 1", "1 ", "1i", "1M", "1MiB", "0x10", "1_000", "\u0661", "00", "0.0", "1.10", "1024Ki", "1000m", "-1Gi", "1e", "1e1000", "1m1", "NaN", "Inf",
    0, 1, -1, 1.5, 1e3, 0.1, 2**31, 2**63, 1e100, True, None, {}, [],
]

NUMBERS = [
    0, 1, -1, 2, 3, 7, 10, 63, 80, 99, 100, 101, 255, 256, 420, 511, 512, 600, 1000, 30000, 32767, 32768, 65535, 65536, 86400, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**32, 2**53 + 1,
    2**63 - 1, 2**63, -2**63, 2**64, 1.0, 1.5, -0.0, 1e3, 1e20, 0.1, "{{number 1e3}}", "{{number -0}}", "{{number 1E1}}", "{{number 10e-1}}", "{{number 1e400}}",
]

WRONG = [None, {}, [], "", "x", "1", 0, 1, -1, 1.5, True, False, [None], [""], [{}], {"a": None}, {"a": "b"}, {"": ""}, [[]], "true"]

KEYS = ["a", "A", "", "example.com/a", "EXAMPLE.com/a", "a/b/c", "/a", "a/", "-a", "a" * 63, "a" * 64, "a" * 253 + "/b", "a" * 254 + "/b", "kubernetes.io/x", "\u00fc", "a b", "app", "a.b", "..", ".", "a\nb"]

LABEL_VALUES = ["", "a", "A_b.c-1", "-a", "a-", "a" * 63, "a" * 64, "a/b", " ", "\u00fc", "web"]

RANDOM_FINALIZERS = ["", "a", "example.com/f", "kubernetes", "orphan", "foregroundDeletion", "example.com/a/b", "kubernetes.io/pv-protection", "-"]


def selector(dice):
    """Draws a label selector, mostly of an odd form."""
    operators = ["In", "NotIn", "Exists", "DoesNotExist", "in", "", "Gt", "Lt"]
    expression = {"key": dice.choice(KEYS), "operator": dice.choice(operators), "values": [dice.choice(LABEL_VALUES) for _ in range(dice.randrange(3))]}
    for name in ("values", "key", "operator"):
        if dice.random() < 0.1:
            del expression[name]
    form = dice.randrange(6)
    if form == 0:
        return dice.choice([None, {}, {"matchLabels": None}, {"matchLabels": {}}, {"matchExpressions": []}, {"matchExpressions": None}])
    if form == 1:
        return {"matchLabels": {dice.choice(KEYS): dice.choice(LABEL_VALUES)}}
    if form == 2:
        return {"matchLabels": {"app": "web"}, "matchExpressions": [expression]}
    return {"matchExpressions": [expression] * dice.choice([1, 1, 1, 2])}


def text(dice):
    """Draws a text."""
    if dice.random() < 0.03:
        return dice.choice("ax\u00fc") * dice.choice([300, 1025, 5000, 70000])
    return dice.choice(TEXTS)


def labels(dice):
    """Draws a map of labels or annotations."""
    return {dice.choice(KEYS): dice.choice(LABEL_VALUES + [1, True, None, "a" * 70]) for _ in range(dice.randrange(3))}


def of_type(dice, type_name):
    """Draws a value of a type, or rarely a wrong one."""
    if dice.random() < 0.1:
        return dice.choice(WRONG)
    if type_name in ("integer", "number"):
        return dice.choice(NUMBERS)
    if type_name == "boolean":
        return dice.choice([True, False, True, False, None, "true", 0])
    if type_name == "quantity":
        return dice.choice(QUANTITIES)
    if type_name == "int-or-string":
        return dice.choice(NUMBERS + ["0", "80", "http", "10%", "101%", "-1%", "a" * 16, "", "-", "50.5%", " 10%", "http_x", "65536"])
    if type_name == "string":
        return text(dice)
    return dice.choice(WRONG)
