"""Chat requests, of 200 to 2,000 bytes or of one length, as fast as they are answered, by wrk with one thread."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

WORDS: Final = ("hello ", "wörld ", 'a "quote" ', "line\n", "\\path ", "日本 ")
LENGTHS: Final = range(200, 2000, 7)
_SCRIPT: Final = """
local bodies = {bodies}
local requests, at = {{}}, 0
init = function(args)
  local headers = {{ ["Content-Type"] = "application/json", ["Authorization"] = "Bearer none" }}
  for _, line in ipairs(args) do
    local name, value = line:match("^([^:]+): (.*)$")
    headers[name] = value
  end
  for number, body in ipairs(bodies) do
    requests[number] = wrk.format("POST", "/v1/chat/completions", headers, body)
  end
end
request = function()
  at = at % #requests + 1
  return requests[at]
end
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('{{"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "errors": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


@attrs.frozen
class Measured:
    """The report of wrk for one round; times in microseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float

    @property
    def per_second(self) -> float:
        """Answered requests per second."""
        return self.requests / self.seconds


def write_script(path: Path, model: str, rng: random.Random, lengths: Sequence[int] = LENGTHS) -> None:
    """Write a request of each of these lengths for a model; their texts have escapes and letters beyond ASCII."""
    bodies = []
    for wanted in lengths:
        words = "".join(rng.choices(WORDS, k=wanted // 4))
        body = {"model": model, "max_tokens": 64, "temperature": 0.7, "stream": False}
        parts = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": ""}]
        frame = len(json.dumps(body | {"messages": parts}, ensure_ascii=False).encode())
        text = words.encode()[: max(1, (wanted - frame) * 9 // 10)].decode(errors="ignore")
        parts[1]["content"] = text
        bodies.append(json.dumps(body | {"messages": parts}, ensure_ascii=False))
    rng.shuffle(bodies)
    path.write_text(_SCRIPT.format(bodies="{" + ",".join(f"[==[{body}]==]" for body in bodies) + "}"), "utf-8")


async def load(
    wrk: Sequence[str], script: Path, port: int, *, connections: int, seconds: float, headers: Sequence[str] = ()
) -> Measured:
    """Ask for so long, with further header lines (`Name: value`) if a contender needs any.

    Raises:
        RuntimeError: Requests were lost or refused: such a round measures nothing.
    """
    flags = ["-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "10s", "--latency", "-s", str(script)]
    done = await trio.run_process([*wrk, *flags, f"http://127.0.0.1:{port}", "--", *headers], capture_stdout=True)
    found = json.loads(done.stdout.splitlines()[-1])
    if found["errors"]:
        raise RuntimeError(f"port {port}: {found['errors']} of {found['requests']} requests failed")
    return Measured(found["requests"], found["microseconds"] / 1e6, found["p50"], found["p99"])
