"""The cluster that a command addresses, and the message that names it."""

import signal
import weakref
from contextlib import ExitStack

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from cli.cli_objects import kubeconfig
from llmkube.base.errors import UserError
from llmkube.cli.main import cli
from llmkube.cli.target_cluster import ClusterFlags, Origin, find_config, kubeconfig_files, run_or_time_out
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import SERVER_LOCK


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a company's cluster in ~/.kube/config, and a state directory of `llmkube up`."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    kubeconfig(tmp_path / ".kube" / "config", "http://127.0.0.1:1", "prod")
    return tmp_path


def test_clusters_are_found_as_kubectl_does(tmp_path):
    """Precedence: flag, KUBECONFIG, ~/.kube/config, the kubeconfig of `llmkube up`."""
    flag = kubeconfig(tmp_path / "flag", "http://flag", "prod")
    state = tmp_path / "state"
    kubeconfig(state / "kubeconfig", "http://up", "prod")
    environ = {"HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig(tmp_path / "variable", "http://variable", "prod"))}

    def found(chosen=None):
        config, origin = find_config(chosen, None, state, environ)
        return config.server, origin

    assert found(flag) == ("http://flag", Origin.NAMED)
    assert found() == ("http://variable", Origin.NAMED)
    del environ["KUBECONFIG"]
    assert found() == ("http://up", Origin.UP)
    kubeconfig(tmp_path / ".kube" / "config", "http://home", "prod")
    assert found() == ("http://home", Origin.HOME)


def test_no_cluster_anywhere_is_an_error(tmp_path):
    """The error lists every place searched."""
    with pytest.raises(UserError, match=r"no --kubeconfig, KUBECONFIG, .*/\.kube/config or .*/state/kubeconfig"):
        find_config(None, None, tmp_path / "state", {"HOME": str(tmp_path)})


@pytest.mark.parametrize("chosen", ["nothing", "default", "KUBECONFIG", "elsewhere"])
def test_an_up_that_does_not_run_is_one_line(home, monkeypatch, chosen):
    """Before the first start, after a stop, and with the kubeconfig that `up` prints: the fix, and no nested errors."""
    (home / ".kube" / "config").unlink()
    state = home / ("other" if chosen == "elsewhere" else "state")
    if chosen != "nothing":
        with hold_state_dir(state, SERVER_LOCK):
            kubeconfig(state / "kubeconfig", "http://127.0.0.1:1", "up")
    if chosen in {"KUBECONFIG", "elsewhere"}:
        monkeypatch.setenv("KUBECONFIG", str(state / "kubeconfig"))
    done = CliRunner().invoke(cli, ["list"])
    fixes = {"nothing": ", or name a cluster with --kubeconfig", "elsewhere": f" --state-dir {state}"}
    assert done.exit_code == 1
    assert done.output == f"Error: llmkube up is not running; start it: llmkube up start{fixes.get(chosen, '')}\n"


def test_an_up_that_runs_and_does_not_answer_is_named(home):
    (home / ".kube" / "config").unlink()
    kubeconfig(home / "state" / "kubeconfig", "http://127.0.0.1:1", "up")
    with hold_state_dir(home / "state", SERVER_LOCK):
        done = CliRunner().invoke(cli, ["list"])
    assert (done.exit_code, "is `llmkube up` running?" in done.output) == (1, True)


def test_state_directory_writable_by_others_is_refused(tmp_path):
    state = kubeconfig(tmp_path / "state" / "kubeconfig", "http://evil", "prod").parent
    state.chmod(0o777)
    with pytest.raises(UserError, match="not safe to use"):
        find_config(None, None, state, {"HOME": str(tmp_path)})


def test_running_up_wins_over_kubectls_default_file(home):
    """A running `llmkube up` wins over ~/.kube/config; a flag, a context or KUBECONFIG wins over both."""
    state = home / "state"
    kubeconfig(state / "kubeconfig", "http://up", "prod")
    environ = {"HOME": str(home)}

    def server(context=None, **kwargs):
        return find_config(None, context, state, environ, **kwargs)[0].server

    assert server(prefer_up=True) == "http://127.0.0.1:1"  # no API server runs there
    with hold_state_dir(state, SERVER_LOCK):
        assert server(prefer_up=True) == "http://up"
        assert kubeconfig_files(ClusterFlags()) == (state / "kubeconfig",)
        assert server() == "http://127.0.0.1:1"  # an agent serves the cluster that kubectl would use
        assert server(context="prod", prefer_up=True) == "http://127.0.0.1:1"
        environ["KUBECONFIG"] = str(kubeconfig(home / "named", "http://named", "prod"))
        assert server(prefer_up=True) == "http://named"


def test_an_empty_flag_is_not_given(home):
    """`--kubeconfig "$FILE"` with an unset variable is no path."""
    done = CliRunner().invoke(cli, ["scale", "demo", "0", "--kubeconfig", ""])
    assert 'in context "prod"' in done.stderr


@pytest.mark.parametrize(
    "args", [("deploy", "demo", "--source", "builtin://demo"), ("scale", "demo", "0"), ("delete", "demo")]
)
def test_a_change_names_a_cluster_that_the_user_has_not_named(home, args):
    """The first line names the cluster; if it is unreachable, the error offers `llmkube up`."""
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0] == (
        f'in context "prod" of {home}/.kube/config (http://127.0.0.1:1); --context and --kubeconfig choose another'
    )
    assert "without a cluster, `llmkube up` serves on this machine" in done.stderr
    named = CliRunner().invoke(cli, [*args, "--context", "prod"])
    assert "choose another\n" not in named.stderr.splitlines()[0]


def test_a_change_next_to_a_live_up_names_it(home):
    """The first line states that the change goes to `llmkube up` on this machine."""
    kubeconfig(home / "state" / "kubeconfig", "http://127.0.0.1:1", "prod")
    with ExitStack() as stack:
        stack.enter_context(hold_state_dir(home / "state", SERVER_LOCK))
        done = CliRunner().invoke(cli, ["delete", "demo"])
    first = done.stderr.splitlines()[0]
    assert first == f"in `llmkube up` on this machine; --context chooses a cluster of {home}/.kube/config"


def test_an_interrupt_within_a_callback_ends_the_command():
    """Python prints and drops a KeyboardInterrupt that is raised in the callback of a weak reference."""

    async def serve():
        with trio.move_on_after(60):
            target = {1}
            watched = weakref.ref(target, lambda _: signal.raise_signal(signal.SIGINT))
            del target
            assert watched() is None
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        run_or_time_out(serve)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored():
    """A script's background job ignores SIGINT: Ctrl-C in the terminal is for the script."""

    async def serve():
        signal.raise_signal(signal.SIGINT)
        await trio.testing.wait_all_tasks_blocked()
        return "served"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_or_time_out(serve) == "served"
    finally:
        signal.signal(signal.SIGINT, before)
