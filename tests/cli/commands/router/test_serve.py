"""URLs of the services of a standalone router."""

from pathlib import Path

import pytest

from llmkube.base.errors import UserError
from llmkube.cli.commands.router.serve import source_of
from llmkube.programs.config import RouterConfig

ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: { name: front }
spec:
  backends: [{ name: mac, inferenceServiceRef: { name: phi } }]
  defaultRoute: mac
"""


def config_with(folder: Path, service: str):
    file = folder / "router.yaml"
    file.write_text(ROUTER)
    return source_of(str(file), RouterConfig(state_dir=folder, service=(service,))).load()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8081/v1", "http://10.1.2.3/v1", "http://mac.local:8081/v1"])
def test_a_service_answers_at_the_configured_url(tmp_path, url):
    assert config_with(tmp_path, f"phi={url}").backends["mac"].base_url == url


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ("phi", "is not a service; write NAME=URL"),
        ("phi=ftp://x", "is not a service; write NAME=URL"),
        ("phi=https://api.openai.com/v1", "https://api.openai.com/v1 may be outside of this network"),
        ("phi=http://8.8.8.8/v1", "declare an external backend"),
    ],
)
def test_service_outside_these_networks_is_refused(tmp_path, service, words):
    """A service must be local, since it receives sensitive data."""
    with pytest.raises(UserError, match=words):
        config_with(tmp_path, service)
