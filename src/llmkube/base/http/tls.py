"""TLS over any stream, for a task that sends and one that receives: what a client needs, and nothing more."""

import ssl
from abc import abstractmethod
from typing import Final, cast

import trio


class BulkReceiveStream(trio.abc.ReceiveStream):
    """A stream that can receive into a buffer."""

    @abstractmethod
    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the beginning of a buffer with what has come, and return how far; 0 at the end of the stream.

        Raises:
            trio.BrokenResourceError: The connection is lost.
            trio.ClosedResourceError: It was closed here.
        """


async def receive_into(stream: trio.abc.ReceiveStream, buffer: memoryview) -> int:
    """Do so with any stream; one that knows nothing of buffers costs a copy. Errors as `BulkReceiveStream`'s."""
    if isinstance(stream, BulkReceiveStream):
        return await stream.receive_into(buffer)
    if isinstance(stream, trio.SocketStream):
        try:
            return await stream.socket.recv_into(buffer)
        except OSError as error:
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
    data = await stream.receive_some(len(buffer))
    buffer[: len(data)] = data
    return len(data)


RECEIVE_BYTES: Final = 64 * 1024
BULK_BYTES: Final = 256 * 1024


class TlsStream(BulkReceiveStream, trio.abc.Stream):
    """The client's side of a TLS connection.

    No protocol is offered beside HTTP/1.1 (no ALPN), and a close says no goodbye: a peer that cuts an answer short is
    found out by the answer's own framing.
    """

    def __init__(
        self, transport: trio.abc.Stream, context: ssl.SSLContext, server_name: str, session: ssl.SSLSession | None
    ) -> None:
        self.transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._flushing = False
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name, session=session)
        self._failure: ssl.SSLError | None = None
        self._encrypted: memoryview | None = None  # a buffer for large bodies, once there is one

    @property
    def session(self) -> ssl.SSLSession | None:
        """What shortens the handshake of the next connection."""
        return self._ssl.session

    async def do_handshake(self) -> None:
        """Agree on keys; the peer has proved who it is when this returns.

        Raises:
            ssl.SSLError: The peer's certificate is not to be trusted, or it refuses ours.
            trio.BrokenResourceError: The peer went away.
        """
        complete, refusal = False, None
        while not complete:
            try:
                self._ssl.do_handshake()
                complete = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                refusal = error
            await self._flush()  # also after a refusal: our alert says why
            if refusal is not None:
                raise refusal
            if not complete and not await self._fill():
                raise trio.BrokenResourceError("the peer ended the TLS handshake")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send; `trio.BrokenResourceError` if the peer is gone."""
        self._ssl.write(data)  # a memory buffer takes everything
        await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """Return when the peer has read something."""
        await self.transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what has come, or b"" at the end; `trio.BrokenResourceError` if what comes is no TLS."""
        while True:
            try:
                return self._ssl.read(RECEIVE_BYTES if max_bytes is None else max_bytes)
            except ssl.SSLWantReadError:
                await self._flush()  # an answer to a key update, for instance
                if not await self._fill():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError as error:
                raise trio.BrokenResourceError(f"TLS: {error}") from error

    async def receive_into(self, buffer: memoryview) -> int:
        """Decrypt what has come into a buffer, and return how far it is filled; 0 at the end.

        Raises:
            trio.BrokenResourceError: What comes is no TLS.
        """
        while not (count := self._decrypt_into(buffer)):
            await self._flush()
            if self._encrypted is None:
                self._encrypted = memoryview(bytearray(BULK_BYTES))
            received = await receive_into(self.transport, self._encrypted)
            if not received:
                return 0
            self._incoming.write(self._encrypted[:received])
        return max(count, 0)

    def _decrypt_into(self, buffer: memoryview) -> int:
        """Decrypt record after record; 0 when more has to come first, -1 at the end."""
        if self._failure is not None:
            raise trio.BrokenResourceError(f"TLS: {self._failure}") from self._failure
        count = 0
        try:
            while count < len(buffer):
                decrypted = cast("int", self._ssl.read(len(buffer) - count, buffer[count:]))  # bytes without a buffer
                if not decrypted:
                    return count or -1
                count += decrypted
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return count or -1
        except ssl.SSLError as error:
            if not count:
                raise trio.BrokenResourceError(f"TLS: {error}") from error
            self._failure = error  # for the next call: what came before it was right
        return count

    async def aclose(self) -> None:
        """Close the connection."""
        await self.transport.aclose()

    async def _fill(self) -> bool:
        data = await self.transport.receive_some(RECEIVE_BYTES)
        if data:
            self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        """Send what is ready, unless another task is at it, which then takes it along.

        Receiving sends as well: an answer to a key update, or a certificate that the server asks for late.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._outgoing.pending:
                await self.transport.send_all(self._outgoing.read())
        finally:
            self._flushing = False
