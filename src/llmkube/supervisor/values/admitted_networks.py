"""Networks whose requests published engines answer without a key: `--allow-from` and the cluster's nodes.

The agent writes them to a file in its state directory; its proxies and `llmkube agent status` read it. Pure.
"""

import json
from pathlib import Path
from typing import Any, Final

import attrs

_MAX_SHOWN: Final = 8


@attrs.frozen
class AdmittedNetworks:
    """Networks (CIDR) whose requests need no key, in addition to the host's own addresses.

    Attributes:
        given: Networks of `--allow-from`.
        nodes: Addresses and pod CIDRs of the cluster's nodes.
        problem: Reason why the nodes are unknown; "" if they are known.
    """

    given: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def closed(self) -> str:
        """Reason why every request from another host needs a key; "" if some need none."""
        if self.given or self.nodes:
            return ""
        return f"{self.problem or 'no nodes'}, and no --allow-from"

    @property
    def summary(self) -> str:
        """Description of the networks for people."""
        if "0.0.0.0/0" in self.given:
            return "every address"
        parts = ["this machine"]
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
            ValueError: The text is not such a file.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            return cls(tuple(map(str, data["given"])), tuple(map(str, data["nodes"])), str(data["problem"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the file of admitted networks: {error!r}") from error


def networks_path(state_dir: Path) -> Path:
    """Return the path of the file. It stays when the agent ends, since engines may continue."""
    return state_dir / "admitted-networks.json"


def _shown(networks: tuple[str, ...]) -> str:
    more = len(networks) - _MAX_SHOWN
    return ", ".join(networks[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
