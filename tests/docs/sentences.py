"""Write docs/sentences.md and docs/sentences-more.md: every sentence of the programs that a user can meet.

They are read from the sources. A sentence is a text of several words that is not a docstring. Where a user meets it
follows from the call that takes it (`log.info`, `raise …Error`, `click.option`), otherwise from its room.
`make sentences` runs this module.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "llmkube"
PAGE = ROOT / "docs" / "sentences.md"
MORE = ROOT / "docs" / "sentences-more.md"

OBJECTS = "On objects"
ERRORS = "Errors"
RULES = "Refused by a rule"
READYZ = "In /readyz"
LOGS = "In logs"
PRINTED = "In the terminal"
HELP = "In help texts"
METRICS = "In metrics"
PLACES = {
    OBJECTS: "Messages of conditions and Events.",
    ERRORS: "A condition, a log line or the end of a command quotes them.",
    RULES: "The message of a CEL rule behind the path of the field, or of a policy for the accounts of hosts.",
    READYZ: "What a program waits for, or what a kind costs that it cannot list.",
    LOGS: "A log line goes on with its keys.",
    PRINTED: "What commands print.",
    HELP: "What `--help` says of programs, commands and flags.",
    METRICS: "The `# HELP` line of a metric.",
}

HEAD = """\
# Sentences

What services, models and routers say of themselves in conditions and Events. `{name}` is a value, `{one|other}` a
choice; some are parts of a sentence that another one begins. `make sentences` makes this page from the sources, short
enough to be read as a whole. What errors, commands, help texts, logs and metrics say is in
[sentences-more.md](sentences-more.md).
"""

HEAD_MORE = """\
# More sentences

What errors, commands, help texts, logs and metrics say. [sentences.md](sentences.md) has what objects say, and
tells what the braces mean. Descriptions of fields are in [crds.md](crds.md). What the embedded API server answers to a
request is not here: those are the words of kube-apiserver, and the tests compare them with it.
"""

# What the embedded API server answers, in kube-apiserver's words.
_QUOTED = tuple(f"apiserver/{room}/" for room in ("fields", "kinds", "protocol", "schema", "values", "writes"))
_LOG = re.compile(r"_?log\.(debug|info|warning|error|exception|critical)")
_HELP = re.compile(
    r"click\.(option|argument|Option)|Entry|setting|Setting|FieldFlag|Value|Switch|Choice|.*add_argument"
)
_METRIC = re.compile(r"\w*MetricFamily|Histogram|Counter|Gauge")
_BUGS = {"AssertionError", "KeyError", "NotImplementedError", "RuntimeError", "TypeError", "ValueError"}
# These take patterns, SQL, wire text and names of things, not sentences.
_NOT_MET = re.compile(r"re\.\w+|.*\.(cancel|encode|execute|executescript|add_token|strftime|strptime)|field|Path|_rule")
_NO_SENTENCES = re.compile(r"k8s/crd/(?!first_api|pairing)|k8s/wire/times")
_ELSEWHERE = {
    "supervisor/host_policies.py": RULES,
    "controller/followed_kinds.py": READYZ,
    "controller/informers.py": READYZ,
    "controller/operator.py": READYZ,
}
"""Modules of which no object says anything, although their rooms do."""
_COMMAND = re.compile(r"(click|\w+)\.(command|group)")
_WORD = re.compile(r"(?<![\w{|/.-])[A-Za-z][a-z']*(?![\w}])")
_CODE = re.compile(
    r"\(\?|\\[.dswnrb]|^/|^[\w.]*/|HTTP/1|%Y|/dev/null|shift; |^[\w{}]+=\"| NOT NULL|^[A-Z]{5,} |^Literal"
    r"|\bobject\.|oldObject|variables\.|request\.userInfo|\bcidr\("
    r"|^(# )?(kubectl|llmkube|make) |^# The one command line"
)
_FEWEST_WORDS = 3
_WORDS_PER_MINUTE = 240  # that an attentive reader reads


@attrs.frozen(order=True)
class Sentence:
    """One sentence: where it is met, the module that says it, and its text."""

    place: str
    module: str
    text: str


def collect() -> list[Sentence]:
    """Return the sentences of all modules in the order of the sources, each once in a place."""
    found: dict[tuple[str | None, str], Sentence] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        module = path.relative_to(SOURCES).as_posix()
        if not module.startswith(_QUOTED):
            for each in read(module, path.read_text(encoding="utf-8")):
                found.setdefault((each.place, each.text), each)
    return list(found.values())


def folded(sentences: list[Sentence]) -> list[Sentence]:
    """Return them without those that differ from an earlier one in the names of values alone."""
    found: dict[tuple[str, str], Sentence] = {}
    for each in sentences:
        found.setdefault((each.place, re.sub(r"\{[^{}|]*\}", "{}", each.text).strip("; ").lower()), each)
    return list(found.values())


def minutes(sentences: list[Sentence]) -> int:
    """Return how long it takes to read them with attention."""
    return round(sum(len(each.text.split()) for each in sentences) / _WORDS_PER_MINUTE)


def read(module: str, source: str) -> list[Sentence]:
    """Return the sentences of one module, in the order of its source."""
    reader = _Reader(module)
    reader.visit(ast.parse(source))
    return reader.found


def pages() -> dict[Path, str]:
    """Return the two pages as the sources want them."""
    sentences = folded(collect())
    first = [each for each in sentences if each.place == OBJECTS]
    return {
        PAGE: _page(HEAD, {OBJECTS: PLACES[OBJECTS]}, first),
        MORE: _page(HEAD_MORE, {place: words for place, words in PLACES.items() if place != OBJECTS}, sentences),
    }


def _page(head: str, places: dict[str, str], sentences: list[Sentence]) -> str:
    lines = [head]
    for place, meaning in places.items():
        here = [each for each in sentences if each.place == place]
        lines.append(f"## {place}\n\n{meaning} {len(here)} sentences, {minutes(here)} minutes.\n")
        for module in dict.fromkeys(each.module for each in here):
            texts = [each.text for each in here if each.module == module]
            lines.append("\n".join([f"`{module}`", "", "```text", *texts, "```", ""]))
    return "\n".join(lines)


class _Reader(ast.NodeVisitor):
    """Find the sentences of one module."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.found: list[Sentence] = []
        # Where a text is met if the calls around it do not say so, the innermost last.
        self._places: list[str | None] = [_place_of_room(module)]

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """A message of an assertion is for programmers."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if any(_COMMAND.fullmatch(_name(each)) for each in node.decorator_list):
            for paragraph in (ast.get_docstring(node) or "").replace("\b", "").split("\n\n"):
                self._keep(HELP, " ".join(paragraph.split()))
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        name = _name(node.exc).rpartition(".")[2] if node.exc else ""
        if name not in _BUGS:
            self._inside(ERRORS, node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        if _LOG.fullmatch(name):
            self._say(LOGS, node.args[0])
        elif _HELP.fullmatch(name):
            self._inside(HELP, node)
        elif _METRIC.fullmatch(name):
            self._inside(METRICS, node)
        elif name == "Rule" and node.args:  # a rule of CEL; those of routers are given by name
            self._say(RULES, node.args[1])
        elif name.endswith("Error") and name not in _BUGS:
            self._inside(ERRORS, node)
        elif not _NOT_MET.fullmatch(name):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        self._say(self._places[-1], node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._say(self._places[-1], node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add) and _has_text(node):
            self._say(self._places[-1], node)
        else:
            self.generic_visit(node)

    def _inside(self, place: str, node: ast.AST) -> None:
        self._places.append(place)
        self.generic_visit(node)
        self._places.pop()

    def _say(self, place: str | None, node: ast.expr) -> None:
        self._keep(place, _shown(node))

    def _keep(self, place: str | None, text: str) -> None:
        for line in text.split("\n"):
            bare = line.strip()
            words = len(_WORD.findall(bare))
            if place is not None and not _CODE.search(bare) and words >= (1 if place == LOGS else _FEWEST_WORDS):
                self.found.append(Sentence(place, self.module, bare))


def _place_of_room(module: str) -> str | None:
    room = module.partition("/")[0]
    if module.endswith("/metrics.py"):
        return METRICS
    if _NO_SENTENCES.match(module):
        return None
    if module in _ELSEWHERE:
        return _ELSEWHERE[module]
    if room == "cli":
        return PRINTED
    return OBJECTS if room in {"controller", "supervisor"} else ERRORS


def _name(node: ast.expr) -> str:
    """Return `log.info` for a call of it, or for the name alone."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value).rpartition('.')[2]}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _has_text(node: ast.expr) -> bool:
    return any(isinstance(each, ast.JoinedStr | ast.Constant) and _shown(each) for each in ast.walk(node))


def _shown(node: ast.expr) -> str:
    """Return a text as a user reads it, with `{name}` for each value in it; nothing for what is no text."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_shown(part) for part in parts)
        case ast.FormattedValue(value=value):
            return _value(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return "".join(_shown(side) or _value(side) for side in (left, right))
    return ""


def _value(node: ast.expr) -> str:
    """Return how a value inside a sentence is shown: by its name, or by the texts that it is chosen from."""
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{{{'|'.join((_shown(side) or _value(side)).strip('{}') for side in (body, orelse))}}}"
    return f"{{{next(_names(node), '…')}}}"


def _names(node: ast.expr) -> Iterator[str]:
    """Yield names for a value, the best first: of what a function or a method is given, then of the function."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name.strip("_")
        case ast.Call(func=func, args=args):
            for argument in args:
                yield from _names(argument)
            yield from _names(func.value if isinstance(func, ast.Attribute) and not args else func)
        case (
            ast.Subscript(value=value) | ast.Await(value=value) | ast.UnaryOp(operand=value) | ast.Starred(value=value)
        ):
            yield from _names(value)
        case ast.BinOp(left=left, right=right):
            yield from _names(left)
            yield from _names(right)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _names(value)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            yield from _names(element)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {len(text.split())} words\n")
