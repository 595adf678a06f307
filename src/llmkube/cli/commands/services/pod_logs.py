"""Read the logs of a service's pods through the API server (`pods/log`).

With --follow, pods are polled every two seconds. When a stream ends, the state of the container decides what is read
next: the next run from its beginning, or the same run from where the stream ended. New pods are followed as well.
"""

from collections.abc import Callable, Sequence
from typing import Final, Never

import attrs
import trio

from llmkube.cli.target_cluster import Cluster, answer_deadline
from llmkube.controller.render.pod import DEFAULT_CONTAINER
from llmkube.controller.status.pods import trouble_of
from llmkube.k8s import request as build
from llmkube.k8s.errors import ApiError, BadRequestError, ForbiddenError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import ContainerStatus, Pod
from llmkube.programs.failures import CommandError

POLL_SECONDS: Final = 2.0
"""Interval at which followed pods are polled."""

LINE_BYTES: Final = 64 * 1024
"""Longer lines are printed in pieces."""

Write = Callable[[bytes], None]
Report = Callable[[str], None]


@attrs.frozen
class Options:
    """Options of `llmkube logs` for pods.

    Attributes:
        follow: Keep printing until cancelled.
        lines: Number of last lines to start with; None for all.
        previous: Print the previous run of the container.
        container: Name of the container; empty for the engine's.
    """

    follow: bool = False
    lines: int | None = None
    previous: bool = False
    container: str = ""


@attrs.define(eq=False)
class PodLogs:
    """The logs of a service's pods; with more than one pod, each line has a prefix with the pod's name.

    Attributes:
        cluster: The cluster.
        service: The service.
        selector: Label selector of its pods.
        options: Options of the command.
        write: Called with bytes of logs.
        report: Called with the reason if a log cannot be read.
    """

    cluster: Cluster
    service: Key
    selector: str
    options: Options
    write: Write
    report: Report
    _known: set[str] = attrs.field(factory=set, init=False)

    async def run(self) -> None:
        """Write the logs of all pods, and with --follow keep writing.

        Raises:
            CommandError: There is no log; the message has the reason.
        """
        await (self._follow_all() if self.options.follow else self._show_all())

    async def _show_all(self) -> None:
        pods = await self._pods()
        self._known = {pod.key.name for pod in pods}
        missing = [problem for pod in pods if (problem := await self._show(pod))]
        if len(missing) == len(pods):
            raise CommandError("; ".join(missing))
        for problem in missing:
            self.report(problem)

    async def _follow_all(self) -> Never:
        """Write the logs of all pods, including new ones, as they grow."""
        pods = await self._pods()
        async with trio.open_nursery() as nursery:
            while True:
                for pod in pods:
                    if pod.key.name not in self._known:
                        self._known.add(pod.key.name)
                        nursery.start_soon(self._follow, pod)
                await trio.sleep(POLL_SECONDS)
                with answer_deadline():
                    pods = await self._list()

    async def _pods(self) -> Sequence[Pod]:
        with answer_deadline():
            pods = await self._list()
        if not pods:
            raise CommandError(f"InferenceService {self.service} has no pods; see `llmkube status {self.service.name}`")
        for pod in pods:
            names = [one.name for one in pod.spec.containers]
            names += [one.name for one in pod.status.init_container_statuses]
            if self.options.container and self.options.container not in names:
                raise CommandError(
                    f"pod {pod.key.name} has no container {self.options.container}; it has {', '.join(names)}"
                )
        return pods

    async def _list(self) -> Sequence[Pod]:
        try:
            pods = await self.cluster.client.list(Pod, namespace=self.service.namespace, label_selector=self.selector)
        except ForbiddenError as error:
            raise CommandError(_forbidden_text("list pods", self.service.namespace, error)) from error
        return sorted(pods.items, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key.name))

    async def _show(self, pod: Pod) -> str:
        """Write one pod's log; return the reason if there is none."""
        reason = "" if self.options.previous else missing_log_reason(pod, self._container(pod))
        return reason or await self._copy(pod, self.options.lines)

    async def _follow(self, pod: Pod) -> None:
        """Write one pod's log until the pod is deleted."""
        name, read, reported = self._container(pod), "", ""
        while pod.status.phase not in ("Succeeded", "Failed") or not read:
            status, problem = status_of(pod, name), missing_log_reason(pod, name)
            run = _run_id(status)
            if not problem and (run != read or (status is not None and status.state.running is not None)):
                lines = self.options.lines if not read else 0 if run == read else None
                problem = await self._copy(pod, lines)
                read = read if problem else run
            if problem and problem != reported:
                self.report(problem)
            reported = problem
            await trio.sleep(POLL_SECONDS)
            try:
                with answer_deadline():
                    pod = await self.cluster.client.get(Pod, pod.key)
            except NotFoundError:
                return

    async def _copy(self, pod: Pod, lines: int | None) -> str:
        """Write the log of one run; return the reason if it cannot be read."""
        name = self._container(pod)
        flags = {each: "true" for each in ("follow", "previous") if getattr(self.options, each)}
        tail = "" if lines is None else str(lines)
        request = build.connect(Pod.RESOURCE, pod.key, "log", container=name, tailLines=tail, **flags)
        try:
            splitter = LineSplitter()
            async with self.cluster.client.open_text(request) as chunks:
                async for chunk in chunks:
                    self._write(pod, splitter.feed(chunk))
            self._write(pod, splitter.end())
        except ForbiddenError as error:
            raise CommandError(_forbidden_text("get pods/log", pod.key.namespace, error)) from error
        except BadRequestError as error:
            if self.options.previous:
                return f"pod {pod.key.name}: container {name} has no previous run on its node"
            return f"pod {pod.key.name}: {error}"
        except NotFoundError:
            return f"pod {pod.key.name} was deleted"
        except ApiError as error:
            return f"log of pod {pod.key.name} cannot be read: {error}"
        return ""

    def _container(self, pod: Pod) -> str:
        return self.options.container or engine_container(pod)

    def _write(self, pod: Pod, lines: Sequence[bytes]) -> None:
        prefix = f"[{pod.key.name}] ".encode() if len(self._known) > 1 else b""
        for line in lines:
            self.write(prefix + line)


def engine_container(pod: Pod) -> str:
    """Return the default container, as kubectl does: the annotated one, else the first."""
    named = pod.metadata.annotations.get(DEFAULT_CONTAINER, "")
    return named or next((container.name for container in pod.spec.containers), "")


def status_of(pod: Pod, container: str) -> ContainerStatus | None:
    """Return the status of a container; None if the kubelet has not reported it yet."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return next((status for status in statuses if status.name == container), None)


def missing_log_reason(pod: Pod, container: str) -> str:
    """Return why a container has no log yet; empty if it has run."""
    status = status_of(pod, container)
    if _run_id(status):
        return ""
    trouble = trouble_of([pod])
    if trouble is not None:
        return f"pod {pod.key.name} is not running: {trouble.reason}: {trouble.message}"
    before = [one.name for one in pod.status.init_container_statuses if one.state.running is not None]
    if before:
        return f"pod {pod.key.name}: {before[0]} runs before {container}; see its log with `-c {before[0]}`"
    waiting = status.state.waiting if status is not None else None
    waiting_reason = (waiting.reason if waiting is not None else "") or pod.status.phase or "no node"
    return f"pod {pod.key.name}: container {container} has not started yet ({waiting_reason})"


@attrs.define(eq=False)
class LineSplitter:
    """Splits a stream into lines, so that the lines of several pods can be interleaved."""

    _rest: bytearray = attrs.field(factory=bytearray, init=False)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add the next bytes and return the complete lines; a very long line is returned in pieces."""
        self._rest += chunk
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray() if len(rest) >= LINE_BYTES else bytearray(rest)
        return [line + b"\n" for line in (*lines, *([rest] if len(rest) >= LINE_BYTES else ()))]

    def end(self) -> list[bytes]:
        """Return the rest as a last line."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest + b"\n"] if rest else []


def _run_id(status: ContainerStatus | None) -> str:
    """Return an identifier of the container's current run, its start time; empty before the first run."""
    if status is None:
        return ""
    now = status.state.running or status.state.terminated or status.last_state.terminated
    return (now.started_at or "") if now is not None else ""


def _forbidden_text(action: str, namespace: str, error: ApiError) -> str:
    return f"you may not {action} in namespace {namespace}: {error}; ask for a role with that verb"
