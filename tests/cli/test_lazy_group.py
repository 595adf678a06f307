"""Command tables: each entry loads, mistyped names get a suggestion, and unused commands are not imported."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from llmkube.cli.commands.programs.agent import agent
from llmkube.cli.commands.programs.up import up
from llmkube.cli.lazy_group import Entry, LazyGroup
from llmkube.cli.main import cli

COMMANDS = [(group, name) for group in (cli, agent, up) for name in group.list_commands(click.Context(group))]


@pytest.mark.parametrize(("group", "name"), COMMANDS, ids=[f"{group.name} {name}" for group, name in COMMANDS])
def test_each_entry_loads_the_command_of_its_name(group, name):
    command = group.get_command(click.Context(group), name)
    assert command.name == name
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0


@pytest.mark.parametrize(("group", "typed", "meant"), [(agent, "instal", "install"), (up, "statsu", "status")])
def test_a_mistyped_command_of_a_program_is_guessed(group, typed, meant):
    shown = CliRunner().invoke(group, [typed])
    assert shown.exit_code == 2
    assert f"unknown command {typed}; did you mean " in shown.output
    assert meant in shown.output


def test_help_loads_no_command():
    """The overview comes from the table alone: it lists even an entry that cannot be loaded."""
    group = LazyGroup("tools", package="nowhere", entries={"saw": Entry("saw:saw", "Cut something in two.")})
    assert "saw  Cut something in two." in CliRunner().invoke(group, ["--help"]).output
    with pytest.raises(ModuleNotFoundError):
        group.get_command(click.Context(group), "saw")


def test_an_agent_loads_no_controller_api_server_or_router():
    """Imports cost memory, and time at each start, while engines wait to be adopted."""
    program = (
        "import sys, llmkube.cli.commands.programs.agent; "
        "others = ('llmkube.controller', 'llmkube.apiserver', 'llmkube.router'); "
        "print([name for name in sys.modules if name.startswith(others)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
