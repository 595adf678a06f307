"""The client's side of TLS against OpenSSL's server; who is trusted is shown by tests/k8s/auth."""

import ssl
from functools import partial

import pytest
import trio
import trio.testing

from base.http.certificates import make_contexts
from http_lab import always
from llmkube.base.http.dial import TlsDialer
from llmkube.base.http.tls import TlsStream


@pytest.fixture
def contexts(tmp_path):
    return make_contexts(tmp_path)


async def echo(stream, seen):
    """Send everything back; note whether the handshake was a short one."""
    while data := await stream.receive_some():
        seen.append(stream.session_reused)
        await stream.send_all(data)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_next_connection_resumes_the_session(contexts, version):
    """Bytes come back as they were, in pieces of any size, and a second handshake is a short one."""
    server_context, client_context = contexts
    client_context.maximum_version = version
    dialer, seen = TlsDialer(client_context, "localhost"), []

    async def serve(transport):
        await echo(trio.SSLStream(transport, server_context, server_side=True, https_compatible=True), seen)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            for _ in range(2):
                stream = await dialer("127.0.0.1", port)
                sent, received = bytes(range(256)) * 400, b""
                async with trio.open_nursery() as sending:
                    sending.start_soon(stream.send_all, sent)
                    while len(received) < len(sent):
                        received += await stream.receive_some(10_000)
                assert received == sent
                await stream.aclose()
            nursery.cancel_scope.cancel()
    assert (seen[0], seen[-1]) == (False, True)


async def shake_hands(client_context, answer):
    """A handshake with a server that says only this."""
    mine, server = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def play():
            await server.receive_some()
            if answer:
                await server.send_all(answer)
            await server.aclose()

        nursery.start_soon(play)
        with pytest.raises((ssl.SSLError, trio.BrokenResourceError)) as caught:
            await TlsDialer(client_context, connect=always(mine))("localhost", 1)
        with pytest.raises(trio.ClosedResourceError):
            await mine.send_all(b"x")
    return caught.value


@pytest.mark.parametrize(
    ("answer", "error"), [(b"", trio.BrokenResourceError), (b"HTTP/1.1 400 Bad Request\r\n\r\n", ssl.SSLError)]
)
async def test_who_does_not_speak_tls_is_refused(contexts, answer, error):
    """A server that hangs up or speaks plainly is an error, and the connection is closed."""
    assert isinstance(await shake_hands(contexts[1], answer), error)


async def test_an_end_without_a_goodbye_is_an_end(contexts):
    """What counts is the framing of what was sent; later garbage breaks the stream."""
    mine, theirs = trio.testing.memory_stream_pair()
    server = trio.SSLStream(theirs, contexts[0], server_side=True, https_compatible=True)
    client = TlsStream(mine, contexts[1], "localhost", None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        nursery.start_soon(client.do_handshake)
    await server.send_all(b"last")
    await theirs.send_all(b"no TLS at all")
    assert await client.receive_some() == b"last"
    with pytest.raises(trio.BrokenResourceError, match="TLS"):
        await client.receive_some()
    await theirs.aclose()
