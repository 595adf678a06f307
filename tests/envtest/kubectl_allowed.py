"""The differences between the two servers that a user of kubectl would accept, each with its reason."""

from collections.abc import Sequence
from typing import Final

from envtest.kubectl_text import Allowed

ALLOWED: Final[Sequence[Allowed]] = (
    Allowed(
        "each server describes the fields that every object has in its own words; names and types are compared",
        rows=r"^explain ",
        text=r"(?m)^( +(?:apiVersion|kind|metadata)\t<\w+>.*\n)(?: {4,}\S.*\n)+",
    ),
    Allowed(
        "whoever has the embedded server's token may do everything, so it lists one rule; a cluster lists its roles",
        rows=r"^auth can-i --list",
        text=r"(?m)^(?:selfsubject\S+| +\[)  .*\n|^ +\[.*\n",
    ),
    Allowed(
        "the embedded server has no quotas and no limit ranges, so there is nothing to say about them",
        rows=r"^describe namespace ",
        text=r"(?m)^\nNo resource quota\.\n|^\nNo LimitRange resource\.\n",
    ),
    Allowed(
        "kubectl names the kind in each row when `all` is more than one kind; here Services are all there is in it",
        rows=r"^get all",
        text=r"(?m)^service/",
    ),
    Allowed(
        "where a patch or a body is not the JSON that it should be, a kube-apiserver quotes Go's decoder",
        rows=r"\{broken|'\{\"a\":1\}'|\"ports\":3|\[config type\]",
        text=r"(?:error decoding patch:|patch: Invalid value:|cannot be handled as a ConfigMap:) .*",
    ),
    Allowed(
        "a kube-apiserver forgets when a count was scaled, and who scaled it to 0: the Scale leaves a zero out",
        rows=r"--show-managed-fields \[after all\]",
        text=(
            r"  - apiVersion: .*\n    fieldsType: FieldsV1\n    fieldsV1:\n      f:spec:\n        f:replicas: \{\}\n"
            r"    manager: kubectl\n    operation: Update\n    subresource: scale\n(?:    time: .*\n)?"
        ),
    ),
)
