"""The networks whose requests published engines answer without a key: `--allow-from`, and those of the cluster's nodes.

An agent writes them into a file of its state directory, which its proxies, and `llmkube agent status`, read. Pure.
"""

import json
from pathlib import Path
from typing import Any, Final

import attrs

_MAX_SHOWN: Final = 8


@attrs.frozen
class AdmittedNetworks:
    """The networks (CIDR) whose requests need no key, beside this host's own.

    Attributes:
        given: Those of `--allow-from`.
        nodes: The addresses of the cluster's nodes and their pod CIDRs.
        problem: Why the nodes are not known; "" where they are.
    """

    given: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def closed(self) -> str:
        """Why every request from elsewhere needs a key; "" where some need none."""
        if self.given or self.nodes:
            return ""
        return f"{self.problem or 'no nodes'}, and no --allow-from"

    @property
    def summary(self) -> str:
        """For people: who needs no key."""
        if "0.0.0.0/0" in self.given:
            return "every address"
        parts = ["this host"]
        parts += [f"nodes ({_shown(self.nodes)})"] if self.nodes else []
        parts += [f"--allow-from ({_shown(self.given)})"] if self.given else []
        return ", ".join(parts) + (f"; {self.problem}" if self.problem else "")

    def dump(self) -> str:
        """Return the text of the file."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def load(cls, text: str) -> "AdmittedNetworks":
        """Read what `dump` wrote.

        Raises:
            ValueError: It is none.
        """
        try:
            said: dict[str, Any] = json.loads(text)
            return cls(tuple(map(str, said["given"])), tuple(map(str, said["nodes"])), str(said["problem"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the file of admitted networks: {error!r}") from error


def networks_path(state_dir: Path) -> Path:
    """Return the file; it outlives the agent, as its engines may."""
    return state_dir / "admitted-networks.json"


def _shown(networks: tuple[str, ...]) -> str:
    more = len(networks) - _MAX_SHOWN
    return ", ".join(networks[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
