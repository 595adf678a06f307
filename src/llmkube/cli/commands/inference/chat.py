"""`llmkube chat`: one question or a whole conversation; the words come as the engine makes them.

The terminal is read between answers, outside of Trio, where line editing and Ctrl-C work as in any shell. Each answer
is a run of its own: Ctrl-C stops it, which closes the connection, which stops the engine's work.
"""

import contextlib
import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import click
import trio
from rich.console import Console
from rich.text import Text

from llmkube.base.http.client import open_http_client
from llmkube.cli.commands.inference.conversation import (
    ContextFullError,
    Conversation,
    Delta,
    Route,
    Sampling,
    find_route,
    gateway_route,
    pod_connector,
    stream_answer,
    with_connect_timeout,
)
from llmkube.cli.object_names import get_service
from llmkube.cli.options import cluster_options, services
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, open_cluster, run_against
from llmkube.cli.view.output import printable
from llmkube.cli.view.progress_line import open_console
from llmkube.k8s.builtins import Secret
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError, errors_as_messages
from llmkube.programs.options import NumberRange, command
from llmkube.supervisor.credentials import keys_in
from llmkube.supervisor.values.api_keys import parse_keys

FLAG = "--api-key-file"


_STDIN = "-"
_COMMANDS: Final = {
    "/new": "forget what was said, and begin anew",
    "/help": "show these lines",
    "/bye": "leave, as Ctrl-D does",
}
_COMMAND: Final = re.compile(r"/[a-z?]+")
_NOTES = {"length": "(cut: --max-tokens or the context is used up)", "interrupted": "(stopped)"}


@command("chat")
@click.argument("name", shell_complete=services)
@click.argument("prompt", required=False)
@click.option("--system", default="", help="The system prompt.")
@click.option("--temperature", type=NumberRange(min=0), help="0 always gives the same answer.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="The longest answer, in tokens.")
@click.option(
    FLAG,
    "key_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the API key to show. Default: the Secret that the service's spec.apiKeySecretRef names.",
)
@cluster_options()
def chat(
    *,
    name: str,
    prompt: str | None,
    system: str,
    temperature: float | None,
    max_tokens: int | None,
    key_file: Path | None,
    where: ClusterFlags,
) -> None:
    """Talk to the model that is served as NAME.

    With PROMPT (or - and standard input, or a pipe) one answer is printed. Without, a conversation begins: Ctrl-C stops
    an answer, Ctrl-D or /bye leaves, /new forgets what was said, /help lists what else there is. What was said first is
    left out when the model's context is full.
    """
    question = _prompt(prompt)
    api_key = read_key_file(key_file) if key_file is not None else ""
    session = _ChatSession(where, name, Conversation(Sampling(temperature, max_tokens), system), api_key)
    if question is None:
        session.converse()
    else:
        session.ask_once(question)


def _prompt(given: str | None) -> str | None:
    """Return the one question, or None for a conversation."""
    if given is not None and given != _STDIN:
        text = given
    elif given == _STDIN or not sys.stdin.isatty():
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as exc:
            raise click.UsageError("standard input is not UTF-8 text; a model reads nothing else") from exc
    else:
        return None
    if not text.strip():
        raise click.UsageError("there is nothing to ask: the prompt is empty")
    return text


@attrs.define(eq=False)
class _ChatSession:
    where: ClusterFlags
    name: str
    conversation: Conversation
    api_key: str = attrs.field(default="", repr=False)

    def ask_once(self, question: str) -> None:
        """Print one answer."""
        route = self._find_route()
        answer = _Printer()
        finish_reason = trio.run(_answer, self.where, route, self.conversation.body(route.model_id, question), answer)
        answer.end()
        _print_note(finish_reason)

    def converse(self) -> None:
        """Question after question until Ctrl-D; a failed answer ends nothing."""
        route = self._find_route()
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - its import gives input() line editing; some Pythons lack it
        click.echo(
            f"{self.name}, through {route.name}. Ctrl-C stops an answer, Ctrl-D leaves, /help shows more.", err=True
        )
        while True:
            try:
                question = input("\n> ").strip()
            except EOFError:
                click.echo(err=True)
                return
            except KeyboardInterrupt:
                click.echo("  (Ctrl-D leaves)", err=True)
                continue
            except UnicodeDecodeError:
                click.echo("That was not UTF-8 text, and was not sent.", err=True)
                continue
            if question in {"/bye", "/exit", "/quit"}:
                return
            if _COMMAND.fullmatch(question):
                self._command(question)
            elif question:
                self._turn(question.removeprefix("/") if question.startswith("//") else question)

    def _command(self, word: str) -> None:
        """Do what a line says that is for this program and not for the model."""
        if word == "/new":
            self.conversation.forget()
            click.echo("Forgotten.", err=True)
            return
        if word not in {"/help", "/?"}:
            click.echo(f"There is no {word}; nothing was sent. Two slashes (/{word}) send one to the model.", err=True)
        for name, detail in _COMMANDS.items():
            click.echo(f"  {name:<6} {detail}", err=True)

    def _turn(self, question: str) -> None:
        answer, finish_reason, dropped = _Printer(), "interrupted", 0
        try:
            with errors_as_messages(), _suppress_interrupt():
                route = self._find_route()  # an engine that was restarted listens elsewhere
                finish_reason, dropped = self._answer(route, question, answer)
        except CommandError as exc:
            answer.end()
            exc.show()
            return
        answer.end()
        if dropped:
            detail = "question and its answer were" if dropped == 1 else f"{dropped} questions and their answers were"
            click.echo(f"(the context is full: the first {detail} left out, and are forgotten)", err=True)
        self.conversation.add_exchange(question, answer.text)
        _print_note(finish_reason)

    def _answer(self, route: Route, question: str, answer: "_Printer") -> tuple[str, int]:
        """Ask, with as much of what was said before as the context holds; return why it ended, and what was cut."""
        dropped = 0
        while True:
            body = self.conversation.body(route.model_id, question)
            try:
                finish_reason = trio.run(partial(_answer_until_interrupt, self.where, route, body, answer))
            except* ContextFullError:
                more = self.conversation.forget_oldest()
                if not more:
                    raise
                dropped += more
            else:
                break
        return finish_reason, dropped

    def _find_route(self) -> Route:
        async def action(cluster: Cluster) -> Route:
            service = await get_service(cluster.client, Key(cluster.namespace, self.name))
            if service.status.mode not in {"", "chat"}:
                raise CommandError(
                    f"InferenceService {service.key} serves {service.status.mode} requests and does not chat; "
                    f"`llmkube port-forward {self.name}` gives programs a way to it"
                )
            route = await find_route(cluster, service)
            if self.api_key:
                return attrs.evolve(route, api_key=self.api_key)
            through_gateway = gateway_route(service) is not None  # it shows the engine's own key, and asks for none
            return route if through_gateway else attrs.evolve(route, api_key=await find_key(cluster, service))

        return run_against(self.where, action, seconds=ANSWER_SECONDS)


async def _answer(where: ClusterFlags, route: Route, body: bytes, printer: "_Printer") -> str:
    async with contextlib.AsyncExitStack() as stack:
        connect = with_connect_timeout()
        if route.pod is not None:
            cluster = await stack.enter_async_context(open_cluster(where.kubeconfig_path, where.context))
            connect = with_connect_timeout(pod_connector(cluster.client, route.pod))
        client = await stack.enter_async_context(open_http_client(connect))
        return await stream_answer(client, route, body, printer)


async def _answer_until_interrupt(where: ClusterFlags, route: Route, body: bytes, printer: "_Printer") -> str:
    """Return why the model stopped; `interrupted` after Ctrl-C."""
    finish_reason = "interrupted"
    async with trio.open_nursery() as nursery:

        async def stop_on_interrupt(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            with trio.open_signal_receiver(signal.SIGINT) as signals:
                task_status.started()
                await anext(signals)
            nursery.cancel_scope.cancel(reason="Ctrl-C")

        await nursery.start(stop_on_interrupt)
        finish_reason = await _answer(where, route, body, printer)
        nursery.cancel_scope.cancel(reason="the answer is complete")
    return finish_reason


@attrs.define(eq=False)
class _Printer:
    """Writes an answer to standard output as it comes; thoughts only on a terminal."""

    _pieces: list[str] = attrs.field(factory=list)
    _console: Console = attrs.field(factory=lambda: open_console(highlight=False, soft_wrap=True))
    _thinking: bool = False

    def __call__(self, delta: Delta) -> None:
        if delta.reasoning and self._console.is_terminal:
            self._thinking = True
            self._console.print(Text(printable(delta.reasoning), style="dim"), end="")
        text = delta.text if self._pieces else delta.text.lstrip()
        if text:
            if self._thinking:
                self._thinking = False
                self._console.print("\n")
            click.echo(printable(text), nl=False)  # a model's words must not steer the terminal
            self._pieces.append(text)

    @property
    def text(self) -> str:
        """The whole answer so far."""
        return "".join(self._pieces)

    def end(self) -> None:
        """End the line, unless the answer did."""
        if self._thinking or (self._pieces and not self.text.endswith("\n")):
            click.echo()


@contextlib.contextmanager
def _suppress_interrupt() -> Iterator[None]:
    """Ctrl-C ends the block and nothing else."""
    try:
        yield
    except* KeyboardInterrupt:  # a nursery raises it within a group
        pass


def _print_note(finish_reason: str) -> None:
    if finish_reason in _NOTES:
        click.echo(_NOTES[finish_reason], err=True)


def read_key_file(path: Path) -> str:
    """Return the first key of a file; blocks on the disk.

    Raises:
        CommandError: It cannot be read, or holds something else; the sentence repeats nothing of it.
    """
    try:
        return parse_keys(path.read_bytes())[0]
    except OSError as exc:
        raise CommandError(f"{FLAG}: {path} cannot be read ({exc.strerror or exc})") from exc
    except ValueError as exc:
        raise CommandError(f"{FLAG}: {path} {exc}") from None


async def find_key(cluster: Cluster, service: InferenceService) -> str:
    """Return a key of the service's Secret; "" when its clients have none.

    Raises:
        CommandError: The Secret is missing, or this user may not read it.
        APIKeysError: It holds no key.
    """
    ref = service.spec.api_key_secret_ref
    if ref is None:
        return ""
    key = Key(service.key.namespace, ref.name)
    try:
        secret = await cluster.client.get(Secret, key)
    except (ForbiddenError, NotFoundError) as exc:
        detail = "you may not read it" if isinstance(exc, ForbiddenError) else "there is none"
        raise CommandError(
            f"InferenceService {service.key} requires a key of Secret {key}, and {detail}; show yours with {FLAG} FILE"
        ) from exc
    return keys_in(secret, ref.key)[0]
