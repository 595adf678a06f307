"""`llmkube version --check`: asked when it is asked for, and compared by numbers."""

import pytest
from click.testing import CliRunner

from llmkube import __version__
from llmkube.cli.commands.tools import update_check
from llmkube.cli.commands.tools.update_check import as_numbers, released, told
from llmkube.cli.main import cli
from llmkube.programs.failures import CommandError

PRINTED = "llmkube (0.10.0)\nAvailable versions: 0.10.0, 0.9.19, 0.9.2rc1\n  INSTALLED: 0.9.19\n"


def test_releases_follow_each_other_by_number():
    """0.10.0 is newer than 0.9.19, and what is no final release is none."""
    assert released(PRINTED) == ["0.10.0", "0.9.19"]
    assert as_numbers("0.10.0") > as_numbers("0.9.19")
    assert released("nothing") == []


@pytest.mark.parametrize(
    ("newest", "words"), [("99.0", "the index has 99.0 of a package named llmkube; "), ("0.0.1", "no newer release")]
)
def test_a_newer_release_is_told_with_how_to_get_it(monkeypatch, newest, words):
    """What the index has decides; only --check asks it."""
    monkeypatch.setattr(update_check, "_asked", lambda: f"Available versions: {newest}\n")
    assert words in told()
    done = CliRunner().invoke(cli, ["version", "--check"])
    assert done.output.startswith(f"llmkube {__version__}\n")
    assert words in done.output
    monkeypatch.setattr(update_check, "_asked", lambda: pytest.fail("asked"))
    assert CliRunner().invoke(cli, ["version"]).output == f"llmkube {__version__}\n"


def test_an_index_that_does_not_say_is_told(monkeypatch):
    """Pip's last words are the error, from an index that has no such package."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(CommandError, match="the package index does not say: ERROR"):
        told()


def test_without_pip_the_way_is_named(monkeypatch):
    """An environment of pipx or uv has no pip: their own commands know."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CommandError, match="`uv tool list --outdated`"):
        told()
