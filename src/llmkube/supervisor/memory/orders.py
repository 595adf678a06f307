"""What the ledger carries out after the book has decided. Pure."""

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.eviction import Evict
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.memory.reservation import Reservation


@attrs.frozen
class Start:
    """The wait of a service is over: this is its reservation."""

    reservation: Reservation


@attrs.frozen
class Tell:
    """A service is told why it waits."""

    key: Key
    refusal: Refusal


@attrs.frozen
class Leave:
    """An engine has to end."""

    reservation: Reservation
    evict: Evict


@attrs.frozen
class Hurry:
    """An engine that has to end does not finish its requests any more."""

    reservation: Reservation


Order = Start | Tell | Leave | Hurry
Orders = tuple[Order, ...]
