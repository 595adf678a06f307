"""Logs of pods, with an API server in memory and scripted kubelets."""

import random
from contextlib import asynccontextmanager

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from cli.memory_cluster import NOW
from k8s.scripted import Body, status_object
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.cli.commands.services.pod_logs import LINE_BYTES, POLL_SECONDS, LineSplitter, Options, PodLogs
from llmkube.cli.target_cluster import Cluster
from llmkube.controller.render.pod import DEFAULT_CONTAINER
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Pod
from llmkube.programs.failures import CommandError, errors_as_messages
from memory_api_server import EVERY_KIND

CHAT = Key("default", "chat")
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
AGAIN = {"running": {"startedAt": "2026-01-01T00:05:00Z"}}


def text(*pieces):
    return httpx.Response(200, stream=Body(pieces), headers={"content-type": "text/plain"})


class Kubelets(httpx.AsyncBaseTransport):
    """Log responses scripted by pod; everything else goes to the API server."""

    def __init__(self, server, logs):
        self.server = server
        self.logs = {name: iter(answers) for name, answers in logs.items()}
        self.asked = []

    async def handle_async_request(self, request):
        if not request.url.path.endswith("/log"):
            return await self.server.handle_async_request(request)
        pod = request.url.path.split("/")[-2]
        self.asked.append((pod, dict(request.url.params)))
        await trio.lowlevel.checkpoint()
        answer = next(self.logs.get(pod, iter(())), None)
        return answer if answer is not None else text()


class Shown:
    """Output and notes of a command."""

    def __init__(self):
        self.out, self.notes = b"", []

    def write(self, piece):
        self.out += piece


@asynccontextmanager
async def logs_of(options=None, **answers):
    """Open logs of the service chat with these responses by pod; `make_pod` creates the pods."""
    server = ApiServer(Store(), kinds=EVERY_KIND, utcnow=lambda: NOW, rng=random.Random(7))
    await server.ensure_namespaces()
    async with open_transport(server.handle) as transport:
        kubelets = Kubelets(transport, {name.replace("_", "-"): each for name, each in answers.items()})
        client, user = (Client(TransportSender(one, "http://apiserver")) for one in (kubelets, transport))
        shown = Shown()
        logs = PodLogs(
            Cluster(client, "default"), CHAT, "app=chat", options or Options(), shown.write, shown.notes.append
        )
        yield logs, shown, kubelets, user


async def refusal_of(logs):
    """Return the error message of a failed run."""
    with pytest.raises(CommandError) as refused, errors_as_messages():
        await logs.run()
    return refused.value.message


async def make_pod(client, name, state=RUNNING, *, restarts=0, phase="Running", **status):
    containers = [{"name": each, "image": "x"} for each in ("drain", "llama-server")]
    manifest = {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "chat"}},
        "spec": {"containers": containers},
    }
    manifest["metadata"]["annotations"] = {DEFAULT_CONTAINER: "llama-server"}
    await client.apply(Pod, manifest, field_manager="test")
    await set_status(client, name, state, restarts=restarts, phase=phase, **status)


async def set_status(client, name, state, *, restarts=0, phase="Running", **status):
    one = {"name": "llama-server", "state": state, "restartCount": restarts}
    patch = {"status": {"phase": phase, "containerStatuses": [one] if state is not None else [], **status}}
    await client.patch(Pod, Key("default", name), patch, subresource="status", field_manager="kubelet")


async def test_the_engine_s_log_is_shown_as_it_is():
    """The annotated engine container is read, byte for byte, with the requested lines."""
    async with logs_of(Options(lines=5), chat_a=[text(b"one\ntw", b"o\nthree")]) as (logs, shown, kubelets, client):
        await make_pod(client, "chat-a")
        await logs.run()
    assert shown.out == b"one\ntwo\nthree\n"
    assert kubelets.asked == [("chat-a", {"container": "llama-server", "tailLines": "5"})]


async def test_with_several_pods_each_line_names_its_pod():
    """Lines of two pods are prefixed; an unreadable log is explained and does not affect the other pod."""
    broken = httpx.Response(500, json=status_object(500, "InternalError", "dial tcp 10.0.0.9:10250: no route to host"))
    async with logs_of(chat_a=[text(b"a1\na2\n")], chat_b=[broken]) as (logs, shown, _, client):
        await make_pod(client, "chat-a")
        await make_pod(client, "chat-b")
        await logs.run()
    assert shown.out == b"[chat-a] a1\n[chat-a] a2\n"
    [note] = shown.notes
    assert note.startswith("log of pod chat-b cannot be read")
    assert "no route to host" in note


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x:y"'}},
            {},
            'pod chat-a is not running: ImagePullBackOff: container llama-server: Back-off pulling image "x:y"',
        ),
        (
            {"waiting": {"reason": "ContainerCreating"}},
            {},
            "container llama-server has not started yet (ContainerCreating)",
        ),
        (
            {"waiting": {"reason": "PodInitializing"}},
            {"initContainerStatuses": [{"name": "fetch", "state": RUNNING}]},
            "fetch runs before llama-server; see its log with `-c fetch`",
        ),
        (
            None,
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"}]},
            "Unschedulable: 0/3 nodes are available",
        ),
    ],
)  # fmt: skip
async def test_a_container_that_has_not_run_is_explained(state, status, message):
    """The error names what the pod waits for, and no kubelet is queried."""
    async with logs_of() as (logs, _, kubelets, client):
        await make_pod(client, "chat-a", state, phase="Pending", **status)
        assert message in await refusal_of(logs)
    assert kubelets.asked == []


async def test_a_crash_loop_shows_what_the_last_run_wrote():
    """A container between restarts has the log of its last run."""
    async with logs_of(chat_a=[text(b"out of memory\n")]) as (logs, shown, _, client):
        ended = {"terminated": {"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z"}}
        waiting = {"name": "llama-server", "restartCount": 3, "lastState": ended,
                   "state": {"waiting": {"reason": "CrashLoopBackOff"}}}  # fmt: skip
        await make_pod(client, "chat-a")
        await set_status(client, "chat-a", None, containerStatuses=[waiting])
        await logs.run()
    assert shown.out == b"out of memory\n"


@pytest.mark.parametrize(
    ("code", "reason", "options", "message"),
    [
        (403, "Forbidden", Options(), "you may not get pods/log in namespace default: "),
        (403, "Forbidden", Options(follow=True), "you may not get pods/log in namespace default"),
        (400, "BadRequest", Options(previous=True), "container llama-server has no previous run"),
        (404, "NotFound", Options(), "pod chat-a was deleted"),
    ],
)
async def test_a_refusal_names_what_is_missing(code, reason, options, message):
    """The error names the missing right, or the previous run that does not exist."""
    refusal = httpx.Response(code, json=status_object(code, reason, "the server's words"))
    async with logs_of(options, chat_a=[refusal]) as (logs, _, _kubelets, client):
        await make_pod(client, "chat-a")
        assert message in await refusal_of(logs)


async def test_another_container_is_named_or_refused():
    """`-c` selects a container; an unknown name is answered with the existing ones."""
    async with logs_of(Options(container="drain", previous=True), chat_a=[text(b"x\n")]) as (logs, _, kubelets, client):
        await make_pod(client, "chat-a")
        await logs.run()
    assert kubelets.asked == [("chat-a", {"container": "drain", "previous": "true"})]
    async with logs_of(Options(container="nope")) as (logs, _, _kubelets, client):
        await make_pod(client, "chat-a")
        assert "has no container nope; it has drain, llama-server" in await refusal_of(logs)


async def test_without_pods_the_status_is_pointed_to():
    """A service scaled to zero has no logs."""
    async with logs_of() as (logs, _, _kubelets, _client):
        assert "has no pods; see `llmkube status chat`" in await refusal_of(logs)


async def test_a_restart_a_broken_connection_and_a_new_pod_are_followed(autojump_clock):
    """A new run is read from its start, a broken stream from where it broke, and a new pod is added."""
    answers = {"chat_a": [text(b"a1\n"), text(b"a2\n"), text(b"b1\n", None)], "chat_b": [text(b"c1\n", None)]}
    async with logs_of(Options(follow=True, lines=1), **answers) as (logs, shown, kubelets, client):
        await make_pod(client, "chat-a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(logs.run)
            await trio.sleep(1.5 * POLL_SECONDS)
            await set_status(client, "chat-a", AGAIN, restarts=1)
            await trio.sleep(2 * POLL_SECONDS)
            await make_pod(client, "chat-b")
            await trio.sleep(3 * POLL_SECONDS)
            nursery.cancel_scope.cancel()
    assert shown.out == b"a1\na2\nb1\n[chat-b] c1\n"
    tails = [(pod, params.get("tailLines")) for pod, params in kubelets.asked]
    assert tails == [("chat-a", "1"), ("chat-a", "0"), ("chat-a", None), ("chat-b", "1")]
    assert all(params["follow"] == "true" for _, params in kubelets.asked)


async def test_what_a_followed_pod_waits_for_is_reported_once(autojump_clock):
    """The same sentence is not repeated at every poll."""
    async with logs_of(Options(follow=True), chat_a=[text(b"up\n", None)]) as (logs, shown, _, client):
        await make_pod(client, "chat-a", {"waiting": {"reason": "ContainerCreating"}}, phase="Pending")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(logs.run)
            await trio.sleep(5 * POLL_SECONDS)
            await set_status(client, "chat-a", RUNNING)
            await trio.sleep(2 * POLL_SECONDS)
            nursery.cancel_scope.cancel()
    assert len(shown.notes) == 1
    assert shown.out == b"up\n"


def test_lines_are_cut_wherever_pieces_end():
    """An unterminated line gets a line end, and an endless one is cut."""
    splitter = LineSplitter()
    assert splitter.feed(b"a") == []
    assert splitter.feed(b"b\n\nc") == [b"ab\n", b"\n"]
    assert splitter.end() == [b"c\n"]
    assert splitter.end() == []
    assert splitter.feed(b"x" * LINE_BYTES) == [b"x" * LINE_BYTES + b"\n"]


def test_a_service_in_pods_is_read_by_the_command(run, monkeypatch, tmp_path):
    """`llmkube logs` reads pods if there are any, and mentions a host's log as well."""
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "state"))

    async def serve_from_pods(client):
        manifest = {"metadata": {"name": "demo", "namespace": "default"}, "status": {"selector": "app=demo"}}
        await client.apply(InferenceService, manifest, field_manager="llmkube-controller", subresource="status")

    asked = []

    async def show(self):  # noqa: ASYNC124 - stub for a request
        asked.append((self.service, self.selector, self.options))

    monkeypatch.setattr(PodLogs, "run", show)
    done = run("logs", "demo", "-f", "--tail", "3", "-c", "fetch", prepare=serve_from_pods)
    assert (done.exit_code, done.output) == (0, "")
    run("logs", "demo", "-p", prepare=serve_from_pods)
    chat = Key("default", "demo")
    follow, previous = Options(follow=True, lines=3, container="fetch"), Options(previous=True)
    assert asked == [(chat, "app=demo", follow), (chat, "app=demo", previous)]
    assert run("logs", "demo", "-f", "-p", prepare=serve_from_pods).exit_code == 2
    log = tmp_path / "state" / "logs" / "default" / "demo.log"
    log.parent.mkdir(parents=True)
    log.write_text("old\n")
    done = run("logs", "demo", prepare=serve_from_pods)
    assert (done.exit_code, done.stdout) == (0, "")
    assert str(log) in done.stderr
