"""Streams of engines and providers, and the ways in which servers write the same events.

Those of llama.cpp were recorded from its server with the demo's model; the others have the shapes in the documentation
of their providers.
"""

from pathlib import Path

STREAMS = {file.stem: file.read_bytes() for file in sorted((Path(__file__).parent / "recorded").glob("*.sse"))}


def is_messages(name):
    return name.endswith("messages")


def with_lines(end):
    return lambda data: data.replace(b"\n", end)


def with_fields(data):
    """Give each event an ID and a reconnection time, and put comments before, in and after it."""
    events = data.split(b"\n\n")[:-1]
    found = [b": c\nid: %d\nretry: 9\n%b\n: in\nother: x\nid\n\n: after\n\n" % each for each in enumerate(events)]
    return b"retry: 1\n\n" + b"".join(found)


VARIANTS = {
    "as recorded": lambda data: data,
    "CR": with_lines(b"\r"),
    "CRLF": with_lines(b"\r\n"),
    "BOM": lambda data: b"\xef\xbb\xbf" + data,
    "ids, retries and comments": with_fields,
    "ids in CRLF": lambda data: with_lines(b"\r\n")(with_fields(data)),
    "without the last empty line": lambda data: data[:-1],
    "without the last newline": lambda data: data[:-2],
    "CR without the last newline": lambda data: with_lines(b"\r")(data[:-2]),
    "no space after the colon": lambda data: data.replace(b"data: ", b"data:"),
    "data in several lines": lambda data: data.replace(b'{"', b'{\ndata: "'),
}
