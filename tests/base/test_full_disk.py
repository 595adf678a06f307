import errno

import pytest

from llmkube.base.full_disk import free_bytes, full_disk, is_disk_full


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_two_errors_mean_that_there_is_no_room(number, full):
    """A quota is as full as a disk; a missing right is neither."""
    assert is_disk_full(OSError(number, "x")) is full


def test_the_sentence_names_folder_figure_and_way_out(tmp_path):
    """Who reads it knows where, and what helps; where nobody can say how much is free, nothing is said of it."""
    assert free_bytes(tmp_path) > 0
    told = full_disk(tmp_path)
    assert told.startswith(f"the disk of {tmp_path} is full (")
    assert told.endswith(" free); free some space on it, and work resumes automatically")
    assert free_bytes(tmp_path / "none") is None
    assert full_disk(tmp_path / "none") == (
        f"the disk of {tmp_path / 'none'} is full; free some space on it, and work resumes automatically"
    )
