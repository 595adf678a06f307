"""The owner's word on disk: what `cordon` writes, `status` and the agent read, and `uncordon` takes back."""

import datetime

import pytest
from click.testing import CliRunner

from llmkube.cli.commands.programs.background.cordon_commands import cordon, cordon_sentence, uncordon
from llmkube.supervisor.host_cordon import CordonFile
from llmkube.supervisor.nouns.cordon import Cordon, cordon_path


def run(command, folder, *words):
    return CliRunner().invoke(command, ["--state-dir", str(folder), *words])


def test_what_is_typed_is_what_the_agent_reads(tmp_path):
    """With an end and without; `uncordon` takes it back, also when nothing was said."""
    folder = tmp_path / "state"
    read = CordonFile(cordon_path(folder))
    assert run(cordon, folder).exit_code == 0
    assert read() == Cordon()
    assert run(cordon, folder, "--for", "2h").exit_code == 0
    now = datetime.datetime.now(datetime.UTC)
    assert read().holds(now + datetime.timedelta(minutes=110))
    assert not read().holds(now + datetime.timedelta(minutes=130))
    assert cordon_sentence(folder) == f"serves nothing {read().end}"
    for _ in range(2):
        assert run(uncordon, folder).exit_code == 0
        assert read() is None
    assert cordon_sentence(folder) == ""


@pytest.mark.parametrize("words", ["0", "soon", "9999d"])
def test_a_time_that_is_none_changes_nothing(tmp_path, words):
    """The sentence names the flag."""
    done = run(cordon, tmp_path / "state", "--for", words)
    assert done.exit_code != 0
    assert "--for" in str(done.output) + str(done.exception)
    assert not cordon_path(tmp_path / "state").exists()


def test_a_file_that_is_no_cordon_is_told(tmp_path):
    """`status` names the file, and what removes it."""
    cordon_path(tmp_path).write_text('{"until": "noon"}')
    assert "`llmkube agent uncordon` removes it" in cordon_sentence(tmp_path)
