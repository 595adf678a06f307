"""Differences that are known and not mended yet: the rows that show them, by what is missing.

The comparison fails for a row that differs and is not here, and for one that is here and no longer differs.
"""

from collections.abc import Mapping, Sequence
from typing import Final

OPEN: Final[Mapping[str, Sequence[str]]] = {
    "a Service with externalIPs gets no externalTrafficPolicy and no warning": (
        "apply -f - [services]",
        "get services -o yaml",
        "describe svc outside --show-events=false",
    ),
    "a definition has the clean-up finalizer from its creation on, and a warning says so": (
        "create -f - [definition]",
        "apply --server-side --force-conflicts -f - [our definitions]",
        "describe crd gizmos.text.llmkube.dev",
        "get crd gizmos.text.llmkube.dev -o yaml",
        "get crd inferenceservices.inference.llmkube.dev models.inference.llmkube.dev -o yaml",
    ),
    "the warning about a deprecated version does not name the version to use instead": (
        "get gizmos.v1beta1.text.llmkube.dev",
        "get gizmos.v1beta1.text.llmkube.dev one -o yaml",
        "create -f - --dry-run=server [deprecated]",
    ),
    "a Scale is not drawn as a table": ("get gizmo one --subresource=scale",),
    "discovery documents end without a newline": (
        "get --raw /apis/text.llmkube.dev",
        "get --raw /apis/text.llmkube.dev/v1",
        "get --raw /apis/coordination.k8s.io/v1",
    ),
    "a failed JSON patch is told in a sentence of our own": (
        'patch gizmo one --type=json -p \'[{"op":"test","path":"/spec/size","value":9}]\'',
        'patch gizmo one --type=json -p \'[{"op":"remove","path":"/spec/absent"}]\'',
    ),
    "an apply with a mistyped value quotes the value instead of its type": ("apply --server-side -f - [type]",),
    "the warning about FQDN slices is missing": ("create -f - [loopback]",),
    "server-side apply after client-side apply conflicts with kubectl's own earlier fields": (
        "apply --server-side -f - [config conflict]",
    ),
    "server-side apply does not rewrite kubectl's last-applied annotation": (
        "apply --server-side --dry-run=server -f - -o yaml --show-managed-fields",
        "get gizmo one -o yaml --show-managed-fields [after apply]",
        'patch gizmo one --type=merge -p \'{"spec":{"ratio":null}}\' -o yaml',
        'patch svc web -p \'{"spec":{"ports":[{"name":"more","port":81}]}}\' -o yaml',
        'patch cm settings -p \'{"data":{"size":"9","long":null}}\' -o yaml',
        "label svc web stage=x --dry-run=server -o yaml",
        "annotate gizmo one --list",
        "edit gizmo one -o json [json]",
    ),
}
