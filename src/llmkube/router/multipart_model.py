"""The `model` of a form with files (RFC 7578), as OpenAI's clients send audio: read and replaced where it stands.

Only the lines between the parts are looked for, in slices between which other tasks run; what a file holds is passed
over.
"""

import re
from email.message import Message
from typing import Final

import attrs
import trio

from llmkube.router.model_field import SLICE_BYTES, BodyError

MAX_PARTS: Final = 128
"""A transcription has about ten."""

_MAX_HEAD_BYTES: Final = 4096
_MAX_NAME_BYTES: Final = 4096
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046, 5.1.1


@attrs.frozen
class FormModel:
    """The field, and where it stands among the body's bytes.

    Attributes:
        value: What the client wrote; None of a form that names no model.
        start: The value's first byte; without one, where a part may be put in.
        end: The byte after its last.
    """

    value: str | None
    start: int
    end: int


def boundary_of(content_type: str | None) -> bytes | None:
    """Return what stands between the parts of a form; None of a body that is none.

    Raises:
        BodyError: It is a form that does not say.
    """
    message = Message()
    message["Content-Type"] = content_type or ""
    if message.get_content_type() != "multipart/form-data":
        return None
    found = message.get_param("boundary")
    if not isinstance(found, str) or not _BOUNDARY.fullmatch(found):
        raise BodyError("the Content-Type of a form must name its boundary")
    return found.encode("ascii")


async def read_form_model(body: bytes, boundary: bytes) -> FormModel:
    """Return the field `model` of a form; of several the last one counts, as for JSON.

    Raises:
        BodyError: The body is no such form, or has too many parts.
    """
    mark = b"--" + boundary
    if not body.startswith(mark):
        raise BodyError("the form must begin with its boundary")
    found, at = FormModel(None, 0, 0), len(mark)
    for _ in range(MAX_PARTS):
        if body.startswith(b"--", at):
            return found
        head_end = body.find(b"\r\n\r\n", at, at + _MAX_HEAD_BYTES)
        if not body.startswith(b"\r\n", at) or head_end < 0:
            raise BodyError(f"byte {at} of the form must begin a part, with a head of at most {_MAX_HEAD_BYTES} bytes")
        start = head_end + 4
        end = await _find(body, b"\r\n" + mark, start)
        if _name_in(body[at + 2 : head_end]) == "model":
            if end - start > _MAX_NAME_BYTES:
                raise BodyError(f'"model" is longer than {_MAX_NAME_BYTES} bytes')
            found = FormModel(body[start:end].decode("utf-8", "replace"), start, end)
        at = end + 2 + len(mark)
    raise BodyError(f"the form has more than {MAX_PARTS} parts")


def replace_form_model(body: bytes, boundary: bytes, found: FormModel, value: str) -> bytes:
    """Return the form with another `model`; every other byte stays as the client wrote it."""
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
    message = Message()
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            message["Content-Disposition"] = value.strip()
    found = message.get_param("name", header="Content-Disposition")
    return found if isinstance(found, str) else None
