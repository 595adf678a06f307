"""A deadline for every test in this folder: a test that hangs fails."""

import functools
import inspect

import pytest
import trio

from e2e.addresses import own_address
from e2e.client_packages import find_client_packages
from e2e.kubectl_tool import needs_kubectl
from lengths import MANY_SECONDS

DEADLINE_SECONDS = 600.0 + MANY_SECONDS  # some tests start twenty programs on a busy machine


def pytest_itemcollected(item):
    # A deadline in a fixture would not apply to the test, since pytest-trio runs each fixture in its own task.
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
    """The folder of third-party client packages."""
    return find_client_packages()


@pytest.fixture
def address():
    """An address of this machine that Kubernetes accepts in a slice."""
    return own_address()


@pytest.fixture
def kubectl_program():  # not async: a skip within Trio loses its reason
    return needs_kubectl()
