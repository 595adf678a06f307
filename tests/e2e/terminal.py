"""A terminal that a program writes to."""

import contextlib
import os

import trio


@contextlib.asynccontextmanager
async def open_terminal():
    """Yield the program's end of a terminal, which the caller closes, and the output drawn so far.

    The block exits when the last writer has closed the terminal.
    """
    leader, follower = os.openpty()
    drawn = bytearray()

    async def read():
        while True:
            try:
                drawn.extend(await trio.to_thread.run_sync(os.read, leader, 65536, abandon_on_cancel=True))
            except OSError:  # EIO: the last writer has closed the terminal
                return

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            yield follower, drawn
    finally:
        os.close(leader)
