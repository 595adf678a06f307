"""The parser of server-sent events, over every recorded stream, in every way to write it, split at every byte."""

import pytest

from http_lab import cut
from llmkube.base import event_stream
from llmkube.base.event_stream import EventParser, OversizedEventError, ServerEvent
from router.recorded_streams import STREAMS, VARIANTS


def parsed(*pieces):
    """Return names and data of the events in these pieces; data is without newlines, which JSON ignores."""
    parser = EventParser()
    found = [event for piece in pieces for event in parser.feed(piece)] + parser.end()
    return [(each.name, each.data.replace(b"\n", b"")) for each in found if each.data is not None]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_the_same_however_it_is_written_and_split(name, variant):
    """It is split once at every byte, and into single bytes."""
    expected, data = parsed(STREAMS[name]), VARIANTS[variant](STREAMS[name])
    assert len(expected) == STREAMS[name].count(b"data: ")
    for at in range(len(data) + 1):
        assert parsed(data[:at], data[at:]) == expected
    assert parsed(*cut(data, range(len(data)))) == expected


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\ndata:  b\ndata\n\n", [ServerEvent(b"a\n b\n")]),
        (b"data\n\n", [ServerEvent(b"")]),
        (b"id: 7\n\nretry: 1\n\n\n\n", []),
        (b"event: ping\n\ndata: x\n\n", [ServerEvent(None, b"ping"), ServerEvent(b"x")]),
        (b":\n: hi\n\n", [ServerEvent(None), ServerEvent(None, comment=b" hi")]),
        (b"\xef\xbb\xbfdata: \xef\xbb\xbf\n\n", [ServerEvent(b"\xef\xbb\xbf")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [ServerEvent(b"a")]),
        (b"dat: a\ndatas: b\nDATA: c\n\n", []),
        (b'error: {"code": 500}\n\n', [ServerEvent(b'{"code": 500}', b"error")]),
        (b"event: a\nevent: b\ndata: x\r\r\ndata: y", [ServerEvent(b"x", b"b"), ServerEvent(b"y")]),
    ],
)
def test_what_a_stream_has(data, events):
    """Lines are those of the standard; the parser itself returns no event that has no data."""
    parser = EventParser()
    assert parser.feed(data) + parser.end() == events


@pytest.mark.parametrize("endless", [b"x", b"data: x\n", b"id: x\n"])
def test_an_event_without_an_end_is_refused(monkeypatch, endless):
    """It is refused before it fills the memory; comments and other events do not add to its size."""
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 100)
    parser = EventParser()
    parser.feed(b": comment\n" * 50 + b"data: x\n\n" * 50)
    for _ in range(100 // len(endless)):
        parser.feed(endless)
    with pytest.raises(OversizedEventError):
        parser.feed(endless * 2)
