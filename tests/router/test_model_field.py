"""The `model` of a JSON body, found by a scan: the same result as a parser's, without building objects.

The `model` of a form: found among files and replaced; everything else is unchanged.
"""

import contextlib
import json
import re

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router import model_field
from llmkube.router.dispatch.request_body import BodyError
from llmkube.router.model_field import (
    MAX_PARTS,
    PARSE_BYTES,
    check_grammars,
    find_model,
    parsed_bytes,
    read_form_model,
    read_model,
    replace_form_model,
)

NAMES = st.text(max_size=12) | st.sampled_from(["chat", "日本", 'a "b"', "\\", "😀"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.just("model"), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.lists(st.tuples(NAMES | st.just("model"), VALUES | NAMES), max_size=6)
SPACE = st.text(" \t\r\n", max_size=3)


@st.composite
def texts(draw):
    """Draw an object as text: repeated members, escapes of any kind, whitespace anywhere between them."""
    ascii_only = draw(st.booleans())
    written = []
    for key, value in draw(MEMBERS):
        name = json.dumps(key, ensure_ascii=ascii_only)
        if key == "model" and draw(st.booleans()):
            name = '"\\u006dode\\u006C"'
        space = [draw(SPACE) for _ in range(4)]
        body = json.dumps(value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])))
        written.append(f"{space[0]}{name}{space[1]}:{space[2]}{body}{space[3]}")
    return (draw(SPACE) + "{" + ",".join(written) + "}" + draw(SPACE)).encode()


def run(asynchronous, *args):
    return trio.run(asynchronous, *args)


def scanned(body):
    """Return the result of the scan: the model, or a refusal."""
    try:
        spans = run(find_model, body)
    except BodyError:
        return "refused"
    return spans[-1].value if spans else None


def parsed(body):
    """Return the result of a parser; all values except strings and null are the same error."""
    try:
        payload = json.loads(body.decode("utf-8"))
    except ValueError:
        return "refused"
    if not isinstance(payload, dict):
        return "refused"
    model = payload.get("model")
    return model if model is None or isinstance(model, str) else 0


@given(texts())
def test_a_scan_finds_what_a_parser_finds(body):
    """With repeated members, escaped names, nesting and whitespace, the last `model` is used."""
    assert scanned(body) == parsed(body)


@given(texts(), st.integers(min_value=0), st.binary(min_size=1, max_size=2))
def test_a_broken_body_is_refused_or_understood_alike(body, at, noise):
    """The scan agrees with the parser on every accepted body; it may accept more, which the engine then checks."""
    at %= len(body)
    broken = body[:at] + noise + body[at + 1 :]
    if (truth := parsed(broken)) != "refused":
        assert scanned(broken) in {truth, "refused"}


@given(texts(), NAMES.filter(lambda name: name.isprintable()))
def test_a_replaced_model_is_all_that_changes(body, name):
    """With another name every other member is unchanged, and each `model` has the new one."""
    replaced = run(model_field.replace_model, body, name, None)
    pairs = json.loads(body, object_pairs_hook=list)
    expected = [(key, name if key == "model" else value) for key, value in pairs]
    if not any(key == "model" for key, _ in pairs):
        expected.insert(0, ("model", name))
    assert json.loads(replaced, object_pairs_hook=list) == expected


LIMITED = ("max_tokens", "n_predict")
NUMBERS = st.one_of(
    st.integers(-5, 200), st.floats(-5, 1e9), st.sampled_from(["500", None, True, [500], {"n_predict": 500}])
)


@given(st.lists(st.tuples(st.sampled_from(["max_tokens", "n_predict", "x", "model"]), NUMBERS)), st.booleans())
def test_only_larger_limits_change(members, escapes):
    """Each is replaced, repeated and escaped ones as well; every other byte stays."""

    def written(limit):
        pairs = [f"{json.dumps(name)} : {json.dumps(limit(name, value))}" for name, value in members]
        text = ("{" + " , ".join(pairs) + "}").encode()
        return text.replace(b"max_", b"\\u006d\\u0061x_") if escapes else text

    def limit(name, value):
        return 100 if name in LIMITED and isinstance(value, int | float) and value > 100 else value

    assert run(model_field.limit_numbers, written(lambda _, value: value), LIMITED, 100) == written(limit)


def test_an_ordinary_long_chat_is_parsed_and_a_dense_one_scanned(monkeypatch):
    """A scan takes ten times as long, and a tree of a hundred thousand empty lists blocks other tasks."""
    turn = {"role": "user", "content": [{"type": "text", "text": 'a "word", on each line\n' * 16}]}
    body = json.dumps({"model": "chat", "max_tokens": 100, "messages": [turn] * 900}).encode()
    assert len(body) > 400_000
    assert not model_field.is_parsed(b'{"x": [%b[]]}' % (b"[]," * 100_000))
    monkeypatch.delattr(model_field, "_Scanner")
    assert run(model_field.read_model, body) == ("chat", None, 1)
    assert run(model_field.limit_numbers, body, LIMITED, 100) is body


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b"{}", None),
        (b' {"model" : null} ', None),
        (b'{"model": 3}', 0),
        (b'{"model": ["chat"]}', 0),
        (b'{"x": {"model": "inner"}, "model": "chat"}', "chat"),
        (b'{"model": "one", "model": "two"}', "two"),
        (b'{"x": "\\"model\\": \\"y\\"", "model": "chat"}', "chat"),
        (b"", "refused"),
        (b"[1]", "refused"),
        (b'{"model": "chat"', "refused"),
        (b'{"model": "chat', "refused"),
        (b'{"model": "chat"} x', "refused"),
        (b'{"x": [', "refused"),
        (b"{'model': 1}", "refused"),
    ],
)
def test_bodies_of_every_kind(monkeypatch, body, model):
    """Small bodies are parsed and large ones scanned, with the same result."""

    def model_in():
        try:
            value, _, _ = run(model_field.read_model, body)
        except BodyError:
            return "refused"
        return value if value is None or isinstance(value, str) else 0

    assert model_in() == model
    monkeypatch.setattr(model_field, "PARSE_BYTES", 0)
    assert model_in() == model


@pytest.mark.ci
@pytest.mark.parametrize(
    ("body", "least"),
    [
        (b'{"model": "chat", "x": [' + b"[]," * 3_000_000 + b"[]]}", 50),
        (b'{"model": "chat", "x": "' + b"y" * 40_000_000 + b'"}', 50),
        (b'{"model": "chat", "x": "' + b"\\n" * 20_000_000 + b'"}', 50),
        (b"[" + b"[]," * 3_000_000 + b"[]]", 0),
        (b'{"model": "chat"' + b',"x":1' * 1_500_000 + b"}", 50),
        (b'{"model": "chat", "x": ' + b"[" * 2_000_000, 0),
        (b'{"model": "chat", ' + b" " * 20_000_000 + b"}", 0),
    ],
    ids=["arrays", "a long string", "escapes", "no object", "members", "depth", "space"],
)
def test_a_large_body_is_scanned_in_slices(body, least):
    """Other tasks run between two slices; the content does not affect the length of a slice."""
    slices = 0

    async def count():
        nonlocal slices
        while True:
            await trio.lowlevel.checkpoint()
            slices += 1

    async def scan():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            with contextlib.suppress(BodyError):
                await find_model(body)
            nursery.cancel_scope.cancel()

    trio.run(scan)
    assert slices >= least


def test_too_many_parts_are_refused():
    """The error has the limit."""
    with pytest.raises(BodyError, match="more than 250000 strings, objects and arrays"):
        run(find_model, b'{"x": [' + b"[]," * 150_000 + b"[]]}")


@given(MEMBERS)
def test_values_are_counted_without_parsing(members):
    """A body is refused for values, strings and brackets; those in strings are none, wherever a slice ends."""
    body = json.dumps({name: [value, ["\\", '{"[,', value]] for name, value in members}).encode()
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"'", body)
    tokens, commas = sum(map(outside.count, (b"'", b"[", b"{"))), outside.count(b",")
    for most in {tokens - 1, tokens, commas - 1, commas}:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_field, "SLICE_BYTES", 5)
            patch.setattr(model_field, "MAX_TOKENS", most)
            is_refused = sum(map(body.count, (b",", b"[", b"{"))) > most < max(tokens, commas)
            with pytest.raises(BodyError) if is_refused else contextlib.nullcontext():
                run(parsed_bytes, body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            b'{"x": ' + b"[" * 1100 + b"]" * 1100 + b', "pad": "' + b"x" * PARSE_BYTES + b'"}',
            "nested more than 1024 deep",
        ),
        (b'{"x": ' + b"[" * 1100 + b"]" * 1100 + b"}", "nested more than 1024 deep"),
        (b'{"x": [' + b"0," * 250_001 + b"0]}", "more than 250000 values"),
        (b'{"model": "' + b"x" * 5000 + b'"}', '"model" is longer than 4096 bytes'),
    ],
    ids=["depth", "depth of a small body", "numbers", "a long name"],
)
def test_a_body_beyond_a_bound_is_refused(body, words):
    """The same bounds apply to every body that is passed through, whatever its length."""
    with pytest.raises(BodyError, match=words):
        run(read_model, body)


def part(name, value, more=""):
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value


def form(*parts, boundary=b"xyz"):
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, each) for each in parts) + b"--%b--\r\n" % boundary


@given(st.binary(max_size=80), st.text(max_size=20), st.text(max_size=20), st.booleans())
async def test_whatever_the_file_holds_only_the_model_changes(content, old, new, last):
    """A file may contain anything but the boundary; the result has the new name and the same file."""
    content = content.replace(b"--xyz", b"")
    parts = [part("file", content, '; filename="model"'), part("model", old.encode())]
    body = form(*(parts if last else parts[::-1]))
    found = await read_form_model(body, b"xyz")
    assert found.value == old
    after = replace_form_model(body, b"xyz", found, new)
    assert after == form(
        *([parts[0], part("model", new.encode())] if last else [part("model", new.encode()), parts[0]])
    )


async def test_a_form_without_a_model_gets_one():
    """The model is optional on a machine with one model: its name is added as a separate part."""
    body = form(part("file", b"x"))
    found = await read_form_model(body, b"xyz")
    assert found.value is None
    after = replace_form_model(body, b"xyz", found, "whisper")
    assert after == form(part("model", b"whisper"), part("file", b"x"))


async def test_of_several_the_last_is_used():
    """JSON is handled the same way."""
    assert (await read_form_model(form(part("model", b"a"), part("model", b"b")), b"xyz")).value == "b"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "begin with its boundary"),
        (b"{}", "begin with its boundary"),
        (b"--xyz", "must begin a part"),
        (b"--xyz\r\nContent-Disposition: form-data\r\n", "must begin a part"),
        (b"--xyz\r\n" + b"x" * 5000 + b"\r\n\r\n\r\n--xyz--", "at most 4096 bytes"),
        (b"--xyz\r\n" + part("file", b"abc"), "ends in the middle"),
        (form(part("model", b"x" * 5000)), "longer than 4096"),
        (form(*[part("a", b"")] * (MAX_PARTS + 1)), f"more than {MAX_PARTS} parts"),
    ],
)
async def test_what_is_no_form_is_refused(body, words):
    """A truncated, endless or malformed form is refused with the cause."""
    with pytest.raises(BodyError, match=words):
        await read_form_model(body, b"xyz")


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (None, None),
        ("application/json", None),
        ("multipart/mixed; boundary=a", None),
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b:c"', b"a b:c"),
    ],
)
def test_only_a_form_has_a_boundary(content_type, boundary):
    """Other content types are read as JSON."""
    assert model_field.boundary_of(content_type) == boundary


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary="])
def test_a_form_names_its_boundary(content_type):
    """Without a boundary it is refused: its parts cannot be separated."""
    with pytest.raises(BodyError, match="boundary"):
        model_field.boundary_of(content_type)


DEEP = "(" * 600 + '"a"' + ")" * 600


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"grammar": "root ::= " + DEEP}, '"grammar" has more than 500 nested brackets'),
        ({"grammar": "root ::= " + "a" * 200_000}, '"grammar" is longer than 131072 bytes'),
        ({"guided_regex": DEEP}, '"guided_regex" has more than'),
        ({"response_format": {"json_schema": {"schema": {"items": {"pattern": DEEP}}}}}, '"pattern" has more than'),
        ({"tools": [{"function": {"parameters": {"pattern": "[" * 501}}}]}, '"pattern" has more than'),
        ({"grammar": "root ::= " + "(a) [b] " * 5000}, ""),
        ({"messages": [{"content": DEEP}]}, ""),
    ],
    ids=str,
)
async def test_grammars_that_could_end_an_engine_are_refused(body, words):
    """Length and nesting are bounded wherever the field is, and however its name is spelt; text is not bounded."""
    texts = [json.dumps(body).encode(), json.dumps(body, indent=1).encode()]
    texts += [texts[0].replace(b'"pattern"', b'"p\\u0061ttern"').replace(b'"grammar"', b'"gr\\u0061mmar"')]
    texts += [texts[0].replace(b'":', b'"' + b" " * 5000 + b":\n" + b"\t" * 5000)]
    texts += [texts[0].replace(b"(", b"\\u0028").replace(b"[", b"\\u005B")] if "messages" not in body else []
    for text in texts:
        if words:
            with pytest.raises(BodyError, match=words):
                await check_grammars(text)
        else:
            await check_grammars(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"grammar": "' + b"a" * 131_071 + b"\\\\(((", "does not end"),
        (b'{"grammar": "\\x"}', "must be a string"),
        (b'{"grammar": "\\ud800' + b"(" * 501 + b'"}', "nested brackets"),
    ],
    ids=["cut at the limit", "an unknown escape", "half a pair"],
)
async def test_malformed_grammars_are_refused(text, words):
    with pytest.raises(BodyError, match=words):
        await check_grammars(text)


async def test_grammars_of_a_long_body_are_found(monkeypatch):
    """Members at the edges of slices, after escaped quotes, and between long texts are found."""
    monkeypatch.setattr(model_field, "SLICE_BYTES", 64)
    for before in range(0, 200, 7):
        body = json.dumps({"x": 'a "word" ' * 9 + "y" * before, "grammar": DEEP}).encode()
        with pytest.raises(BodyError, match="nested brackets"):
            await check_grammars(body)


@pytest.mark.parametrize("most", [1, 4096])
@pytest.mark.parametrize("text", ["", "a, [b] {c}", r"a\n, \u00e9", r"a\\n", "é[[["])
async def test_the_memory_of_a_body_is_that_of_its_values_and_characters(monkeypatch, text, most):
    """Each mark may be a value, in strings too, few marks or many; a wide character makes each of its string wider."""
    monkeypatch.setattr(model_field, "_FEW", most)
    body = f'{{"model": ["m", "{text}"]}}'.encode()
    values = 72 * body.count(b",") + 184 * (body.count(b"[") + body.count(b"{"))
    is_wide = "é" in text or "\\u" in text
    assert await parsed_bytes(body) == values + len(body) * (5 if is_wide else 2)
