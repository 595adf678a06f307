"""The options that every daemon's front has."""

import pytest

from llmkube.programs.daemon_engine.serving import read_keys


def test_keys_are_read_as_llama_server_reads_them(tmp_path):
    """A line each; lines that begin with # are none."""
    path = tmp_path / "keys"
    path.write_text("# two\na\n\n b \n")
    assert read_keys(path) == {"a", "b"}
    path.write_text("\n# none\n")
    with pytest.raises(ValueError, match="holds no key"):
        read_keys(path)
