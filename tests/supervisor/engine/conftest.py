"""What tests of processes share."""

import gc

import pytest


@pytest.fixture
def left_process():
    """For a test that leaves a process's object to the collector, with its pidfd: it goes before the next test begins.

    A real agent takes both with it when it exits. The test names the warning that it expects.
    """
    yield
    gc.collect()
