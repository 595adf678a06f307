"""Restrict the writes of the controller: ValidatingAdmissionPolicies for its ServiceAccount.

Roles define the kinds that it may write. The policies define the objects: those that LLMKube's own kinds own, with pods
that use nothing which the operator has not allowed (`render/pod_policy.py`). They bound what a stolen token may do.
"""

from typing import Any, Final

import yaml

from llmkube.base.package_data import read_text
from llmkube.controller.render import labels, pod_policy, storage
from llmkube.controller.rights import PROGRAM
from llmkube.controller.settings import PRIORITY_CLASS_PREFIXES
from llmkube.k8s.admission_policies import Writer, substitute
from llmkube.k8s.crd.inferenceservice import PRIORITIES
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire import names

_VALUES: Final = {
    **{
        name: sorted(value) if isinstance(value, frozenset) else value
        for module in (names, labels, storage, pod_policy)
        for name, value in vars(module).items()
    },
    "PRIORITY_CLASSES": ["", *(f"{prefix}{one}" for prefix in PRIORITY_CLASS_PREFIXES for one in PRIORITIES)],
    "GROUP": Model.RESOURCE.group,
}


def controller_policies(system_namespace: str) -> list[dict[str, Any]]:
    """Return the policies and their bindings for the controller's account in one namespace.

    What the operator allows is in the variables `allow` and `hostPaths` of the policy for pods, which the chart sets.
    """
    templates = yaml.safe_load(read_text(__package__, "policies.yaml"))
    user = f"system:serviceaccount:{system_namespace}:{PROGRAM.name}"
    condition = {"name": "is-the-controller", "expression": f"request.userInfo.username == '{user}'"}
    values = _VALUES | {"SYSTEM_NAMESPACE": system_namespace}
    return Writer("controller", condition).policies(substitute(templates, values), system_namespace)
