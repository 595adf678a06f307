"""Waiting until a service that was deployed is Ready, or until it is known why it will not be."""

import datetime
from collections.abc import Callable, Collection
from typing import Final

import attrs
import trio

from llmkube.cli.informer import Followed
from llmkube.cli.view.describe import Scene, current, last_error, next_retry, progress, waits_for
from llmkube.cli.view.output import condition
from llmkube.cli.view.progress import HOPELESS, PASSING, STEPS, Stopwatch, detail_of
from llmkube.cli.view.progress_line import Display
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key

STALE_SECONDS: Final = 5.0
"""How long a failure that may be about the time before the deployment has to stand before it is believed."""

SETTLE_SECONDS: Final = 1.0
"""After a change, how long "Ready" has to hold: for a moment it is still the old engine that is ready."""

_HOPELESS: Final = HOPELESS - {"ScaledToZero"}  # which may be just what was asked for


@attrs.frozen
class Failure:
    """The service will not be Ready without somebody doing something.

    Attributes:
        reason: What is wrong, as one word.
        message: The same as sentences.
        about: The kind whose present spec is at fault; empty where nobody says which spec it is about.
    """

    reason: str
    message: str
    about: str = ""


@attrs.frozen
class Stand:
    """Where a service stands: how many of `STEPS` are done, a line about the next one, why it fails if it does."""

    done: int
    detail: str = ""
    failure: Failure | None = None


def stand_of(service: InferenceService, model: Model | None, now: datetime.datetime) -> Stand:
    """Judge a service by the conditions that are about its newest spec."""
    if model is None:
        message = f"there is no Model {service.spec.model_ref} in namespace {service.key.namespace}"
        return Stand(0, failure=Failure("ModelNotFound", message, service.RESOURCE.kind))
    accepted = current(service.status.conditions, "Accepted", service.metadata.generation)
    if accepted is not None and accepted.status == "False":
        return Stand(0, failure=Failure(accepted.reason, accepted.message, service.RESOURCE.kind))
    if service.spec.replicas == 0 or service.spec.suspend:
        return Stand(len(STEPS) if service.status.phase in {"Stopped", "Suspended"} else 0, "stopping")
    fetched = current(model.status.conditions, "Fetched", model.metadata.generation)
    if fetched is None or fetched.status != "True":
        return _stand_without_file(service, model, fetched, now)
    return _stand_with_file(service, model, looked_at=accepted is not None and accepted.status == "True")


def _stand_without_file(
    service: InferenceService, model: Model, fetched: Condition | None, now: datetime.datetime
) -> Stand:
    if fetched is not None and fetched.reason not in PASSING:
        return Stand(0, failure=Failure(fetched.reason, fetched.message, model.RESOURCE.kind))
    available = current(service.status.conditions, "Available", service.metadata.generation)
    if available is not None and available.reason == "NoHost":
        # About no spec, so it is given time: the agent that makes it untrue may just be starting.
        return Stand(0, available.message, Failure("NoHost", available.message))
    words = [*progress(model), *last_error(service, model), *next_retry(service, model, now)]
    return Stand(0, ", ".join(words) or "waiting for an agent")


def _stand_with_file(service: InferenceService, model: Model, *, looked_at: bool) -> Stand:
    loaded = current(service.status.conditions, "Loaded", 0)
    if loaded is None or not looked_at:
        return Stand(1, "waiting for the agent to look at it")
    if loaded.status == "True":
        return _stand_of_update(service) or Stand(3 if service.status.phase == "Ready" else 2)
    if loaded.reason in _HOPELESS:
        return Stand(1, failure=Failure(loaded.reason, loaded.message))
    if loaded.reason == "Fetching":  # the Model was written first; its service is a step behind
        return Stand(1)
    words = waits_for(Scene(service, model)) or last_error(service, model)
    return Stand(1, words[0] if words else loaded.message.partition("\n")[0])


def _stand_of_update(service: InferenceService) -> Stand | None:
    """Where the replacement of an engine stands that serves from an older spec; None when it serves the newest."""
    if condition(service.status.conditions, "UpToDate") is None:  # said by hosts only
        return None
    newest = current(service.status.conditions, "UpToDate", service.metadata.generation)
    if newest is None:
        return Stand(1, "waiting for the agent to look at it")
    if newest.status != "False":
        return None
    if newest.reason in _HOPELESS:
        return Stand(1, failure=Failure(newest.reason, newest.message))
    return Stand(1, newest.message.partition("\n")[0])


@attrs.define(eq=False)
class Arrival:
    """One wait for one service.

    Attributes:
        followed: The objects, as the API tells them.
        key: The service.
        changed: Whether the deployment changed something that was there before: then "Ready" has to hold for a moment.
        fresh: The kinds that this deployment changed: a failure about them is believed at once.
        display: Where the steps are shown.
        utcnow: For the time that is left until a retry.
    """

    followed: Followed
    key: Key
    changed: bool
    fresh: Collection[str]
    display: Display
    utcnow: Callable[[], datetime.datetime]
    last: str = ""

    async def wait(self) -> Failure | None:
        """Return once the service is Ready, or with what is wrong; `last` has a line about what is being waited for."""
        watch = Stopwatch(trio.current_time())
        failing_since = ready_since = None
        while True:
            version, now = self.followed.changed.version, trio.current_time()
            service = self.followed.services.get(self.key)
            if service is None:
                return Failure("Deleted", f"InferenceService {self.key} was deleted meanwhile")
            model = self.followed.model_of(service)
            stand = stand_of(service, model, self.utcnow())
            failing_since = (failing_since or now) if stand.failure else None
            if (
                stand.failure
                and failing_since is not None
                and (stand.failure.about in self.fresh or now - failing_since >= STALE_SECONDS)
            ):
                return stand.failure
            arrived = stand.done == len(STEPS)
            ready_since = (ready_since or now) if arrived else None
            if ready_since is not None and (not self.changed or now - ready_since >= SETTLE_SECONDS):
                if watch.laps or self.fresh:  # what was Ready all along took no steps
                    self._tell(watch, len(STEPS), service, model)
                return None
            # After a change only the file's step is sure: for a moment it is still the old engine that is loaded.
            self._tell(watch, min(stand.done, 1 if self.changed else len(STEPS) - 1), service, model)
            self.last = stand.failure.message if stand.failure else stand.detail
            if not arrived and (not stand.failure or stand.detail):  # a failure is told at the end, if it stays
                self.display.going_on(STEPS[stand.done], self.last.partition("\n")[0])
            with trio.move_on_after(SETTLE_SECONDS if stand.failure or arrived else STALE_SECONDS):
                await self.followed.changed.wait_newer(version)

    def _tell(self, watch: Stopwatch, done: int, service: InferenceService, model: Model | None) -> None:
        for step in watch.see(done, trio.current_time()):
            self.display.done(step, detail_of(step, service, model), watch.laps[step])
