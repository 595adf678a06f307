"""A worker's kept responses: the parent has them, so that each worker goes on with what another has answered."""

from typing import Final

import attrs

from llmkube.base.http.message import Headers, Response
from llmkube.router.responses.shelf import Conversation, NewResponse, ShelfError
from llmkube.router.responses.store import Bounds
from llmkube.router.responses.stored_pages import Wanted
from llmkube.router.workers.link import Link, LinkError, Message
from llmkube.router.workers.written import conversation_from, response_to

ANSWER_SECONDS: Final = 5.0
"""How long a request waits for the parent; then it is refused."""


@attrs.define(eq=False)
class LinkedShelf:
    """That of one worker.

    Attributes:
        link: To the parent.
        bounds: How much the parent keeps.
    """

    link: Link
    bounds: Bounds = Bounds()

    async def take(self, owner: str, response_id: str) -> Conversation | None:
        """Return what a response of a tenant leads to, and hold it until `release`.

        Raises:
            ShelfError: The parent does not answer in time.
        """
        number = self.link.number()
        try:
            said = await self._ask("take", number=number, owner=owner, id=response_id)
        except BaseException:  # what comes too late is held for no request
            self.release(number)
            raise
        found = said["conversation"]
        return None if found is None else conversation_from(found, number)

    def put(self, new: NewResponse, continues: Conversation | None) -> bool:
        """Have the parent keep a response; what is asked of it later, by whichever worker, finds it."""
        turns = 1 + (continues.turns if continues is not None else 0)
        if not self.bounds.take(len(new.response), new.conversation_bytes, turns):
            return False
        self.link.send_nowait("put", response=response_to(new), after=continues.number if continues is not None else 0)
        return True

    def release(self, number: int) -> None:
        """Hold a conversation no more."""
        self.link.send_nowait("release", n=number)

    async def page(self, wanted: Wanted, owner: str) -> Response:
        """Answer about a response that is kept.

        Raises:
            ShelfError: The parent does not answer in time.
        """
        said = await self._ask("page", method=wanted.method, path=wanted.path, query=wanted.query, owner=owner)
        headers = Headers(tuple((name, value) for name, value in said["headers"]))
        return Response(said["status"], headers, said["body"].encode())

    def expire(self) -> None:
        """Do nothing: the parent forgets by itself."""

    async def _ask(self, kind: str, *, number: int = 0, **fields: object) -> Message:
        try:
            return await self.link.call(kind, ANSWER_SECONDS, number=number, **fields)
        except LinkError as exc:
            raise ShelfError(str(exc)) from exc
