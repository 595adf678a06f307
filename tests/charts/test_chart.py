"""The chart as the real helm renders it: well formed for Kubernetes, and true to the programs."""

import json
from functools import cache

import pytest
import yaml
from click.testing import CliRunner

from charts.helm_runs import (
    CHART,
    DIGEST,
    EVERYTHING,
    NAMESPACE,
    OPENSHIFT,
    OUR_IMAGE,
    REPOSITORY,
    VARIANTS,
    named,
    render,
    run,
)
from controller.podobjects import SETTINGS, cluster_model, plan, pod_service
from llmkube import __version__
from llmkube.cli.commands.programs.controller import controller
from llmkube.cli.commands.services.listing import list_objects
from llmkube.cli.main import cli
from llmkube.controller.metrics import FleetCollector
from llmkube.controller.render.jobs import PROGRESS_PORT, fetch_job
from llmkube.controller.render.manifests import kubernetes_service
from llmkube.controller.render.pod_policy import HOST_PATHS, PRIORITY_CLASSES
from llmkube.controller.settings import Allowance, ControllerSettings
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import PRIORITIES
from llmkube.k8s.label_selectors import Requirement
from llmkube.k8s.resource import Key
from llmkube.programs.config import ALLOWANCES
from llmkube.runtimes.registry import parse_image_overrides
from llmkube.supervisor.service.status_manager import service_manifest

pytestmark = pytest.mark.ci

KINDS = {
    "apps/v1": ["Deployment"],
    "admissionregistration.k8s.io/v1": ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
    "coordination.k8s.io/v1": ["Lease"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "policy/v1": ["PodDisruptionBudget"],
    "rbac.authorization.k8s.io/v1": ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
    "scheduling.k8s.io/v1": ["PriorityClass"],
    "v1": ["ConfigMap", "Pod", "Secret", "Service", "ServiceAccount"],
}

SELECTOR = {"app.kubernetes.io/name": "llmkube", "app.kubernetes.io/instance": "llmkube"}
SELECTOR |= {"app.kubernetes.io/component": "controller"}

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def validate(manifest):
    """Have the type of its kind read it, which refuses unknown fields and wrong values."""
    from kubernetes.client import models  # 3 s of processor, which collecting does without

    assert manifest["kind"] in KINDS[manifest["apiVersion"]]
    version = manifest["apiVersion"].rpartition("/")[2].capitalize()
    getattr(models, f"{version}{manifest['kind']}").model_validate(manifest)


rendered = cache(lambda variant: render(*VARIANTS[variant]))


def deployment(variant="default"):
    return named(rendered(variant), "Deployment")["llmkube-controller"]


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def container(variant="default"):
    (only,) = pod_of(deployment(variant))["containers"]
    return only


# -- form -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_lint_passes(variant):
    """`helm lint --strict` passes, with these values."""
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", str(CHART), *OUR_IMAGE, *VARIANTS[variant])


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_manifest_has_the_fields_of_its_kind(variant):
    """No field is misspelled or of a wrong type, and no two objects share kind, namespace and name."""
    seen = set()
    for each in rendered(variant):
        place = (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        assert place not in seen
        seen.add(place)
        if each["kind"] == "CustomResourceDefinition" or each["apiVersion"] == "monitoring.coreos.com/v1":
            continue  # judged below
        validate(each)


@pytest.mark.parametrize("variant", ["everything", "pod-monitor"])
def test_monitors_have_the_fields_of_the_prometheus_operator(variant):
    """Facts: the definitions of monitoring.coreos.com/v1 that operator 0.85 installs."""
    monitors = [each for each in rendered(variant) if each["kind"] in ("ServiceMonitor", "PodMonitor")]
    assert len(monitors) == 2
    for each in monitors:
        lists = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}
        allowed = {"selector", "namespaceSelector", lists[each["kind"]]}
        assert set(each["spec"]) <= allowed
        (endpoint,) = each["spec"][lists[each["kind"]]]
        assert set(endpoint) - {"honorLabels"} == {"port", "path", "interval", "relabelings"}
        assert endpoint["relabelings"][0]["targetLabel"] == "job"
        assert each["metadata"]["labels"].get("release") == ("prometheus" if each["kind"] == "ServiceMonitor" else None)


@pytest.mark.parametrize(("variant", "kind"), [("everything", "ServiceMonitor"), ("pod-monitor", "PodMonitor")])
def test_a_series_keeps_the_namespace_that_it_is_about(variant, kind):
    """Prometheus would put the controller's own in its place, and alerts would name a Model that is not there."""
    spec = named(rendered(variant), kind)["llmkube-controller"]["spec"]
    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    ours = {label for family in FleetCollector({}, {}, {}, {}, {}, {}).describe() for label in family._labelnames}
    assert ours & {"namespace", "pod", "service", "container", "endpoint", "instance", "job"} == {"namespace"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_object_goes_astray(variant):
    """A namespaced object is in the release's namespace or in the watched one; the others have none."""
    clusterwide = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass", *POLICIES)
    for each in rendered(variant):
        namespace = each["metadata"].get("namespace")
        served = variant in ("one-namespace", "gateway") and each["kind"] in ("Role", "RoleBinding")
        assert (namespace is None) == (each["kind"] in clusterwide), each["metadata"]
        assert namespace in (None, NAMESPACE) or (served and namespace in ("ml", "chat"))


# -- values -----------------------------------------------------------------------------------------------------------


def paths(schema, path=()):
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name)
        yield from paths(inner, (*path, name))


def test_every_value_that_the_schema_allows_is_in_the_values_file():
    """So values.yaml, with its comments, is the whole reference; helm refuses the reverse."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path in paths(schema):
        place = values
        for name in path:
            assert name in place, path
            place = place[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("controler.replicas=2", "additional properties 'controler' not allowed"),
        ("controller.replicas=two", "/controller/replicas"),
        ("controller.accelerators[0]=tpu", "/controller/accelerators/0"),
        ("image.digest=latest", "/image/digest"),
        ("networkPolicy.apiServer.ports[0]=70000", "/networkPolicy/apiServer/ports/0"),
        ("modelCache.size=50Gi", "here it is workloads.cache (mode, size, storageClass, accessMode)"),
        ("runtimeImages.vllm=x", "here it is workloads.images"),
        ("controllerManager.replicaCount=2", "here it is image, controller (replicas, resources, env)"),
        ("metrics.podMonitor.enabled=true,controller.port=0", "controller.port is 0: there is nothing to scrape"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(change, message):
    """Helm stops before anything is applied, and names the value."""
    assert message in run("helm", "template", "llmkube", str(CHART), *OUR_IMAGE, "--set", change, code=1)


def test_two_monitors_of_one_pod_are_refused():
    """Both would write every series twice."""
    both = ("-f", str(EVERYTHING), "--set", "metrics.podMonitor.enabled=true")
    output = run("helm", "template", "a", str(CHART), *OUR_IMAGE, *both, code=1)
    assert "both enabled" in output


def test_the_chart_asks_for_a_server_that_knows_its_definitions():
    """Rules with a `fieldPath` need Kubernetes 1.28: an older server refuses them as an unknown field."""
    assert "fieldPath" in json.dumps(all_crds())
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == ">=1.28.0-0"
    assert "Kubernetes 1.28 or later" in (CHART.parents[1] / "docs" / "guides" / "helm.md").read_text()


def test_the_chart_is_of_the_program_s_version():
    """The default tag is the version of this tree."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert container()["image"].endswith(f"/llmkube:{__version__}")


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ("image.registry=r.example.com", f"r.example.com/{REPOSITORY}:{__version__}"),
        ("image.registry=,image.repository=llmkube,image.tag=dev", "llmkube:dev"),
        ("global.imageRegistry=m.example.com:5000/proxy/", f"m.example.com:5000/proxy/{REPOSITORY}:{__version__}"),
        (f"image.tag=dev,image.digest=sha256:{'0' * 64}", f"registry.example.com/{REPOSITORY}@sha256:{'0' * 64}"),
    ],
)
def test_an_image_may_come_from_anywhere(changes, image):
    """Registry and repository are apart, the mirror wins over the registry and a digest over the tag."""
    objects = render("--set", changes)
    test = named(objects, "Pod")["llmkube-test"]
    workload = named(objects, "Deployment")["llmkube-controller"]
    assert {pod_of(workload)["containers"][0]["image"], test["spec"]["containers"][0]["image"]} == {image}


OURS_FOR_CPUS = f"registry.example.com/{REPOSITORY}-llama"


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ("image.tag=", f"{OURS_FOR_CPUS}:{__version__}"),
        ("image.tag=dev", f"{OURS_FOR_CPUS}:dev"),
        (f"image.digest={DIGEST}", f"{OURS_FOR_CPUS}:{__version__}"),  # a digest is one image's own
        (
            "global.imageRegistry=m.example.com:5000/proxy/",
            f"m.example.com:5000/proxy/{REPOSITORY}-llama:{__version__}",
        ),
        ("workloads.cpuEngine.registry=r.example.com", f"r.example.com/{REPOSITORY}-llama:{__version__}"),
        ("workloads.cpuEngine.repository=a/b,workloads.cpuEngine.tag=v1", "registry.example.com/a/b:v1"),
        (f"workloads.cpuEngine.tag=v1,workloads.cpuEngine.digest={DIGEST}", f"{OURS_FOR_CPUS}@{DIGEST}"),
        ("workloads.images.llamacpp-cuda=mine", f"{OURS_FOR_CPUS}:{__version__}"),
    ],
)
def test_services_on_cpus_get_an_image_of_ours(changes, image):
    """It is named after the controller's, and can be named part by part; a GPU's image is no word about CPUs."""
    given = engine_images("--set", changes)
    assert given["llamacpp-cpu"] == image
    assert "llamacpp" not in given
    assert parse_image_overrides(given) == given


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ("workloads.cpuEngine.enabled=false", {}),
        ("workloads.cpuEngine=null", {}),  # the values of an earlier chart (helm upgrade --reuse-values)
        ("workloads.images.llamacpp=mine", {"llamacpp": "mine"}),
        ("workloads.images.llamacpp-cpu=mine", {"llamacpp-cpu": "mine"}),
        ("controller.extraArgs={--engine-image=llamacpp=mine}", {"llamacpp": "mine"}),
        ("controller.extraArgs={--engine-image,llamacpp-cpu=mine}", {"llamacpp-cpu": "mine"}),
        ("controller.extraArgs={--engine-image=llamacpp-cuda=mine}",
         {"llamacpp-cpu": f"{OURS_FOR_CPUS}:{__version__}", "llamacpp-cuda": "mine"}),
    ],
)  # fmt: skip
def test_an_operator_s_image_of_llama_cpp_wins(changes, given):
    """An image set before an upgrade still applies, by whichever value or flag."""
    assert engine_images("--set", changes) == given


def engine_images(*args):
    """Return the engines' images on the controller's command line, as it reads them."""
    (workload,) = named(render(*args), "Deployment").values()
    (only,) = pod_of(workload)["containers"]
    args = [each for each in only["args"][1:] if not each.startswith("--port=")]
    options = controller.make_context("controller", args).params["engine_image"]
    return dict(each.split("=", 1) for each in options)


def test_s11_without_an_image_the_chart_stops_and_prints_how_to_build_one():
    """No default leads to an image that is not ours: nothing is rendered, whatever else is set."""
    for args in ((), ("-f", str(EVERYTHING)), ("-f", str(OPENSHIFT)), ("--set", "image.registry=r.example.com")):
        output = run("helm", "template", "llmkube", str(CHART), *args, code=1)
        assert "LLMKube publishes no image" in output
        assert "docker buildx build --push --build-arg BASE=" in output
        assert "--build-arg EXTRAS=llama --target llama-server" in output
        assert "make chart IMAGE=REGISTRY/llmkube@sha256:... CPU_ENGINE=REGISTRY/llmkube-llama@sha256:..." in output
        assert "kind:" not in output


# -- what is generated ------------------------------------------------------------------------------------------------


def printed(*command):
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_definitions_are_those_of_the_classes():
    """files/crds.yaml is what `make manifests` would write now: if this fails, run it."""
    assert (CHART / "files" / "crds.yaml").read_text() == printed("crds")


@pytest.mark.parametrize("program", ["agent", "controller", "gateway"])
@pytest.mark.parametrize(("scope", "args"), [("cluster", ("-A",)), ("namespace", ("-n", "@SERVED_NAMESPACE@"))])
def test_the_roles_are_those_of_the_programs(program, scope, args):
    """files/rbac is what `make manifests` would write now: if this fails, run it."""
    written = (CHART / "files" / "rbac" / f"{program}-{scope}.yaml").read_text()
    assert written == printed("rbac", program, "--lease-namespace", "@RELEASE_NAMESPACE@", *args)


def test_the_policies_are_those_of_the_program():
    """Which hosts are confined to what is what `llmkube rbac policies` prints; `make manifests` writes the file."""
    written = (CHART / "files" / "rbac" / "policies.yaml").read_text()
    assert written == printed("rbac", "policies", "--lease-namespace", "@RELEASE_NAMESPACE@")
    for wanted in yaml.safe_load_all(printed("rbac", "policies")):
        variant = "gateway" if "-gateway-" in wanted["metadata"]["name"] else "default"
        found = named(rendered(variant), wanted["kind"])[wanted["metadata"]["name"]]
        assert found["spec"] == wanted["spec"]


def test_s2_no_account_is_shared_unless_asked_for():
    """S2: by default no account of hosts exists; a shared one serves one namespace, and reads named Secrets."""
    assert not [name for name in named(rendered("default"), "ServiceAccount") if "agent" in name]
    output = run("helm", "template", "llmkube", str(CHART), *OUR_IMAGE, "--set", "agents.rbac=true", code=1)
    assert "agents.namespace" in output
    anything = "agents.rbac=true,agents.allNamespaces=true,agents.secrets={*}"
    assert "any Secret of the cluster" in run(
        "helm", "template", "llmkube", str(CHART), *OUR_IMAGE, "--set", anything, code=1
    )
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    one = named(rendered("one-namespace"), "Role")["llmkube-agent-secrets"]
    assert (one["metadata"]["namespace"], one["rules"]) == ("ml", [rule])
    every = named(rendered("everything"), "ClusterRole")["llmkube-agent-secrets"]
    assert every["rules"] == [{**rule, "resourceNames": ["hf-token"]}]


def test_an_old_cluster_is_warned_that_hosts_are_not_confined():
    """A cluster whose API server lacks the policies' functions gets no release that only looks confined."""
    old = ("template", "llmkube", str(CHART), *OUR_IMAGE, "--kube-version", "1.30.9")
    assert "agents.policies=false" in run("helm", *old, code=1)
    run("helm", *old, "--set", "agents.policies=false")


def test_rendering_changes_nothing_in_a_definition():
    """Every bound, rule and default of the classes arrives in the cluster, through helm's own YAML."""
    definitions = named(rendered("default"), "CustomResourceDefinition")
    assert len(definitions) == len(all_crds())
    for crd in all_crds():
        found = definitions[crd["metadata"]["name"]]
        assert found["spec"] == crd["spec"]
        assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize(
    ("variant", "program"),
    [("default", "controller"), ("everything", "agent"), ("one-namespace", "agent"), ("one-namespace", "controller")],
)
def test_the_rendered_roles_grant_what_the_program_prints(variant, program):
    """Kind, name, namespace, rules and subject are those of `llmkube rbac`, for a release called llmkube."""
    args = ("-n", "ml") if variant == "one-namespace" else ("-A",)
    for wanted in yaml.safe_load_all(printed("rbac", program, *args)):
        if wanted["kind"] == "Namespace":
            continue
        found = [
            each
            for each in rendered(variant)
            if (each["kind"], each["metadata"]["name"]) == (wanted["kind"], wanted["metadata"]["name"])
        ]
        (found,) = found
        assert found["metadata"].get("namespace") == wanted["metadata"].get("namespace")
        assert {key: found.get(key) for key in ("rules", "roleRef", "subjects")} == {
            key: wanted.get(key) for key in ("rules", "roleRef", "subjects")
        }


def test_one_namespace_needs_nothing_clusterwide_but_the_definitions():
    """A release for one namespace can be installed without rights on roles of the cluster."""
    kinds = {each["kind"] for each in rendered("one-namespace")}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}


def test_another_release_has_names_of_its_own():
    """Two releases share no name, and every binding is about the release's own account and namespace."""
    objects = render("--set", "controller.namespace=ml", release="second", namespace="elsewhere")
    for each in objects:
        if each["kind"] not in ("CustomResourceDefinition", "PriorityClass", "Lease"):
            assert each["metadata"]["name"].startswith("second-llmkube")
        for subject in each.get("subjects", ()):
            assert (subject["namespace"], subject["name"][:14]) == ("elsewhere", "second-llmkube")
    roles = json.dumps([each for each in objects if "Role" in each["kind"]])
    assert "_NAMESPACE@" not in roles
    assert "llmkube-system" not in roles
    workload = named(objects, "Deployment")["second-llmkube-controller"]
    assert "--lease-namespace=elsewhere" in pod_of(workload)["containers"][0]["args"]


# -- the controller ---------------------------------------------------------------------------------------------------


def flags(variant):
    """Return what `llmkube controller` understands of the Deployment's arguments, but for the port."""
    program, *args = container(variant)["args"]
    assert program == "controller"
    known = [each for each in args if not each.startswith("--port=")]
    return controller.make_context("controller", known, resilient_parsing=False).params


def test_a_name_that_yaml_takes_for_something_else_is_a_text():
    """A release may be called 123 and a chart `on`; labels and selectors that are no texts would be refused."""
    args = ("-f", str(EVERYTHING), "--set", "nameOverride=on")
    for each in render(*args, release="123"):
        if each["kind"] in KINDS.get(each["apiVersion"], ()):
            validate(each)
        if each["kind"] == "ServiceMonitor":
            assert all(isinstance(value, str) for value in each["spec"]["selector"].get("matchLabels", {}).values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_controller_takes_its_arguments(variant):
    """`llmkube controller` knows every flag that the Deployment gives it, and every value."""
    assert flags(variant)["lease_namespace"] == NAMESPACE
    assert flags(variant)["namespace"] == ("ml" if variant == "one-namespace" else None)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_leader_s_lease_goes_with_the_release(variant):
    """It is Helm that hands it back, when nothing of the release is left: the controller has no rights by then."""
    (lease,) = (each for each in rendered(variant) if each["kind"] == "Lease")
    settings = ControllerSettings(namespace=flags(variant)["namespace"], lease_namespace=NAMESPACE)
    assert Key(lease["metadata"]["namespace"], lease["metadata"]["name"]) == settings.leader_lease
    hooks = {name: value for name, value in lease["metadata"]["annotations"].items() if name.startswith("helm.sh/")}
    assert hooks == {
        "helm.sh/hook": "post-delete",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    assert "spec" not in lease


def test_the_test_s_pod_stays_for_its_log():
    """`helm test --logs` reads it when the test is over: a hook that deletes its pod leaves nothing to read."""
    (pod,) = (each for each in rendered("default") if each["kind"] == "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def test_pods_for_weights_get_the_settings_of_the_release():
    """Image, registry, secrets, certificates, volume and sources of the values reach the controller."""
    seen = flags("everything")
    assert seen["image"] == container("everything")["image"]
    assert seen["image_registry"] == "mirror.example.com:5000"
    assert tuple(seen["image_pull_secret"]) == ("mirror-login",)
    assert seen["ca_config_map"] == "company-ca"
    assert (seen["cache_mode"], flags("default")["cache_mode"]) == ("perService", "shared")
    assert (seen["cache_size"], seen["cache_storage_class"]) == ("1Ti", "fast")
    assert (seen["cache_access_mode"], seen["cache_fs_group"]) == ("ReadWriteMany", "65532")
    assert tuple(seen["host_path"]) == ("/srv/models",)
    assert tuple(seen["allow_priority_class"]) == ("team-gpu", "batch-*")
    assert tuple(seen["allow_private_sources"]) == ("10.1.0.0/16",)
    assert seen["hub_endpoint"] == "https://hub.example.com"
    assert tuple(seen["shared_gpu_node"]) == ("example.com/gpu=shared",)
    assert tuple(seen["monitor_label"]) == ("release=prometheus",)
    assert flags("openshift")["cache_fs_group"] == "0"
    assert (seen["drain_container"], flags("default")["drain_container"]) == (False, None)


def test_priority_classes_are_named_only_where_they_are_installed():
    """The prefix makes the names of our classes, and without them pods name none."""
    prefix = flags("default")["priority_class_prefix"]
    assert {f"{prefix}{each}" for each in PRIORITIES} == set(named(rendered("default"), "PriorityClass"))
    assert flags("bare")["priority_class_prefix"] == ""  # and not None, which looks for those of another release


def test_what_editors_may_ask_for_is_off_until_it_is_asked_for():
    """S3: each value of `workloads.allow` is one that the controller knows, and none is on by default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())["workloads"]["allow"]
    assert not any(values.values())
    assert {*Allowance, HOST_PATHS, PRIORITY_CLASSES} == set(values)
    assert set(flags("everything")["allow"]) == set(Allowance) == set(ALLOWANCES)
    seen = flags("default")
    assert not any(seen[name] for name in ("allow", "host_path", "allow_priority_class"))


def test_without_workloads_no_pods_are_made():
    """The controller makes none where it is given no image."""
    (workload,) = named(render("--set", "workloads.enabled=false"), "Deployment").values()
    (only,) = pod_of(workload)["containers"]
    assert not any(each.startswith(("--image", "--cache")) for each in only["args"])


def test_the_controller_is_probed_by_default():
    """The port of the default values is one that `llmkube controller` is given with a flag it has."""
    assert any("--port" in option.opts for option in controller.params)
    assert "readinessProbe" in container()


def test_probes_go_to_the_port_that_the_controller_is_given():
    """Liveness asks /healthz and readiness /readyz, on the named port, which is the one in the arguments."""
    seen = container("everything")
    assert seen["ports"] == [{"name": "metrics", "containerPort": 8081, "protocol": "TCP"}]
    assert "--port=8081" in seen["args"]
    asked = {kind: seen[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")}
    assert asked == {
        "liveness": {"path": "/healthz", "port": "metrics"},
        "readiness": {"path": "/readyz", "port": "metrics"},
    }


def test_the_helm_test_takes_its_arguments():
    """`llmkube list` knows what `helm test` calls it with."""
    for variant in ("default", "one-namespace"):
        (only,) = named(rendered(variant), "Pod")["llmkube-test"]["spec"]["containers"]
        assert only["args"][0] == "list"
        list_objects.make_context("list", only["args"][1:], resilient_parsing=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_meet_the_restricted_standard(variant):
    """Pod Security "restricted": no root, no escalation, no capability, seccomp on; and a read-only root."""
    for pod in (pod_of(deployment(variant)), named(rendered(variant), "Pod")["llmkube-test"]["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"].get("runAsUser") == (None if str(OPENSHIFT) in VARIANTS[variant] else 65532)
        (only,) = pod["containers"]
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("variant", ["default", "everything", "pod-monitor"])
def test_one_set_of_labels_selects_the_pods(variant):
    """Whatever selects the pods does so by three labels that no value can change, and the pods have them."""
    assert deployment(variant)["spec"]["template"]["metadata"]["labels"].items() >= SELECTOR.items()
    found = []
    for each in rendered(variant):
        spec = each.get("spec", {})
        if each["kind"] in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
            found.append(spec["selector"]["matchLabels"])
        elif each["kind"] == "NetworkPolicy":
            found.append(spec["podSelector"]["matchLabels"])
        elif each["kind"] == "Service":
            found.append(spec["selector"])
    assert found == [SELECTOR] * len(found)
    assert len(found) >= (2 if variant == "default" else 4)


def test_everything_that_can_be_labelled_is():
    """Every object and the pods have commonLabels, and ours win over them."""
    for each in (*rendered("everything"), deployment("everything")["spec"]["template"]):
        assert each["metadata"]["labels"]["team"] == "ml"
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "llmkube"


def test_a_chart_of_another_version_restarts_nothing():
    """No label of the pods changes with the chart's version alone."""
    assert "helm.sh/chart" not in deployment()["spec"]["template"]["metadata"]["labels"]


def test_the_names_of_pods_fit_into_a_label():
    """A pod's name, random parts included, has at most 58 characters: no more are in the leader's identity."""
    (name,) = named(render("--set", "crds.install=false", release="r" * 53), "Deployment")
    assert len(name) + len("-6d4b75cb6d-x2x9z") <= 58


def test_custom_certificates_are_mounted_where_openssl_looks():
    """SSL_CERT_FILE names the mounted file."""
    env = {each["name"]: each.get("value") for each in container("everything")["env"]}
    assert env["SSL_CERT_FILE"] == "/etc/llmkube/ca/ca.crt"
    (volume,) = [each for each in pod_of(deployment("everything"))["volumes"] if "configMap" in each]
    (mount,) = [each for each in container("everything")["volumeMounts"] if each["name"] == volume["name"]]
    assert mount["mountPath"] == "/etc/llmkube/ca"
    assert volume["configMap"] == {"name": "company-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_the_network_policy_lets_the_controller_work():
    """Out: names, the API server, engines, and pods that fetch. In: the probes' port alone, and nothing without one."""
    policy = named(rendered("everything"), "NetworkPolicy")["llmkube-controller"]["spec"]
    *others, engines, fetches = policy["egress"]
    labels = fetch_job(cluster_model(), SETTINGS)["spec"]["template"]["metadata"]["labels"]
    assert fetches["to"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert [port["port"] for port in fetches["ports"]] == [PROGRESS_PORT]
    assert engines["to"][0]["podSelector"]["matchExpressions"][0]["key"] == "inference.llmkube.dev/service"
    ports = [{(port["port"], port["protocol"]) for port in rule["ports"]} for rule in others]
    assert ports == [{(53, "UDP"), (53, "TCP")}, {(443, "TCP"), (6443, "TCP")}]
    assert policy["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert policy["ingress"][0]["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    closed = named(render("--set", "networkPolicy.enabled=true,controller.port=0"), "NetworkPolicy")
    assert closed["llmkube-controller"]["spec"]["ingress"] == []
    names = named(render("-f", str(OPENSHIFT), "--set", "networkPolicy.enabled=true"), "NetworkPolicy")
    assert {port["port"] for port in names["llmkube-controller"]["spec"]["egress"][0]["ports"]} == {53, 5353}


def test_a_drain_is_never_blocked():
    """The budget says how many may go, not how many must stay: one replica can be moved."""
    spec = named(rendered("default"), "PodDisruptionBudget")["llmkube-controller"]["spec"]
    assert spec["maxUnavailable"] == 1
    assert "minAvailable" not in spec


# -- classes, agents, engines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["default", "everything"])
def test_s12_services_displace_ordinary_pods_only_where_the_operator_asks(variant):
    """S12: the classes are in order, and none outranks a pod without one (0), unless `outrankPods` is on."""
    classes = named(rendered(variant), "PriorityClass")
    prefix = flags(variant)["priority_class_prefix"]
    by_tier = {name.removeprefix(prefix): each for name, each in classes.items()}
    values = [by_tier[tier]["value"] for tier in PRIORITIES]
    assert values == sorted(set(values))
    assert [tier for tier, each in by_tier.items() if each["preemptionPolicy"] == "Never"] == ["batch"]
    if variant == "default":
        # From -10 downwards a cluster autoscaler makes no node for a pod, and ends it to save one.
        assert -10 < min(values) < max(values) == 0


def test_classes_of_other_values_have_other_names():
    """The API server lets neither value nor policy of a class change: an upgrade that switches needs new ones."""
    names = {*named(rendered("default"), "PriorityClass")}
    assert not names & {*named(rendered("everything"), "PriorityClass")}
    equal_before = {f"llmkube-nonpreempting-{tier}" for tier in PRIORITIES}  # of earlier charts: 0, but for two
    assert not names & equal_before


def test_no_account_has_an_unrequested_token():
    """A token without expiry exists only with agents.tokenSecret, and pods mount one only if they declare it."""
    assert not named(rendered("default"), "Secret")
    assert "llmkube-agent-token" in named(rendered("everything"), "Secret")
    accounts = named(rendered("default"), "ServiceAccount")
    assert {each["automountServiceAccountToken"] for each in accounts.values()} == {False}


def test_the_engines_of_hosts_are_scraped_and_those_of_pods_are_not():
    """The monitor of engines selects the Services that agents publish; pods have a PodMonitor, and count once."""
    spec = named(rendered("everything"), "ServiceMonitor")["llmkube-engines"]["spec"]
    assert spec["namespaceSelector"] == {"any": True}
    service = pod_service()
    hosts, pods = service_manifest(service), kubernetes_service(service, plan())
    words = {"Exists": "", "NotIn": "notin"}
    asked = [
        Requirement(one["key"], words[one["operator"]], frozenset(one.get("values", ())))
        for one in spec["selector"]["matchExpressions"]
    ]
    found = [each for each in (hosts, pods) if all(one.holds(each["metadata"]["labels"]) for one in asked)]
    assert found == [hosts]
    assert spec["endpoints"][0]["port"] == hosts["spec"]["ports"][0]["name"]


def test_a_bare_release_is_the_deployment_alone():
    """All that others may provide can be left out, and the pod then uses the account that is named; two are hooks."""
    assert [each["kind"] for each in rendered("bare")] == ["Deployment", "Pod", "Lease"]
    assert pod_of(deployment("bare"))["serviceAccountName"] == "theirs"
