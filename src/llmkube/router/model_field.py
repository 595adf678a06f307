"""Reads and replaces the `model` of a request body, and its limits, in place, at a bounded cost; renames it in answers.

A small body is parsed. A large one, with images for instance, is scanned in slices without building a tree, and other
tasks run between slices. Nested values are skipped; the engine validates them.

In a multipart form (RFC 7578), which OpenAI's clients use for audio, only the boundaries are searched for, in slices as
well; file contents are skipped.
"""

import re
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.json_text import loads_well_formed
from llmkube.base.loop_shares import long_step
from llmkube.router.budgets.meter import ANSWER_COUNT_FIELDS, PROMPT_FIELDS, answer_count
from llmkube.router.dialects.providers import ENGINE_LIMITS, check_limits
from llmkube.router.dispatch.request_body import MAX_NAME_BYTES, BodyError

PARSE_BYTES, PARSE_MARKS = 1 << 20, 40_000
"""Bodies of so many bytes, commas and brackets are parsed, which blocks all other tasks for some milliseconds."""

SLICE_BYTES: Final = 512 * 1024
SLICE_TOKENS: Final = 2_000
"""Tokens per slice: a few milliseconds of scanning."""

MAX_TOKENS: Final = 250_000
"""Values in a body, and strings and brackets: at most a second of scanning, and 64 MiB after parsing."""

MAX_DEPTH: Final = 1024
"""Nesting of a body, as in the parser."""

MAX_SPACE_BYTES: Final = 64 * 1024
"""Consecutive whitespace between two members."""

_ESCAPED_BYTES: Final = 6
"""Longest form of a letter in a key: \\uXXXX."""
_ESCAPED_LETTER: Final = re.compile(rb"\\u00[4-7]")
MAX_GRAMMAR_BYTES: Final = 128 << 10
MAX_GRAMMAR_DEPTH: Final = 500
"""Nested brackets of a grammar or regular expression: engines read them recursively, and exit at some 10,000."""

_GRAMMARS: Final = frozenset({"pattern", "grammar", "ebnf", "regex", "guided_grammar", "guided_regex"})
_ESCAPED_NAME: Final = rb"[a-z_]{0,14}+\\u00[4-7][0-9A-Fa-f](?:[a-z_]|\\u00[4-7][0-9A-Fa-f]){0,14}"
_MEMBER: Final = re.compile(rb'"(%b|%b)"(?=[ \t\n\r:])' % ("|".join(sorted(_GRAMMARS)).encode(), _ESCAPED_NAME))
_LONGEST_MEMBER: Final = 200
"""Bytes of the longest match of `_MEMBER`: slices overlap by so many."""

_BRACKETS: Final = re.compile(r"[(\[{)\]}]")
_BACKSLASHES: Final = re.compile(rb"\\*")
_SPACE: Final = re.compile(rb"[ \t\n\r]*")
_TEXT: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_PLAIN: Final = re.compile(rb'[^"{}\[\]]*')
_SCALAR: Final = re.compile(rb"[-+.0-9A-Za-z]+")


async def check_grammars(body: bytes) -> None:
    """Refuse grammars and regular expressions, at any place of a JSON body, that could end the engine which reads them.

    Raises:
        BodyError: One is too long or too deeply nested; the message names its field.
    """
    for start in range(0, len(body), SLICE_BYTES):
        async with long_step(len(body)):
            for found in _MEMBER.finditer(body, start, start + SLICE_BYTES + _LONGEST_MEMBER):
                if (name := orjson.loads(b'"%b"' % found[1])) in _GRAMMARS:
                    _check_grammar(name, body, found.end())
                    await trio.lowlevel.checkpoint()


def _check_grammar(name: str, body: bytes, end: int) -> None:
    """Check the value of a member, if it is a string; its name ends at `end`."""
    colon = _space_end(body, end)
    start = _space_end(body, colon + 1)
    if body[colon : colon + 1] != b":" or body[start : start + 1] != b'"':
        return
    start += 1
    text = _TEXT.match(body, start, start + MAX_GRAMMAR_BYTES + 1)
    assert text is not None, "it also matches the empty string"
    if text.end() - start > MAX_GRAMMAR_BYTES or body[text.end() : text.end() + 1] != b'"':
        raise BodyError(f'"{name}" is longer than {MAX_GRAMMAR_BYTES} bytes, or does not end')
    try:
        grammar = loads_well_formed(b'"%b"' % text[0])
    except orjson.JSONDecodeError as exc:
        raise BodyError(f'"{name}" must be a string: {exc}') from exc
    depth = 0
    for mark in _BRACKETS.findall(grammar):
        depth += 1 if mark in "([{" else -1
        if depth > MAX_GRAMMAR_DEPTH:
            raise BodyError(f'"{name}" has more than {MAX_GRAMMAR_DEPTH} nested brackets; simplify it')


@attrs.frozen
class Span:
    """Position and value of one `model` member of a body, or of the field of a form.

    Attributes:
        start: Offset of its first byte, or the one where a part can be inserted into a form without it.
        end: Offset after its last byte.
        value: The string, None for `null`, 0 for any other type.
    """

    start: int
    end: int
    value: str | int | None


async def read_model(body: bytes) -> tuple[object, tuple[Span, ...] | None, int]:
    """Return the value of `model`, None if missing; the spans of all such members if the body was scanned; its answers.

    The last of several wins, as in JSON parsers.

    Raises:
        DialectError: It is not a JSON object, has too many parts, or a grammar or a value that could end the engine.
    """
    await check_grammars(body)
    if is_parsed(body):
        async with long_step(len(body)):
            payload = parsed(body)
            if not isinstance(payload, dict):
                raise BodyError("the body must be a JSON object")
            model = payload.get("model")
            _check_name(len(model) if isinstance(model, str) else 0)
            check_limits(payload)
            return model, None, answer_count(payload)
    members = await find_members(body, _READ)
    spans = tuple(Span(start, end, _name_at(body, start, end)) for name, start, end in members if name == "model")
    async with long_step(len(body)):
        fields = {name: parsed(body[start:end]) for name, start, end in members if name != "model"}
        check_limits(fields)
        return (spans[-1].value if spans else None), spans, answer_count(fields)


_READ: Final = ("model", *ENGINE_LIMITS, *PROMPT_FIELDS, *ANSWER_COUNT_FIELDS)


async def replace_model(body: bytes, value: str, spans: tuple[Span, ...] | None) -> bytes:
    """Return the body with another value of `model` and every other byte unchanged."""
    spans = await find_model(body) if spans is None else spans
    written = orjson.dumps(value)
    if not spans:  # a request without a model, where there is only one
        start = body.index(b"{") + 1
        rest = body[start:]
        comma = b"" if rest.lstrip(b" \t\n\r").startswith(b"}") else b","
        return b'%b"model":%b%b%b' % (body[:start], written, comma, rest)
    pieces, at = [], 0
    for span in spans:
        pieces += [body[at : span.start], written]
        at = span.end
    return b"".join([*pieces, body[at:]])


async def find_model(body: bytes, name: str = "model") -> tuple[Span, ...]:
    """Return the spans of every member of the top-level object that names the model, without parsing the body.

    Raises:
        BodyError: The body is visibly not a JSON object, or has too many parts.
    """
    members = await find_members(body, (name,))
    return tuple(Span(start, end, _name_at(body, start, end)) for _, start, end in members)


async def limit_numbers(body: bytes, names: tuple[str, ...], most: int) -> bytes:
    """Return the body with every larger number in top-level members of these names replaced, and no other byte changed.

    Raises:
        BodyError: The body is visibly not a JSON object, or has too many parts.
    """
    async with long_step(len(body)):
        is_unique = all(body.count(b'"%b"' % name.encode()) < 2 for name in names) and not _ESCAPED_LETTER.search(body)
        payload = parsed(body) if is_unique and is_parsed(body) else None
    if isinstance(payload, dict):
        numbers = [each for name in names if isinstance(each := payload.get(name), int | float)]
        if max(numbers, default=most) <= most:
            return body
    pieces, at = [], 0
    for _, start, end in await find_members(body, names):
        number = parsed(body[start:end]) if end - start <= MAX_NAME_BYTES else None
        if isinstance(number, int | float) and number > most:
            pieces += [body[at:start], b"%d" % most]
            at = end
    return b"".join([*pieces, body[at:]])


async def asks_for_stream(body: bytes) -> bool:
    """Return whether the last top-level member `stream` of a body is true.

    Raises:
        BodyError: The body is visibly not a JSON object, or has too many parts.
    """
    found = await find_members(body, ("stream",))
    return bool(found) and body[slice(*found[-1][1:])] == b"true"


async def find_members(body: bytes, names: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Return the name of each such member, and start and end of its value."""
    scanner = _Scanner(body, names)
    slices, has_more = scanner.scan(), True
    while has_more:
        async with long_step(len(body)):
            has_more = next(slices, False) is None
    return scanner.found


def is_parsed(body: bytes) -> bool:
    """Return whether a body is parsed, not scanned."""
    return len(body) <= PARSE_BYTES and sum(map(body.count, (b",", b"[", b"{"))) <= PARSE_MARKS


def _name_at(body: bytes, start: int, end: int) -> str | int | None:
    raw = body[start:end]
    if not raw.startswith(b'"'):
        return None if raw == b"null" else 0
    _check_name(len(raw))
    name: str = parsed(raw)
    return name


def _check_name(size: int) -> None:
    if size > MAX_NAME_BYTES:
        raise BodyError(f'"model" is longer than {MAX_NAME_BYTES} bytes; GET /v1/models lists the models')


def parsed(body: bytes) -> Any:
    """Return a body, or a value in one.

    Raises:
        BodyError: It is not JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        deep = str(exc).startswith("depth limit")
        problem = f"the body is nested more than {MAX_DEPTH} deep" if deep else "the body must be a JSON object"
        raise BodyError(problem) from exc


_VALUE_BYTES: Final = {b",": 72, b"[": 184, b"{": 184}
"""Most memory of one parsed value, by the mark that precedes or opens it, without the characters of strings."""

_FEW: Final = 4096
"""Marks up to which a copy without them is made faster than they are counted."""


async def parsed_bytes(body: bytes) -> int:
    """Return the most memory that a body takes while it is parsed and sent on.

    Raises:
        BodyError: It has too many values.
    """
    marks, found = 0, 0
    async with long_step(len(body)):
        for mark, size in _VALUE_BYTES.items():
            count = len(body) - len(body.replace(mark, b"", _FEW))  # the fastest way to find that there are few
            count = count if count < _FEW else body.count(mark)
            marks, found = marks + count, found + count * size
    if marks > MAX_TOKENS:  # some may be in strings
        await _check_counts(body)
        found = min(found, MAX_TOKENS * max(_VALUE_BYTES.values()))
    is_wide = not body.isascii() or (b"\\" in body and b"\\u" in body)  # one character makes all of a string wider
    return found + len(body) * (5 if is_wide else 2)


async def _check_counts(body: bytes) -> None:
    """Count the values of a body without parsing it.

    Raises:
        BodyError: It has too many.
    """
    at = inside = commas = tokens = 0
    while at < len(body):
        async with long_step(SLICE_BYTES):
            found = _BACKSLASHES.match(body, at + SLICE_BYTES - 1)  # a slice ends after an escape, not within one
            assert found is not None  # it also matches the empty string
            end = found.end() + 1
            pieces = body[at:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
            text = b"".join(pieces[inside::2])
            commas += text.count(b",")
            tokens += text.count(b"{") + text.count(b"[") + (len(pieces) - inside) // 2
        at, inside = end, (inside + len(pieces) - 1) % 2
        _check_limits(commas, tokens)


def _check_limits(commas: int, tokens: int) -> None:
    if commas > MAX_TOKENS:
        raise BodyError(f"the body has more than {MAX_TOKENS} values")
    if tokens > MAX_TOKENS:
        raise BodyError(f"the body has more than {MAX_TOKENS} strings, objects and arrays")


def _space_end(body: bytes, at: int) -> int:
    """Return the offset after the whitespace at an offset.

    Raises:
        BodyError: There is too much of it.
    """
    space = _SPACE.match(body, at, at + MAX_SPACE_BYTES)
    assert space is not None, "it also matches the empty string"
    if space.end() - at == MAX_SPACE_BYTES:
        raise BodyError(f"the body has {MAX_SPACE_BYTES} consecutive bytes of whitespace")
    return space.end()


class _Scanner:
    """Scans the members of an object; yields after each slice."""

    def __init__(self, body: bytes, names: tuple[str, ...]) -> None:
        self.found: list[tuple[str, int, int]] = []
        self._names = names
        self._max_key_bytes = 2 + _ESCAPED_BYTES * max(map(len, names))
        self._body = body
        self._at = 0
        self._tokens = 0
        self._commas = 0
        self._slice_at = 0
        self._slice_tokens = 0

    def scan(self) -> Iterator[None]:
        """Find every member with one of the names; yield after each slice."""
        self._skip_whitespace()
        self._expect(b"{")
        self._skip_whitespace()
        if self._peek() == b"}":
            self._at += 1
        else:
            while True:
                yield from self._member()
                self._skip_whitespace()
                if self._peek() != b",":
                    break
                self._at += 1
                self._skip_whitespace()
            self._expect(b"}")
        self._skip_whitespace()
        if self._at != len(self._body):
            raise BodyError("the body must be one JSON object; data follows it")

    def _member(self) -> Iterator[None]:
        start = self._at
        yield from self._string()
        key = self._body[start : self._at]
        self._skip_whitespace()
        self._expect(b":")
        self._skip_whitespace()
        start = self._at
        yield from self._value()
        if len(key) <= self._max_key_bytes and (name := parsed(key)) in self._names:
            self.found.append((name, start, self._at))

    def _value(self) -> Iterator[None]:
        first = self._peek()
        if first == b'"':
            yield from self._string()
        elif first in {b"{", b"["}:
            yield from self._nested()
        else:
            scalar = _SCALAR.match(self._body, self._at, self._at + 1024)
            if scalar is None:
                raise BodyError(f"the body is not JSON at byte {self._at}")
            self._at = scalar.end()

    def _nested(self) -> Iterator[None]:
        depth = 0
        while True:
            yield from self._pause()
            plain = _PLAIN.match(self._body, self._at, self._at + SLICE_BYTES)
            assert plain is not None  # it also matches the empty string
            self._commas += self._body.count(b",", self._at, plain.end())
            _check_limits(self._commas, self._tokens)
            self._at = plain.end()
            mark = self._peek()
            if mark == b'"':
                yield from self._string()
            elif mark in {b"{", b"["}:
                depth += 1
                self._at += 1
                if depth >= MAX_DEPTH:
                    raise BodyError(f"the body is nested more than {MAX_DEPTH} deep, at byte {self._at}")
            elif mark in {b"}", b"]"}:
                depth -= 1
                self._at += 1
                if depth == 0:
                    return
            elif not mark:
                raise BodyError("the body ends too early")

    def _string(self) -> Iterator[None]:
        self._expect(b'"')
        while True:
            yield from self._pause()
            text = _TEXT.match(self._body, self._at, self._at + SLICE_BYTES)
            assert text is not None  # it also matches the empty string
            stuck, self._at = text.end() == self._at, text.end()
            if self._peek() == b'"':
                self._at += 1
                return
            if stuck:
                raise BodyError("the body ends inside a string")

    def _pause(self) -> Iterator[None]:
        """Count a token, and yield if the slice is done."""
        self._tokens += 1
        self._slice_tokens += 1
        _check_limits(self._commas, self._tokens)
        if self._slice_tokens >= SLICE_TOKENS or self._at - self._slice_at >= SLICE_BYTES:
            self._slice_at, self._slice_tokens = self._at, 0
            yield

    def _skip_whitespace(self) -> None:
        self._at = _space_end(self._body, self._at)

    def _peek(self) -> bytes:
        return self._body[self._at : self._at + 1]

    def _expect(self, mark: bytes) -> None:
        if self._peek() != mark:
            raise BodyError(f"the body must be a JSON object; byte {self._at} should be {mark.decode()}")
        self._at += 1


MAX_PARTS: Final = 128
"""A transcription has about ten."""

_MAX_HEAD_BYTES: Final = 4096
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046, 5.1.1


def boundary_of(content_type: str | None) -> bytes | None:
    """Return the boundary of a multipart form; None if the body is not one.

    Raises:
        BodyError: The form has no valid boundary.
    """
    message = Message()
    message["Content-Type"] = content_type or ""
    if message.get_content_type() != "multipart/form-data":
        return None
    found = message.get_param("boundary")
    if not isinstance(found, str) or not _BOUNDARY.fullmatch(found):
        raise BodyError("the Content-Type of a form must name its boundary")
    return found.encode("ascii")


async def read_form_model(body: bytes, boundary: bytes) -> Span:
    """Return the field `model` of a form; the last of several wins, as in JSON. Without one its value is None.

    Raises:
        BodyError: The body is not such a form, or has too many parts.
    """
    mark = b"--" + boundary
    if not body.startswith(mark):
        raise BodyError("the form must begin with its boundary")
    found, at = Span(0, 0, None), len(mark)
    for _ in range(MAX_PARTS):
        if body.startswith(b"--", at):
            return found
        head_end = body.find(b"\r\n\r\n", at, at + _MAX_HEAD_BYTES)
        if not body.startswith(b"\r\n", at) or head_end < 0:
            raise BodyError(f"byte {at} of the form must begin a part, with a head of at most {_MAX_HEAD_BYTES} bytes")
        start = head_end + 4
        end = await _find(body, b"\r\n" + mark, start)
        if _name_in(body[at + 2 : head_end]) == "model":
            if end - start > MAX_NAME_BYTES:
                raise BodyError(f'"model" is longer than {MAX_NAME_BYTES} bytes')
            found = Span(start, end, body[start:end].decode("utf-8", "replace"))
        at = end + 2 + len(mark)
    raise BodyError(f"the form has more than {MAX_PARTS} parts")


def replace_form_model(body: bytes, boundary: bytes, found: Span, value: str) -> bytes:
    """Return the form with another `model` and every other byte unchanged."""
    written = value.encode()
    if found.value is None:
        written = b'--%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % (boundary, written)
    return body[: found.start] + written + body[found.end :]


async def _find(body: bytes, mark: bytes, start: int) -> int:
    while start < len(body):
        found = body.find(mark, start, start + SLICE_BYTES + len(mark))
        if found >= 0:
            return found
        start += SLICE_BYTES
        await trio.lowlevel.checkpoint()
    raise BodyError("the form ends in the middle of a part")


def _name_in(head: bytes) -> str | None:
    found = message_from_bytes(head).get_param("name", header="Content-Disposition")
    return found if isinstance(found, str) else None


_KEYS: Final = (b'"model":', b'"model": ')


@attrs.define(eq=False)
class ModelNameRewriter:
    """Replaces an engine's name of a model by the client's, in a response that arrives in pieces.

    Text that the model generates cannot match, because quotes in a JSON string are escaped.
    """

    _theirs: tuple[bytes, ...]
    _ours: bytes
    _pending: bytes = b""

    @classmethod
    def between(cls, theirs: str, ours: str) -> "ModelNameRewriter":
        """Return a rewriter from one name to the other, with and without a space after the colon."""
        return cls(tuple(key + orjson.dumps(theirs) for key in _KEYS), _KEYS[0] + orjson.dumps(ours))

    def edit(self, piece: bytes) -> bytes:
        """Return the bytes to send, at the end those that are left: a `BodyEditor`.

        A partial match at the end is kept for the next piece: no event ends with one.
        """
        data, self._pending = self._pending + piece, b""
        if not piece:
            return data
        for theirs in self._theirs:
            data = data.replace(theirs, self._ours)
        tail = max(_partial_match(theirs, data) for theirs in self._theirs)
        self._pending = data[len(data) - tail :]
        return data[: len(data) - tail]


def _partial_match(name: bytes, data: bytes) -> int:
    """Return the length of the longest proper prefix of the name with which the data ends."""
    return next((n for n in range(min(len(name) - 1, len(data)), 0, -1) if data.endswith(name[:n])), 0)
