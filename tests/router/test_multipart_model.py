"""The `model` of a form: found among files, replaced where it stands, and nothing else touched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router.model_field import BodyError
from llmkube.router.multipart_model import MAX_PARTS, boundary_of, read_form_model, replace_form_model


def part(name, value, more=""):
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value


def form(*parts, boundary=b"xyz"):
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, each) for each in parts) + b"--%b--\r\n" % boundary


@given(st.binary(max_size=80), st.text(max_size=20), st.text(max_size=20), st.booleans())
async def test_whatever_the_file_holds_only_the_model_changes(content, old, new, last):
    """A file may hold anything but the boundary; reading back gives the new name and the same file."""
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
    """The only model of a machine need not be named: its name is put in as a part of its own."""
    body = form(part("file", b"x"))
    found = await read_form_model(body, b"xyz")
    assert found.value is None
    after = replace_form_model(body, b"xyz", found, "whisper")
    assert after == form(part("model", b"whisper"), part("file", b"x"))


async def test_of_several_the_last_counts():
    """As in JSON."""
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
    """A form that is cut, endless or no form at all is refused with what is wrong."""
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
    """What is no form is read as JSON."""
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary="])
def test_a_form_names_its_boundary(content_type):
    """One that does not is refused: its parts cannot be told apart."""
    with pytest.raises(BodyError, match="boundary"):
        boundary_of(content_type)
