"""Draws CEL expressions from a small grammar of types, and now and then breaks one."""

# What rules of a custom kind find in `self` (crds.RULED has its schema).
FIELDS = {
    "string": ["self.s", "self.t", "self.m['a']", "self.names[0]", "self.items[0].name", "self.big"],
    "int": ["self.i", "self.j", "self.numbers[0]", "self.items[0].count"],
    "double": ["self.d"],
    "bool": ["self.b", "has(self.s)", "has(self.t)", "has(self.o)", "has(self.m.a)", "'a' in self.m"],
    "strings": ["self.names", "self.names"],
    "ints": ["self.numbers"],
    "map": ["self.m"],
    "timestamp": ["self.when"],
    "duration": ["self.span"],
    "dyn": ["self.any", "self.port", "self.open", "self.o", "self.items", "self"],
    "bytes": ["self.raw"],
}
# What policies find.
POLICY = {
    "string": ["request.operation", "object.metadata.name", "request.namespace", "request.userInfo.username", "string(params.x)"],
    "int": ["size(request.name)", "object.spec.replicas"],
    "double": [], "bool": ["request.dryRun", "has(object.spec)", "has(object.metadata.labels)", "authorizer.group('').resource('pods').check('get').allowed()"],
    "strings": ["request.userInfo.groups"], "ints": [], "map": ["object.metadata.labels", "namespaceObject.metadata.labels"],
    "timestamp": [], "duration": [], "bytes": [], "dyn": ["object", "oldObject", "object.spec", "params", "variables.x"],
}

STRINGS = ["''", "'a'", "'A'", "'hello world'", "'a,b,c'", "'ünï'", "'1'", "'-1'", "'1.5'", "'true'", "'a.b'", "'\\n'", "r'\\d'", "'😀x'", "' a '", "\"q\"", "'10.0.0.1'", "'10.0.0.0/8'", "'1Gi'", "'1.2.3'", "'https://a.example.com:80/p?q=1'"]
PATTERNS = ["'^a'", "'[a-z]+'", "'a|b'", "'('", "'(a)(b)?'", "'.*'", "'^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'", "'\\\\d+'", "'a{2,3}'", "'(?i)A'", "'[[:alpha:]]'", "''", "'(?P<x>a)'", "'\\\\bx'", "'a{1001}'", "'\\\\pL'", "'(?=a)'", "'\\\\1'", "'[z-a]'", "'.'"]
QUANTITIES = ["'1'", "'1Gi'", "'1.5'", "'100m'", "'1e3'", "''", "'-1'", "'x'", "'1Ki'", "'0.1'", "'9223372036854775808'", "'10M'", "'1E'", "'0.5Gi'"]
ADDRESSES = ["'10.0.0.1'", "'::1'", "'fd00::1'", "'::ffff:1.2.3.4'", "'10.0.0.256'", "'010.0.0.1'", "''", "'127.0.0.1'", "'fe80::1%eth0'", "'FD00::1'", "'224.0.0.1'", "'0.0.0.0'", "'1:2:3:4:5:6:7:8'", "'2001:db8::'"]
RANGES = ["'10.0.0.0/8'", "'10.0.0.1/8'", "'fd00::/64'", "'fd00::1/64'", "'10.0.0.0/33'", "''", "'0.0.0.0/0'", "'10.0.0.0'", "'::ffff:10.0.0.0/104'", "'10.0.0.0/08'"]
URLS = ["'https://example.com'", "'https://example.com:80/path?q=1&q=2&r'", "'/path'", "'../x'", "''", "'https://[::1]:80/'", "'mailto:a@b'", "'https://user:pw@h/p'", "'http://h/p#f'", "'https://h/%41?x=%20+y'"]
SEMVERS = ["'1.2.3'", "'v1.2.3'", "'1.2'", "'1.2.3-alpha.1+b'", "''", "'01.2.3'", "'1.2.3-'", "'1'", "'1.2.3-01'"]
DURATIONS = ["'1h'", "'1h30m'", "'-5s'", "'1.5s'", "'1d'", "''", "'100ms'", "'1'", "'1us'", "'9223372036s'", "'10000000000s'", "'.5s'"]
TIMES = ["'2024-05-01T10:00:00Z'", "'2024-05-01T10:00:00.123456789Z'", "'2024-05-01T12:00:00+02:00'", "'2024-05-01'", "''", "'0001-01-01T00:00:00Z'", "'9999-12-31T23:59:59Z'", "'2024-02-30T00:00:00Z'"]
ZONES = ["", "", "'UTC'", "'Europe/Berlin'", "'+02:00'", "'-08:30'", "'nowhere'", "'02:00'"]
FORMATS = ["dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "labelValue", "uri", "uuid", "byte", "date", "datetime", "dns1123LabelPrefix", "dns1123SubdomainPrefix", "dns1035LabelPrefix", "nothing"]
INTS = ["0", "1", "-1", "2", "3", "7", "10", "100", "9223372036854775807", "-9223372036854775808", "0x10", "1u", "5000000000"]
DOUBLES = ["0.0", "1.0", "-1.5", "1e10", "1e-3", "0.1", "1e308", "3.0"]


class Grammar:
    """Draws expressions over the given variables."""

    def __init__(self, dice, variables):
        self.dice = dice
        self.variables = variables

    def pick(self, *forms):
        """Draws one of some functions that make an expression."""
        return self.dice.choice(forms)()

    def leaf(self, kind, constants):
        """Draws a variable of a type, or a constant."""
        known = self.variables[kind]
        if known and self.dice.random() < 0.6:
            return self.dice.choice(known)
        return self.dice.choice(constants)

    def string(self, depth):
        """Draws a text."""
        d, i = self.dice, lambda: self.int(depth - 1)
        s = lambda: self.string(depth - 1)
        if depth <= 0 or d.random() < 0.3:
            return self.leaf("string", STRINGS)
        return self.pick(
            lambda: f"{s()}.lowerAscii()", lambda: f"{s()}.upperAscii()", lambda: f"{s()}.trim()", lambda: f"{s()}.charAt({i()})",
            lambda: f"{s()}.substring({i()})", lambda: f"{s()}.substring({i()}, {i()})", lambda: f"{s()}.replace({s()}, {s()})",
            lambda: f"{s()}.replace({s()}, {s()}, {i()})", lambda: f"{self.strings(depth - 1)}.join()", lambda: f"{self.strings(depth - 1)}.join({s()})",
            lambda: f"string({self.any(depth - 1)})", lambda: f"{s()} + {s()}", lambda: f"{s()}.find({d.choice(PATTERNS)})",
            lambda: f"url({d.choice(URLS)}).{d.choice(['getHost', 'getHostname', 'getPort', 'getScheme', 'getEscapedPath'])}()",
            lambda: f"string(ip({d.choice(ADDRESSES)}))", lambda: f"string(cidr({d.choice(RANGES)}))", lambda: f"string(cidr({d.choice(RANGES)}).{d.choice(['ip', 'masked'])}())",
            lambda: f"format.{d.choice(FORMATS)}().validate({s()}).value()[0]", 
            lambda: f"'{d.choice(['%s', '%d', '%f', '%.2f', '%e', '%b', '%x', '%X', '%o', '%s%%', '%.3f', '%s', '%.0e'])}'.format([{self.any(depth - 1)}])",
            lambda: f"strings.quote({s()})", lambda: f"type({self.any(depth - 1)}) == string ? 'x' : 'y'",
            lambda: f"({self.bool(depth - 1)} ? {s()} : {s()})", lambda: f"{self.strings(depth - 1)}[{i()}]",
            lambda: f"self.?t.orValue({s()})", lambda: f"self.m[?'a'].orValue({s()})",
        )

    def strings(self, depth):
        """Draws a list of texts."""
        d, s = self.dice, lambda: self.string(depth - 1)
        if depth <= 0 or d.random() < 0.3:
            return self.leaf("strings", ["[]", "['a']", "['b', 'a', 'b']", "['', 'x']"])
        return self.pick(
            lambda: f"{s()}.split({s()})", lambda: f"{s()}.split({s()}, {self.int(depth - 1)})", lambda: f"{s()}.findAll({d.choice(PATTERNS)})",
            lambda: f"{s()}.findAll({d.choice(PATTERNS)}, {self.int(0)})", lambda: f"{self.strings(depth - 1)}.map(x, x + {s()})",
            lambda: f"{self.strings(depth - 1)}.filter(x, x != {s()})", lambda: f"{self.strings(depth - 1)} + {self.strings(depth - 1)}",
            lambda: f"[{s()}, {s()}]", lambda: f"{self.map(depth - 1)}.map(k, k)", lambda: f"sets.contains({self.strings(0)}, {self.strings(0)}) ? [] : ['s']",
            lambda: f"{self.strings(depth - 1)}.{d.choice(['sort', 'distinct', 'reverse'])}()", lambda: f"{self.strings(depth - 1)}.slice({self.int(0)}, {self.int(0)})",
            lambda: f"format.{d.choice(FORMATS)}().validate({s()}).value()", lambda: f"url({d.choice(URLS)}).getQuery()['q']",
            lambda: f"{self.map(depth - 1)}.transformList(k, v, k + v)", lambda: f"[?self.?t, {s()}]",
        )

    def map(self, depth):
        """Draws a map of texts."""
        s = lambda: self.string(depth - 1)
        if depth <= 0 or self.dice.random() < 0.5:
            return self.leaf("map", ["{'a': 'b'}", "{'x': 'y', 'a': ''}"])
        return self.pick(lambda: f"{{{s()}: {s()}}}", lambda: f"{self.map(depth - 1)}.transformMap(k, v, v + {s()})", lambda: f"{{'a': {s()}, 'a': {s()}}}", lambda: f"{{?'t': self.?t}}")

    def int(self, depth):
        """Draws an integer."""
        d, i = self.dice, lambda: self.int(depth - 1)
        s = lambda: self.string(depth - 1)
        if depth <= 0 or d.random() < 0.35:
            return self.leaf("int", INTS)
        return self.pick(
            lambda: f"{i()} {d.choice('+-*/%')} {i()}", lambda: f"-({i()})", lambda: f"size({s()})", lambda: f"{self.strings(depth - 1)}.size()",
            lambda: f"int({self.any(depth - 1)})", lambda: f"{s()}.indexOf({s()})", lambda: f"{s()}.lastIndexOf({s()})", lambda: f"{s()}.indexOf({s()}, {i()})",
            lambda: f"{self.strings(depth - 1)}.indexOf({s()})", lambda: f"{self.ints(depth - 1)}.{d.choice(['sum', 'min', 'max'])}()",
            lambda: f"{self.timestamp(depth - 1)}.{d.choice(['getFullYear', 'getMonth', 'getDate', 'getDayOfMonth', 'getDayOfWeek', 'getDayOfYear', 'getHours', 'getMinutes', 'getSeconds', 'getMilliseconds'])}({d.choice(ZONES)})",
            lambda: f"{self.duration(depth - 1)}.{d.choice(['getHours', 'getMinutes', 'getSeconds', 'getMilliseconds'])}()",
            lambda: f"quantity({d.choice(QUANTITIES)}).{d.choice(['asInteger()', 'sign()', 'compareTo(quantity(' + d.choice(QUANTITIES) + '))'])}",
            lambda: f"ip({d.choice(ADDRESSES)}).family()", lambda: f"cidr({d.choice(RANGES)}).prefixLength()", lambda: f"semver({d.choice(SEMVERS)}).{d.choice(['major', 'minor', 'patch'])}()",
            lambda: f"semver({d.choice(SEMVERS)}).compareTo(semver({d.choice(SEMVERS)}))", lambda: f"{s()}.size()",
            lambda: f"({self.bool(depth - 1)} ? {i()} : {i()})", lambda: f"self.?i.orValue({i()})", lambda: f"{self.ints(depth - 1)}[{i()}]",
        )

    def ints(self, depth):
        """Draws a list of integers."""
        if depth <= 0 or self.dice.random() < 0.5:
            return self.leaf("ints", ["[1, 2, 3]", "[3, 1]", "[0]"])
        return self.pick(lambda: f"{self.strings(depth - 1)}.map(x, size(x))", lambda: f"{self.ints(depth - 1)}.map(x, x > 1, x * 2)", lambda: f"[{self.int(depth - 1)}]", lambda: f"lists.range({self.int(0)})")

    def double(self, depth):
        """Draws a floating number."""
        if depth <= 0 or self.dice.random() < 0.5:
            return self.leaf("double", DOUBLES)
        return self.pick(lambda: f"double({self.any(depth - 1)})", lambda: f"{self.double(depth - 1)} {self.dice.choice('+-*/')} {self.double(depth - 1)}",
                         lambda: f"quantity({self.dice.choice(QUANTITIES)}).asApproximateFloat()")

    def bytes(self, depth):
        """Draws bytes."""
        return self.pick(lambda: self.leaf("bytes", ["b'a'", "b'\\xff'"]), lambda: f"bytes({self.string(depth - 1)})")

    def timestamp(self, depth):
        """Draws a time."""
        if depth <= 0 or self.dice.random() < 0.7:
            return self.leaf("timestamp", [f"timestamp({self.dice.choice(TIMES)})"])
        return f"{self.timestamp(depth - 1)} {self.dice.choice('+-')} {self.duration(depth - 1)}"

    def duration(self, depth):
        """Draws a span of time."""
        if depth <= 0 or self.dice.random() < 0.7:
            return self.leaf("duration", [f"duration({self.dice.choice(DURATIONS)})"])
        return self.pick(lambda: f"({self.timestamp(depth - 1)} - {self.timestamp(depth - 1)})", lambda: f"({self.duration(depth - 1)} + {self.duration(depth - 1)})")

    def any(self, depth):
        """Draws a value of any type."""
        return self.pick(lambda: self.string(depth), lambda: self.int(depth), lambda: self.double(depth), lambda: self.bool(depth), lambda: self.strings(depth), lambda: self.timestamp(depth),
                         lambda: self.duration(depth), lambda: self.bytes(depth), lambda: self.leaf("dyn", ["null", "dyn(1)", "{}"]), lambda: f"quantity({self.dice.choice(QUANTITIES)})", lambda: "null",
                         lambda: f"dyn({self.int(depth - 1)})", lambda: f"uint({self.int(depth - 1)})", lambda: f"type({self.int(0)})")

    def bool(self, depth):
        """Draws a condition."""
        d, b = self.dice, lambda: self.bool(depth - 1)
        s, i = lambda: self.string(depth - 1), lambda: self.int(depth - 1)
        if depth <= 0:
            return self.leaf("bool", ["true", "false"])
        compare = d.choice(["==", "!=", "<", "<=", ">", ">="])
        return self.pick(
            lambda: f"{s()} {compare} {s()}", lambda: f"{i()} {compare} {i()}", lambda: f"{self.double(depth - 1)} {compare} {self.double(depth - 1)}", lambda: f"dyn({i()}) {compare} {self.double(0)}", lambda: f"dyn({self.any(depth - 1)}) == {self.any(depth - 1)}", lambda: f"{self.strings(depth - 1)} == {self.strings(depth - 1)}",
            lambda: f"{self.any(depth - 1)} == {self.any(depth - 1)}", lambda: f"!({b()})", lambda: f"{b()} && {b()}", lambda: f"{b()} || {b()}", lambda: f"{b()} ? {b()} : {b()}",
            lambda: f"{s()}.{d.choice(['startsWith', 'endsWith', 'contains'])}({s()})", lambda: f"{s()}.matches({d.choice(PATTERNS)})", lambda: f"{s()} in {self.strings(depth - 1)}",
            lambda: f"{self.strings(depth - 1)}.{d.choice(['all', 'exists', 'exists_one'])}(x, x {compare} {s()})", lambda: f"{self.map(depth - 1)}.{d.choice(['all', 'exists'])}(k, k in ['a'])",
            lambda: f"{self.map(depth - 1)}.{d.choice(['all', 'exists', 'existsOne'])}(k, v, k == v)", lambda: f"{self.strings(depth - 1)}.all(n, x, size(x) > n)", lambda: f"{self.strings(depth - 1)}.isSorted()",
            lambda: f"isQuantity({d.choice(QUANTITIES)})", lambda: f"quantity({d.choice(QUANTITIES)}).{d.choice(['isGreaterThan', 'isLessThan'])}(quantity({d.choice(QUANTITIES)}))",
            lambda: f"quantity({d.choice(QUANTITIES)}).{d.choice(['add', 'sub'])}({d.choice(['1', 'quantity(' + d.choice(QUANTITIES) + ')'])}) == quantity({d.choice(QUANTITIES)})", lambda: f"quantity({d.choice(QUANTITIES)}).isInteger()",
            lambda: f"isIP({d.choice(ADDRESSES)})", lambda: f"ip({d.choice(ADDRESSES)}).{d.choice(['isLoopback', 'isGlobalUnicast', 'isUnspecified', 'isLinkLocalUnicast', 'isLinkLocalMulticast'])}()", lambda: f"ip.isCanonical({d.choice(ADDRESSES)})",
            lambda: f"isCIDR({d.choice(RANGES)})", lambda: f"cidr({d.choice(RANGES)}).{d.choice(['containsIP', 'containsCIDR'])}({d.choice(ADDRESSES + RANGES)})", lambda: f"cidr({d.choice(RANGES)}) == cidr({d.choice(RANGES)})",
            lambda: f"isURL({d.choice(URLS)})", lambda: f"url({d.choice(URLS)}) == url({d.choice(URLS)})", lambda: f"isSemver({d.choice(SEMVERS)}{d.choice(['', '', ', true'])})", lambda: f"semver({d.choice(SEMVERS)}{d.choice(['', ', true', ', false'])}).{d.choice(['isLessThan', 'isGreaterThan'])}(semver({d.choice(SEMVERS)}))",
            lambda: f"{self.timestamp(depth - 1)} {compare} {self.timestamp(depth - 1)}", lambda: f"{self.duration(depth - 1)} {compare} {self.duration(depth - 1)}",
            lambda: f"format.named('{d.choice(FORMATS)}').hasValue()", lambda: f"format.{d.choice(FORMATS)}().validate({s()}).hasValue()", lambda: f"sets.{d.choice(['contains', 'equivalent', 'intersects'])}({self.strings(depth - 1)}, {self.strings(depth - 1)})",
            lambda: f"optional.of({s()}).{d.choice(['hasValue()', 'or(optional.none()).hasValue()', 'value() == ' + s()])}", lambda: f"self.?t.hasValue()", lambda: f"self.?o.x.{d.choice(['hasValue()', 'orValue(1) == 1', 'optMap(v, v + 1).hasValue()'])}",
            lambda: f"{self.leaf('dyn', ['dyn(1)'])} {d.choice(['==', '!='])} {self.any(depth - 1)}", lambda: f"self.items.{d.choice(['all', 'exists', 'exists_one'])}(x, x.name {compare} {s()})", lambda: f"self.items.all(x, self.items.exists(y, x.count {compare} y.count))",
            lambda: f"type({self.any(depth - 1)}) == {d.choice(['int', 'string', 'list', 'map', 'type(1)', 'bool', 'double', 'timestamp', 'null_type', 'bytes', 'uint', 'net.IP', 'optional_type'])}", lambda: f"{self.strings(depth - 1)}.sortBy(x, size(x)) == {self.strings(depth - 1)}",
        )


def broken(dice, expression):
    """Returns an expression with a small fault."""
    form = dice.randrange(6)
    at = dice.randrange(len(expression) + 1)
    if form == 0:
        return expression[:at]
    if form == 1:
        return expression[:at] + dice.choice(list("()[]{}.,'\"+-*/%!?:&|= \n\\#@$")) + expression[at:]
    if form == 2:
        return expression[:at] + expression[at + 1:]
    if form == 3:
        return expression.replace("self", dice.choice(["oldSelf", "this", "Self", "self.self"]), 1)
    if form == 4:
        return expression.replace("(", dice.choice(["((", "(1, ", "(1"]), 1)
    return dice.choice(["", " ", "1", "'a'", "self", "null", "[]", "true // c", "/* */", "true\n", "size", "self.absent", "x", "has(self)", "has(self.m['a'])", "1 + 'a'", "[1, 'a'] == []"])


def rule(dice, depth=3):
    """Draws a rule of a custom kind."""
    expression = Grammar(dice, FIELDS).bool(dice.randrange(1, depth + 1))
    return broken(dice, expression) if dice.random() < 0.12 else expression


def expression(dice):
    """Draws an expression of a policy or a webhook."""
    drawn = Grammar(dice, POLICY).bool(dice.randrange(1, 3))
    return broken(dice, drawn) if dice.random() < 0.15 else drawn
