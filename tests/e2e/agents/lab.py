"""Agents as their users start them, a recorder between them and the gateway, and what an answer says of its prompt."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from e2e.router_lab import serve
from e2e.up_process import environment
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.cli.commands.inference.clients import CLIENTS, Served

FIRST: Mapping[str, tuple[str, ...]] = {
    "claude": ("-p", "--allowedTools=Bash"),
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    "opencode": ("run",),
}
"""Arguments before the prompt of a new session."""
NEXT: Mapping[str, tuple[str, ...]] = {
    "claude": (*FIRST["claude"], "--continue"),
    "codex": (*FIRST["codex"], "resume", "--last"),
    "opencode": ("run", "--continue"),
}
"""The same for the next turn of the last session, in another process."""
PROGRAMS: Mapping[str, str] = {
    "claude": "@anthropic-ai/claude-code-*/claude",
    "codex": "@openai/codex-*/vendor/*/bin/codex",
    "opencode": "opencode-*/bin/opencode",
    "node": "node-*/bin/node",
}
"""Below the installed packages."""
SENT = ("content-type", "authorization", "x-api-key", "anthropic-version", "anthropic-beta")


@attrs.frozen
class Exchange:
    """One request and its answer."""

    path: str
    status: int
    body: bytes
    answer: bytes

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompt, and those of them that were cached, by the answer's usage."""
        prompt = cached = 0
        for usage in _usages(self.answer):
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
            read = usage.get("cache_read_input_tokens")
            cached = max(cached, read or details.get("cached_tokens") or 0)
            whole = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
            prompt = max(prompt, whole + (read or 0))
        return prompt, cached


def _usages(answer: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data:").strip() for line in answer.split(b"\n") if line.startswith((b"data:", b"{"))]
    found = []
    for line in lines:
        if line.startswith(b"{"):
            event = json.loads(line)
            holders = (event, event.get("response"), event.get("message"))
            found += [each["usage"] for each in holders if isinstance(each, dict) and each.get("usage")]
    return found


@attrs.define(eq=False)
class Lab:
    """Runs agents against a recorder.

    Attributes:
        folder: Home folder of the agents.
        packages: The installed packages.
        asked: The exchanges so far.
    """

    folder: Path
    packages: Path
    asked: list[Exchange] = attrs.field(factory=list)

    async def record(self, nursery: trio.Nursery, target: str) -> str:
        """Serve a recorder in front of a URL; return its own URL."""
        client = await nursery.start(_run_client)

        async def forward(exchange: Any) -> None:
            sent = Headers.of({name: value for name in SENT if (value := exchange.request.headers.get(name))})
            url = f"{target}{exchange.head.target}"
            answer = await client.request(exchange.head.method, url, headers=sent, body=exchange.body)
            self.asked.append(Exchange(exchange.head.path, answer.status, exchange.body, answer.body))
            kind = Headers.of({"Content-Type": answer.headers.get("content-type") or ""})
            await exchange.respond(Response(answer.status, kind, answer.body))

        return f"http://127.0.0.1:{await serve(nursery, forward)}"

    def program(self, name: str) -> Path:
        """Return the program of an agent, or `node`."""
        return next(self.packages.glob(PROGRAMS[name]))

    async def run(self, name: str, served: Served, *args: str, stdin: bytes = b"") -> str:
        """Run an agent to its end; return its output.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        settings = CLIENTS[name].settings(served)
        return await self.execute([str(self.program(name)), *settings.flags, *args], settings.variables, stdin)

    async def execute(self, command: list[str], variables: Mapping[str, str | None], stdin: bytes = b"") -> str:
        """Run a program in the project's folder; return its output."""
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        env = environment(self.folder) | {name: value for name, value in variables.items() if value is not None}
        done = await trio.run_process(command, stdin=stdin, capture_stdout=True, capture_stderr=True, env=env,
                                      cwd=project, check=False)  # fmt: skip
        shown = f"{command[0]} exited with {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        assert done.returncode == 0, shown
        return done.stdout.decode()

    async def ai_sdk(self, url: str, model: str, mode: str, **variables: str) -> Any:
        """Run the AI SDK's requests; return their results by provider."""
        script = Path(__file__).with_name("ai_sdk.mjs")
        words = [str(self.program("node")), str(script), str(self.packages), url, model, mode]
        return json.loads(await self.execute(words, variables))


async def _run_client(*, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
    async with open_http_client() as client:
        task_status.started(client)
        await trio.sleep_forever()
