"""Joins a request with the conversation that it continues, and keeps what is answered.

```
body ─ translated ─▶ joined: history before its own items ─▶ facts ─▶ limited: classes and regions of both
                                                                          └▶ kept with them, once answered
```
"""

import secrets
from collections.abc import Callable
from typing import Final, NoReturn

import attrs
import orjson
import trio

from llmkube.base.http.message import Response
from llmkube.router.dialects.dialect import JsonObject, Translated
from llmkube.router.dialects.responses_answers import ResponsesAnswers
from llmkube.router.dialects.responses_client import with_history
from llmkube.router.policy.data_limits import NO_LIMITS, NoRegionLeftError, limited, limits_of
from llmkube.router.policy.request_facts import Principal, RequestFacts
from llmkube.router.refusals import RefusedError, refused
from llmkube.router.responses.shelf import Conversation, NewResponse, Shelf, ShelfError
from llmkube.router.responses.stored_pages import Wanted, not_found

MOST_HISTORY_BYTES: Final = 128 << 20
"""Of all requests under way: a history is read for each, however short its body is."""

SWEEP_SECONDS: Final = 60.0
_ID_BYTES: Final = 24


def owner_of(principal: Principal) -> str:
    """Return whose responses these are: the team's, whichever of its keys asks; without keys, the address's."""
    return f"team {principal.team}" if principal.team else f"tenant {principal.tenant}"


@attrs.frozen(eq=False, kw_only=True)
class Joined:
    """A request with its history.

    Attributes:
        translated: What is asked of backends.
    """

    translated: Translated
    _owner: str = ""
    _previous: Conversation | None = attrs.field(default=None, repr=False)
    _shelf: Shelf | None = attrs.field(default=None, repr=False)

    @property
    def history_bytes(self) -> int:
        """How long the history is."""
        return 0 if self._previous is None else self._previous.bytes

    @property
    def continues(self) -> int:
        """The number of the conversation that it continues; 0 for none."""
        return 0 if self._previous is None else self._previous.number

    def limited(self, facts: RequestFacts) -> RequestFacts:
        """Return the facts of request and history; the answer is kept with the limits of these.

        Raises:
            RefusedError: The two may go to no region in common.
        """
        answers, shelf = self.translated.answers, self._shelf
        if not isinstance(answers, ResponsesAnswers) or shelf is None:
            return facts
        try:
            facts = limited(facts, NO_LIMITS if self._previous is None else self._previous.limits)
        except NoRegionLeftError as exc:
            raise refused(503, f"no backend may answer this request: {exc}", "not_permitted", _NEVER) from exc
        limits, asked = limits_of(facts), orjson.dumps(answers.items)

        def keep(response: JsonObject, output: list[JsonObject]) -> bool:
            answered = orjson.dumps(output)
            new = NewResponse(
                owner=self._owner,
                response_id=response["id"],
                response=orjson.dumps(response),
                asked=asked,
                answered=answered,
                limits=limits,
                conversation_bytes=self.history_bytes + len(asked) + len(answered),
            )
            return shelf.put(new, self._previous)

        answers.keep = keep
        return facts


_NEVER: Final = {"X-Should-Retry": "false"}


@attrs.define(eq=False)
class Conversations:
    """The responses of one router.

    Attributes:
        shelf: What is kept.
        now: Returns the time, in seconds since 1970.
        history_bytes: Of the requests under way.
    """

    shelf: Shelf
    now: Callable[[], int]
    history_bytes: int = 0

    async def join(self, translated: Translated, principal: Principal) -> Joined:
        """Return a request with what it continues; `ended` has to be told its length and number afterwards.

        Raises:
            RefusedError: There is nothing of that name, or it has become too long.
        """
        answers = translated.answers
        if not isinstance(answers, ResponsesAnswers):
            return Joined(translated=translated)
        answers.response_id = f"resp_{secrets.token_hex(_ID_BYTES)}"  # from the system: others must not guess it
        answers.now = self.now
        owner = owner_of(principal)
        if not answers.previous_id:
            return Joined(translated=translated, owner=owner, shelf=self.shelf)
        try:
            previous = await self.shelf.take(owner, answers.previous_id)
        except ShelfError as exc:
            raise _unavailable(exc) from exc
        if previous is None:
            raise not_found(answers.previous_id, "previous_response_not_found")
        if self.history_bytes + previous.bytes > MOST_HISTORY_BYTES:
            self.shelf.release(previous.number)
            words = "too many long conversations are being continued now; ask again later"
            raise refused(503, words, "histories_full", {"Retry-After": "5"})
        history = [item for part in previous.history for item in orjson.loads(part)]
        self.history_bytes += previous.bytes
        translated = with_history(translated, history, answers)
        return Joined(translated=translated, owner=owner, previous=previous, shelf=self.shelf)

    def ended(self, history_bytes: int, continues: int) -> None:
        """Note that a request has ended."""
        self.history_bytes -= history_bytes
        if continues:
            self.shelf.release(continues)

    async def page(self, wanted: Wanted, principal: Principal) -> Response:
        """Return the answer to a request about a response that is kept."""
        try:
            return await self.shelf.page(wanted, owner_of(principal))
        except ShelfError as exc:
            return _unavailable(exc).response

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Forget what has not been used for too long, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self.shelf.expire()


def _unavailable(why: ShelfError) -> RefusedError:
    words = f"it is not known now which responses are kept: {why}; ask again later"
    return refused(503, words, "conversations_unavailable", {"Retry-After": "5"})
