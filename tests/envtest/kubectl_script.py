"""The script: kubectl commands in an order in which each finds what it needs, on a server that nobody else changes.

Rows go from setting up through reading, changing and refusing to deleting; the namespace is gone at the end.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import yaml

from envtest.kubectl_manifests import (
    BOTH,
    CONFIG,
    ENDPOINTS,
    EVENT,
    GIZMO,
    GIZMO_BAD,
    GIZMO_CRD,
    GIZMO_HELD,
    GIZMO_PARTS,
    GIZMO_TWO,
    GIZMOS,
    LEASE,
    LEASE_FREE,
    MODEL,
    OUR_CRDS,
    OWNED,
    SECRET,
    SERVICE,
    SERVICE_OF_MODEL,
    SERVICES,
    SLICES,
    TYPED,
)
from envtest.kubectl_text import Row

OUR_GROUPS: Final = ("inference.llmkube.dev", "text.llmkube.dev")
SERVED: Final = (
    "configmaps",
    "customresourcedefinitions",
    "endpoints",
    "endpointslices",
    "events",
    "gizmos",
    "inferenceservices",
    "leases",
    "models",
    "namespaces",
    "secrets",
    "selfsubjectaccessreviews",
    "selfsubjectrulesreviews",
    "serviceaccounts",
    "services",
)
"""The kinds that both servers have; a real one has many more."""


def only(*words: str) -> Callable[[str], str]:
    """Keep the lines that begin with one of the words, after a header in capitals."""

    def view(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if line.isupper() or re.split(r"[\s.]", line)[0] in words)

    return view


def shared_kinds(text: str) -> str:
    """Keep the kinds that both servers have; events.k8s.io is a second name of events, which only a cluster has."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if line.isupper() or re.split(r"[\s.]", line)[0] in SERVED]
    return "".join(line for line in kept if "events.k8s.io" not in line)


def sorted_lines(text: str) -> str:
    """Order the lines: for what Go takes out of a map."""
    return "".join(sorted(text.splitlines(keepends=True)))


def sorted_resources(text: str) -> str:
    """Order the resources of a discovery document: a kube-apiserver lists a group's CRDs as they come out of a map."""
    document, _, rest = text.partition("\n")
    content = json.loads(document)
    content["resources"].sort(key=lambda resource: resource["name"])
    return json.dumps(content) + "\n" + rest


def steady_managers(text: str) -> str:
    """Order managedFields by name: servers order them by the second they were written in, which is a race here."""
    document = yaml.safe_load(text)
    document["metadata"]["managedFields"].sort(
        key=lambda entry: (entry["manager"], entry["operation"], entry.get("subresource", ""))
    )
    return yaml.safe_dump(document)


def without_managers(text: str) -> str:
    """Leave out managedFields where an object is quoted within a message."""
    return re.sub(r'\\"managedFields\\":\[.*?\],(?=\\"name\\")', "", text)


def fields_only(text: str) -> str:
    """Keep the names and types of `explain`: the descriptions of built-in kinds are each server's own words."""
    return "".join(line for line in text.splitlines(keepends=True) if re.match(r"^ *\S+\t<|^[A-Z]+:|^error", line))


def _event(name: str, **fields: str | int) -> str:
    usual: dict[str, str | int] = {
        "namespace": "{ns}",
        "version": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "about": "demo",
        "type": "Normal",
        "reason": "Loaded",
        "message": "serving after 3 s",
        "last": "2020-01-02T03:04:05Z",
        "count": 1,
    }
    return EVENT % {**usual, **fields, "name": name}


SET_UP: Final[Sequence[Row]] = (
    Row("create namespace {ns}"),
    Row("create namespace {ns}", name="again"),
    Row("create -f -", GIZMO_CRD, name="definition"),
    Row(f"wait --for=condition=established crd/{GIZMOS} --timeout=30s"),
    Row("apply --server-side --force-conflicts -f -", OUR_CRDS, name="our definitions"),
    Row("wait --for=condition=established crd/models.inference.llmkube.dev --timeout=30s"),
    Row("wait --for=condition=established crd/inferenceservices.inference.llmkube.dev --timeout=30s"),
    Row("get gizmos", until_ok=True, name="served"),
    Row("get models,isvc", until_ok=True, name="served"),
    Row("explain gizmo.spec.size", until_ok=True, name="served"),
    Row("explain isvc.spec.modelRef", until_ok=True, name="served"),
    Row("explain gizmo -o plaintext-openapiv2", until_ok=True, name="served"),
)

CREATING: Final[Sequence[Row]] = (
    Row("create -f -", GIZMO, name="one"),
    Row("create -f -", GIZMO, name="one again"),
    Row("apply -f -", GIZMO_TWO, name="two"),
    Row("apply -f -", GIZMO_TWO, name="two, unchanged"),
    Row("create -f - --dry-run=server -o yaml", GIZMO.replace("one", "three"), name="gizmo"),
    Row("create -f - -o name", GIZMO_HELD),
    Row("apply -f - --dry-run=server", BOTH % 1, name="ours"),
    Row("apply -f -", BOTH % 1, name="ours"),
    Row("apply -f -", BOTH % 1, name="ours, unchanged"),
    Row("apply -f - -o yaml", BOTH % 2, name="ours, changed"),
    Row("apply -f -", SERVICE, name="service"),
    Row("apply -f -", SERVICES, name="services"),
    Row("create -f -", SLICES, name="slices"),
    Row("create -f -", ENDPOINTS, name="endpoints"),
    Row("apply -f -", CONFIG % 1, name="config"),
    Row("create -f -", SECRET, name="secret"),
    Row("create -f -", LEASE, name="lease"),
    Row("create -f -", LEASE_FREE, name="free lease"),
    Row("create -f -", _event("first"), name="event"),
    Row(
        "create -f -",
        _event(
            "second", type="Warning", reason="CrashLoop", message="it  fell\\n", count=3, last="2020-01-02T04:04:05Z"
        ),
        name="warning",
    ),
    Row("create -f -", _event("third", version="v1", kind="Service", about="headless"), name="event of a service"),
    Row("create configmap literal --from-literal=a=b --from-literal=c=d"),
    Row("create configmap literal --from-literal=a=b", name="again"),
    Row("create secret generic literal --from-literal=a=b -o yaml"),
    Row("create secret tls pair --cert=nowhere --key=nowhere"),
    Row("create service clusterip fresh --tcp=80:8080 --dry-run=server -o yaml"),
    Row("create service externalname elsewhere --external-name example.org"),
    Row("create serviceaccount robot"),
    Row("create configmap dry --from-literal=a=b --dry-run=server -o yaml"),
    Row("create configmap dry --from-literal=a=b --dry-run=client -o yaml"),
)

OUR_EVENTS: Final = "events -l from=script"
"""A kube-apiserver writes Events too now and then, when it has not seen yet that a new address is taken."""

_KINDS: Final = (
    "gizmos",
    "models",
    "isvc",
    "services",
    "endpointslices",
    "endpoints old",
    "configmaps settings literal",
    "secrets",
    "leases",
    "sa robot",
    "namespace {ns}",
    f"crd {GIZMOS}",
    OUR_EVENTS,
)
READING: Final[Sequence[Row]] = (
    *(Row(f"get {kind}") for kind in _KINDS),
    *(Row(f"get {kind} -o wide") for kind in _KINDS),
    *(Row(f"get {kind} -o yaml") for kind in _KINDS if "crd" not in kind),
    *(Row(f"get {kind} -o name") for kind in _KINDS),
    *(Row(f"get {kind} --show-labels") for kind in _KINDS),
    *(
        Row(f"describe {kind}")
        for kind in ("gizmo one", "gizmos", "model demo", "isvc demo", "svc headless", "svc bare")
    ),
    *(Row(f"describe {kind}") for kind in ("svc alias", "endpointslices", "endpoints old")),
    *(
        Row(f"describe {kind}")
        for kind in ("lease mac", "sa robot", "namespace {ns}", f"crd {GIZMOS}", "event first", "gizmo absent")
    ),
    *(Row(f"describe {each}", view=sorted_lines) for each in ("cm settings", "secret token")),
    *(Row(f"describe svc {name} --show-events=false") for name in ("web", "outside", "balanced")),
    Row(f"get crd {GIZMOS} -o yaml"),
    Row("get crd inferenceservices.inference.llmkube.dev models.inference.llmkube.dev -o yaml"),
    Row("get gizmo one -o json"),
    Row("get gizmos -o json"),
    Row("get svc web -o json"),
    Row("get gizmo one -o yaml --show-managed-fields"),
    Row("get svc web -o yaml --show-managed-fields"),
    Row("get cm settings -o yaml --show-managed-fields"),
    Row("get gizmo one --no-headers"),
    Row("get gizmo/one gizmo/two"),
    Row("get gizmo one two -o name"),
    Row("get gz,svc,cm -l app=demo"),
    Row("get gizmos,services -o wide -l app=demo"),
    Row("get toys"),
    Row("get llmkube"),
    Row("get llmkube -o name"),
    Row("get gizmos.v1.text.llmkube.dev one"),
    Row("get gizmos.v1beta1.text.llmkube.dev"),
    Row("get gizmos.v1beta1.text.llmkube.dev one -o yaml"),
    Row("get gizmos -A -o name", view=only("gizmo")),
    Row("get gizmos -A", view=lambda text: re.sub(r"llmkube-\S+", "<ns>", text)),
    Row("get gizmos -L app,tier"),
    Row("get gizmos -l app=demo"),
    Row("get gizmos -l 'app in (demo,other),tier'"),
    Row("get gizmos -l '!tier'"),
    Row("get gizmos -l app!=demo"),
    Row("get gizmos -l 'app notin (demo)'"),
    Row("get gizmos -l app=nobody"),
    Row("get gizmos -l 'app=('"),
    Row("get gizmos --field-selector metadata.name=one"),
    Row("get gizmos --field-selector metadata.name!=one"),
    Row("get gizmos --field-selector spec.colour=green"),
    Row("get gizmos --field-selector spec.size=1"),
    Row("get models --field-selector spec.source=x"),
    Row("get secrets --field-selector type=Opaque"),
    Row("get secrets --field-selector kind=x"),
    Row("get ns --field-selector metadata.name={ns},status.phase=Active"),
    Row("get events --field-selector reason=CrashLoop"),
    Row(f"get {OUR_EVENTS} --field-selector involvedObject.kind=Service,type=Normal"),
    Row("get services --field-selector spec.type=ExternalName"),
    Row("get services --field-selector spec.clusterIP=None"),
    Row("get gizmos --sort-by=.spec.size"),
    Row("get gizmos --sort-by=.metadata.name -o wide"),
    Row("get gizmos --sort-by=.spec.nothing"),
    Row("get svc --sort-by=.spec.type"),
    Row(f"get {OUR_EVENTS} --sort-by=.lastTimestamp"),
    Row("get gizmos --chunk-size=1"),
    Row("get gizmo one -o jsonpath='{.spec.parts[*].name} {.spec.either}'"),
    Row("get gizmos -o jsonpath='{range .items[*]}{.metadata.name}={.spec.size}{\"\\n\"}{end}'"),
    Row("get gizmo one -o jsonpath='{.spec.absent}'"),
    Row("get gizmo one -o jsonpath='{.spec.absent}' --allow-missing-template-keys=false"),
    Row("get gizmo one -o go-template='{{.spec.size}}'"),
    Row("get gizmos -o custom-columns=NAME:.metadata.name,SIZE:.spec.size,PARTS:.spec.parts[*].name,NO:.spec.no"),
    Row("get svc -o custom-columns=NAME:.metadata.name,PORTS:.spec.ports[*].port"),
    Row("get gizmo one --subresource=status"),
    Row("get gizmo one --subresource=scale"),
    Row("get gizmo one --subresource=scale -o yaml"),
    Row("get gizmo one --subresource=nothing"),
    Row("get gizmo one --server-print=false"),
    Row("get svc web --server-print=false -o wide"),
    Row("get gizmo absent"),
    Row("get gizmo absent --ignore-not-found"),
    Row("get gizmo one absent"),
    Row("get svc absent -o yaml"),
    Row("get cm -n nowhere"),
    Row("get ns nowhere"),
    Row("get sprockets"),
    Row("get sprockets.text.llmkube.dev"),
    Row("get gizmos.v9.text.llmkube.dev"),
    Row("get --raw /apis/text.llmkube.dev/v9"),
    Row("get --raw /api/v1/namespaces/{ns}/sprockets"),
    Row("get --raw /nowhere"),
    Row("get --raw /readyz"),
    Row("get --raw /apis/text.llmkube.dev"),
    Row("get --raw /apis/text.llmkube.dev/v1"),
    Row("get --raw /apis/inference.llmkube.dev/v1alpha1", view=sorted_resources),
    Row("get --raw /apis/coordination.k8s.io/v1"),
    Row("events --for isvc/demo"),
    Row("events --types=Warning --for isvc/demo"),
    Row("events -o yaml --for svc/headless"),
    Row(f"get {OUR_EVENTS} -o custom-columns=R:.reason,C:.count"),
)

ASKING: Final[Sequence[Row]] = (
    *(Row(f"api-resources --api-group={group}") for group in OUR_GROUPS),
    *(Row(f"api-resources --api-group={group} -o wide") for group in OUR_GROUPS),
    *(Row(f"api-resources --api-group={group} -o name") for group in OUR_GROUPS),
    Row("api-resources", view=shared_kinds),
    Row("api-resources -o wide", view=shared_kinds),
    Row("api-resources -o name", view=shared_kinds),
    Row("api-resources --namespaced=false", view=shared_kinds),
    Row("api-resources --categories=toys"),
    Row("api-resources --categories=all", view=shared_kinds),
    Row("api-resources --verbs=list,scale"),
    Row("api-resources --api-group=nowhere"),
    Row("api-resources --sort-by=kind --api-group=text.llmkube.dev"),
    Row("api-versions", view=only("v1", "apiextensions", "coordination", "discovery", "inference", "text")),
    Row("explain gizmo"),
    Row("explain gizmo --recursive", view=sorted_lines),
    Row("explain gizmo --recursive", name="as it is"),
    Row("explain gizmo.spec"),
    Row("explain gizmo.spec.parts"),
    Row("explain gizmo.spec.parts.name"),
    Row("explain gizmo.spec.either"),
    Row("explain gizmo.spec.anything"),
    Row("explain gizmo.spec.labels"),
    Row("explain gizmo.spec.absent"),
    Row("explain gizmo.metadata", view=fields_only),
    Row("explain gizmo.metadata.name", view=fields_only),
    Row("explain gizmo --api-version=text.llmkube.dev/v1beta1"),
    Row("explain gizmo --api-version=text.llmkube.dev/v9"),
    Row("explain gizmo -o plaintext-openapiv2"),
    Row("explain isvc.spec -o plaintext-openapiv2"),
    Row("explain model"),
    Row("explain model --recursive"),
    Row("explain model.spec.hardware"),
    Row("explain isvc"),
    Row("explain isvc.spec"),
    Row("explain isvc --recursive"),
    Row("explain isvc.status.conditions"),
    Row("explain sprocket"),
    *(
        Row(f"explain {kind}", view=fields_only)
        for kind in ("service", "service.spec", "service.spec.ports", "endpointslice", "endpointslice.endpoints")
    ),
    *(
        Row(f"explain {kind}", view=fields_only)
        for kind in ("configmap", "secret", "namespace", "namespace.spec", "lease", "lease.spec", "crd.spec", "event")
    ),
    Row("explain service --recursive", view=fields_only),
    Row("explain lease --recursive", view=fields_only),
    Row("explain configmap --recursive", view=fields_only),
    Row("auth can-i create services"),
    Row("auth can-i get gizmos/status"),
    Row("auth can-i create sprockets"),
    Row("auth can-i '*' '*'"),
    Row("auth can-i get /readyz"),
    Row("auth can-i get gizmo/one"),
    Row("auth can-i --list"),
)

_STATUS: Final = (
    '{"status":{"phase":"Up","replicas":1,"selector":"app=demo",'
    '"conditions":[{"type":"Ready","status":"True","reason":"Fine"}]}}'
)
CHANGING: Final[Sequence[Row]] = (
    Row("diff -f -", GIZMO.replace("size: 3", "size: 4"), name="size"),
    Row("diff -f -", CONFIG % 1, name="nothing"),
    Row("diff -f -", CONFIG % 2, name="config"),
    Row("diff -f -", CONFIG.replace("settings", "fresh") % 2, name="not there yet"),
    Row("diff --server-side -f -", SERVICE.replace("port: 80,", "port: 88,"), name="service"),
    Row("apply -f -", GIZMO.replace("size: 3", "size: 4"), name="created without apply"),
    Row("apply -f -", GIZMO.replace("size: 3", "size: 5"), name="patched"),
    Row("apply -f -", GIZMO.replace("  lit: true\n", "").replace("size: 3", "size: 5"), name="a field less"),
    Row("apply -f - --dry-run=server -o yaml", GIZMO.replace("size: 3", "size: 6"), name="gizmo"),
    Row("apply -f -", SERVICE.replace("port: 80,", "port: 88,"), name="service, changed"),
    Row("apply -f - -o yaml", SERVICE, name="service back"),
    Row("apply -f -", CONFIG % 3, name="config, changed"),
    Row("apply -f - --dry-run=server", CONFIG % 4, name="config"),
    Row("apply view-last-applied cm settings"),
    Row("apply --server-side -f -", GIZMO_PARTS % 5, name="parts"),
    Row("apply --server-side -f -", GIZMO_PARTS % 6, name="conflict"),
    Row("apply --server-side --force-conflicts -f -", GIZMO_PARTS % 6, name="forced"),
    Row("apply --server-side --field-manager=other -f -", GIZMO_PARTS % 5, name="two conflicts"),
    Row("apply --server-side --dry-run=server -f - -o yaml --show-managed-fields", GIZMO_PARTS % 6),
    Row("apply --server-side -f -", CONFIG % 4, name="config conflict"),
    Row("apply --server-side --force-conflicts -f -", CONFIG % 4, name="config"),
    Row("apply --server-side -f -", SERVICE, name="service"),
    Row("get gizmo one -o yaml --show-managed-fields", name="after apply"),
    Row('patch gizmo one --type=merge -p \'{"spec":{"size":2}}\''),
    Row('patch gizmo one --type=merge -p \'{"spec":{"size":2}}\'', name="nothing new"),
    Row('patch gizmo one --type=merge -p \'{"spec":{"ratio":null}}\' -o yaml'),
    Row('patch gizmo one --type=json -p \'[{"op":"replace","path":"/spec/size","value":4}]\''),
    Row('patch gizmo one --type=json -p \'[{"op":"test","path":"/spec/size","value":9}]\''),
    Row('patch gizmo one --type=json -p \'[{"op":"remove","path":"/spec/absent"}]\''),
    Row("patch gizmo one --type=json -p '{\"a\":1}'"),
    Row('patch gizmo one -p \'{"spec":{"size":2}}\''),
    Row('patch gizmo one --type=merge -p \'{"spec":{"size":99}}\''),
    Row('patch gizmo one --type=merge -p \'{"spec":{"size":"x","colour":"blue"}}\''),
    Row('patch gizmo one --type=merge -p \'{"spec":{"size":7}}\''),
    Row('patch gizmo one --type=merge -p \'{"spec":{"bogus":7}}\''),
    Row('patch gizmo one --type=merge -p \'{"spec":{"when":null}}\''),
    Row('patch gizmo one --type=merge -p \'{"metadata":{"resourceVersion":"1"}}\''),
    Row('patch gizmo one --type=merge -p \'{"metadata":{"name":"other"}}\''),
    Row("patch gizmo one --type=merge -p '{broken'"),
    Row("patch gizmo absent --type=merge -p '{}'"),
    Row(f"patch gizmo one --subresource=status --type=merge -p '{_STATUS}'"),
    Row("get gizmos", name="with status"),
    Row("describe gizmo one", name="with status"),
    Row('patch svc web -p \'{"spec":{"ports":[{"name":"more","port":81}]}}\' -o yaml'),
    Row('patch svc web -p \'{"spec":{"ports":[{"port":81,"$patch":"delete"}]}}\''),
    Row('patch svc web -p \'{"spec":{"clusterIP":"192.0.2.1"}}\''),
    Row('patch svc web -p \'{"spec":{"ports":[{"port":0}]}}\''),
    Row('patch svc web -p \'{"spec":{"type":"Nothing"}}\''),
    Row('patch svc web -p \'{"spec":{"ports":3}}\''),
    Row('patch svc web -p \'{"spec":{"bogus":3}}\''),
    Row('patch cm settings -p \'{"data":{"size":"9","long":null}}\' -o yaml'),
    Row('patch secret token -p \'{"stringData":{"a":"c"}}\' -o yaml'),
    Row('patch secret token -p \'{"type":"other"}\''),
    Row('patch isvc demo --type=merge -p \'{"spec":{"replicas":-1}}\''),
    Row('patch isvc demo --type=merge -p \'{"spec":{"priority":"urgent","contextSize":1}}\''),
    Row("label gizmo one stage=x"),
    Row("label gizmo one stage=y"),
    Row("label gizmo one stage=y --overwrite"),
    Row("label gizmo one stage=y --overwrite", name="nothing new"),
    Row("label gizmo one stage-"),
    Row("label gizmo one stage-", name="not there"),
    Row("label gizmos --all shared=1"),
    Row("label gizmo one 'bad!=1'"),
    Row("label gizmo one key='bad value'"),
    Row("label svc web stage=x --dry-run=server -o yaml"),
    Row("annotate gizmo one note=bye"),
    Row("annotate gizmo one note=bye --overwrite"),
    Row("annotate cm settings note=x"),
    Row("annotate cm settings note-"),
    Row("label gizmo one --list", view=sorted_lines),
    Row("annotate gizmo one --list", view=sorted_lines),
    Row("label gizmo absent a=b"),
    Row("replace -f -", GIZMO_TWO.replace("size: 1", "size: 2")),
    Row("replace -f -", GIZMO_TWO.replace("two", "absent"), name="absent"),
    Row("replace -f -", GIZMO_TWO.replace("name: two", 'name: two, resourceVersion: "1"'), name="conflict"),
    Row("replace -f -", CONFIG % 7, name="config"),
    Row("replace -f -", SERVICE.replace("port: 80,", "port: 8,"), name="service"),
    Row("replace --force -f -", CONFIG % 8, name="config"),
    Row("replace --subresource=status -f -", GIZMO_TWO + "status: {phase: Down, replicas: 2}\n", name="status"),
    Row("edit gizmo one", editor="sed -i s/size:.4/size:\\ 8/"),
    Row("edit gizmo one", editor="true", name="nothing"),
    Row("edit cm settings", editor=r"sed -i s/\"8\"/\"10\"/"),
    Row("edit gizmo one", editor="sed -i s/size:.8/size:\\ 77/", name="invalid"),
    Row("edit gizmo one -o json", editor=r"sed -i s/\"size\":.8/\"size\":\ 9/", name="json"),
    Row("edit svc web", editor="sed -i s/port:.8$/port:\\ 80/"),
    Row("edit gizmo one --subresource=status", editor="sed -i s/phase:.Up/phase:\\ Edited/"),
    Row("edit gizmo absent"),
    Row("scale gizmo one --replicas=3"),
    Row("scale gizmo one two --replicas=2"),
    Row("scale gizmo one --replicas=4 --current-replicas=9"),
    Row("scale isvc demo --replicas=3"),
    Row("scale isvc/demo --replicas=0 -o yaml"),
    Row("scale svc web --replicas=1"),
    Row("scale gizmo absent --replicas=1"),
    Row("get gizmos -o wide", name="after all"),
    Row("get isvc demo -o yaml --show-managed-fields", name="after all"),
    Row("get svc web -o yaml --show-managed-fields", name="after all"),
    Row("get cm settings -o yaml --show-managed-fields", name="after all"),
)

WAITING: Final[Sequence[Row]] = (
    Row("wait gizmo/one --for=condition=Ready --timeout=20s"),
    Row("wait gizmo/one --for=condition=Ready=false --timeout=1s"),
    Row("wait gizmo/one --for=jsonpath='{.status.phase}'=Edited --timeout=20s"),
    Row("wait gizmo/one --for=jsonpath='{.status.phase}' --timeout=20s"),
    Row("wait gizmo/one --for=jsonpath='{.spec.absent}'=x --timeout=1s"),
    Row("wait gizmo/absent --for=condition=Ready --timeout=1s"),
    Row("wait gizmo/absent --for=delete --timeout=1s"),
    Row("wait gizmos --all --for=jsonpath='{.spec.replicas}'=1 --timeout=1s"),
    Row(
        "wait gizmo/two --for=jsonpath='{.spec.size}'=6 --timeout=20s -v=6",
        meanwhile=(("watch=true", 'patch gizmo two --type=merge -p \'{"spec":{"size":6}}\''),),
    ),
    Row(
        "get gizmo two -w",
        meanwhile=(
            ("two", 'patch gizmo two --type=merge -p \'{"spec":{"size":5}}\''),
            ("5", f"patch gizmo two --subresource=status --type=merge -p '{_STATUS}'"),
        ),
        lines=4,
    ),
    Row(
        "get svc plain -o wide -w",
        meanwhile=(
            ("plain", "label svc plain a=b"),
            ("plain", 'patch svc plain -p \'{"spec":{"selector":{"app":"other"}}}\''),
        ),
        lines=4,
    ),
    Row(
        "get cm literal -w --output-watch-events",
        meanwhile=(("ADDED", "label cm literal a=b"), ("MODIFIED", "delete cm literal")),
        lines=4,
    ),
    Row(
        "get gizmos -w --output-watch-events -l watched=yes --no-headers -v=6",
        meanwhile=(("watch=true", "label gizmo two watched=yes"), ("ADDED", "label gizmo two watched-")),
        lines=2,
        name="coming and going",
    ),
    Row("delete gizmo held --wait=false"),
    Row("get gizmo held -o yaml", name="being deleted"),
    Row("describe gizmo held", name="being deleted"),
    Row("delete gizmo held --wait=false", name="again"),
    Row('patch gizmo held --type=merge -p \'{"metadata":{"finalizers":["a.b/c","text.llmkube.dev/hold"]}}\''),
    Row("wait gizmo/held --for=delete --timeout=1s"),
    Row(
        "wait gizmo/held --for=delete --timeout=20s -v=6",
        meanwhile=(("watch=true", 'patch gizmo held --type=merge -p \'{"metadata":{"finalizers":null}}\''),),
    ),
    Row("delete gizmo held --timeout=1s", name="gone"),
)
REFUSED: Final[Sequence[Row]] = (
    Row("create -f -", GIZMO_BAD % "{size: 99}", name="too large"),
    Row("create -f -", GIZMO_BAD % "{size: 7}", name="rule"),
    Row("create -f -", GIZMO_BAD % "{size: x}", name="type"),
    Row("create -f -", GIZMO_BAD % "{}", name="missing"),
    Row("create -f -", GIZMO_BAD % "null", name="null"),
    Row("create -f -", GIZMO_BAD % "{size: 1, colour: blue}", name="enum"),
    Row("create -f -", GIZMO_BAD % "{size: 1, parts: [{name: a}, {name: a}]}", name="duplicate"),
    Row("create -f -", GIZMO_BAD % "{size: 1, parts: [{weight: 1}]}", name="key missing"),
    Row("create -f -", GIZMO_BAD % "{size: 1, bogus: 1, other: {x: 1}}", name="unknown"),
    Row("create -f - --validate=warn", GIZMO_BAD % "{size: 1, bogus: 1}", name="unknown"),
    Row("create -f - --validate=false --dry-run=server -o yaml", GIZMO_BAD % "{size: 1, bogus: 1}", name="unknown"),
    Row("create -f - --validate=strict", "a: 1\n", name="nothing"),
    Row("create -f -", TYPED, name="no such kind"),
    Row("create -f -", GIZMO.replace("/v1", "/v9"), name="no such version"),
    Row("create -f -", "metadata: {name: x}\n", name="no type"),
    Row("create -f -", "{", name="not yaml"),
    Row("create -f -", "", name="empty"),
    Row("create -f -", GIZMO.replace("name: one", "name: One"), name="bad name"),
    Row("create -f -", GIZMO.replace("name: one", "namespace: elsewhere, name: one"), name="other namespace"),
    Row("create -f - -n nowhere", GIZMO, name="no namespace"),
    Row("create -f -", GIZMO.replace("size: 3", "size: 3\n  size: 4"), name="twice"),
    Row("create -f - --dry-run=server", GIZMO_TWO.replace("two", "three").replace("v1", "v1beta1"), name="deprecated"),
    Row("apply -f -", GIZMO_BAD % "{size: 1, bogus: 1}", name="unknown"),
    Row(
        "apply -f -",
        GIZMO.replace("size: 3", "size: 3\n  bogus: 1"),
        name="unknown in a change",
        view=without_managers,
    ),
    Row("apply --server-side -f -", GIZMO_BAD % "{size: 1, bogus: 1}", name="unknown"),
    Row("apply --server-side -f -", GIZMO_BAD % "{size: x}", name="type"),
    Row("apply --server-side -f -", GIZMO_BAD % "{size: 99}", name="too large"),
    Row("apply -f -", CONFIG.replace("data:", "date: 1\ndata:") % 1, name="unknown in config"),
    Row("apply --validate=warn -f -", CONFIG.replace("data:", "date: 1\ndata:") % 8, name="unknown in config"),
    Row("apply --server-side -f -", CONFIG.replace("data:", "date: 1\ndata:") % 1, name="unknown in config"),
    Row("create -f -", CONFIG.replace("settings", "wrong").replace('"%s"', "3"), name="config type"),
    Row("create -f -", CONFIG.replace("settings", "Wrong") % 1, name="config name"),
    Row("create -f -", CONFIG.replace("settings", "wrong").replace("size:", "'a b':") % 1, name="config key"),
    Row("create -f -", SECRET.replace("token", "wrong") + "type: kubernetes.io/tls\n", name="tls"),
    Row("create -f -", SERVICE.replace("web", "1web"), name="service name"),
    Row("create -f -", SERVICE.replace("web", "wrong").replace("port: 80,", "port: 80000,"), name="service port"),
    Row("create -f -", SERVICE.replace("web", "wrong").replace("name: probe", "name: http"), name="service twice"),
    Row("create -f -", SERVICE.replace("web", "wrong").replace("name: http, ", ""), name="service unnamed"),
    Row("create -f -", SLICES.replace("web-mac", "wrong").replace("192.0.2.1", "127.0.0.1"), name="loopback"),
    Row("create -f -", LEASE.replace("mac", "wrong").replace("40", "0"), name="lease of no time"),
    Row("create namespace Wrong"),
    Row("create -f -", SERVICE_OF_MODEL.replace("replicas: %d", "modelRef: x"), name="twice in ours"),
    Row("apply -f -", (SERVICE_OF_MODEL % 1).replace("modelRef: demo\n", ""), name="ours, missing"),
    Row("apply -f -", MODEL.replace("source: builtin", "sauce: builtin"), name="ours, unknown"),
    Row("apply -f -", MODEL.replace("source: builtin://demo", "source: ftp:nowhere"), name="ours, pattern"),
    Row("create -f -", GIZMO_CRD.replace("gizmos", "wrong", 1), name="definition name"),
    Row("create -f -", GIZMO_CRD.replace("scope: Namespaced", "scope: Both"), name="definition scope"),
)

DELETING: Final[Sequence[Row]] = (
    Row("create configmap owner --from-literal=a=b"),
    Row("get cm owner -o jsonpath='{.metadata.uid}'", keep="owner"),
    Row("create -f -", OWNED.replace("dependent", "owned-1"), name="dependent"),
    Row("delete cm owner --cascade=orphan"),
    Row("wait cm/owner --for=delete --timeout=20s", name="orphaned"),
    Row("get cm owned-1 -o jsonpath='{.metadata.ownerReferences}'"),
    Row("create configmap owner --from-literal=a=b", name="second"),
    Row("get cm owner -o jsonpath='{.metadata.uid}'", keep="owner", name="second"),
    Row("create -f -", OWNED.replace("dependent", "owned-2"), name="second dependent"),
    Row("delete cm owner --cascade=foreground"),
    Row("get cm owned-2"),
    Row("create configmap owner --from-literal=a=b", name="third"),
    Row("get cm owner -o jsonpath='{.metadata.uid}'", keep="owner", name="third"),
    Row("create -f -", OWNED.replace("dependent", "owned-3"), name="third dependent"),
    Row("delete cm owner --cascade=background"),
    Row("wait cm/owned-3 --for=delete --timeout=20s"),
    Row("delete cm owner --cascade=sideways"),
    Row("delete gizmo absent"),
    Row("delete gizmo absent --ignore-not-found"),
    Row("delete gizmo two --dry-run=server"),
    Row("delete gizmo two -o name"),
    Row("delete -f - --ignore-not-found", GIZMO + "---\n" + GIZMO_TWO),
    Row("delete -f -", GIZMO, name="not there"),
    Row("delete svc web headless absent"),
    Row("delete svc plain --now"),
    Row("delete cm literal --grace-period=0 --force"),
    Row("delete secrets -l app=demo"),
    Row("delete secrets --all"),
    Row("delete leases --all --dry-run=client"),
    Row("delete leases mac free --wait=false"),
    Row("delete isvc,models --all"),
    Row("delete endpointslices --field-selector metadata.name=empty"),
    Row("delete sprockets --all"),
    Row(f"delete {OUR_EVENTS} -o name"),
    Row(f"get {OUR_EVENTS}", name="none left"),
    Row("get all"),
    Row(f"delete crd {GIZMOS}"),
    Row("get gizmos", name="undefined"),
    Row(f"delete crd {GIZMOS}", name="again"),
    Row("delete namespace {ns}"),
    Row("get namespace {ns}", name="gone"),
    Row("create configmap late --from-literal=a=b"),
)

SCRIPT: Final[Sequence[Row]] = tuple(
    attrs.evolve(row, view=steady_managers) if "--show-managed-fields" in row.command else row
    for part in (SET_UP, CREATING, READING, ASKING, CHANGING, WAITING, REFUSED, DELETING)
    for row in part
)
