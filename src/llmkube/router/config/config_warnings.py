"""What a RoutingConfig allows and its author may not have meant; nothing here can leak."""

from collections.abc import Iterator

from llmkube.router.config.config_checks import caught_classes
from llmkube.router.config.model_patterns import covers
from llmkube.router.config.routing_config import Match, RoutingConfig, Rule


def warnings_of(config: RoutingConfig) -> list[str]:
    """Return what is worth a second look, each with field, value and what follows."""
    return [*_out_of_reach(config), *_refused_on_the_way(config), *_refused_at_the_end(config), *_one_name(config)]


def _out_of_reach(config: RoutingConfig) -> Iterator[str]:
    for place, rule in enumerate(config.rules):
        for earlier in config.rules[:place]:
            if _catches_all_of(earlier.match, rule.match):
                when = "never" if earlier.fail_closed else f"only where no backend of {earlier.name} may be used"
                yield f"rules[{place}]: {rule.name} is reached {when}: {earlier.name} above it matches all that it does"
                break


def _catches_all_of(earlier: Match, later: Match) -> bool:
    """Return whether each request that meets `later` meets `earlier` for certain."""
    return (
        (not earlier.classes or (bool(later.classes) and later.classes <= earlier.classes))
        and (not earlier.complexity or earlier.complexity == later.complexity)
        and earlier.headers.items() <= later.headers.items()
        and (
            not earlier.models
            or (bool(later.models) and all(any(covers(one, each) for one in earlier.models) for each in later.models))
        )
        and earlier.capabilities <= later.capabilities
        and (
            earlier.latency_seconds is None
            or (later.latency_seconds is not None and later.latency_seconds <= earlier.latency_seconds)
        )
    )


def _refused_on_the_way(config: RoutingConfig) -> Iterator[str]:
    sensitive = ", ".join(sorted(config.classes.sensitive))
    for place, rule in enumerate(config.rules):
        later = [each.name for each in config.rules[place + 1 :] if each.match.classes & config.classes.sensitive]
        if rule.fail_closed and later and not _has_local(config, rule):
            yield (
                f"rules[{place}]: {rule.name} fails closed and has no local backend: a request of class {sensitive}"
                f" that meets it is refused and never comes to {', '.join(later)}; move it below"
            )


def _has_local(config: RoutingConfig, rule: Rule) -> bool:
    return any(config.backends[name].local for name in rule.backends)


def _refused_at_the_end(config: RoutingConfig) -> Iterator[str]:
    default = config.backends.get(config.default_backend)
    if default is None or default.local:
        return
    uncaught = config.classes.sensitive - caught_classes(config)
    if uncaught:
        yield (
            f"defaultBackend: {default.name} is not local: a request of class {', '.join(sorted(uncaught))} that no"
            " rule matches is refused"
        )


def _one_name(config: RoutingConfig) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name, backend in config.backends.items():
        other = seen.setdefault(backend.model_id, name)
        if other != name and not config.by_model:
            yield f"backends[{name}].modelId: {backend.model_id!r} names {other}, too: clients see one model"
