"""Who reaches a published engine: the settings that agent and `up` share."""

import sys
from typing import Any, Protocol

from llmkube.programs import engine_proxy
from llmkube.weights.address_policy import parse_networks


class AccessConfig(Protocol):
    """The settings of a program that may publish engines."""

    @property
    def allow_from(self) -> tuple[str, ...]:
        """Networks whose requests need no key."""
        ...

    @property
    def insecure_lan(self) -> bool:
        """Whether no request needs one."""
        ...


def access_settings(config: AccessConfig) -> dict[str, Any]:
    """Return what the agent's settings say about published engines.

    Raises:
        UserError: `--allow-from` names no network.
    """
    return {
        "engine_proxy": (sys.executable, "-m", engine_proxy.__name__),
        "allow_from": tuple(map(str, parse_networks(config.allow_from, field="--allow-from"))),
        "insecure_lan": config.insecure_lan,
    }
