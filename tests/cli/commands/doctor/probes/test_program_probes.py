"""What is read of engines, listeners and ends."""

import os

import attrs
import pytest
import trio

from cli.commands.doctor.places import installation
from free_ports import free_port
from llmkube.cli.commands.doctor.probes.program_probes import (
    last_ends,
    listed_devices,
    listeners,
    lost_engines,
    open_address,
    ports,
    systemd_unit,
)
from llmkube.cli.commands.doctor.program_facts import Port, SystemdUnit
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.programs.config.up_config import UpConfig
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.nouns.journal import FileJournal
from supervisor.nouns.entries import ENGINE, entry

ALIVE = attrs.evolve(ENGINE, pid=os.getpid(), started=start_of(os.getpid()))
GONE = attrs.evolve(ENGINE, pid=os.getpid(), started="another boot:1")


def test_the_gpus_that_an_engine_lists_are_read():
    """Old and new words of llama.cpp; the processor is no GPU."""
    text = "load_backend: x\nAvailable devices:\n  MTL0: Apple M3 Ultra (98304 MiB, 1 MiB free)\n  BLAS: Accelerate\n"
    assert listed_devices(text) == ("Apple M3 Ultra",)
    assert listed_devices("Available devices:\n  Metal: Apple M1 (10922 MiB, 10922 MiB free)\n") == ("Apple M1",)
    assert listed_devices("Available devices:\n") == ()


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("llama-server --host 0.0.0.0 --port 8081", ("0.0.0.0", 8081)),
        ("/opt/bin/llama-server --host=192.168.1.5", ("192.168.1.5", 8080)),
        ("sh /opt/bin/llama-server --host ::", ("::", 8080)),
        ("llama-server --host 0.0.0.0 --api-key secret", None),
        ("llama-server --host 0.0.0.0 --api-key-file=/k", None),
        ("llama-server", None),  # of this machine alone
        ("llama-server --host localhost", None),
        ("llama-server --host /run/llama.sock", None),
        ("llama-server --host 0.0.0.0 --port eighty", None),
        ("vim notes about llama-server --host 0.0.0.0", None),
        ("", None),
    ],
)
def test_an_open_llama_server_is_known_by_its_command_line(words, address):
    """One with a key, or for this machine alone, is none."""
    assert open_address(words.split()) == address


async def write(folder, *entries):
    journal = FileJournal(folder / "journal", trio.CapacityLimiter(1))
    for each in entries:
        await journal.write(each)


async def test_engines_without_a_key_are_found_by_the_journal(tmp_path):
    """Ours that lives, at an address that others reach; not one with a key, one that has gone, one of this machine."""
    open_one = attrs.evolve(ALIVE, public_host="192.168.1.5", public_port=40001, api_key="")
    for record, count in (
        (open_one, 1),
        (attrs.evolve(open_one, api_key="k"), 0),
        (attrs.evolve(open_one, started="another boot:1"), 0),
        (attrs.evolve(ALIVE, host="127.0.0.1", public_host="", api_key=""), 0),
    ):
        await write(tmp_path, entry(record))
        found = await listeners(installation(tmp_path))
        assert len([each for each in found.open if each.ours]) == count
        if count:
            assert found.open[0].address == "192.168.1.5:40001"


async def test_an_end_is_unclean_when_nothing_of_ours_runs_that_could_have_told(tmp_path):
    """An agent that runs has looked itself."""
    await write(tmp_path, entry(GONE))
    found = await last_ends(installation(tmp_path))
    assert found.lost == (str(entry().key),)
    assert found.largest == str(entry().key)
    assert found.rebooted
    assert (await last_ends(installation(tmp_path, pid=1))).lost == ()
    await write(tmp_path, entry(ALIVE))
    assert (await last_ends(installation(tmp_path))).lost == ()


def test_the_largest_is_first():
    """By what was promised, else by the size of its file."""
    small = entry(GONE)
    weights = attrs.evolve(small.launch.weights, size_bytes=small.launch.weights.size_bytes + 1)
    large = attrs.evolve(small, launch=attrs.evolve(small.launch, weights=weights, estimate=None))
    small = attrs.evolve(small, launch=attrs.evolve(small.launch, estimate=None))
    assert list(lost_engines([small, large, entry(None), entry(ALIVE)])) == [large, small]


async def test_ports_of_zero_are_not_wanted(tmp_path):
    """A program that takes a free one cannot be kept from it."""
    config = UpConfig(api_port=0, gateway_port=0, probe_port=0)
    assert (await ports(installation(tmp_path, config=config))).ports == ()
    assert (await ports(installation(tmp_path, program="agent", config=AgentConfig(port=0)))).ports == ()


async def test_a_program_that_runs_and_does_not_answer_is_silent(tmp_path):
    """The port is then no other program's to take."""
    port = free_port()
    here = installation(tmp_path, program="agent", config=AgentConfig(port=port), pid=1)
    assert (await ports(here)).ports == (Port("--port", port, silent=True),)


async def test_a_unit_s_state_is_systemd_s_word(tmp_path, monkeypatch):
    """`is-active` would answer with an exit code for anything but `active`."""
    program = tmp_path / "systemctl"
    asked = "--user show --property ActiveState --value llmkube-up.service"
    program.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] && echo failed\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    unit = tmp_path / "llmkube-up.service"
    assert await systemd_unit(installation(tmp_path, unit=unit)) == SystemdUnit(unit, "failed")
