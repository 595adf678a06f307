"""Processes that hold a file of weights, found by their command lines."""

from llmkube.programs.daemon_engine.processes import Holders, Process, holders_of

BLOB, OTHER = "sha256-" + "a" * 64, "sha256-" + "b" * 64


def runner(pid, parent, blob, program="/usr/bin/ollama"):
    return Process(pid, parent, (program, "runner", "--model", f"/home/me/.ollama/models/blobs/{blob}"))


INIT = Process(1, 0, ("/sbin/launchd",))
SERVER = Process(10, 1, ("/usr/bin/ollama", "serve"))


def test_a_process_belongs_to_the_server_that_has_started_it():
    """Those of another server hold memory too, but serve no request of this one."""
    elsewhere = Process(11, 1, ("/usr/bin/ollama", "serve"))
    processes = [INIT, SERVER, elsewhere, runner(20, 10, BLOB), runner(21, 10, OTHER), runner(22, 11, BLOB)]
    assert holders_of(BLOB, processes, 10) == Holders((20,), (), (21,))
    assert holders_of(BLOB, processes, None) == Holders()


def test_other_releases_start_other_programs():
    """Whatever a server starts with the file in its command line holds it."""
    later = Process(20, 10, ("/usr/lib/ollama/llama-server", "--model", f"/m/blobs/{BLOB}"))
    assert holders_of(BLOB, [INIT, SERVER, later], 10).served == (20,)


def test_a_runner_of_a_killed_server_is_an_orphan():
    """Its parent is init, or launchd; an engine of ours whose agent was killed is no orphan."""
    ours = Process(31, 1, ("/usr/bin/llama-server", "--model", f"/var/lib/llmkube/blobs/{BLOB}"))
    assert holders_of(BLOB, [INIT, runner(30, 1, BLOB), runner(32, 1, OTHER), ours], None) == Holders((), (30,))
    assert holders_of(BLOB, [INIT, SERVER, runner(30, 1, BLOB), runner(20, 10, BLOB)], 10) == Holders((20,), (30,))
