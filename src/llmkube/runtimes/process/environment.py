"""The environment of an engine is an allow-list of exact names: a service must not reach the host through a variable.

No family of names is harmless: libomp alone reads `OMP_TOOL_LIBRARIES` (a library to load) and `OMP_TOOL_VERBOSE_INIT`
(a file to write, with the text of the first). So each name stands here by itself, with what it does.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from llmkube.k8s.crd.placement import EnvVar
from llmkube.runtimes.allowances import NO_ALLOWANCES, VARIABLE_SETTING, Allowances
from llmkube.runtimes.llama_flags import CONTROL_CHARACTER, MOST_SHOWN
from llmkube.runtimes.plan import PlanError

MOST_VARIABLES: Final = 64
MOST_VALUE: Final = 256
MOST_ALLOWED_VALUE: Final = 4096
"""Characters; the second is for what a host's owner has allowed, such as a path."""

ENV: Final = "spec.env"

OURS: Final[Mapping[str, str]] = {"OMP_TOOL": "disabled"}
"""Set for every engine of a host: libomp then looks for no tool to load (OpenMP 5.2, 21.4)."""

ALLOWED: Final[Mapping[str, str]] = {
    # OpenMP 5.2, chapter 21; libgomp's and libomp's own (gcc.gnu.org/onlinedocs/libgomp, openmp.llvm.org)
    "OMP_NUM_THREADS": "threads of a parallel region",
    "OMP_THREAD_LIMIT": "threads in all",
    "OMP_DYNAMIC": "whether the runtime may take fewer threads",
    "OMP_SCHEDULE": "how the turns of a loop are shared out",
    "OMP_PROC_BIND": "whether threads stay on their processor",
    "OMP_PLACES": "which processors threads are bound to",
    "OMP_WAIT_POLICY": "whether threads that wait spin or sleep",
    "OMP_MAX_ACTIVE_LEVELS": "nested parallel regions",
    "OMP_NESTED": "the same, as it was before OpenMP 5",
    "OMP_STACKSIZE": "stack of each thread",
    "GOMP_CPU_AFFINITY": "libgomp: which processors threads are bound to",
    "GOMP_SPINCOUNT": "libgomp: how long a thread that waits spins",
    "GOMP_STACKSIZE": "libgomp: stack of each thread",
    "KMP_AFFINITY": "libomp: which processors threads are bound to",
    "KMP_BLOCKTIME": "libomp: how long a thread that waits spins",
    "KMP_HW_SUBSET": "libomp: which cores are used",
    # libraries for matrices (openblas.net, Intel's oneMKL guide, Apple's Accelerate)
    "OPENBLAS_NUM_THREADS": "OpenBLAS: threads",
    "MKL_NUM_THREADS": "oneMKL: threads",
    "MKL_DYNAMIC": "oneMKL: whether it may take fewer threads",
    "VECLIB_MAXIMUM_THREADS": "Accelerate: threads",
    # llama.cpp and ggml, each read by getenv() in the file that is named (build 11434)
    "LLAMA_ATTN_ROT_DISABLE": "no rotation of a quantized KV cache (src/llama-kv-cache.cpp)",
    "LLAMA_GRAPH_REUSE_DISABLE": "a new graph for every batch (src/llama-context.cpp)",
    "GGML_NO_BACKTRACE": "no back-trace in the log when the engine aborts (ggml/src/ggml.c)",
    "GGML_OP_OFFLOAD_MIN_BATCH": "smallest batch that goes to the GPU for tensors of the host (ggml-metal-device.m)",
    "GGML_CPU_DISABLE_FUSION": "no fused operations on the CPU (ggml-cpu.c)",
    "GGML_TOTAL_THREADS": "threads that KleidiAI counts on (ggml-cpu/kleidiai)",
    "GGML_KLEIDIAI_SME": "cores with SME that KleidiAI uses (ggml-cpu/kleidiai)",
    "GGML_KLEIDIAI_CHUNK_MULTIPLIER": "size of KleidiAI's pieces of work (ggml-cpu/kleidiai)",
    "GGML_METAL_BF16_DISABLE": "no bfloat16 on Metal (ggml-metal-device.m)",
    "GGML_METAL_TENSOR_DISABLE": "no tensor instructions on Metal (ggml-metal-device.m)",
    "GGML_METAL_TENSOR_ENABLE": "tensor instructions where they are off (ggml-metal-device.m)",
    "GGML_METAL_NO_RESIDENCY": "memory of the GPU is not kept resident (ggml-metal-device.m)",
    "GGML_METAL_RESIDENCY_KEEP_ALIVE_S": "for how many seconds it is (ggml-metal-device.m)",
    "GGML_METAL_SHARED_BUFFERS_DISABLE": "private buffers on Metal (ggml-metal-device.m)",
    "GGML_METAL_SHARED_BUFFERS_ENABLE": "shared ones (ggml-metal-device.m)",
    "GGML_METAL_CONCURRENCY_DISABLE": "one operation at a time (ggml-metal-context.m)",
    "GGML_METAL_FUSION_DISABLE": "no fused operations (ggml-metal-device.m)",
    "GGML_METAL_GRAPH_OPTIMIZE_DISABLE": "operations in the order of the graph (ggml-metal-context.m)",
    "GGML_CUDA_DISABLE_GRAPHS": "no CUDA graphs (ggml-cuda/common.cuh)",
    "GGML_CUDA_DISABLE_FUSION": "no fused operations (ggml-cuda.cu)",
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "memory of the GPU may spill into the host's (ggml-cuda.cu)",
    "GGML_CUDA_NO_PINNED": "no pinned memory of the host (ggml-cuda.cu)",
    "GGML_CUDA_P2P": "copies between GPUs (ggml-cuda.cu)",
    "GGML_VK_VISIBLE_DEVICES": "Vulkan: which GPUs the engine sees (ggml-vulkan.cpp)",
    "GGML_VK_PREFER_HOST_MEMORY": "Vulkan: memory of the host first (ggml-vulkan.cpp)",
    "GGML_VK_DISABLE_F16": "Vulkan: no 16-bit floats (ggml-vulkan.cpp)",
    "GGML_VK_DISABLE_COOPMAT": "Vulkan: no cooperative matrices (ggml-vulkan.cpp)",
    "GGML_VK_DISABLE_COOPMAT2": "Vulkan: no cooperative matrices of the second kind (ggml-vulkan.cpp)",
    "GGML_VK_DISABLE_INTEGER_DOT_PRODUCT": "Vulkan: no integer dot products (ggml-vulkan.cpp)",
    # which GPUs (CUDA's programming guide, HIP's and ROCm's environment variables)
    "CUDA_VISIBLE_DEVICES": "which GPUs the engine sees",
    "CUDA_DEVICE_ORDER": "how CUDA numbers them",
    "HIP_VISIBLE_DEVICES": "the same for AMD's",
    "ROCR_VISIBLE_DEVICES": "the same, a layer below",
    "HSA_OVERRIDE_GFX_VERSION": "which GPU ROCm takes it for",
    # of the C library (POSIX, XBD 8)
    "TZ": "time zone of times in the log and in chat templates",
    "LANG": "language of messages, by the name of a locale",
    "LC_ALL": "the same, above all others",
    "LC_CTYPE": "characters",
    "LC_MESSAGES": "messages",
}
"""What a service may set on a host, and what it does there."""

# No slash, and so no path, in any value but that of TZ, where nothing but a zone's name is let through
_VALUE: Final = re.compile(r"[\w .,:;=@+{}()|*-]*", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z][A-Za-z0-9_+-]*){0,2}", re.ASCII)
_LOCALE: Final = re.compile(r"[A-Za-z][\w.@-]*", re.ASCII)
_FORMS: Final = {"TZ": _ZONE, **dict.fromkeys(("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"), _LOCALE)}

# llama-server reads most of its flags from these as well, also those that no service may set
_FLAGS_IN_DISGUISE: Final = re.compile(r"LLAMA_(ARG|LOG|CHAT)_\w+|LLAMA_API_KEY|LLAMA_CACHE|LLAMA_OFFLINE", re.ASCII)
_WHY: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.ASCII), why)
    for pattern, why in (
        (r"OMP_TOOL_LIBRARIES|(LD|DYLD)_\w+|GGML_BACKEND_PATH|PYTHON\w+|MTL_\w*LIBRAR\w+", "has code loaded"),
        (r"OMP_TOOL_VERBOSE_INIT|MTL_\w+|GGML_METAL_CAPTURE_COMPUTE|\w+_FILE", "names a file, an address or a capture"),
        (r"OMP_TOOL", "is set by LLMKube, so that no tool is loaded"),
        (r"GGML_BACKTRACE_LLDB", "has a debugger run"),
        (r"LLAMA_SERVER_SLOTS_DEBUG|LLAMA_TRACE|\w+_DEBUG", "shows what clients ask"),
        (r"GGML_METAL_PATH_RESOURCES|PATH|HOME|TMPDIR|\w+_(PATH|DIR)", "leads to other files"),
        (r"\w*PROXY|\w*proxy", "leads requests elsewhere"),
        (r"\w*(TOKEN|KEY|SECRET|PASSWORD|CREDENTIALS)", "holds a secret, which the host's owner gives"),
        (r"LLMKUBE_\w+", "is LLMKube's own"),
    )
)
_UNKNOWN: Final = "is not among those that only tune an engine"


def plan_environment(env: Sequence[EnvVar], allowances: Allowances = NO_ALLOWANCES) -> tuple[tuple[str, str], ...]:
    """Return the variables to add to the engine's environment; of two with one name the later wins, as in a pod.

    Args:
        env: `spec.env`.
        allowances: What the host's owner lets services set besides.

    Raises:
        PlanError: A variable is not on the list, takes its value from elsewhere in the cluster, or has a value that
            no variable of its kind has; the message names it and says what to do.
    """
    if len(env) > MOST_VARIABLES:
        raise PlanError(f"{len(env)} variables are more than {MOST_VARIABLES}", field=ENV)
    planned: dict[str, str] = {}
    for variable in env:
        _check_name(variable.name, allowances)
        if variable.value_from is not None:
            raise PlanError(
                f"{variable.name} takes its value from elsewhere (valueFrom), which a host cannot look up yet: "
                "write it as value",
                field=ENV,
            )
        value = variable.value or ""
        _check_value(variable.name, value, trusted=variable.name in allowances.variables)
        planned[variable.name] = value
    return tuple(planned.items())


def _check_name(name: str, allowances: Allowances) -> None:
    if name in ALLOWED or name in allowances.variables:
        return
    shown = name if name.isprintable() else repr(name)
    shown = shown[:MOST_SHOWN]
    if _FLAGS_IN_DISGUISE.fullmatch(name):
        raise PlanError(f"{shown} sets a flag of the engine: use its field, or extraArgs", field=ENV)
    why = next((why for pattern, why in _WHY if pattern.fullmatch(name)), _UNKNOWN)
    raise PlanError(
        f"{shown} {why}: no service may set it on a host unless the host's owner allows it by "
        f"{VARIABLE_SETTING} {shown}",
        field=ENV,
    )


def _check_value(name: str, value: str, *, trusted: bool) -> None:
    if CONTROL_CHARACTER.search(value):
        raise PlanError(f"the value of {name} has a control character in it, such as a line break", field=ENV)
    most = MOST_ALLOWED_VALUE if trusted else MOST_VALUE
    if len(value) > most:
        raise PlanError(f"the value of {name} is longer than {most} characters", field=ENV)
    if value and not trusted and not _FORMS.get(name, _VALUE).fullmatch(value):
        raise PlanError(f"the value of {name} is none that it can have; a path never is", field=ENV)
