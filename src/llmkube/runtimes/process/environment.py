"""Check the environment variables of an engine against a list of exact names, which protects the host from a service.

No prefix is harmless: libomp alone reads `OMP_TOOL_LIBRARIES` (a library to load) and `OMP_TOOL_VERBOSE_INIT` (a file
to write, with the text of the first). So `allowed_variables.toml` lists each name, with its effect.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from llmkube.base.package_data import read_table
from llmkube.k8s.crd.placement import EnvVar
from llmkube.runtimes.allowances import NO_ALLOWANCES, VARIABLE_SETTING, Allowances
from llmkube.runtimes.llama_flags import CONTROL_CHARACTER, MAX_SHOWN
from llmkube.runtimes.plan import PlanError

MAX_VARIABLES: Final = 64
MAX_VALUE_CHARS: Final = 256
MAX_ALLOWED_VALUE_CHARS: Final = 4096
"""Characters; the second limit is for variables that the owner of the host allows, which may hold a path."""

ENV: Final = "spec.env"

FIXED_VARIABLES: Final[Mapping[str, str]] = {"OMP_TOOL": "disabled"}
"""Set for every engine on a host, so that libomp does not look for tools to load (OpenMP 5.2, 21.4)."""

ALLOWED: Final[Mapping[str, str]] = read_table(__package__, "allowed_variables")
"""Variables that a service may set on a host, and their effects."""

# No value may contain a slash, and so a path, except TZ, which must be the name of a zone
_VALUE: Final = re.compile(r"[\w .,:;=@+{}()|*-]*", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z][A-Za-z0-9_+-]*){0,2}", re.ASCII)
_LOCALE: Final = re.compile(r"[A-Za-z][\w.@-]*", re.ASCII)
_LOCALES: Final = ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES")
_VALUE_PATTERNS: Final = {"TZ": _ZONE, **dict.fromkeys(_LOCALES, _LOCALE)}
_FORM: Final = "only ASCII letters, digits, spaces and .,:;=@+{}()|*_-"
_FORMS: Final = {"TZ": "a time zone, such as Europe/Berlin", **dict.fromkeys(_LOCALES, "a locale, such as C.UTF-8")}

# llama-server also reads most of its flags from these variables, including those that are not allowed
_FLAG_VARIABLES: Final = re.compile(r"LLAMA_(ARG|LOG|CHAT)_\w+|LLAMA_API_KEY|LLAMA_CACHE|LLAMA_OFFLINE", re.ASCII)
_REFUSALS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.ASCII), reason)
    for pattern, reason in (
        (r"OMP_TOOL_LIBRARIES|(LD|DYLD)_\w+|GGML_BACKEND_PATH|PYTHON\w+|MTL_\w*LIBRAR\w+", "loads code"),
        (r"OMP_TOOL_VERBOSE_INIT|MTL_\w+|GGML_METAL_CAPTURE_COMPUTE|\w+_FILE", "names a file, address or GPU capture"),
        (r"OMP_TOOL", "is set by LLMKube to prevent the loading of tools"),
        (r"GGML_BACKTRACE_LLDB", "starts a debugger"),
        (r"LLAMA_SERVER_SLOTS_DEBUG|LLAMA_TRACE|\w+_DEBUG", "exposes the requests of clients"),
        (r"GGML_METAL_PATH_RESOURCES|PATH|HOME|TMPDIR|\w+_(PATH|DIR)", "redirects the engine to other files"),
        (r"\w*PROXY|\w*proxy", "redirects requests"),
        (r"\w*(TOKEN|KEY|SECRET|PASSWORD|CREDENTIALS)", "holds a secret"),
        (r"LLMKUBE_\w+", "is reserved for LLMKube"),
    )
)
_UNKNOWN: Final = "is not among the variables that only tune an engine"


def plan_environment(env: Sequence[EnvVar], allowances: Allowances = NO_ALLOWANCES) -> tuple[tuple[str, str], ...]:
    """Return the variables to add to the engine's environment; of two with one name the later wins, as in a pod.

    Args:
        env: `spec.env`.
        allowances: Variables that the owner of the host allows in addition to the list.

    Raises:
        PlanError: A variable is not allowed, takes its value from elsewhere (`valueFrom`), or has an invalid value.
    """
    if len(env) > MAX_VARIABLES:
        raise PlanError(f"too many variables: {len(env)}; write at most {MAX_VARIABLES}", field=ENV)
    planned: dict[str, str] = {}
    for variable in env:
        _check_name(variable.name, allowances)
        if variable.value_from is not None:
            problem = f"{variable.name} takes its value from elsewhere (valueFrom), which is not supported here yet"
            raise PlanError(f"{problem}; write it as value", field=ENV)
        value = variable.value or ""
        _check_value(variable.name, value, trusted=variable.name in allowances.variables)
        planned[variable.name] = value
    return tuple(planned.items())


def _check_name(name: str, allowances: Allowances) -> None:
    if name in ALLOWED or name in allowances.variables:
        return
    shown = (name if name.isprintable() else repr(name))[:MAX_SHOWN]
    if _FLAG_VARIABLES.fullmatch(name):
        raise PlanError(f"{shown} sets a flag of the engine; use its field, or extraArgs", field=ENV)
    reason = next((reason for pattern, reason in _REFUSALS if pattern.fullmatch(name)), _UNKNOWN)
    advice = f"remove it, or allow it on this machine with {VARIABLE_SETTING} {shown}"
    raise PlanError(f"{shown} {reason}; {advice}", field=ENV)


def _check_value(name: str, value: str, *, trusted: bool) -> None:
    if CONTROL_CHARACTER.search(value):
        raise PlanError(f"the value of {name} contains a control character, such as a line break", field=ENV)
    limit = MAX_ALLOWED_VALUE_CHARS if trusted else MAX_VALUE_CHARS
    if len(value) > limit:
        raise PlanError(f"the value of {name} is longer than {limit} characters", field=ENV)
    if value and not trusted and not _VALUE_PATTERNS.get(name, _VALUE).fullmatch(value):
        form = _FORMS.get(name, _FORM)
        raise PlanError(f"the value of {name} is not valid; write {form}", field=ENV)
