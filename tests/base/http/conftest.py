"""Both implementations of sockets."""

import sys

import pytest

from llmkube.base.http.hub import TrioSockets, open_sockets


@pytest.fixture(params=["hub", "trio"])
async def sockets(request):
    """Both implementations of sockets; every test passes with either."""
    if request.param == "trio":
        yield TrioSockets()
    elif sys.platform == "linux":
        async with open_sockets() as hub:
            yield hub
