import gc
import http.server
import importlib
import os
import re
import signal
import subprocess
import sys
import threading

import click
import pytest
from click.testing import CliRunner

from cli.cli_objects import kubeconfig
from llmkube import __version__
from llmkube.cli import main
from llmkube.cli.main import COMMANDS, SUBJECTS, cli


def run(*args, **kwargs):
    return CliRunner().invoke(cli, args, **kwargs)


@pytest.mark.parametrize("args", [["--version"], ["-V"], ["version"]])
def test_version_can_be_printed_in_three_ways(args):
    assert run(*args).output == f"llmkube {__version__}\n"


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["version"]])
def test_version_and_help_import_nothing_heavy(args):
    """`--version`, `--help` and `version` load none of the packages that take long to import."""
    program = (
        "import sys; from llmkube.cli.main import cli\n"
        f"try: cli({args!r}, prog_name='llmkube')\n"
        "except SystemExit: pass\n"
        "heavy = {'trio', 'httpx', 'rich', 'kubernetes', 'attrs', 'attr', 'yaml', 'structlog'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_garbage_collector_runs_rarely_during_imports(monkeypatch):
    """Its thresholds are as before afterwards."""
    before, thresholds = gc.get_threshold(), []

    def load(name, original=importlib.import_module):
        thresholds.append(gc.get_threshold()[0])
        return original(name)

    monkeypatch.setattr(importlib, "import_module", load)
    assert cli.get_command(click.Context(cli), "crds") is not None
    assert thresholds[0] == 20_000
    assert gc.get_threshold() == before


def test_the_overview_lists_every_command():
    """`llmkube --help` names each command with its summary, and each of them loads."""
    shown = run("--help").output
    for name, entry in COMMANDS.items():
        assert name in shown
        assert entry.summary.split(",")[0][:30] in shown
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert run(name, "--help").exit_code == 0, run(name, "--help").output


@pytest.mark.parametrize(("typed", "command"), main.ALIASES.items())
def test_the_names_of_other_programs_work(typed, command):
    """`rm` does what `delete` does; the overview and the shell's completion offer it."""
    assert cli.get_command(click.Context(cli), typed) is cli.get_command(click.Context(cli), command)
    assert run(typed, "--help").output.startswith(f"Usage: cli {typed} ")
    assert re.search(rf"^  {typed} +The same as `{command}`.$", run("--help").output, re.MULTILINE)
    assert typed in [each.value for each in cli.shell_complete(click.Context(cli), typed)]


@pytest.mark.parametrize(("typed", "command"), main.OTHER_WORDS.items())
def test_a_suggestion_is_a_command(typed, command):
    done = run(typed)
    assert (done.exit_code, f"unknown command {typed}; did you mean {command}?" in done.output) == (2, True)
    assert run(*command.split(), "--help").exit_code == 0


@pytest.mark.parametrize(("typed", "meant"), [("upp", "up"), ("rnu", "run"), ("stauts", "status"), ("dploy", "deploy")])
def test_a_mistyped_command_is_guessed(typed, meant):
    """A mistyped command exits with 2 and a suggestion."""
    done = run(typed)
    assert done.exit_code == 2
    assert f"unknown command {typed}; did you mean {meant}" in done.output
    strange = run("xyzzy")
    assert (strange.exit_code, "No such command 'xyzzy'" in strange.output) == (2, True)


def test_help_has_no_empty_default():
    for name in COMMANDS:
        shown = " ".join(run(name, "--help").output.split())
        assert "Default: ." not in shown
        assert "Default:  " not in shown


def test_the_overview_is_by_subject():
    """Each command appears under one subject, in the order of the table."""
    shown = run("--help").output
    places = [shown.index(f"{subject}:") for subject in SUBJECTS]
    assert places == sorted(places)
    assert len(COMMANDS) == sum(map(len, SUBJECTS.values()))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["up", "--api-port", "abc"], '--api-port: "abc" is not a whole number from 0 to 65535'),
        (["up", "--accelerator", "gpu"], '--accelerator: "gpu" is not one of cpu, metal'),
        (["agent", "--log-level", "loud"], '--log-level: "loud" is not one of debug, info'),
        (["agent", "--endpoints-api", "slices"], '--endpoints-api: "slices" is not one of endpointslices, endpoints'),
        (["status", "pod/x"], '"pod/x" is neither NAME nor KIND/NAME'),
        (["status", "model/"], '"model/" is neither NAME nor KIND/NAME'),
    ],
)
def test_wrong_values_are_usage_errors(args, message, tmp_path):
    """An invalid flag value exits with 2 and one sentence before anything starts."""
    done = run(*args, env={"LLMKUBE_STATE_DIR": str(tmp_path)})
    assert (done.exit_code, message in done.output) == (2, True), done.output
    assert "Traceback" not in done.output


def test_a_wrong_variable_is_named(tmp_path):
    """An error in an environment variable names the variable, not the flag."""
    done = run("up", env={"LLMKUBE_STATE_DIR": str(tmp_path), "LLMKUBE_GATEWAY_PORT": "99999"})
    assert done.exit_code == 2
    assert "LLMKUBE_GATEWAY_PORT: 99999 is not a whole number from 0 to 65535" in done.output


def test_a_wrong_config_file_is_named(tmp_path):
    """An error in config.toml names the file and the key."""
    (tmp_path / "config.toml").write_text("[up]\napi_prot = 1\n")
    done = run("up", "--state-dir", str(tmp_path))
    assert done.exit_code == 2
    assert f"{tmp_path}/config.toml: up.api_prot: there is no such setting; did you mean api_port?" in done.output


def test_a_missing_engine_is_named(tmp_path):
    """A missing --llama-server exits with 1 before anything starts, and leaves no state."""
    state = tmp_path / "state"
    done = run("up", "--state-dir", str(state), "--llama-server", str(tmp_path / "nothing"))
    assert done.exit_code == 1
    assert f"--llama-server: {tmp_path}/nothing does not exist" in done.output
    assert not state.exists()


def test_broken_manifests_start_nothing(tmp_path):
    """An invalid document is refused with file, number and field before the state directory is created."""
    file = tmp_path / "chat.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\nkind: Model\n")
    state = tmp_path / "state"
    done = run("up", "--state-dir", str(state), "-f", str(file), "--llama-server", sys.executable)
    assert done.exit_code == 1
    assert f"{file}, document 2: apiVersion: is missing; write a string" in done.output
    assert not state.exists()


def test_the_crds_are_yaml():
    """`llmkube crds` prints both CustomResourceDefinitions as a YAML stream."""
    import yaml

    names = {each["metadata"]["name"] for each in yaml.safe_load_all(run("crds").output)}
    assert names >= {"models.inference.llmkube.dev", "inferenceservices.inference.llmkube.dev"}


@pytest.mark.parametrize("args", [["list"], ["status", "x"], ["delete", "x"], ["agent"], ["controller"]])
def test_without_any_cluster_the_error_has_the_fix(args, tmp_path):
    """The error lists the places searched and the fix."""
    env = {"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": "", "LLMKUBE_STATE_DIR": str(tmp_path)}
    done = run(*args, env=env)
    assert done.exit_code == 1
    fix = "start `llmkube up`" if args[0] in {"agent", "controller"} else "llmkube up start"
    assert f"{fix}, or name a cluster with --kubeconfig" in done.output


def test_a_stopped_up_is_guessed(tmp_path):
    """If the kubeconfig of `llmkube up` leads nowhere, the error asks whether it is running."""
    kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9")
    env = {"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": "", "LLMKUBE_STATE_DIR": str(tmp_path)}
    done = run("list", env=env)
    assert done.exit_code == 1
    assert "is `llmkube up` running?" in done.output


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (200, 'is http://127.0.0.1:{} (context "a") a running API server? --context and --kubeconfig choose'),
        (401, 'http://127.0.0.1:{} (context "a") rejects these credentials; renew them, or choose another --context'),
        (404, 'if http://127.0.0.1:{} (context "a") is the right cluster, install the CRDs: llmkube crds'),
    ],
)
def test_unusable_server_is_named_with_the_fix(status, fix, tmp_path):
    """A web page, a 401 and a missing CRD exit with 1 and name the server and the fix."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.server_port}")
            done = run("status", "chat", "--kubeconfig", str(tmp_path / "config"))
        finally:
            server.shutdown()
            serving.join()
    assert (done.exit_code, fix.format(server.server_port) in done.output) == (1, True), done.output


def unread(argv, env):
    """Run a Python program whose standard output is a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run([sys.executable, *argv], stdout=writing, stderr=subprocess.PIPE, env=env, check=False)
    finally:
        os.close(writing)


@pytest.mark.parametrize("args", [["crds"], ["version"], ["logs", "demo"]])
def test_closed_pipe_ends_a_command_by_sigpipe(args, tmp_path):
    """The exit code is 141 to a shell, and nothing is printed."""
    log = tmp_path / "logs" / "default" / "demo.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9")
    env = os.environ | {"HOME": str(tmp_path), "KUBECONFIG": "", "LLMKUBE_STATE_DIR": str(tmp_path)}
    done = unread(["-m", "llmkube", *args], env)
    assert (done.returncode, b"roken" in done.stderr) == (-signal.SIGPIPE, False), done.stderr


def test_closed_pipe_is_found_in_an_exception_group():
    program = (
        "import click; from llmkube.cli.main import cli\n"
        "def broken(*_): raise ExceptionGroup('outer', [ExceptionGroup('inner', [BrokenPipeError()])])\n"
        "click.Group.invoke = broken; cli(['version'])"
    )
    done = unread(["-c", program], os.environ)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize(("pid", "handled"), [(1, True), (4711, False)])
def test_a_program_in_a_container_ends_at_term_from_its_first_moment(monkeypatch, pid, handled):
    """Process 1 gets only signals that it handles; every other process keeps the default action."""
    handlers = []
    monkeypatch.setattr(main.os, "getpid", lambda: pid)
    monkeypatch.setattr(main.signal, "signal", lambda number, handler: handlers.append((number, handler)))
    main.exit_on_sigterm_in_container()
    assert [number for number, _ in handlers] == ([signal.SIGTERM] if handled else [])
    ended = []
    monkeypatch.setattr(main.os, "_exit", ended.append)
    for _, handler in handlers:
        handler(signal.SIGTERM, None)
    assert ended == ([143] if handled else [])
