"""What the workers of a router share, in their parent: queues, circuits, budgets, kept responses.

Each worker has a session. When its worker is gone, however that came, the session's end gives back what it held: turns
at engines and the leave to try a backend again. What it had reserved is charged: the parent cannot know what it took.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar, Final

import attrs
import trio

from llmkube.router.budget_store.errors import BudgetsNotKeptError
from llmkube.router.budget_store.kept_budgets import KeptBudgets
from llmkube.router.budgets.meter import Exhausted, Reservation, Took
from llmkube.router.config.routing_config import Backend
from llmkube.router.dispatch.circuits import Circuit, Circuits
from llmkube.router.queue.turns import Line, Turn, Turns
from llmkube.router.responses.shelf import OwnShelf
from llmkube.router.responses.stored_pages import Wanted
from llmkube.router.workers.link import KIND, NUMBER, Link, LinkError, Message
from llmkube.router.workers.written import (
    circuit_to,
    claim_from,
    conversation_to,
    exhausted_to,
    response_from,
    took_from,
)

FENCE_SECONDS: Final = 1.0
"""How long the parent waits for a worker that may have kept what another one asks for."""


@attrs.define(eq=False)
class SharedState:
    """What all workers share.

    Attributes:
        turns: The queues.
        circuits: Which backends are left alone.
        budgets: Those that no server keeps.
        shelf: The responses.
    """

    turns: Turns
    circuits: Circuits
    budgets: KeptBudgets
    shelf: OwnShelf
    _links: dict[str, Link] = attrs.field(factory=dict)

    def change_circuit(self, name: str, change: Callable[[], object]) -> None:
        """Change a circuit, and tell all workers what it is now."""
        before = self.circuits.of(name)
        change()
        if self.circuits.of(name) != before:
            for link in self._links.values():
                self._tell(link, name)

    def found(self, name: str, by: str, why: str) -> None:
        """Something beside requests has found a backend unwell, or well, which is ""."""
        self.change_circuit(name, partial(self.circuits.found, name, by, why, trio.current_time()))

    def keep_circuits(self, names: frozenset[str], all_names: frozenset[str]) -> None:
        """Forget the circuits of backends that are no more, or are others under the same name.

        Args:
            names: Whose are kept.
            all_names: Of both configs.
        """
        self.circuits.keep_only(names)
        for name in all_names - names:
            for link in self._links.values():
                self._tell(link, name)

    async def fence(self, asker: Link) -> None:
        """Return when what other workers have said so far is known here, or has taken too long."""
        async with trio.open_nursery() as nursery:
            for link in self._links.values():
                if link is not asker:
                    nursery.start_soon(_fence, link)

    async def serve(self, worker: str, link: Link, backends: frozenset[str], take: Callable[[Message], None]) -> None:
        """Serve one worker until it is gone.

        Args:
            worker: Its name.
            link: To it.
            backends: Whose circuits it is told of at its beginning.
            take: Gets what is not about the shared state.
        """
        self._links[worker] = link
        for name in backends:
            if self.circuits.of(name) != Circuit():
                self._tell(link, name)
        session = _Session(self, worker, link)
        try:
            async with trio.open_nursery() as tasks:
                await link.run(partial(session.take, tasks, take))
                tasks.cancel_scope.cancel(reason="the worker is gone")
        finally:
            del self._links[worker]
            session.close()

    def _tell(self, link: Link, name: str) -> None:
        link.send_nowait("circuit", name=name, circuit=circuit_to(self.circuits.of(name), trio.current_time()))


async def _fence(link: Link) -> None:
    try:
        await link.call("fence", FENCE_SECONDS)
    except LinkError:
        return


@attrs.define(eq=False)
class _Held:
    """One turn that a worker has or waits for."""

    turn: Turn
    line: Line
    scope: ExitStack


@attrs.define(eq=False)
class _Session:
    """What one worker holds."""

    state: SharedState
    worker: str
    link: Link
    _turns: dict[int, _Held] = attrs.field(factory=dict)
    _probing: set[str] = attrs.field(factory=set)
    _unwell: set[tuple[str, str]] = attrs.field(factory=set)
    _reserving: set[int] = attrs.field(factory=set)
    _reserved: dict[int, Reservation] = attrs.field(factory=dict)
    _taking: set[int] = attrs.field(factory=set)
    _held: dict[int, int] = attrs.field(factory=dict)

    def take(self, tasks: trio.Nursery, other: Callable[[Message], None], message: Message) -> None:
        """Take one message of the worker."""
        kind, number = message[KIND], message.get(NUMBER, 0)
        if kind == "reserve":
            self._reserve(tasks, message)
        elif kind == "take":
            self._taking.add(number)
            tasks.start_soon(self._take, message)
        elif kind == "page":
            tasks.start_soon(self._page, message)
        elif (handle := self._HANDLERS.get(kind)) is not None:
            handle(self, message)
        else:
            other(message)

    def close(self) -> None:
        """Give back what the worker held, and charge what it had reserved."""
        for held in self._turns.values():
            held.scope.close()
        for name in self._probing:
            self.state.change_circuit(name, partial(self.state.circuits.abandoned, name))
        for name, by in self._unwell:
            self.state.found(name, by, "")
        for reservation in self._reserved.values():
            self.state.budgets.settle(reservation, None)
        for number in self._held.values():
            self.state.shelf.release(number)

    # -- turns --------------------------------------------------------------------------------------------------------

    def _turn(self, message: Message) -> None:
        engine, number = message["engine"], message[NUMBER]
        backend = Backend(
            name="", model_id="", base_url=engine["url"], local=True, model=engine["model"], slots=engine["slots"]
        )
        line = self.state.turns.line(backend)

        def tell(turn: Turn) -> None:
            again = line.retry_seconds() if turn.is_dropped else 1
            self.link.send_nowait(
                "turn", n=number, dropped=turn.is_dropped, own=turn.is_own, again=again, answer=line.answer_tokens
            )

        scope = ExitStack()
        turn = scope.enter_context(self.state.turns.turn(backend, message["tenant"], message["tokens"], tell))
        self._turns[number] = _Held(turn, line, scope)

    def _end(self, message: Message) -> None:
        held = self._turns.pop(message[NUMBER])
        if message["answer"] is not None:
            held.line.answered(held.turn, message["took"], message["answer"])
        held.turn.took = message["took"]
        held.scope.close()

    def _why(self, message: Message) -> None:
        held = self._turns[message["turn"]]
        again = held.line.retry_seconds()
        self.link.answer_nowait(message, again=again, own=held.line.queue.waiting_of(held.turn.tenant) > 1)

    # -- circuits -----------------------------------------------------------------------------------------------------

    def _enter(self, message: Message) -> None:
        name, circuits = message["name"], self.state.circuits
        granted: list[bool] = []
        self.state.change_circuit(name, lambda: granted.append(circuits.admit(name, trio.current_time())))
        if granted[0] and circuits.of(name).probing:
            self._probing.add(name)
        self.link.answer_nowait(message, may=granted[0])

    def _circuit(self, message: Message) -> None:
        circuits, name, event = self.state.circuits, message["name"], message["event"]
        is_prober = name in self._probing
        if event != "found":  # after any other event no request tries it
            self._probing.discard(name)
        match event:
            case "began":
                self.state.change_circuit(name, partial(circuits.began, name))
            case "succeeded":
                self.state.change_circuit(name, partial(circuits.succeeded, name))
            case "failed":
                failed = partial(circuits.failed, name, trio.current_time(), wait_seconds=message["wait"])
                self.state.change_circuit(name, failed)
            case "abandoned":
                if is_prober:  # what another worker tries goes on
                    self.state.change_circuit(name, partial(circuits.abandoned, name))
            case "found":
                by = f"{message['by']} of worker {self.worker}"
                (self._unwell.add if message["why"] else self._unwell.discard)((name, by))
                self.state.found(name, by, message["why"])

    # -- budgets ------------------------------------------------------------------------------------------------------

    def _reserve(self, tasks: trio.Nursery, message: Message) -> None:
        number = message[NUMBER]
        found, is_kept = self.state.budgets.reserve_nowait(claim_from(message["claim"]), message["teams"])
        if isinstance(found, Exhausted):
            self.link.answer_nowait(message, full=exhausted_to(found))
        elif is_kept:  # most of them; a task costs as much again
            self._reserved[number] = found
            self.link.answer_nowait(message)
        else:
            self._reserving.add(number)
            tasks.start_soon(self._keep, message, found)

    async def _keep(self, message: Message, reservation: Reservation) -> None:
        number = message[NUMBER]
        try:
            await self.state.budgets.keep(reservation)
        except BudgetsNotKeptError as exc:
            self.link.answer_nowait(message, error=str(exc))
            return
        finally:
            is_wanted = number in self._reserving
            self._reserving.discard(number)
        if is_wanted:
            self._reserved[number] = reservation
            self.link.answer_nowait(message)
        else:
            self.state.budgets.settle(reservation, Took())

    def _settle(self, message: Message) -> None:
        self._reserving.discard(message[NUMBER])  # where it comes before the reservation, that one is given back
        reservation = self._reserved.pop(message[NUMBER], None)
        if reservation is not None:
            self.state.budgets.settle(reservation, took_from(message["took"]))

    # -- responses ----------------------------------------------------------------------------------------------------

    async def _take(self, message: Message) -> None:
        owner, response_id, number = message["owner"], message["id"], message[NUMBER]
        found = self.state.shelf.take_nowait(owner, response_id)
        if found is None:  # another worker may have said that it keeps it, and this is read first
            await self.state.fence(self.link)
            found = self.state.shelf.take_nowait(owner, response_id)
        if found is not None and number in self._taking:
            self._held[number] = found.number
        elif found is not None:
            self.state.shelf.release(found.number)
        self._taking.discard(number)
        self.link.answer_nowait(message, conversation=None if found is None else conversation_to(found))

    def _put(self, message: Message) -> None:
        after = message["after"]
        self.state.shelf.put_after(response_from(message["response"]), self._held[after] if after else 0)

    def _release(self, message: Message) -> None:
        self._taking.discard(message[NUMBER])
        if (held := self._held.pop(message[NUMBER], None)) is not None:
            self.state.shelf.release(held)

    async def _page(self, message: Message) -> None:
        wanted = Wanted(message["method"], message["path"], message["query"])
        said = self.state.shelf.page_nowait(wanted, message["owner"])
        if said.status == 404:
            await self.state.fence(self.link)
            said = self.state.shelf.page_nowait(wanted, message["owner"])
        headers: list[Any] = [list(each) for each in said.headers]
        self.link.answer_nowait(message, status=said.status, headers=headers, body=said.body.decode())

    _HANDLERS: ClassVar[Mapping[str, "Callable[[_Session, Message], None]"]] = {
        "turn": _turn,
        "end": _end,
        "why": _why,
        "settle": _settle,
        "enter": _enter,
        "circuit": _circuit,
        "put": _put,
        "release": _release,
    }
