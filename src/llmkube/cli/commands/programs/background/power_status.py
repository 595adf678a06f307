"""What this host draws, for `llmkube agent status`: read from the metrics of the agent. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from llmkube.supervisor.power.sample import COMBINED

NOT_MEASURED: Final = "not measured"

_SERIES: Final = re.compile(r"llmkube_metal_agent_(\w+?)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@attrs.frozen
class _Series:
    name: str
    labels: Mapping[str, str]
    value: float


def power_words(exposition: str) -> dict[str, str]:
    """Return what is to be said of power, by the word that begins its lines; nothing where it is not measured at all.

    A service is a line of its own, its name at the end: what a narrow terminal cuts is no figure.
    """
    domains: dict[str, float] = {}
    services: dict[str, list[str]] = {}
    problem = ""
    for each in _series(exposition):
        name = f"{each.labels.get('namespace')}/{each.labels.get('name')}"
        if each.name == "power_problem":
            problem = each.labels.get("reason", "")
        elif each.name == "power_watts":
            domains[each.labels.get("domain", "")] = each.value
        elif found := re.fullmatch(r"apple_power_(\w+)_watts", each.name):
            domains[found[1]] = each.value
        elif each.name == "service_power_watts":
            services.setdefault(name, []).insert(0, f"{each.value:.1f} W")
        elif each.name == "service_joules_per_token":
            services.setdefault(name, []).append(f"{_figure(each.value)} J per token")
    host = _of_host(domains, problem)
    said = {"power": host} if host else {}
    if services:
        shown = [(", ".join(words), name) for name, words in sorted(services.items())]
        width = max(len(figures) for figures, _ in shown)
        said["draws"] = "\n".join(f"{figures:<{width}}  {name}" for figures, name in shown)
    return said


def _of_host(domains: Mapping[str, float], problem: str) -> str:
    parts = ", ".join(f"{domain} {watts:.1f}" for domain, watts in sorted(domains.items()) if domain != COMBINED)
    if COMBINED in domains:
        return f"{domains[COMBINED]:.1f} W ({parts})"
    if parts:
        return f"{parts} W; the rest is {NOT_MEASURED}: {problem}"
    return f"{NOT_MEASURED}: {problem}; see `llmkube agent logs`" if problem else ""


def _figure(value: float) -> str:
    """Two digits, and never an exponent for a large one."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def without_figures(said: Mapping[str, str]) -> dict[str, str]:
    """Return what changes seldom: a program that gets a line per change is not told watts every two seconds."""
    figures = {word for word in ("power", "draws") if not said.get(word, "").startswith(NOT_MEASURED)}
    return {word: value for word, value in said.items() if word not in figures}


def _series(exposition: str) -> Iterator[_Series]:
    for line in exposition.splitlines():
        if (found := _SERIES.fullmatch(line)) is None:
            continue
        try:
            yield _Series(found[1], dict(_LABEL.findall(found[2] or "")), float(found[3]))
        except ValueError:
            continue
