"""Deliberate bugs: whether a timeline that one of them must not get through has noticed it."""

import attrs

from llmkube.controller.reconciler import leaves
from llmkube.k8s.codec import encode
from llmkube.k8s.reflector import Cache
from llmkube.k8s.resource import Key


def is_caught(play):
    """Whether an assertion fails while a timeline is played; what breaks off beside that tells nothing."""
    try:
        play()
    except (AssertionError, ExceptionGroup) as error:
        return any(isinstance(leaf, AssertionError) for leaf in leaves(error))
    return False


def keep_what_is_gone(self, listing, original=Cache.replace):
    """A `Cache.replace` that adds what a list has, and takes nothing away."""
    present = {Key.of(raw) for raw in listing.raw}
    gone = tuple(encode(found) for key, found in self.items() if key not in present)
    return original(self, attrs.evolve(listing, raw=(*listing.raw, *gone)))
