import pytest

from llmkube.supervisor.service import metal
from mac.macs import Mac, StandInKqueue, compiled


@pytest.fixture(scope="session")
def libsystem(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("libsystem"))


@pytest.fixture
def mac_of(libsystem):
    return lambda release: Mac.of(libsystem, release)


@pytest.fixture
def on_metal(monkeypatch):
    """Every engine of a host with Metal runs on Metal."""
    monkeypatch.setattr(metal, "uses_metal", lambda launch, settings: settings.metal)


@pytest.fixture
def kqueue():
    return StandInKqueue()
