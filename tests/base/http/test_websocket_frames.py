"""The handshake's judge and the frames, held to the `websockets` package, which shares no code with wsproto."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side
from wsproto.frame_protocol import FrameProtocol

from http_lab import cut
from llmkube.base.http.errors import ProtocolError
from llmkube.base.http.message import Headers
from llmkube.base.http.websocket import (
    FRAME_BYTES,
    PART,
    Close,
    FrameReader,
    Offer,
    Ping,
    Violation,
    frames_of,
)

OFFER = Offer(b"the sample nonce", ("v4.channel.k8s.io", "other"))  # RFC 6455, 1.3
ACCEPT = ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
SWITCH = (("Upgrade", "WebSocket"), ("Connection", "keep-alive, Upgrade"))
CHOICE = ("Sec-WebSocket-Protocol", "v4.channel.k8s.io")


def test_the_offer_is_the_one_of_the_rfc():
    """The key, the version and the protocols stand in the request as RFC 6455 writes them."""
    assert list(OFFER.headers) == [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v4.channel.k8s.io, other"),
    ]
    assert OFFER.judge(Headers((*SWITCH, ACCEPT, CHOICE)), "pod") == "v4.channel.k8s.io"
    assert Offer(OFFER.nonce).judge(Headers((*SWITCH, ACCEPT)), "pod") == ""


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((ACCEPT, CHOICE), "does not switch"),
        ((("Upgrade", "h2c"), SWITCH[1], ACCEPT, CHOICE), "does not switch"),
        ((SWITCH[0], ("Connection", "close"), ACCEPT, CHOICE), "does not switch"),
        ((*SWITCH, CHOICE), "Sec-WebSocket-Accept"),
        ((*SWITCH, ("Sec-WebSocket-Accept", "S3PPLMBITXAQ9KYGZZHZRBK+XOO="), CHOICE), "Sec-WebSocket-Accept"),
        ((*SWITCH, ACCEPT, ACCEPT, CHOICE), "Sec-WebSocket-Accept"),
        ((*SWITCH, ACCEPT, CHOICE, ("Sec-WebSocket-Extensions", "permessage-deflate")), "extension"),
        ((*SWITCH, ACCEPT, ("Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io")), "not offered"),
        ((*SWITCH, ACCEPT, CHOICE, ("Sec-WebSocket-Protocol", "other")), "not offered"),
        ((*SWITCH, ACCEPT), "speaks none of the subprotocols"),
    ],
)
def test_an_answer_that_does_not_fit_the_offer_is_refused(lines, why):
    """Whatever differs from what was asked for is an error that says what differs."""
    with pytest.raises(ProtocolError, match=f"^pod .*{why}"):
        OFFER.judge(Headers(lines), "pod")


def client_frames():
    return FrameProtocol(client=True, extensions=[])


def frame(opcode, data=b"", *, fin=True):
    return Frame(opcode, data, fin).serialize(mask=False)


def events_of(pieces, max_message_bytes=1000):
    reader, events = FrameReader(client_frames(), max_message_bytes), []
    for piece in pieces:
        reader.feed(piece)
        while (event := reader.take()) is not None:
            events.append(event)
            if isinstance(event, Violation):
                return events
    return events


WIRE = b"".join(
    [
        frame(Opcode.BINARY, b"one"),
        frame(Opcode.TEXT, "zw€i".encode()[:4], fin=False),
        frame(Opcode.PING, b"still there?"),
        frame(Opcode.PONG, b"yes"),
        frame(Opcode.CONT, "zw€i".encode()[4:]),
        frame(Opcode.BINARY, b""),
        frame(Opcode.BINARY, b"x" * 700),
        frame(Opcode.CLOSE, b"\x03\xf3bye"),
    ]
)


@given(st.lists(st.integers(0, len(WIRE) - 1)))
def test_messages_do_not_depend_on_how_the_bytes_are_cut(positions):
    """Fragments, control frames among them and characters that are cut in two come together whatever the pieces."""
    events = [event for event in events_of(cut(WIRE, positions)) if event != PART]
    assert events == [b"one", Ping(b"still there?"), "zw€i", b"", b"x" * 700, Close(1011, "bye")]


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (b"\x82\x81\x01\x02\x03\x04y", 1002),  # masked: a literal, for the name of a test is the same in each worker
        (b"\xc2\x01x", 1002),
        (b"\x83\x00", 1002),
        (b"\x09\x00", 1002),
        (b"\x89\x7e\x00\x80", 1002),
        (b"\x82\x7e\x00\x01x", 1002),
        (b"\x82\x7f\x80\x00\x00\x00\x00\x00\x00\x00", 1002),
        (frame(Opcode.CONT, b"x"), 1002),
        (frame(Opcode.TEXT, b"x", fin=False) + frame(Opcode.TEXT, b"y"), 1002),
        (frame(Opcode.TEXT, b"\xff\xff"), 1007),
        (frame(Opcode.CLOSE, b"\x03"), 1002),
        (frame(Opcode.CLOSE, b"\x03\xee"), 1002),
        (frame(Opcode.BINARY, b"x" * 1001), 1009),
        (frame(Opcode.BINARY, b"x" * 600, fin=False) + frame(Opcode.CONT, b"x" * 600, fin=False), 1009),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 1002),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_what_breaks_the_rules_is_refused(wire, code, at_once):
    """Masked frames, reserved bits, wrong lengths, stray fragments, bad text and long messages get the RFC's code."""
    events = events_of([wire] if at_once else [bytes([byte]) for byte in wire])
    assert isinstance(events[-1], Violation), events
    assert events[-1].code == code
    assert all(event is PART for event in events[:-1])


def test_a_long_message_is_refused_before_all_of_it_has_come():
    """Of a message that claims 2^40 bytes, no more than the bound is kept."""
    reader = FrameReader(client_frames(), 1000)
    reader.feed(b"\x82\x7f" + (2**40).to_bytes(8, "big") + b"x" * 1001)
    assert isinstance(reader.take(), Violation)


@pytest.mark.parametrize(
    "message", [b"", b"bytes", "zw€i", bytes(125), bytes(126), bytes(65536), b"ab" * FRAME_BYTES, "€" * FRAME_BYTES * 2]
)
def test_what_is_written_is_what_another_implementation_reads(message):
    """Each frame is masked and short enough, and the message comes out whole."""
    server, sizes = Protocol(Side.SERVER, max_size=None), []
    for wire in frames_of(message, client_frames()):
        sizes.append(len(wire))
        server.receive_data(wire)
    frames = server.events_received()
    data = b"".join(each.data for each in frames)
    assert (data.decode() if isinstance(message, str) else data) == message
    assert [each.opcode for each in frames[1:]] == [Opcode.CONT] * (len(frames) - 1)
    assert frames[0].opcode is (Opcode.TEXT if isinstance(message, str) else Opcode.BINARY)
    assert max(sizes) <= 4 * FRAME_BYTES


def test_equal_frames_are_masked_differently():
    """The mask of each frame is drawn anew, so that no one can choose what stands on the wire."""
    frames = client_frames()
    assert len({wire for _ in range(8) for wire in frames_of(b"the same bytes", frames)}) == 8
