"""Receiving into memory that the caller has, for bodies of many megabytes: nothing is allocated on the way."""

from abc import abstractmethod

import trio


class BulkReceiveStream(trio.abc.ReceiveStream):
    """A stream that can receive into a buffer."""

    @abstractmethod
    async def receive_into(self, room: memoryview) -> int:
        """Fill the beginning of a buffer with what has come, and return how far; 0 at the end of the stream.

        Raises:
            trio.BrokenResourceError: The connection is lost.
            trio.ClosedResourceError: It was closed here.
        """


async def receive_into(stream: trio.abc.ReceiveStream, room: memoryview) -> int:
    """Do so with any stream; one that knows nothing of buffers costs a copy. Errors as `BulkReceiveStream`'s."""
    if isinstance(stream, BulkReceiveStream):
        return await stream.receive_into(room)
    if isinstance(stream, trio.SocketStream):
        try:
            return await stream.socket.recv_into(room)
        except OSError as error:
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
    data = await stream.receive_some(len(room))
    room[: len(data)] = data
    return len(data)
