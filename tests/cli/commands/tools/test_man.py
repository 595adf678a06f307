"""Manual pages for each command, in the markup of man(7)."""

import shutil
import subprocess

import click
import pytest
from click.testing import CliRunner

from llmkube.cli.commands.tools.man import page, pages
from llmkube.cli.main import COMMANDS, cli


def test_every_command_has_a_page_with_its_options():
    """The overview, commands and subcommands have pages with their flags."""
    found = dict(pages(cli, "llmkube"))
    assert {"llmkube", *(f"llmkube-{name}" for name in COMMANDS)} <= found.keys()
    assert {"llmkube-up-start", "llmkube-catalog-info", "llmkube-cache-prune", "llmkube-agent-join"} <= found.keys()
    deploy = found["llmkube-deploy"]
    assert ".SH NAME\nllmkube\\-deploy \\- Serve a model" in deploy
    assert "\\-\\-context\\-size" in deploy
    assert all(text.startswith(".TH ") for text in found.values())
    assert ".BR llmkube\\-up\\-start (1)" in found["llmkube-up"]


def test_the_pages_are_written(tmp_path):
    """Their number and folder are printed."""
    done = CliRunner().invoke(cli, ["man", str(tmp_path / "man 1")])
    assert done.exit_code == 0, done.output
    written = list((tmp_path / "man 1").glob("*.1"))
    assert done.output == f"{len(written)} pages written to {tmp_path / 'man 1'}\n"


def test_no_line_of_a_text_is_a_macro():
    """Backslashes, dashes and leading full stops are printed literally."""

    @click.command("x", help=".first\\second -- third")
    def command():
        pass

    shown = page(command, click.Context(command, info_name="x"), "x", [])
    assert "\\&.first\\esecond \\-\\- third" in shown


def test_groff_finds_no_fault(tmp_path):
    program = shutil.which("groff")
    if program is None:
        pytest.skip("groff (package groff-base) is not on this machine")
    file = tmp_path / "x.1"
    file.write_text(dict(pages(cli, "llmkube"))["llmkube-up"])
    done = subprocess.run([program, "-man", "-Tutf8", "-ww", "-z", file], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
