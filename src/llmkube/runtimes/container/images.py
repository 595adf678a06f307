"""Choose the image for a runtime and a kind of GPU. Our images are pinned, so that a restart never changes the engine.

An operator may override them by runtime and kind of GPU (`registry.IMAGES`), and may replace the registry (air-gapped
clusters). A user's `spec.image` has precedence over both and is used unchanged.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.runtimes.plan import PlanError

CPU: Final = "cpu"
"""Compute stack of pods that the bundled engine can serve."""


@attrs.frozen
class Images:
    """An operator's settings for images.

    Attributes:
        overrides: Images by the keys of `registry.IMAGES`; the bare name of a runtime applies to all of its stacks.
        registry: Replaces the registry in every pinned image, such as `registry.local:5000/mirror`.
    """

    overrides: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    registry: str = ""

    def choose(self, runtime: str, stack: str, pinned: str = "") -> str:
        """Return the image of a runtime.

        Args:
            runtime: Its name, or that of the runtime whose image it uses.
            stack: `cuda`, `rocm`, `vulkan`, `intel`, `cpu`, or empty if no GPU is requested.
            pinned: The runtime's own image.

        Raises:
            PlanError: There is no image; the user has to name one.
        """
        key = f"{runtime}-{stack}" if stack else runtime
        for name in (key, runtime):
            if name in self.overrides:
                return self.overrides[name]
        if not pinned:
            on = f" on {stack}" if stack else ""
            raise PlanError(f"LLMKube has no image for {runtime}{on}; name one", field="spec.image")
        return self._mirrored(pinned)

    def superseded(self, runtime: str, stack: str, pinned: str) -> str:
        """Return the image that pods had before an override for their stack was added; empty if it is the same.

        Pods that serve with it need not be replaced for that reason alone. The arguments are those of `choose`.
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
