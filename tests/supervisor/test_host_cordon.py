"""A file of the owner that is edited, broken and removed; `sim/test_cordon.py` covers the consequences."""

import datetime
import os

from llmkube.supervisor.host_cordon import CordonFile, HostCordon
from llmkube.supervisor.values.cordon import Cordon, cordon_text

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def test_a_file_that_breaks_changes_nothing(tmp_path):
    """The last valid content applies, until the file is valid again, or removed."""
    path = tmp_path / "cordon.json"
    host = HostCordon(CordonFile(path), lambda: NOON, frozenset({"metal"}), lambda: False, lambda: None)
    assert not host.refresh()
    assert host.serves == {"metal"}
    path.write_text(cordon_text(Cordon()))
    assert host.refresh()
    assert host.serves == frozenset()
    path.write_text("half of")
    os.utime(path, (1, 1))
    assert not host.refresh()
    assert host.serves == frozenset()
    path.unlink()
    assert host.refresh()
    assert host.serves == {"metal"}
