"""Which image serves a runtime on which kind of GPU: pinned, so that a restart never brings another engine.

An operator may name others by the runtime's name and the kind of GPU (`registry.IMAGES`), and may put a registry of his
own before ours (air-gapped clusters). A user's `spec.image` wins over both and is taken as it is.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.runtimes.plan import PlanError

CPU: Final = "cpu"
"""The compute stack of pods of which it is known that the bundled engine serves them."""


@attrs.frozen
class Images:
    """What an operator has to say about images.

    Attributes:
        overrides: Images by the keys of `registry.IMAGES`; a bare runtime's name stands for all of its stacks.
        registry: Takes the place of the registry in every pinned image, such as `registry.local:5000/mirror`.
    """

    overrides: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    registry: str = ""

    def choose(self, runtime: str, stack: str, pinned: str = "") -> str:
        """Return the image of a runtime.

        Args:
            runtime: Its name, or that of the one whose image it uses.
            stack: `cuda`, `rocm`, `vulkan`, `intel`, `cpu`, or empty where no GPU is asked for.
            pinned: What the runtime brings itself.

        Raises:
            PlanError: There is none: the user has to name one.
        """
        key = f"{runtime}-{stack}" if stack else runtime
        for name in (key, runtime):
            if name in self.overrides:
                return self.overrides[name]
        if not pinned:
            on = f" on {stack}" if stack else ""
            raise PlanError(f"there is no image of ours for {runtime}{on}: name one", field="spec.image")
        return self._mirrored(pinned)

    def superseded(self, runtime: str, stack: str, pinned: str) -> str:
        """Return the image that pods have had if the one for their stack was named later; empty where it is the same.

        What serves with it need not be replaced for that alone.

        Args:
            runtime: As for `choose`.
            stack: As for `choose`.
            pinned: As for `choose`.
        """
        key = f"{runtime}-{stack}"
        others = {name: image for name, image in self.overrides.items() if name != key}
        return "" if key not in self.overrides else attrs.evolve(self, overrides=others).choose(runtime, stack, pinned)

    def _mirrored(self, image: str) -> str:
        if not self.registry:
            return image
        host, slash, path = image.partition("/")
        is_registry = bool(slash) and ("." in host or ":" in host or host == "localhost")
        return f"{self.registry.rstrip('/')}/{path if is_registry else image}"
