"""The environment of an engine is an allow-list: a service must not reach the host through a variable."""

import re
from collections.abc import Sequence
from typing import Final

from llmkube.k8s.crd.placement import EnvVar
from llmkube.runtimes.plan import PlanError

# What tunes an engine and nothing else. GGML, OpenMP and the vendors' runtimes have no flags for these.
_ALLOWED: Final = re.compile(
    r"LLAMA_\w+|GGML_\w+|OMP_\w+|GOMP_\w+|KMP_\w+|OPENBLAS_\w+|MKL_\w+|VECLIB_\w+|MTL_\w+|TZ|LANG|LC_\w+"
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HSA_OVERRIDE_GFX_VERSION"
)
# llama-server reads most of its flags from these as well, also those that no service may set
_FLAGS_IN_DISGUISE: Final = re.compile(r"LLAMA_(ARG|LOG|CHAT)_\w+|LLAMA_API_KEY|LLAMA_CACHE|LLAMA_OFFLINE")
# these load code or write files in an otherwise harmless family
_DANGEROUS: Final = re.compile(r"GGML_BACKEND_\w*|GGML_METAL_PATH_\w*|MTL_CAPTURE_\w*|\w*_(FILE|PATH|DIR|LIBRARY)")


def plan_environment(env: Sequence[EnvVar]) -> tuple[tuple[str, str], ...]:
    """Return the variables to add to the engine's environment; of two with one name the later wins, as in a pod.

    Raises:
        PlanError: A variable is not on the list, or takes its value from elsewhere in the cluster.
    """
    planned: dict[str, str] = {}
    for variable in env:
        if variable.value_from is not None:
            raise PlanError(
                f"{variable.name} takes its value from elsewhere (valueFrom), which a host cannot look up yet: "
                "write it as value",
                field="spec.env",
            )
        if _FLAGS_IN_DISGUISE.fullmatch(variable.name):
            raise PlanError(f"{variable.name} sets a flag of the engine: use its field, or extraArgs", field="spec.env")
        if _DANGEROUS.fullmatch(variable.name) or not _ALLOWED.fullmatch(variable.name):
            raise PlanError(
                f"{variable.name} must not be set on a host; names that may begin with LLAMA_, GGML_ or OMP_",
                field="spec.env",
            )
        if "\0" in (variable.value or ""):
            raise PlanError(f"{variable.name} has a NUL character in its value", field="spec.env")
        planned[variable.name] = variable.value or ""
    return tuple(planned.items())
