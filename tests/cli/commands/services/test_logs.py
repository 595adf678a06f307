import pytest

from llmkube.cli.commands.services import logs
from llmkube.cli.commands.services.logs import missing_log_text
from llmkube.cli.target_cluster import ClusterFlags, state_dirs
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import TransportError
from llmkube.k8s.resource import Key


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state directory with a log of `demo`; this machine is called `here`."""
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(logs, "stored_host_name", lambda _: "here")
    log = tmp_path / "state" / "logs" / "default" / "demo.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\n")
    return tmp_path / "state"


async def report_from(client, host):
    manifest = {"metadata": {"name": "demo", "namespace": "default"}, "status": {"phase": "Ready"}}
    await client.apply(InferenceService, manifest, field_manager=f"llmkube-agent-{host}", subresource="status")


def test_the_file_on_this_machine_is_printed(run, state):
    """`logs NAME` prints the engine's file byte for byte, `--tail` its last lines."""
    assert run("logs", "demo").output == "one\ntwo\nthree\n"
    assert run("logs", "demo", "--tail", "1").output == "three\n"
    assert run("logs", "demo", "--tail", "0").output == ""


def test_another_hosts_service_is_pointed_to(run, state):
    """Without a local file, the error names the host and the command to run there."""
    (state / "logs" / "default" / "demo.log").unlink()
    done = run("logs", "demo", prepare=lambda client: report_from(client, "mac"))
    assert done.exit_code == 1
    assert "runs on mac; run `llmkube logs demo` there" in done.output
    nowhere = run("logs", "demo")
    assert "no engine has been reported yet; see what it waits for with `llmkube status demo`" in nowhere.output


def test_the_log_of_a_service_that_moved_has_a_note(run, state):
    """A local file of a service that runs elsewhere is printed with a note."""
    done = run("logs", "demo", prepare=lambda client: report_from(client, "mac"))
    assert done.exit_code == 0
    assert done.stderr == "default/demo runs on mac; this log is from this machine\n"
    assert done.stdout == "one\ntwo\nthree\n"
    assert run("logs", "demo", prepare=lambda client: report_from(client, "here")).stderr == ""


def test_log_of_a_deleted_service_can_be_read(run, state):
    """A service that never had a log exits with 3."""
    done = run("logs", "demo", demo=False)
    assert (done.exit_code, done.stdout) == (0, "one\ntwo\nthree\n")
    assert "not found; printing the log of its last engine" in done.stderr
    assert run("logs", "nope").exit_code == 3


def test_the_log_needs_no_api_server(run, state, monkeypatch):
    """The local file is printed although the API server does not answer."""

    async def refuse(*_args):  # noqa: ASYNC124 - stub for a request
        raise TransportError("connection refused")

    monkeypatch.setattr(logs, "get_service", refuse)
    done = run("logs", "demo")
    assert (done.exit_code, done.stdout) == (0, "one\ntwo\nthree\n")
    assert "API server not reachable (connection refused)" in done.stderr


def test_a_temporary_state_directory_is_found(tmp_path, monkeypatch):
    """The kubeconfig of `llmkube up --ephemeral` leads to its logs; --state-dir wins."""
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "llmkube-x" / "logs").mkdir(parents=True)
    where = ClusterFlags(kubeconfig=tmp_path / "llmkube-x" / "kubeconfig")
    assert state_dirs(where, None) == (tmp_path / "llmkube-x", tmp_path / "state")
    assert state_dirs(where, tmp_path / "y") == (tmp_path / "y",)
    assert state_dirs(ClusterFlags(kubeconfig=tmp_path / "config"), None) == (tmp_path / "state",)


def test_an_engine_that_never_started_is_explained(state):
    """The user is not sent to another host."""
    text = missing_log_text(Key("prod", "demo"), ["here"], [state])
    assert "its engine has not started yet, or its agent uses another --state-dir" in text
    assert "run `llmkube logs demo -n prod` there" in missing_log_text(Key("prod", "demo"), ["mac"], [state])


def test_flags_for_pods_are_refused_for_a_file(run, state):
    """A host's file has all runs; a flag without effect is an error."""
    for flags in (("--previous",), ("-c", "drain")):
        done = run("logs", "demo", *flags)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "are for pods" in done.stderr
