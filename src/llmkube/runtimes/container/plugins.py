"""Runtimes of other packages: entry points of the group `llmkube.runtimes`, each naming a `builder.Runtime`.

Plug-ins are looked up only when a spec names a runtime that is not built in, and for the CRDs. An unusable plug-in
affects only services that name it: these are rejected with the reason and the package.
"""

import copy
import functools
import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.base.errors import UserError
from llmkube.k8s.crd.definitions import object_schema
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import FORMATS
from llmkube.k8s.crd.pairing import RUNTIMES
from llmkube.k8s.fields import wire_fields
from llmkube.runtimes.container.builder import Runtime

GROUP: Final = "llmkube.runtimes"


class PluginError(UserError):
    """An installed plug-in cannot be used; the message names it and its package."""


@attrs.frozen
class InstalledPlugins:
    """Installed plug-ins: usable runtimes, and a message for each unusable one."""

    runtimes: tuple[Runtime, ...] = ()
    problems: tuple[str, ...] = ()


@functools.cache
def installed() -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
    """Return all entry points of the group, by name, without importing them. Read once per process."""
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


@functools.cache
def load(name: str) -> Runtime | None:
    """Return the plug-in with this name; None if it is not installed.

    Raises:
        PluginError: It is installed and cannot be used.
    """
    points = installed().get(name, ())
    if not points:
        return None
    owners = " and ".join(sorted({_owner(point) for point in points}))
    if len(points) > 1:
        raise PluginError(f"runtime {name} is provided more than once, by {owners}; uninstall all but one")
    if name in RUNTIMES:
        raise PluginError(f"runtime {name} is built in; {owners} must use another name")
    try:
        runtime = points[0].load()
    except Exception as exc:  # whatever importing a foreign package may raise
        raise PluginError(f"runtime {name} of {owners} cannot be loaded: {type(exc).__name__}: {exc}") from exc
    if problem := _problem(name, runtime):
        raise PluginError(f"runtime {name} of {owners} cannot be used: {problem}")
    return runtime  # type: ignore[no-any-return]  # checked by _problem


def find_installed() -> InstalledPlugins:
    """Load all installed plug-ins, and return them with the problems of those that cannot be used."""
    runtimes, problems, config_keys = [], [], dict[str, str]()
    for name in sorted(installed()):
        try:
            runtime = load(name)
        except PluginError as exc:
            problems.append(str(exc))
            continue
        if runtime is None:
            continue
        key = runtime.config_key
        if key in config_keys:
            problems.append(f"runtime {name} cannot be used: {config_keys[key]} also has its options in spec.{key}")
            continue
        if key:
            config_keys[key] = name
        runtimes.append(runtime)
    return InstalledPlugins(tuple(runtimes), tuple(problems))


def extend_crds(crds: Iterable[Mapping[str, Any]], runtimes: Iterable[Runtime]) -> list[dict[str, Any]]:
    """Return the CRDs with the names and options of further runtimes; without any, the CRDs are unchanged."""
    extended = copy.deepcopy([dict(crd) for crd in crds])
    for crd in extended:
        if crd["spec"]["names"]["kind"] == InferenceService.RESOURCE.kind:
            for version in crd["spec"]["versions"]:
                spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
                for runtime in runtimes:
                    spec["runtime"]["enum"].append(runtime.name)
                    if runtime.config is not None:
                        spec[runtime.config_key] = object_schema(runtime.config)
    return extended


def _owner(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"


def _problem(name: str, runtime: Any) -> str:
    """Return the problem with the object that an entry point names; empty if there is none."""
    if not isinstance(runtime, Runtime):
        return f"its entry point names a {type(runtime).__name__}, not an llmkube.runtimes.container.builder.Runtime"
    if runtime.name != name:
        return f"its name is {runtime.name!r}"
    if unknown := [each for each in runtime.reads if each not in FORMATS]:
        return f"it reads {unknown[0]!r}, which is not one of {', '.join(FORMATS)}"
    if (runtime.config is None) != (not runtime.config_key):
        return "it needs both config and config_key, or neither"
    if runtime.config is None:
        return ""
    if runtime.config_key in {slot.key for slot in wire_fields(InferenceServiceSpec)}:
        return f"the field spec.{runtime.config_key} exists already"
    try:
        object_schema(runtime.config)
    except (TypeError, attrs.exceptions.NotAnAttrsClassError) as exc:
        return f"its config is not a class of fields: {exc}"
    return ""
