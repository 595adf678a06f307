import errno

import pytest

from llmkube.base.full_disk import free_bytes, full_disk, is_disk_full


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_two_errors_mean_a_full_disk(number, full):
    """A quota is as full as a disk; a missing right is neither."""
    assert is_disk_full(OSError(number, "x")) is full


def test_the_message_names_folder_figure_and_fix(tmp_path):
    """The message has the folder and the fix; if free space is unknown, it is left out."""
    assert free_bytes(tmp_path) > 0
    message = full_disk(tmp_path)
    assert message.startswith(f"the disk of {tmp_path} is full (")
    assert message.endswith(" free); free some space on it, and work resumes automatically")
    assert free_bytes(tmp_path / "none") is None
    assert full_disk(tmp_path / "none") == (
        f"the disk of {tmp_path / 'none'} is full; free some space on it, and work resumes automatically"
    )
