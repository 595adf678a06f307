"""What a router runs by at a moment."""

import attrs

from llmkube.router.auth.principals import Clients
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.proxy.metrics import known_classes


@attrs.define(eq=False)
class Routing:
    """What counts now; a reload replaces it as a whole, and requests under way keep theirs.

    Attributes:
        config: What the router runs by.
        clients: What lets clients in; None where everybody may ask.
    """

    config: RoutingConfig
    clients: Clients | None
    classes: frozenset[str] = attrs.field(init=False)
    balances: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.classes = known_classes(self.config)
        self.balances = any(each.strategy == "least-loaded" and len(each.backends) > 1 for each in self.config.rules)
