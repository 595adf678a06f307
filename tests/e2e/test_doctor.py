"""`llmkube doctor` as a program, with faults that can occur on Linux: each finding and its fix."""

import json
import os
import socket
import sys
from functools import partial

import attrs
import pytest
import trio

from cli.commands.doctor.limited_api import TOKEN, open_limited_api
from e2e.addresses import own_address
from e2e.test_downloads import small_disk
from e2e.up_process import FREE_PORTS, open_program, open_up, run_program
from free_ports import free_port
from llmkube.supervisor.values.journal import FileJournal
from supervisor.values.entries import ENGINE, entry
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.usefixtures("machine_lock")]

EVERYONE = "0.0.0.0"


async def doctor(folder, *args, kubeconfig=None, code=None):
    """Run `llmkube doctor` on this folder's state directory; return its findings by name."""
    words = ("doctor", "--json", "--state-dir", str(folder / "state"), *args)
    ended, out, err = await run_program(folder, *words, kubeconfig=kubeconfig)
    assert err == ""
    assert TOKEN not in out
    found = json.loads(out)["findings"]
    assert ended == int(any(each["verdict"] == "fail" for each in found)), out
    if code is not None:
        assert ended == code, out
    return {each["name"]: each for each in found}


def check(findings, name, verdict, *words):
    """Check a finding's verdict, and these words in its text and its fix."""
    line = findings[name]
    assert line["verdict"] == verdict, line
    text = " ".join((line["found"], line["why"], line["fix"]))
    for word in words:
        assert word in text, line


def settings(folder, **tables):
    state = folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    (state / "config.toml").write_text("\n".join(lines) + "\n")


FREE = {"api_port": 0, "gateway_port": 0, "probe_port": 0}


async def test_an_idle_machine_passes(tmp_path):
    """Without a named cluster none is contacted, and nothing is created, not even the state directory."""
    settings(tmp_path, up=FREE)
    before = sorted(tmp_path.rglob("*"))
    kube = tmp_path / ".kube"
    found = await doctor(tmp_path, code=0)
    assert sorted(tmp_path.rglob("*")) == before
    assert {each["verdict"] for each in found.values()} <= {"pass", "warn"}
    assert "no cluster is named" in found["API server"]["found"]
    kube.mkdir()
    async with open_limited_api(kube, refused=(("create", "leases"),)) as kubeconfig:
        kubeconfig.rename(kube / "config")
        found = await doctor(tmp_path, code=0)
        check(found, "API server", "pass", "not checked", '--context "lab"')
        found = await doctor(tmp_path, "--context", "lab", code=0)  # now it is named
        check(found, "rights", "warn", "an agent with these credentials may not create leases")


async def test_a_running_up_passes(tmp_path):
    """Its own ports are not taken, its API server is checked, and the rights of an agent are not."""
    state = tmp_path / "state"
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS) as up:
        await up.urls()
        found = await doctor(tmp_path, code=0)
        check(found, "running", "pass", f"llmkube up (pid {up.process.pid})")
        check(found, "API server", "pass", "https://127.0.0.1:")
        assert "rights" not in found


async def test_a_taken_port_is_named_with_its_owner(tmp_path):
    """The fix is the flag that chooses another port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings(tmp_path, up={**FREE, "gateway_port": port})
        found = await doctor(tmp_path, code=1)
    check(found, "ports", "fail", f"port {port} is in use", f"(pid {os.getpid()})", "--gateway-port", f"-iTCP:{port}")


async def test_a_full_disk_is_named_with_a_fix(tmp_path):
    settings(tmp_path, up=FREE)
    with small_disk(tmp_path / "state" / "store", 64):
        found = await doctor(tmp_path, code=1)
    check(found, "disk", "fail", f"free in {tmp_path}/state/store", "`llmkube cache prune`")


async def test_an_api_server_that_is_away_is_named(tmp_path):
    """The finding names its context and the flags that choose another."""
    settings(tmp_path, up=FREE)
    async with open_limited_api(tmp_path) as kubeconfig:
        pass
    found = await doctor(tmp_path, kubeconfig=kubeconfig, code=1)
    check(found, "API server", "fail", 'context "lab"', "--kubeconfig and --context choose another")
    kubeconfig.write_text("{")
    found = await doctor(tmp_path, kubeconfig=kubeconfig, code=1)
    check(found, "API server", "fail", "the named cluster", str(kubeconfig))
    assert found["disk"]["verdict"] == "pass"


async def test_credentials_that_are_refused_are_named(tmp_path):
    """A 401 is not reported as an API server that is away."""
    settings(tmp_path, up=FREE)
    async with open_limited_api(tmp_path) as kubeconfig:
        kubeconfig.write_text(kubeconfig.read_text().replace(TOKEN, "an-old-one"))
        found = await doctor(tmp_path, kubeconfig=kubeconfig, code=1)
    check(found, "API server", "fail", "rejects these credentials", "`llmkube agent join`")


async def test_lacking_verbs_a_wrong_clock_and_missing_kinds_are_named(tmp_path):
    """Each finding has the command that fixes it."""
    settings(tmp_path, up=FREE)
    refused = (("patch", "leases"), ("create", "leases"), ("patch", "inferenceservices/status"))
    async with open_limited_api(tmp_path, refused=refused, ahead_seconds=300, installed=False) as kubeconfig:
        found = await doctor(tmp_path, kubeconfig=kubeconfig, code=1)
    check(found, "API server", "pass", "Kubernetes v1.34.1")
    check(found, "rights", "warn", "create, patch leases in llmkube-system", "patch inferenceservices/status in all")
    check(found, "rights", "warn", "`llmkube rbac agent --all-namespaces | kubectl apply --server-side -f -`")
    check(found, "clock", "fail", "behind the API server's", "timedatectl set-ntp true")
    check(found, "kinds", "fail", "`llmkube crds | kubectl apply --server-side -f -`")


async def test_a_cluster_that_lacks_nothing_passes(tmp_path):
    settings(tmp_path, up=FREE)
    async with open_limited_api(tmp_path) as kubeconfig:
        found = await doctor(tmp_path, kubeconfig=kubeconfig, code=0)
    check(found, "rights", "pass", "everything that an agent does")
    check(found, "clock", "pass")
    assert "kinds" not in found


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "does not exist"),
        ("#!/bin/sh\necho '  --host HOST  where'\n", "has no --api-key-file"),
        ("#!/bin/sh\necho damaged >&2; exit 3\n", "failed with exit code 3: damaged"),
    ],
    ids=["missing", "too old", "broken"],
)
async def test_an_engine_that_cannot_be_used_is_named(tmp_path, script, words):
    """The program is missing, has no API keys, or does not start."""
    engine = tmp_path / "llama-server"
    if script is not None:
        engine.write_text(script)
        engine.chmod(0o755)
    settings(tmp_path, up={**FREE, "llama_server": str(engine)})
    check(await doctor(tmp_path, code=1), "engine", "fail", words, "--llama-server")


async def test_a_missing_ollama_of_the_settings_is_named(tmp_path):
    """`up` does not start with that setting, and the fix does not mention llama-server."""
    settings(tmp_path, up={**FREE, "ollama": str(tmp_path / "ollama")})
    found = await doctor(tmp_path, code=1)
    check(found, "engine", "fail", f"--ollama: {tmp_path}/ollama does not exist", "remove the setting")
    assert "llama-server" not in str(found["engine"])


async def test_an_engine_that_hangs_blocks_no_other_finding(tmp_path):
    engine = tmp_path / "llama-server"
    engine.write_text("#!/bin/sh\nexec sleep 600\n")
    engine.chmod(0o755)
    settings(tmp_path, up={**FREE, "llama_server": str(engine)})
    found = await doctor(tmp_path)
    check(found, "engine", "fail", "did not answer within 30 s")
    assert found["disk"]["verdict"] == "pass"


async def test_a_budget_above_the_hosts_memory_is_named(tmp_path):
    """As a fraction that leaves no memory, and as the memoryBudget of a Model."""
    settings(tmp_path, up={**FREE, "memory_fraction": 1.0})
    check(await doctor(tmp_path, code=1), "memory", "fail", "memory_fraction in config.toml")
    settings(tmp_path, up=FREE)
    desired = entry(None).desired
    hardware = attrs.evolve(desired.model.spec.hardware, memory_budget="900Ti")
    model = attrs.evolve(desired.model, spec=attrs.evolve(desired.model.spec, hardware=hardware))
    await journaled(tmp_path, attrs.evolve(entry(None), desired=attrs.evolve(desired, model=model)))
    check(await doctor(tmp_path, code=1), "memory", "fail", "memoryBudget of 900.0 TiB", "spec.hardware.memoryBudget")


async def journaled(folder, *entries):
    journal = FileJournal(folder / "state" / "journal", trio.CapacityLimiter(1))
    for each in entries:
        await journal.write(each)


async def test_an_unclean_exit_is_named_with_the_largest_engine(tmp_path):
    """The journal has an engine that no longer runs, and no running program of ours could have stopped it."""
    settings(tmp_path, up=FREE)
    await journaled(tmp_path, entry(attrs.evolve(ENGINE, pid=os.getpid(), started="another boot:1")))
    found = await doctor(tmp_path, code=0)
    check(found, "last end", "warn", "1 engine exited when this machine restarted", str(entry().key), "memory_fraction")


@pytest.mark.opens_port
async def test_listeners_without_a_key_are_named(tmp_path):
    """Another llama-server that is open to the network, and the setting that opens ours."""
    settings(tmp_path, up={**FREE, "insecure_lan": True})
    engine = tmp_path / "llama-server"
    engine.write_text(
        "#!/usr/bin/env python3\nimport socket, sys, time\nport = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "with socket.create_server(('0.0.0.0', port)):\n    print('up', flush=True); time.sleep(600)\n"
    )
    port = free_port()
    async with trio.open_nursery() as nursery:
        words = [sys.executable, str(engine), "--host", EVERYONE, "--port", str(port)]
        process = await nursery.start(partial(trio.run_process, words, check=False))
        try:
            await until(lambda: listens_at(port))
            ended, out, _ = await run_program(tmp_path, "doctor", "--state-dir", str(tmp_path / "state"))
        finally:
            process.kill()
    assert ended == 1
    assert "--insecure-lan: published engines accept every request" in out
    assert f"llama-server (pid {process.pid}) listens at {EVERYONE}:{port} without a key" in out
    assert "--api-key-file FILE, or --host 127.0.0.1" in out


def listens_at(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


async def test_unreadable_settings_are_a_finding(tmp_path):
    settings(tmp_path, up={**FREE, "gateway_prot": 1})
    found = await doctor(tmp_path, code=1)
    check(found, "settings", "fail", "gateway_prot", "docs/reference/config.md")


async def test_a_piped_report_is_whole_and_plain(tmp_path):
    """No line is wrapped or coloured, whatever COLUMNS is."""
    settings(tmp_path, up={**FREE, "memory_fraction": 1.0})
    code, out, _ = await run_program(tmp_path, "doctor", "--state-dir", str(tmp_path / "state"))
    assert code == 1
    assert "\x1b" not in out
    assert any(line.startswith("fail  memory ") for line in out.splitlines())
    assert "Nothing was changed" in out.splitlines()[-1]
    code, _, err = await run_program(tmp_path, "doctor", "--from-cluster")
    assert (code, "name the cluster" in err or "no cluster" in err) == (1, True)


async def test_an_agent_is_checked_with_its_own_flags(tmp_path):
    """Flags of the running agent override the file, and its cluster is the one to check."""
    settings(tmp_path, agent={"memory_fraction": 0.2})
    async with open_limited_api(tmp_path, refused=(("create", "leases"),)) as kubeconfig:
        state = str(tmp_path / "state")
        words = ("agent", "--state-dir", state, "--accelerator", "cpu", "--port", "0", "--kubeconfig", str(kubeconfig))
        flags = ("--memory-fraction", "0.5", "--host-ip", own_address())
        async with open_program(tmp_path, *words, *flags, runs_engines=True) as agent:
            await agent.wait_for("err", '"msg":"agent started"')
            found = await doctor(tmp_path, code=1)
            check(found, "running", "pass", f"llmkube agent (pid {agent.process.pid})")
            check(found, "memory", "pass", "50 % of")
            check(found, "rights", "fail", "create leases")
            check(found, "address", "pass", own_address(), "by --host-ip")
