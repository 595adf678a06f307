"""The gateway looks models up in the running agent: an engine is reachable the moment it is ready."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from llmkube.k8s.resource import Key
from llmkube.router.gateway import Backend, UnavailableModel

_PATIENCE_SECONDS: Mapping[str, int] = {"Loading": 2, "Restarting": 2, "Pending": 2, "ScaledToZero": 60, "Invalid": 60}


class Snapshot(Protocol):
    """What the directory reads of one service (the supervisor's ServiceView)."""

    @property
    def ready(self) -> bool:
        """Whether the engine answers."""
        ...

    @property
    def reason(self) -> str:
        """Why it does not, as one word."""
        ...

    @property
    def message(self) -> str:
        """Why it does not, as a sentence."""
        ...

    @property
    def host(self) -> str:
        """Where it listens."""
        ...

    @property
    def port(self) -> int:
        """Where it listens."""
        ...

    @property
    def alias(self) -> str:
        """The model id that it answers to."""
        ...


@attrs.frozen
class AgentDirectory:
    """The models of one agent, by InferenceService name; by `namespace/name` where a name occurs twice.

    `services` is called at every look-up, and returns what is true now.
    """

    services: Callable[[], Mapping[Key, Snapshot]]

    def model_ids(self) -> Sequence[str]:
        """Return the shortest id of each service that no other service has, sorted."""
        keys = self.services().keys()
        times = Counter(key.name for key in keys)
        return sorted(key.name if times[key.name] == 1 else str(key) for key in keys)

    def lookup(self, model_id: str) -> Backend | UnavailableModel | None:
        """Return where the model is served, why it is not, or None if the id names no service or more than one."""
        found = [view for key, view in self.services().items() if model_id in {key.name, str(key)}]
        if len(found) != 1:
            return None
        view = found[0]
        if view.ready:
            return Backend(view.host, view.port, view.alias)
        message = view.message.partition("\n")[0] or f"model {model_id} is not ready"
        return UnavailableModel(view.reason or "Pending", message, _PATIENCE_SECONDS.get(view.reason, 5))
