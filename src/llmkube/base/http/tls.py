"""TLS client over any stream, for one task that sends and one that receives."""

import ssl
from abc import abstractmethod
from typing import Final, cast

import trio


class BulkReceiveStream(trio.abc.ReceiveStream):
    """A stream that can receive into a buffer."""

    @abstractmethod
    async def receive_into(self, buffer: memoryview) -> int:
        """Receive data into the beginning of a buffer, and return the number of bytes; 0 at the end of the stream.

        Raises:
            trio.BrokenResourceError: The connection is lost.
            trio.ClosedResourceError: The stream was closed on this side.
        """


async def receive_into(stream: trio.abc.ReceiveStream, buffer: memoryview) -> int:
    """Receive into a buffer from any stream; one without `receive_into` costs a copy. Raises as `BulkReceiveStream`."""
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
    """Client side of a TLS connection.

    It speaks HTTP/1.1 only, so it sends no ALPN. It neither sends nor expects close_notify: a response that is cut
    short is detected by its own framing.
    """

    def __init__(
        self, transport: trio.abc.Stream, context: ssl.SSLContext, server_name: str, session: ssl.SSLSession | None
    ) -> None:
        self.transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._flushing = False
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name, session=session)
        self._failure: ssl.SSLError | None = None
        self._encrypted: memoryview | None = None  # a buffer for large bodies, allocated for the first

    @property
    def session(self) -> ssl.SSLSession | None:
        """Session that shortens the handshake of the next connection."""
        return self._ssl.session

    async def do_handshake(self) -> None:
        """Perform the handshake; the peer's identity is verified when this returns.

        Raises:
            ssl.SSLError: The peer's certificate is not trusted, or the peer rejects ours.
            trio.BrokenResourceError: The peer closed the connection.
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
            await self._flush()  # also after a failure, to send the alert that names it
            if refusal is not None:
                raise refusal
            if not complete and not await self._fill():
                raise trio.BrokenResourceError("the peer ended the TLS handshake")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send data; raises `trio.BrokenResourceError` if the peer is gone."""
        self._ssl.write(data)  # a memory buffer takes everything
        await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """Return when sending might no longer block."""
        await self.transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return received data, or b"" at the end; raises `trio.BrokenResourceError` for invalid TLS."""
        while True:
            try:
                return self._ssl.read(RECEIVE_BYTES if max_bytes is None else max_bytes)
            except ssl.SSLWantReadError:
                await self._flush()  # a reply to a key update, for instance
                if not await self._fill():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError as error:
                raise trio.BrokenResourceError(f"TLS: {error}") from error

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive and decrypt data into a buffer, and return the number of bytes; 0 at the end.

        Raises:
            trio.BrokenResourceError: The peer sent invalid TLS.
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
        """Decrypt record after record; return 0 if more data has to arrive first, -1 at the end."""
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
            self._failure = error  # raised by the next call: the data before it is valid
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
        """Send pending data; if another task is sending already, it sends this as well.

        Receiving sends too: a reply to a key update, or a certificate that the server requests late.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._outgoing.pending:
                await self.transport.send_all(self._outgoing.read())
        finally:
            self._flushing = False
