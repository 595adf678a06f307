"""The gateway looks models up in the running agent: an engine is reachable the moment it is ready."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.router.backends import Backend, State, UnavailableModel
from llmkube.supervisor.nouns.lifecycle import ServiceView

_RETRY_SECONDS: Final[Mapping[Meaning, int]] = {
    Meaning.FINE: 2,
    Meaning.PASSING: 2,
    Meaning.RECOVERING: 5,
    Meaning.RETRIED: 5,
}
"""What `Retry-After` says, by what the reason means. All other models wait for a person; no client should wait, too."""


Found = Backend | UnavailableModel


@attrs.define(eq=False)
class AgentDirectory:
    """The models of one agent, by InferenceService name; by `namespace/name` where a name occurs twice.

    A further id leads to its service unless it is the name of another one, or a further id of two.

    A look-up costs one look into a dict; the dict is made anew when something has changed.

    Attributes:
        services: Returns what is true now.
        version: Grows whenever `services` may return something else.
    """

    services: Callable[[], Mapping[Key, ServiceView]]
    version: Callable[[], int]
    _seen: int | None = None
    _by_id: Mapping[str, Found] = {}
    _ids: Sequence[str] = ()
    _aliases: Sequence[str] = ()

    def model_ids(self) -> Sequence[str]:
        """Return the shortest id of each service that no other service has, sorted."""
        self._refresh()
        return self._ids

    def aliases(self) -> Sequence[str]:
        """Return the further ids that lead to a service, sorted."""
        self._refresh()
        return self._aliases

    def lookup(self, model_id: str) -> Found | None:
        """Return where the model is served, why it is not, or None if the id names no service or more than one."""
        self._refresh()
        return self._by_id.get(model_id)

    def _refresh(self) -> None:
        version = self.version()
        if version == self._seen:
            return
        services = self.services()
        names: dict[str, list[Key]] = {}
        for key in services:
            names.setdefault(key.name, []).append(key)
        unique = {name: keys[0] for name, keys in names.items() if len(keys) == 1}
        by_key = {key: _found(key, view) for key, view in services.items()}
        self._by_id = {str(key): found for key, found in by_key.items()} | {
            name: by_key[key] for name, key in unique.items()
        }
        taken = {*self._by_id, *names}
        further: dict[str, set[Key]] = {}
        for key, view in services.items():
            for alias in view.aliases:
                if alias not in taken:
                    further.setdefault(alias, set()).add(key)
        aliases = {alias: keys.pop() for alias, keys in further.items() if len(keys) == 1}
        self._by_id |= {alias: by_key[key] for alias, key in aliases.items()}
        self._aliases = sorted(aliases)
        self._ids = sorted(key.name if key.name in unique else str(key) for key in services)
        self._seen = version


def _found(key: Key, view: ServiceView) -> Found:
    if view.ready:
        credentials = f"Authorization: Bearer {view.api_key}\r\n".encode("ascii") if view.api_key else b""
        return Backend(view.host, view.port, view.alias, credentials, view.mode, str(key))
    message = view.message.partition("\n")[0] or f"model {key.name} is not ready"
    reason = Reason.of(view.reason)
    meaning = reason.meaning if reason is not None else Meaning.PASSING
    failed = meaning.is_failing
    return UnavailableModel(
        view.reason or Reason.PENDING,
        message,
        _RETRY_SECONDS.get(meaning),
        State.UNLOADED if failed or meaning is Meaning.STOPPED else State.LOADING,
        failed,
    )
