"""The policies match the programs: the status fields that an agent writes, and the accounts that they apply to."""

import yaml

from llmkube.k8s.wire.conditions import FETCHED
from llmkube.supervisor.cluster.status import MODEL_CONDITIONS, SERVICE_CONDITIONS
from llmkube.supervisor.host_policies import host_policies


def by_end(kind="ValidatingAdmissionPolicy", system="sys"):
    found = [one for one in host_policies(system) if one["kind"] == kind]
    return {one["metadata"]["name"].removeprefix("llmkube-host-").removesuffix(f".{system}"): one for one in found}


def test_each_policy_is_bound_and_refuses():
    """A policy without a binding, or one that only warns, confines no host; one with an error denies everything."""
    bindings = by_end("ValidatingAdmissionPolicyBinding")
    assert bindings.keys() == by_end().keys()
    for name, policy in by_end().items():
        binding = bindings[name]["spec"]
        assert binding["policyName"] == policy["metadata"]["name"]
        assert binding["validationActions"] == ["Deny"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert ("paramRef" in binding) == ("paramKind" in policy["spec"])


def test_they_apply_to_the_hosts_of_one_namespace():
    """Hosts are identified by their account's name; their shared account and other namespaces are excluded."""
    for policy in by_end().values():
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == (
            "request.userInfo.username.startsWith('system:serviceaccount:sys:llmkube-agent-')"
        )


def test_a_missing_parameter_blocks_no_other_writer():
    """The server reads parameters before the requester: such a policy applies to labelled objects alone."""
    for name, policy in by_end().items():
        if "paramKind" in policy["spec"]:
            (asked,) = policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
            assert asked == {"key": "inference.llmkube.dev/service", "operator": "Exists"}, name


def test_fields_that_agents_write_are_in_the_policy():
    """Each condition that agents write is in the policy of its kind."""
    assert FETCHED in MODEL_CONDITIONS
    for name, types in (("inferenceservices-status", SERVICE_CONDITIONS), ("models-status", MODEL_CONDITIONS)):
        text = yaml.safe_dump(by_end()[name]["spec"]["validations"], width=10**6)
        for each in types:
            assert f"''{each}''" in text or f"'{each}'" in text
