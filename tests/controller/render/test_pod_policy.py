"""The pod fields that editors may set: each with the value of the chart that allows it, and the attack of S3."""

from pathlib import Path

import attrs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.pod_security import against_baseline
from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.render.manifests import WantedPods, deployment
from llmkube.controller.render.pod_policy import (
    HOST_PATHS,
    PRIORITY_CLASSES,
    fetch_refusals,
    is_allowed_folder,
    refusal_message,
    service_refusals,
)
from llmkube.controller.render.storage import Weights, serving_storage
from llmkube.controller.settings import Allowance
from llmkube.runtimes.registry import container_plan_for

ROOT = Path(__file__).parents[3]
GUIDES = ROOT / "tests" / "k8s" / "data" / "guide-manifests.yaml"
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"

ATTACK = {
    "runtime": "generic",
    "image": "evil.example.org/shell",
    "command": ["/bin/sh", "-c", "chroot /node"],
    "skipModelInit": True,
    "securityContext": {"runAsUser": 0, "privileged": True},
    "extraVolumes": [
        {"name": "node", "hostPath": {"path": "/"}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ],
    "extraVolumeMounts": [{"name": "node", "mountPath": "/node"}, {"name": "token", "mountPath": "/token"}],
    "tolerations": [{"operator": "Exists"}],
    "priorityClassName": "system-node-critical",
}
"""The attack S3, as it was run."""


def volume(**source):
    return {"extraVolumes": [{"name": "v", **source}]}


def projected(**source):
    return volume(projected={"sources": [source]})


def ephemeral(**claim):
    return volume(ephemeral={"volumeClaimTemplate": {"spec": claim}})


def mounted(path, **mount):
    return {**volume(hostPath={"path": path}), "extraVolumeMounts": [{"name": "v", "mountPath": "/v", **mount}]}


def container(**context):
    return {"securityContext": context}


def pod(**context):
    return {"podSecurityContext": context}


def refused(spec, **settings):
    found = service_refusals(pod_service(**spec).spec, attrs.evolve(SETTINGS, **settings))
    return [(one.field, one.value) for one in found]


REFUSED = [
    (volume(hostPath={"path": "/"}), "spec.extraVolumes[0].hostPath.path", HOST_PATHS),
    (volume(nfs={"server": "s", "path": "/"}), "spec.extraVolumes[0].nfs", "foreignVolumes"),
    (volume(csi={"driver": "nfs.csi.k8s.io"}), "spec.extraVolumes[0].csi", "foreignVolumes"),
    (volume(flexVolume={"driver": "d"}), "spec.extraVolumes[0].flexVolume", "foreignVolumes"),
    (volume(awsElasticBlockStore={"volumeID": "i"}), "spec.extraVolumes[0].awsElasticBlockStore", "foreignVolumes"),
    (volume(storageos={"volumeNamespace": "other"}), "spec.extraVolumes[0].storageos", "foreignVolumes"),
    (volume(ofTomorrow={}), "spec.extraVolumes[0].ofTomorrow", "foreignVolumes"),
    (ephemeral(volumeName="pv-of-others"),
     "spec.extraVolumes[0].ephemeral.volumeClaimTemplate.spec.volumeName", "foreignVolumes"),
    (ephemeral(selector={"matchLabels": {"of": "others"}}),
     "spec.extraVolumes[0].ephemeral.volumeClaimTemplate.spec.selector", "foreignVolumes"),
    (ephemeral(dataSourceRef={"kind": "PersistentVolumeClaim", "name": "c", "namespace": "other"}),
     "spec.extraVolumes[0].ephemeral.volumeClaimTemplate.spec.dataSourceRef.namespace", "foreignVolumes"),
    (projected(serviceAccountToken={"path": "t"}),
     "spec.extraVolumes[0].projected.sources[0].serviceAccountToken", "tokens"),
    (projected(podCertificate={"signerName": "kubernetes.io/kube-apiserver-client-pod", "keyType": "ED25519"}),
     "spec.extraVolumes[0].projected.sources[0].podCertificate", "tokens"),
    (projected(ofTomorrow={}), "spec.extraVolumes[0].projected.sources[0].ofTomorrow", "foreignVolumes"),
    (container(runAsUser=0), "spec.securityContext.runAsUser", "root"),
    (pod(runAsUser=0), "spec.podSecurityContext.runAsUser", "root"),
    (pod(windowsOptions={"runAsUserName": "ContainerAdministrator"}),
     "spec.podSecurityContext.windowsOptions.runAsUserName", "root"),
    (container(windowsOptions={"hostProcess": True}), "spec.securityContext.windowsOptions.hostProcess", "privileged"),
    (container(privileged=True), "spec.securityContext.privileged", "privileged"),
    (container(allowPrivilegeEscalation=True), "spec.securityContext.allowPrivilegeEscalation", "privileged"),
    (container(capabilities={"add": ["SYS_ADMIN"]}), "spec.securityContext.capabilities", "privileged"),
    (container(procMount="Unmasked"), "spec.securityContext.procMount", "privileged"),
    (container(seccompProfile={"type": "Unconfined"}), "spec.securityContext.seccompProfile", "privileged"),
    (pod(seccompProfile={"type": "Unconfined"}), "spec.podSecurityContext.seccompProfile", "privileged"),
    (pod(appArmorProfile={"type": "Unconfined"}), "spec.podSecurityContext.appArmorProfile", "privileged"),
    (pod(seLinuxOptions={"type": "spc_t"}), "spec.podSecurityContext.seLinuxOptions", "privileged"),
    (pod(seLinuxOptions={"user": "system_u"}), "spec.podSecurityContext.seLinuxOptions", "privileged"),
    (pod(sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "spec.podSecurityContext.sysctls", "privileged"),
    (pod(ofTomorrow=True), "spec.podSecurityContext.ofTomorrow", "privileged"),
    ({"podAnnotations": {"container.apparmor.security.beta.kubernetes.io/vllm": "unconfined"}},
     "spec.podAnnotations[container.apparmor.security.beta.kubernetes.io/vllm]", "privileged"),
    ({"podAnnotations": {"sidecar.istio.io/userVolume": '{"n":{"hostPath":{"path":"/"}}}'}},
     "spec.podAnnotations[sidecar.istio.io/userVolume]", "foreignVolumes"),
    ({"extraVolumeMounts": [{"name": "cache", "mountPath": "/c", "mountPropagation": "Bidirectional"}]},
     "spec.extraVolumeMounts[0].mountPropagation", "privileged"),
    ({"extraVolumeMounts": [{"name": "model-source", "mountPath": "/w"}]},
     "spec.extraVolumeMounts[0].readOnly", HOST_PATHS),
    ({"probeOverrides": {"liveness": {"httpGet": {"port": 80, "host": "169.254.169.254"}}}},
     "spec.probeOverrides.liveness.httpGet.host", "hostNamespaces"),
    ({"probeOverrides": {"startup": {"tcpSocket": {"port": 10250, "host": "127.0.0.1"}}}},
     "spec.probeOverrides.startup.tcpSocket.host", "hostNamespaces"),
    ({"tolerations": [{"operator": "Exists"}]}, "spec.tolerations[0]", "controlPlane"),
    ({"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}, "spec.tolerations[0]", "controlPlane"),
    ({"tolerations": [{"key": "gpu"}, {"key": CONTROL_PLANE}]}, "spec.tolerations[1].key", "controlPlane"),
    ({"tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}]}, "spec.tolerations[0].key", "controlPlane"),
    ({"priorityClassName": "system-node-critical"}, "spec.priorityClassName", PRIORITY_CLASSES),
    ({"priorityClassName": "databases-first"}, "spec.priorityClassName", PRIORITY_CLASSES),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "field", "value"), REFUSED)
def test_access_to_the_node_needs_the_operator_s_permission(spec, field, value):
    """It is refused with its field, and with the value of the chart that lifts this refusal and no other one."""
    assert refused(spec) == [(field, value)]
    others = frozenset(Allowance) - {value}
    assert refused(spec, allow=others) == [(field, value)]
    if value in set(Allowance):
        assert refused(spec, allow=frozenset({Allowance(value)})) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"runtime": "generic", "image": "mine", "command": ["/bin/sh"], "args": ["-c", "id"]},
        {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "own", "key": "k"}}}]},
        {"imagePullSecrets": [{"name": "own"}], "modelCache": {"claimName": "own"}},
        volume(secret={"secretName": "own"}),
        volume(configMap={"name": "own"}),
        volume(persistentVolumeClaim={"claimName": "own"}),
        volume(emptyDir={"medium": "Memory"}),
        volume(downwardAPI={"items": []}),
        volume(image={"reference": "example.org/adapter:1"}),
        volume(secret={"secretName": "own"}, hostPath=None),
        ephemeral(storageClassName="fast", dataSource={"kind": "PersistentVolumeClaim", "name": "own"}),
        projected(secret={"name": "own"}),
        projected(configMap={"name": "own"}),
        projected(clusterTrustBundle={"path": "ca", "name": "ca"}),
        container(runAsUser=1000, runAsGroup=0, runAsNonRoot=False, readOnlyRootFilesystem=False),
        container(privileged=False, allowPrivilegeEscalation=False, capabilities={"add": ["NET_BIND_SERVICE"]}),
        container(seccompProfile={"type": "Localhost", "localhostProfile": "p"}, procMount="Default"),
        pod(fsGroup=1, supplementalGroups=[44], sysctls=[{"name": "net.ipv4.tcp_syncookies", "value": "1"}]),
        pod(seLinuxOptions={"level": "s0:c1"}, appArmorProfile={"type": "RuntimeDefault"}),
        {"podAnnotations": {"sidecar.istio.io/inject": "true"}},
        {"podAnnotations": {"container.apparmor.security.beta.kubernetes.io/vllm": "runtime/default"}},
        {"probeOverrides": {"liveness": {"httpGet": {"port": 80, "path": "/", "host": ""}}}},
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        {"extraVolumeMounts": [{"name": "model-source", "mountPath": "/r", "readOnly": True}]},
        {**volume(emptyDir={}), "extraVolumeMounts": [{"name": "v", "mountPath": "/w"}]},
        {"priority": "critical"},
    ],
)  # fmt: skip
def test_objects_of_the_namespace_need_no_permission(spec):
    """Image, command, Secrets, claims and users of its own stay an editor's choice."""
    assert refused(spec) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (mounted("/srv/models/a", readOnly=True), ""),
        (mounted("/srv/models", readOnly=True), ""),
        (mounted("/srv/models/a"), "spec.extraVolumes[0].hostPath"),
        (mounted("/srv/models/a", readOnly=False), "spec.extraVolumes[0].hostPath"),
        (mounted("/srv/models-of-others", readOnly=True), "spec.extraVolumes[0].hostPath.path"),
        (mounted("/srv/models/../../etc", readOnly=True), "spec.extraVolumes[0].hostPath.path"),
        (mounted("/srv", readOnly=True), "spec.extraVolumes[0].hostPath.path"),
        (volume(hostPath={"path": "/srv/models/a", "type": "DirectoryOrCreate"}),
         "spec.extraVolumes[0].hostPath.type"),
        (volume(hostPath={"path": "/srv/models/s", "type": "Socket"}), "spec.extraVolumes[0].hostPath.type"),
    ],
)  # fmt: skip
def test_s3_extra_volumes_keep_to_the_folders_of_the_operator(spec, field):
    """S3: `hostPaths` applies to extraVolumes too, and those folders are mounted read-only."""
    wanted = [(field, HOST_PATHS)] if field else []
    assert refused(spec, host_paths=("/srv/models/",)) == wanted
    assert refused(spec, allow=frozenset(Allowance))  # no other value allows a folder of a node


@pytest.mark.parametrize(
    ("name", "allowed", "fine"),
    [
        ("gpu-high", ("gpu-*",), True),
        ("gpu-high", ("gpu-high",), True),
        ("gpu-high", ("gpu",), False),
        ("system-node-critical", ("*",), True),
        ("llmkube-high", (), True),
        ("llmkube-highest", (), False),
    ],
)
def test_priority_classes_are_allowed_by_name(name, allowed, fine):
    """A pattern of the operator's list, or one of the classes of `spec.priority`."""
    settings = {"priority_classes": allowed, "priority_class_prefix": "llmkube-"}
    assert (refused({"priorityClassName": name}, **settings) == []) is fine


def test_s3_the_attack_is_refused_with_every_field_and_its_switch():
    """S3: all fields that reached the node are named in one message, each with the disabled value of the chart."""
    found = service_refusals(pod_service(**ATTACK).spec, SETTINGS)
    assert {one.value for one in found} == {
        HOST_PATHS,
        PRIORITY_CLASSES,
        *(Allowance.TOKENS, Allowance.ROOT, Allowance.PRIVILEGED, Allowance.CONTROL_PLANE),
    }
    message = refusal_message(found)
    for one in found:
        assert f"{one.field} {one.why} (workloads.allow.{one.value})" in message


@pytest.mark.parametrize(
    ("toleration", "fine"), [({"operator": "Exists"}, False), ({"key": CONTROL_PLANE}, False), ({"key": "spot"}, True)]
)
def test_a_fetch_tolerates_no_more_than_a_service(toleration, fine):
    """`prefetchTolerations` of a Model bring its Job to no node where a service may not run."""
    spec = cluster_model(prefetchTolerations=[toleration]).spec
    assert (fetch_refusals(spec, SETTINGS) == ()) is fine
    assert fetch_refusals(spec, attrs.evolve(SETTINGS, allow=frozenset({Allowance.CONTROL_PLANE}))) == ()


@pytest.mark.parametrize(
    ("path", "fine"),
    [("/a/b", True), ("/a/b/", True), ("/a/b/c", True), ("/a/bc", False), ("/a/b/../c", False), ("/", False)],
)
def test_a_folder_is_compared_step_by_step(path, fine):
    assert is_allowed_folder(path, attrs.evolve(SETTINGS, host_paths=("/a/b/",))) is fine


def printed(path):
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


@pytest.mark.parametrize("path", [GUIDES, *EXAMPLES], ids=lambda path: path.name)
def test_the_guides_and_examples_need_no_permission(path):
    """All manifests of the guides and the examples are served with everything off."""
    for one in printed(path):
        if one["kind"] == "InferenceService":
            spec = {name: value for name, value in one["spec"].items() if name != "modelRef"}
            assert refused(spec, priority_class_prefix="llmkube-service-") == []
        elif one["kind"] == "Model":
            assert fetch_refusals(cluster_model(**{"source": "a/b", **one["spec"]}).spec, SETTINGS) == ()


# -- for any spec -----------------------------------------------------------------------------------------------------

PROFILES = st.fixed_dictionaries({"type": st.sampled_from(["RuntimeDefault", "Localhost", "Unconfined"])})
LABELS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["", "container_t", "spc_t"]),
        "user": st.sampled_from(["", "system_u"]),
        "role": st.sampled_from(["", "system_r"]),
        "level": st.just("s0"),
    },
)
SHARED = {
    "runAsUser": st.sampled_from([0, 1, 65532]),
    "runAsNonRoot": st.booleans(),
    "seccompProfile": PROFILES,
    "appArmorProfile": PROFILES,
    "seLinuxOptions": LABELS,
    "windowsOptions": st.fixed_dictionaries({}, optional={"hostProcess": st.booleans()}),
}
CONTAINERS = st.fixed_dictionaries(
    {},
    optional={
        **SHARED,
        "privileged": st.booleans(),
        "allowPrivilegeEscalation": st.booleans(),
        "procMount": st.sampled_from(["", "Default", "Unmasked"]),
        "capabilities": st.fixed_dictionaries(
            {},
            optional={
                "add": st.lists(st.sampled_from(["NET_BIND_SERVICE", "CHOWN", "SYS_ADMIN", "CAP_SYS_ADMIN", "ALL"])),
                "drop": st.lists(st.sampled_from(["ALL", "CHOWN"])),
            },
        ),
    },
)
SYSCTLS = st.sampled_from(["kernel.msgmax", "net.ipv4.tcp_rmem", "net.core.somaxconn"])
PODS = st.fixed_dictionaries(
    {},
    optional={
        **SHARED,
        "fsGroup": st.just(0),
        "sysctls": st.lists(st.fixed_dictionaries({"name": SYSCTLS, "value": st.just("1")})),
    },
)
VOLUMES = st.lists(
    st.sampled_from([{"emptyDir": {}}, {"hostPath": {"path": "/"}}, {"secret": {"secretName": "s"}}, {}, {"nfs": {}}]),
    max_size=2,
).map(lambda sources: [{"name": f"v{number}", **source} for number, source in enumerate(sources)])
HANDLERS = st.fixed_dictionaries({"port": st.just(80)}, optional={"host": st.sampled_from(["", "10.0.0.1"])})
PROBES = st.fixed_dictionaries({}, optional={"httpGet": HANDLERS, "tcpSocket": HANDLERS})
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "image": st.just("example.org/engine"),
        "securityContext": CONTAINERS,
        "podSecurityContext": PODS,
        "extraVolumes": VOLUMES,
        "podAnnotations": st.dictionaries(
            st.just("container.apparmor.security.beta.kubernetes.io/llama-server"),
            st.sampled_from(["unconfined", "runtime/default", "localhost/p", ""]),
        ),
        "probeOverrides": st.fixed_dictionaries({}, optional={"startup": PROBES, "liveness": PROBES}),
    },
)


@given(SPECS)
def test_with_all_switches_off_no_spec_makes_a_pod_beyond_baseline(spec):
    """An accepted spec makes a pod that meets Pod Security "baseline", checked on the pod and not by our rules."""
    service, model = pod_service(**spec), cluster_model(hardware={"accelerator": "cpu"})
    if service_refusals(service.spec, SETTINGS):
        return
    weights = serving_storage(service, model, "/models/0/m.gguf", SETTINGS)
    plan = container_plan_for(service, model)
    template = deployment(service, plan, SETTINGS, WantedPods(weights=Weights(weights)))["spec"]["template"]
    assert against_baseline(template) == []
    context = template["spec"]["containers"][0]["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert template["spec"]["automountServiceAccountToken"] is False
    assert not {"serviceAccountName", "hostNetwork", "hostPID", "hostIPC", "nodeName"} & template["spec"].keys()
