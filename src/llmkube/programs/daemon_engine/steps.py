"""What can be done with a model, and when to look again."""

import enum
from typing import Final

import attrs

LOOK_SECONDS: Final = 5.0
"""Between two looks while all is well."""


class Act(enum.Enum):
    """What is to be done."""

    NOTHING = "nothing"
    PREPARE = "prepare"
    LOAD = "load"
    RENEW = "renew"
    UNLOAD = "unload"
    END_RUNNERS = "end runners"
    GIVE_UP = "give up"
    DONE = "done"


@attrs.frozen
class Step:
    """What to do now, and when to look again; `why` is for the log, and "" when there is nothing to say."""

    act: Act
    why: str = ""
    wait_seconds: float = LOOK_SECONDS
