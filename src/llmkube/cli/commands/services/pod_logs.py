"""What the engines of a service in pods write, read through the API server (`pods/log`) wherever the nodes are.

A pod that is followed is looked at every two seconds: whatever ends a stream, what the container is now decides whether
its next run is read from the beginning, or this one from where it stopped. New pods are followed as they come.
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
"""Between two looks at pods that are followed."""

LINE_BYTES: Final = 64 * 1024
"""A longer line is shown in pieces."""

Write = Callable[[bytes], None]
Report = Callable[[str], None]


@attrs.frozen
class Options:
    """What of a pod's log is asked for.

    Attributes:
        follow: Go on until cancelled.
        lines: Begin with so many of the last lines; None: with the first.
        previous: The container's run before this one.
        container: Which container; empty: the engine.
    """

    follow: bool = False
    lines: int | None = None
    previous: bool = False
    container: str = ""


@attrs.define(eq=False)
class PodLogs:
    """The logs of one service's pods; with more than one, each line says whose it is.

    Attributes:
        cluster: Where they are.
        service: Whose they are.
        selector: Their labels.
        options: What to show.
        write: Takes bytes of logs.
        report: Takes a sentence about a log that cannot be shown.
    """

    cluster: Cluster
    service: Key
    selector: str
    options: Options
    write: Write
    report: Report
    _known: set[str] = attrs.field(factory=set, init=False)

    async def run(self) -> None:
        """Write what the pods have written, or go on writing what they write.

        Raises:
            CommandError: There is none to show; the sentence says why.
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
        """Write what comes, of pods that come too."""
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
            raise CommandError(
                f"InferenceService {self.service} has no pods now; `llmkube status {self.service.name}` says why"
            )
        for pod in pods:
            names = containers_of(pod)
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
        """Write one pod's log; return why there is none."""
        reason = "" if self.options.previous else missing_log_reason(pod, self._container(pod))
        return reason or await self._copy(pod, self.options.lines)

    async def _follow(self, pod: Pod) -> None:
        """Write one pod's log until the pod is gone."""
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
        """Write one run's log as it comes; return why it cannot be read."""
        name = self._container(pod)
        request = build.connect(
            Pod.RESOURCE,
            pod.key,
            "log",
            container=name,
            follow="true" if self.options.follow else "",
            previous="true" if self.options.previous else "",
            tailLines="" if lines is None else str(lines),
        )
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
                return f"pod {pod.key.name}: container {name} has had no earlier run on its node"
            return f"pod {pod.key.name}: {error}"
        except NotFoundError:
            return f"pod {pod.key.name} is gone"
        except ApiError as error:
            return f"the log of pod {pod.key.name} cannot be read: {error}"
        return ""

    def _container(self, pod: Pod) -> str:
        return self.options.container or engine_container(pod)

    def _write(self, pod: Pod, lines: Sequence[bytes]) -> None:
        prefix = f"[{pod.key.name}] ".encode() if len(self._known) > 1 else b""
        for line in lines:
            self.write(prefix + line)


def engine_container(pod: Pod) -> str:
    """Return the container that serves, as kubectl finds it: the one that is annotated, else the first."""
    named = pod.metadata.annotations.get(DEFAULT_CONTAINER, "")
    return named or next((container.name for container in pod.spec.containers), "")


def containers_of(pod: Pod) -> list[str]:
    """Return the names of a pod's containers, those that run before the others last."""
    return [*(one.name for one in pod.spec.containers), *(one.name for one in pod.status.init_container_statuses)]


def status_of(pod: Pod, container: str) -> ContainerStatus | None:
    """Return what the kubelet says of a container; None before it says anything."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return next((status for status in statuses if status.name == container), None)


def missing_log_reason(pod: Pod, container: str) -> str:
    """Return why a container has written nothing yet; empty when it has run."""
    status = status_of(pod, container)
    if _run_id(status):
        return ""
    trouble = trouble_of([pod])
    if trouble is not None:
        return f"pod {pod.key.name} does not run: {trouble.reason}: {trouble.message}"
    before = [one.name for one in pod.status.init_container_statuses if one.state.running is not None]
    if before:
        return f"pod {pod.key.name}: {before[0]} runs before {container}; `-c {before[0]}` shows what it writes"
    waiting = status.state.waiting if status is not None else None
    waiting_reason = (waiting.reason if waiting is not None else "") or pod.status.phase or "it has no node"
    return f"pod {pod.key.name}: container {container} has not started yet ({waiting_reason})"


@attrs.define(eq=False)
class LineSplitter:
    """Cuts a stream into lines, so that those of several pods are written in turns."""

    _rest: bytearray = attrs.field(factory=bytearray, init=False)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take in the next bytes and return the lines that they complete; one that is very long, in pieces."""
        self._rest += chunk
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray() if len(rest) >= LINE_BYTES else bytearray(rest)
        return [line + b"\n" for line in (*lines, *([rest] if len(rest) >= LINE_BYTES else ()))]

    def end(self) -> list[bytes]:
        """Return what was left without an end, with one."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest + b"\n"] if rest else []


def _run_id(status: ContainerStatus | None) -> str:
    """Return what tells one run of a container from the next; empty before its first."""
    if status is None:
        return ""
    now = status.state.running or status.state.terminated or status.last_state.terminated
    return (now.started_at or "") if now is not None else ""


def _forbidden_text(what: str, namespace: str, error: ApiError) -> str:
    return f"you may not {what} in namespace {namespace}; a role with that verb gives it ({error})"
