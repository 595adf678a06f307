"""Restrict the writes of each host: ValidatingAdmissionPolicies, which kube-apiserver 1.31 and later evaluate.

Roles define the kinds that an agent may write. The policies define the objects and fields: those of its own host, and
those of services that all hosts share. They apply only to the ServiceAccounts `llmkube-agent-HOST` of one namespace;
HOST identifies the host, never anything that it writes.

Two policies compare with other objects, which are their parameters. The API server evaluates a policy once per
parameter, and all evaluations must pass: a host's networks are on its own ServiceAccount, and a Service without our
label is one that no slice of a host may belong to. These two policies match labelled objects only, so that a missing
parameter blocks no other writer in the cluster.

CEL has no clock, so a policy cannot check that the holder of a claim is gone; it trusts the host that takes over.
"""

from typing import Any, Final

import yaml

from llmkube.base.package_data import read_text
from llmkube.k8s.admission_policies import Writer, substitute
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire import names
from llmkube.supervisor.cluster.status import MODEL_CONDITIONS, MODEL_FIELDS, SERVICE_CONDITIONS, SERVICE_FIELDS

MAX_TOKEN_SECONDS: Final = 30 * 24 * 3600
"""Longest lifetime of a token that a host may request."""

_IS_PREDECESSORS: Final = (
    f"oldObject != null && oldObject.metadata.?labels[?'{names.PREDECESSOR_LABEL}'].orValue('') == "
    f"'{names.PREDECESSOR}' && oldObject.metadata.?ownerReferences.orValue([]).size() == 0"
)
_VALUES: Final = {
    **{name: value for name, value in vars(names).items() if name.isupper()},
    "GROUP": InferenceService.RESOURCE.group,
    "KIND": InferenceService.RESOURCE.kind,
    "MAX_TOKEN_SECONDS": MAX_TOKEN_SECONDS,
    "THEIRS": _IS_PREDECESSORS,
}
_STATUSES: Final = ((InferenceService, SERVICE_FIELDS, SERVICE_CONDITIONS), (Model, MODEL_FIELDS, MODEL_CONDITIONS))


def host_policies(system_namespace: str) -> list[dict[str, Any]]:
    """Return the policies and their bindings for the hosts whose accounts are in one namespace."""
    text = read_text(__package__, "host_policies.yaml")
    object_templates, status_template = yaml.safe_load_all(text)
    values = _VALUES | {"SYSTEM_NAMESPACE": system_namespace}
    policies: list[dict[str, Any]] = substitute(object_templates, values)
    for kind, fields, conditions in _STATUSES:
        values |= {
            "PLURAL": kind.RESOURCE.plural,
            "OUR_FIELDS": [*fields, "conditions"],
            "TYPES": list(conditions),
            "FIELDS_SAID": ", ".join(fields),
            "TYPES_SAID": ", ".join(conditions),
        }
        policies += substitute(status_template, values)
    account = f"system:serviceaccount:{system_namespace}:{names.HOST_ACCOUNT_PREFIX}"
    writer = Writer(
        "host",
        {"name": "is-a-host", "expression": f"request.userInfo.username.startsWith('{account}')"},
        {"host": f"request.userInfo.username.split(':')[3].substring({len(names.HOST_ACCOUNT_PREFIX)})"},
    )
    return writer.policies(policies, system_namespace)
