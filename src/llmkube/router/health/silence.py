"""Whether an engine that says nothing computes or is frozen. Pure.

llama.cpp's server answers `/health` in threads that compute nothing, so it answers within milliseconds while it reads a
prompt for an hour, and not at all while its process is stopped or its machine is gone. That is the evidence; how long a
request takes is none. Other servers compute in the thread that answers: of those nothing is concluded.
"""

from typing import Final

import attrs

LLAMA_SERVER: Final = "llama.cpp"
"""What llama.cpp's server says in the header `Server` of each answer."""

HEALTH_PATH: Final = "/health"
EVERY_SECONDS: Final = 1.0
"""Between an answer and the next question."""

PATIENCE_SECONDS: Final = 2.0
"""For one answer: a lost packet, or a connection that broke, is not the end of an engine."""

FROZEN_SECONDS: Final = 8.0
"""Without any answer. With the second before the first question it is 9: a frozen engine is left within 10."""

LIVES_SECONDS: Final = 12.0
"""How long an answer is evidence that an engine lives: longer than it takes to find it frozen."""

LONGEST_SECONDS: Final = 3600.0
"""How long such evidence is believed while a request gets nothing: as long as a host's agent believes CPU time."""

FROZEN_QUESTIONS: Final = 3
"""In a row: after a pause of this process one that was under way is late whatever the engine did."""


@attrs.frozen
class Silence:
    """What is known of one engine.

    Attributes:
        is_llama: Whether it has said that it is llama.cpp's server.
        since: When the first of the questions was asked that it has not answered; None if it answered the last one.
        unanswered: How many those are.
    """

    is_llama: bool = False
    since: float | None = None
    unanswered: int = 0

    def heard(self, server: str) -> "Silence":
        """Return what is known after any answer of it, by what it calls itself."""
        return Silence(self.is_llama or server == LLAMA_SERVER)

    def asked_in_vain(self, asked_at: float) -> "Silence":
        """Return what is known after a question that it did not answer."""
        return Silence(self.is_llama, asked_at if self.since is None else self.since, self.unanswered + 1)

    def is_frozen(self, now: float) -> bool:
        """Whether it is taken to be frozen."""
        long = self.since is not None and now - self.since >= FROZEN_SECONDS
        return self.is_llama and long and self.unanswered >= FROZEN_QUESTIONS

    def patience(self, now: float) -> float:
        """Return how long the answer to a question that is asked now is waited for."""
        if self.since is None or self.unanswered + 1 < FROZEN_QUESTIONS:
            return PATIENCE_SECONDS
        left = self.since + FROZEN_SECONDS - now
        return left if 0 < left < PATIENCE_SECONDS else PATIENCE_SECONDS
