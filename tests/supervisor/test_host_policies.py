"""The policies follow the programs: what an agent writes of a status, and whom they concern."""

import yaml

from llmkube.k8s.wire.conditions import FETCHED
from llmkube.supervisor.cluster.status import MODEL_CONDITIONS, SERVICE_CONDITIONS
from llmkube.supervisor.host_policies import host_policies


def by_end(kind="ValidatingAdmissionPolicy", system="sys"):
    found = [one for one in host_policies(system) if one["kind"] == kind]
    return {one["metadata"]["name"].removeprefix("llmkube-host-").removesuffix(f".{system}"): one for one in found}


def test_each_policy_is_bound_and_refuses():
    """A policy without a binding, or one that only warns, would confine no host; one that errs lets nothing pass."""
    bindings = by_end("ValidatingAdmissionPolicyBinding")
    assert bindings.keys() == by_end().keys()
    for name, policy in by_end().items():
        binding = bindings[name]["spec"]
        assert binding["policyName"] == policy["metadata"]["name"]
        assert binding["validationActions"] == ["Deny"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert ("paramRef" in binding) == ("paramKind" in policy["spec"])


def test_they_concern_the_hosts_of_one_namespace():
    """Hosts are told by their account's name; the account that all hosts share, and other namespaces, are not meant."""
    for policy in by_end().values():
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == (
            "request.userInfo.username.startsWith('system:serviceaccount:sys:llmkube-agent-')"
        )


def test_a_parameter_that_cannot_be_had_stops_no_other_writer():
    """The server looks for parameters before it asks who writes: such a policy is about labelled objects alone."""
    for name, policy in by_end().items():
        if "paramKind" in policy["spec"]:
            (asked,) = policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
            assert asked == {"key": "inference.llmkube.dev/service", "operator": "Exists"}, name


def test_what_agents_write_of_a_status_is_theirs():
    """Each condition that agents state is in the policy of its kind."""
    assert FETCHED in MODEL_CONDITIONS
    for name, types in (("inferenceservices-status", SERVICE_CONDITIONS), ("models-status", MODEL_CONDITIONS)):
        text = yaml.safe_dump(by_end()[name]["spec"]["validations"], width=10**6)
        for each in types:
            assert f"''{each}''" in text or f"'{each}'" in text
