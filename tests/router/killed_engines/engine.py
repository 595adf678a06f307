"""A scripted engine that kills itself at random: `python engine.py PORT SEED ODDS`.

It answers the chat of a number with the words of that number, whole or as a stream, and continues an assistant message
at the end of a request, as llama.cpp's server does. At each step of an answer, with a chance of one in `ODDS`, it
sends itself SIGKILL: all its requests then end as with a real engine.
"""

import json
import os
import random
import signal
import sys
from functools import cache

import trio

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@cache
def words_of(number: int) -> tuple[str, ...]:
    """Return the answer to a number: 1 to 12 words."""
    return tuple(f"w{number}.{at} " for at in range(number % 12 + 1))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(text: str, finish: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(event).encode()


def _usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}


class Engine:
    """One of the engines.

    Attributes:
        odds: One step in this many kills it.
    """

    def __init__(self, seed: int, odds: int) -> None:
        self.dice = random.Random(seed)
        self.odds = odds

    async def step(self) -> None:
        """Continue, or kill this process with all its requests."""
        if self.dice.randrange(self.odds) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        await trio.lowlevel.checkpoint()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer the requests of one connection."""
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    if not (some := await stream.receive_some()):
                        return
                    data += some
                head, _, data = data.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
                while len(data) < length:
                    if not (some := await stream.receive_some()):
                        return
                    data += some
                asked, data = json.loads(data[:length]), data[length:]
                await self.answer(stream, asked)
        except trio.BrokenResourceError:
            pass

    async def answer(self, stream: trio.SocketStream, asked: dict) -> None:
        """Send one answer."""
        turns = asked["messages"]
        words = words_of(int(turns[0]["content"]))
        if turns[-1]["role"] == "assistant":
            completion, rest = turns[-1]["content"], list(words)
            while rest and completion.startswith(rest[0]):
                completion = completion.removeprefix(rest.pop(0))
            words = tuple(rest)
        await self.step()
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            completion = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            body = json.dumps(completion | {"usage": _usage(len(words))}).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            await stream.send_all(head + body[:20])
            await self.step()
            await stream.send_all(body[20:])
            return
        await stream.send_all(SSE)
        for word in words:
            await self.step()
            await stream.send_all(_chunk(_event(word, None)))
        await self.step()
        last = {"choices": [], "usage": _usage(len(words))}
        end = _event("", "stop") + b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(last).encode()
        await stream.send_all(_chunk(end) + b"0\r\n\r\n")


if __name__ == "__main__":
    port, seed, odds = map(int, sys.argv[1:])
    trio.run(trio.serve_tcp, Engine(seed, odds).serve, port)
