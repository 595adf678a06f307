"""`llmkube chat`: one question or a conversation; answers are streamed.

The terminal is read between answers, outside Trio, where line editing and Ctrl-C work as usual. Each answer is a Trio
run of its own: Ctrl-C cancels it, which closes the connection and stops the engine's work.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import click
import trio
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from llmkube.base.http.client import open_http_client
from llmkube.cli.commands.inference.conversation import (
    ContextFullError,
    Conversation,
    Delta,
    Route,
    find_route,
    gateway_route,
    pod_connector,
    stream_answer,
    with_connect_timeout,
)
from llmkube.cli.object_names import get_service
from llmkube.cli.options import cluster_options, services
from llmkube.cli.target_cluster import (
    ANSWER_SECONDS,
    Cluster,
    ClusterFlags,
    cancelled_by_interrupt,
    open_cluster,
    run_against,
)
from llmkube.cli.view.output import line_width, printable
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
_COMMANDS: Final = {"/new": "start a new conversation", "/help": "show the commands", "/bye": "exit, like Ctrl-D"}
_COMMAND: Final = re.compile(r"/[a-z?]+")
_NOTES = {"length": "(truncated: --max-tokens or the context is used up)", "interrupted": "(stopped)"}


@command("chat")
@click.argument("name", shell_complete=services)
@click.argument("prompt", required=False)
@click.option("--system", default="", help="System prompt.")
@click.option("--temperature", type=NumberRange(min=0), help="Sampling temperature; 0 always gives the same answer.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum length of an answer, in tokens.")
@click.option(
    FLAG,
    "key_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the API key to send. Default: the Secret that the service's spec.apiKeySecretRef names.",
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
    """Chat with the model of the service NAME.

    With PROMPT, or with standard input (- or a pipe), prints one answer. Otherwise, starts a conversation: Ctrl-C stops
    an answer, Ctrl-D or /bye exits, /new starts a new conversation, /help lists the commands. When the model's context
    is full, the oldest questions and answers are dropped.
    """
    question = _prompt(prompt)
    api_key = read_key_file(key_file) if key_file is not None else ""
    conversation = Conversation(system, {"temperature": temperature, "max_tokens": max_tokens})
    session = _ChatSession(where, name, conversation, api_key)
    if question is None:
        session.converse()
    else:
        session.ask_once(question)


def _prompt(given: str | None) -> str | None:
    """Return the prompt, or None for a conversation."""
    if given is not None and given != _STDIN:
        text = given
    elif given == _STDIN or not sys.stdin.isatty():
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as exc:
            raise click.UsageError("standard input is not UTF-8 text") from exc
    else:
        return None
    if not text.strip():
        raise click.UsageError("the prompt is empty")
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
        """Read questions and print answers until Ctrl-D; a failed answer does not end the conversation."""
        route = self._find_route()
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - its import gives input() line editing; some Pythons lack it
        click.echo(
            f"{self.name}, through {route.name}. Ctrl-C stops an answer, Ctrl-D exits, /help shows more.", err=True
        )
        while True:
            try:
                question = input("\n> ").strip()
            except EOFError:
                click.echo(err=True)
                return
            except KeyboardInterrupt:
                click.echo("  (Ctrl-D exits)", err=True)
                continue
            except UnicodeDecodeError:
                click.echo("Not sent: the input is not UTF-8 text.", err=True)
                continue
            if question in {"/bye", "/exit", "/quit"}:
                return
            if _COMMAND.fullmatch(question):
                self._command(question)
            elif question:
                self._turn(question.removeprefix("/") if question.startswith("//") else question)

    def _command(self, word: str) -> None:
        """Run a command of the chat, which is not sent to the model."""
        if word == "/new":
            self.conversation.forget()
            click.echo("New conversation.", err=True)
            return
        if word not in {"/help", "/?"}:
            click.echo(f"Unknown command {word}; nothing was sent. To send it to the model, type /{word}.", err=True)
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
            oldest = "question and its answer were" if dropped == 1 else f"{dropped} questions and their answers were"
            click.echo(f"(the context is full: the oldest {oldest} dropped)", err=True)
        self.conversation.add_exchange(question, answer.text)
        _print_note(finish_reason)

    def _answer(self, route: Route, question: str, answer: "_Printer") -> tuple[str, int]:
        """Send the question with the earlier turns that fit; return the finish reason and how many were dropped."""
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
                    f"InferenceService {service.key} serves {service.status.mode} requests, not chat; "
                    f"`llmkube port-forward {self.name}` gives programs access to it"
                )
            route = await find_route(cluster, service)
            if self.api_key:
                return attrs.evolve(route, api_key=self.api_key)
            through_gateway = gateway_route(service) is not None  # it sends the engine's key and requires none
            return route if through_gateway else attrs.evolve(route, api_key=await find_key(cluster, service))

        return run_against(self.where, action, seconds=ANSWER_SECONDS)


async def _answer(where: ClusterFlags, route: Route, body: bytes, printer: "_Printer") -> str:
    async with contextlib.AsyncExitStack() as stack:
        connect = with_connect_timeout()
        if route.pod is not None:
            cluster = await stack.enter_async_context(open_cluster(where))
            connect = with_connect_timeout(pod_connector(cluster.client, route.pod))
        client = await stack.enter_async_context(open_http_client(connect))
        return await stream_answer(client, route, body, printer)


async def _answer_until_interrupt(where: ClusterFlags, route: Route, body: bytes, printer: "_Printer") -> str:
    """Return the finish reason; `interrupted` after Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt), cancelled_by_interrupt():
        return await _answer(where, route, body, printer)
    return "interrupted"


@attrs.define(eq=False)
class WordWrap:
    """Breaks lines between words as text arrives; a word is held back until it is complete.

    Attributes:
        width: Columns of the terminal; None to break no line.
    """

    width: int | None
    _column: int = 0
    _word: str = ""

    def feed(self, text: str) -> str:
        """Return what can be written now: up to the last complete word; "" ends the text."""
        if self.width is None:
            return text
        written = "" if text else self._place_word(self.width)
        for char in text:
            cells = cell_len(char)
            if char.isspace() or cells > 1:  # scripts with wide characters have no spaces
                written += self._place_word(self.width)
                if self._column + cells > self.width:
                    written, self._column = f"{written}\n", 0
                    if char == " ":
                        continue
                written += char
                self._column = 0 if char == "\n" else self._column + (8 - self._column % 8 if char == "\t" else cells)
            else:
                self._word += char
                if cell_len(self._word) == self.width:
                    written += self._place_word(self.width)
                    self._column = 0  # the terminal continues a longer word on the next line
        return written

    def _place_word(self, width: int) -> str:
        cells, word, self._word = cell_len(self._word), self._word, ""
        breaks = self._column > 0 and self._column + cells > width
        self._column = cells + (0 if breaks else self._column)
        return f"\n{word}" if breaks else word


@attrs.define(eq=False)
class _Printer:
    """Writes an answer to standard output as it arrives, on a terminal with whole words; reasoning only there."""

    _pieces: list[str] = attrs.field(factory=list)
    _console: Console = attrs.field(factory=lambda: open_console(highlight=False, soft_wrap=True))
    _thinking: bool = False
    _wrap: "WordWrap" = attrs.field(factory=lambda: WordWrap(line_width()))

    def __call__(self, delta: Delta) -> None:
        if delta.reasoning and self._console.is_terminal:
            self._thinking = True
            self._console.print(Text(self._wrap.feed(printable(delta.reasoning)), style="dim"), end="")
        text = delta.text if self._pieces else delta.text.lstrip()
        if text:
            if self._thinking:
                self._thinking = False
                self._console.print(Text(self._wrap.feed("\n"), style="dim"))
            click.echo(self._wrap.feed(printable(text)), nl=False)  # a model must not control the terminal
            self._pieces.append(text)

    @property
    def text(self) -> str:
        """The whole answer so far."""
        return "".join(self._pieces)

    def end(self) -> None:
        """Write the last word, and a line break if the answer has none."""
        click.echo(self._wrap.feed(""), nl=False)
        if self._thinking or (self._pieces and not self.text.endswith("\n")):
            click.echo()


@contextlib.contextmanager
def _suppress_interrupt() -> Iterator[None]:
    """Make Ctrl-C end only the block."""
    try:
        yield
    except* KeyboardInterrupt:  # a nursery raises it within a group
        pass


def _print_note(finish_reason: str) -> None:
    if finish_reason in _NOTES:
        click.echo(_NOTES[finish_reason], err=True)


def read_key_file(path: Path, flag: str = FLAG) -> str:
    """Return the first key in a file; blocks on the disk.

    Raises:
        CommandError: The file cannot be read or has no valid key; the message contains none of its content.
    """
    try:
        return parse_keys(path.read_bytes())[0]
    except OSError as exc:
        raise CommandError(f"{flag}: {path} cannot be read ({exc.strerror or exc})") from exc
    except ValueError as exc:
        raise CommandError(f"{flag}: {path} {exc}") from None


async def find_key(cluster: Cluster, service: InferenceService) -> str:
    """Return a key from the service's Secret; "" if the service requires none.

    Raises:
        CommandError: The Secret is missing, or this user may not read it.
        APIKeysError: It has no key.
    """
    ref = service.spec.api_key_secret_ref
    if ref is None:
        return ""
    key = Key(service.key.namespace, ref.name)
    try:
        secret = await cluster.client.get(Secret, key)
    except (ForbiddenError, NotFoundError) as exc:
        problem = "which you may not read" if isinstance(exc, ForbiddenError) else "which does not exist"
        raise CommandError(
            f"InferenceService {service.key} needs a key from Secret {key}, {problem}; pass your key with {FLAG} FILE"
        ) from exc
    return keys_in(secret, ref.key)[0]
