"""Every test in this folder has a deadline: a hang is a failure, and not a test run that never ends."""

import functools
import inspect

import pytest
import trio

from e2e.client_packages import find_client_packages

DEADLINE_SECONDS = 600.0  # of a test that hangs: some start twenty programs, on a machine that is busy


def pytest_itemcollected(item):
    # Around the test's own function: a deadline in a fixture does not reach it, since pytest-trio runs each fixture in
    # a task of its own.
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = within_deadline(item.obj)


def within_deadline(test):
    @functools.wraps(test)
    async def bounded(*args, **kwargs):
        with trio.fail_after(DEADLINE_SECONDS):
            await test(*args, **kwargs)

    return bounded


@pytest.fixture(scope="session")
def client_packages():
    """The folder of other people's clients."""
    return find_client_packages()
