"""Fixtures for tests of processes."""

import gc

import pytest


@pytest.fixture
def left_process():
    """Leave a process object and its pidfd to the garbage collector; collect them before the next test starts.

    A real agent releases both when it exits. The test names the warning that it expects.
    """
    yield
    gc.collect()
