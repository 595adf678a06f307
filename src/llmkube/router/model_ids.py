"""The model ids by which clients name services: shortest names, long names and aliases. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import attrs

from llmkube.k8s.resource import Key


@attrs.frozen
class ModelIds:
    """The ids of several services.

    Attributes:
        services: The service of each id, aliases included.
        names: The shortest id of each service, sorted.
        aliases: The aliases that lead to a service, sorted.
        ambiguous: Names and aliases that several services have, and the ids of these.
    """

    services: Mapping[str, Key]
    names: Sequence[str]
    aliases: Sequence[str]
    ambiguous: Mapping[str, tuple[str, ...]]


def model_ids(aliases: Mapping[Key, Iterable[str]]) -> ModelIds:
    """Return the ids of services: the name, `namespace/name` if a name occurs twice, and aliases.

    An alias leads to its service unless it is also the name of a service, or an alias of two.

    Args:
        aliases: The aliases of each service.
    """
    names: dict[str, list[Key]] = {}
    for key in aliases:
        names.setdefault(key.name, []).append(key)
    unique = {name: keys[0] for name, keys in names.items() if len(keys) == 1}
    services = {str(key): key for key in aliases} | unique
    candidates: dict[str, dict[Key, None]] = {}
    for key, own in aliases.items():
        for alias in own:
            if alias not in services and alias not in names:
                candidates.setdefault(alias, {})[key] = None
    led = {alias: next(iter(keys)) for alias, keys in candidates.items() if len(keys) == 1}
    return ModelIds(
        services=services | led,
        names=sorted(key.name if key.name in unique else str(key) for key in aliases),
        aliases=sorted(led),
        ambiguous={each: tuple(sorted(map(str, keys))) for each, keys in (names | candidates).items() if len(keys) > 1},
    )
