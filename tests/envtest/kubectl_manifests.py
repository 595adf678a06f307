"""What the script of kubectl commands creates, changes and gets wrong."""

from typing import Final

import yaml

from llmkube.k8s.crd.definitions import crds_yaml

OUR_CRDS: Final = crds_yaml()

GIZMOS: Final = "gizmos.text.llmkube.dev"
_NUMBER: Final = {"type": "integer", "format": "int32"}
_TEXT: Final = {"type": "string"}
_CONDITION: Final = {
    "type": "object",
    "required": ["type", "status"],
    "properties": dict.fromkeys(("type", "status", "reason", "message"), _TEXT),
}
_GIZMO_SCHEMA: Final = {
    "type": "object",
    "description": "A kind with one of everything that kubectl shows.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "description": "What is wanted.",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10, "description": "How large.\nIn metres."},
                "colour": {**_TEXT, "enum": ["red", "green"], "default": "red", "description": "Its paint."},
                "replicas": {**_NUMBER, "default": 1},
                "ratio": {"type": "number", "format": "double"},
                "tags": {"type": "array", "items": _TEXT, "description": "Words."},
                "labels": {"type": "object", "additionalProperties": _TEXT},
                "either": {"x-kubernetes-int-or-string": True, "description": "A number or a text."},
                "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "when": {**_TEXT, "format": "date-time"},
                "lit": {"type": "boolean"},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": _TEXT, "weight": {"type": "integer"}},
                    },
                },
            },
            "x-kubernetes-validations": [
                {"rule": "self.size != 7", "message": "seven is taken"},
                {"rule": "!has(oldSelf.when) || has(self.when)", "message": "when stays"},
            ],
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": _TEXT,
                "replicas": _NUMBER,
                "selector": _TEXT,
                "conditions": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "items": _CONDITION,
                },
            },
        },
    },
}
_COLUMNS: Final = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How large."},
    {"name": "Ratio", "type": "number", "jsonPath": ".spec.ratio"},
    {"name": "Lit", "type": "boolean", "jsonPath": ".spec.lit"},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Tags", "type": "string", "jsonPath": ".spec.tags", "priority": 1},
    {"name": "All Tags", "type": "string", "jsonPath": ".spec.tags[*]", "priority": 1},
    {"name": "Labels", "type": "string", "jsonPath": ".spec.labels", "priority": 1},
    {"name": "Either", "type": "string", "jsonPath": ".spec.either", "priority": 1},
    {"name": "Wrong", "type": "integer", "jsonPath": ".spec.colour", "priority": 1},
    {"name": "When", "type": "date", "jsonPath": ".spec.when"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
GIZMO_CRD: Final = yaml.safe_dump(
    {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": GIZMOS, "labels": {"made-by": "kubectl-text"}},
        "spec": {
            "group": "text.llmkube.dev",
            "scope": "Namespaced",
            "names": {
                "plural": "gizmos",
                "singular": "gizmo",
                "kind": "Gizmo",
                "shortNames": ["gz", "gizz"],
                "categories": ["toys", "llmkube"],
            },
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _GIZMO_SCHEMA},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "selectableFields": [{"jsonPath": ".spec.colour"}],
                    "additionalPrinterColumns": _COLUMNS,
                },
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": False,
                    "deprecated": True,
                    "schema": {"openAPIV3Schema": {**_GIZMO_SCHEMA, "description": "An older Gizmo."}},
                    "subresources": {"status": {}},
                },
            ],
        },
    },
    sort_keys=False,
)

GIZMO: Final = """\
apiVersion: text.llmkube.dev/v1
kind: Gizmo
metadata:
  name: one
  labels: {app: demo, tier: front}
  annotations: {note: hello}
spec:
  size: 3
  ratio: 0.5
  lit: true
  tags: [a, b]
  labels: {x: "1", w: "0"}
  either: 80%
  when: "2020-01-02T03:04:05Z"
  anything: {b: 1, a: [1, {c: null}]}
  parts:
  - {name: p, weight: 1}
  - {name: q}
"""
GIZMO_TWO: Final = """\
apiVersion: text.llmkube.dev/v1
kind: Gizmo
metadata: {name: two, labels: {app: demo}}
spec: {size: 1, colour: green, either: 8, ratio: 2}
"""
GIZMO_HELD: Final = """\
apiVersion: text.llmkube.dev/v1
kind: Gizmo
metadata: {name: held, finalizers: [text.llmkube.dev/hold]}
spec: {size: 1}
"""
GIZMO_BAD: Final = "apiVersion: text.llmkube.dev/v1\nkind: Gizmo\nmetadata: {name: bad}\nspec: %s\n"
GIZMO_PARTS: Final = """\
apiVersion: text.llmkube.dev/v1
kind: Gizmo
metadata: {name: one}
spec:
  size: %d
  parts:
  - {name: r, weight: 5}
"""

MODEL: Final = """\
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: demo, labels: {app: demo}}
spec:
  source: builtin://demo
  sha256: f362f91ff8d57aba22945526800c4e52e930716fbdcc56132277baa0bda5c77b
  hardware: {accelerator: cpu}
"""
SERVICE_OF_MODEL: Final = """\
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: demo, labels: {app: demo}}
spec:
  modelRef: demo
  replicas: %d
  contextSize: 512
  parallelSlots: 1
  extraArgs: ["--threads=1"]
"""
BOTH: Final = MODEL + "---\n" + SERVICE_OF_MODEL

SERVICE: Final = """\
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: demo}}
spec:
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: probe, port: 9090, targetPort: health}
"""
SERVICES: Final = """\
apiVersion: v1
kind: Service
metadata: {name: plain}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ports: [{port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: example.org}
---
apiVersion: v1
kind: Service
metadata: {name: bare}
spec: {clusterIP: None}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {externalIPs: [192.0.2.7, 192.0.2.8], ports: [{port: 443}], sessionAffinity: ClientIP}
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 443}]}
"""
SLICES: Final = """\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-mac
  labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: llmkube-agent}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [192.0.2.1], conditions: {ready: true}, nodeName: mac}
- {addresses: [192.0.2.2], conditions: {ready: false, serving: true, terminating: true}, zone: near, hostname: h}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many}
addressType: IPv6
ports: [{name: a, port: 1}, {name: b, port: 2}, {name: c, port: 3}, {name: d, port: 4, protocol: UDP}]
endpoints:
- addresses: ["2001:db8::1"]
- addresses: ["2001:db8::2"]
- addresses: ["2001:db8::3"]
- addresses: ["2001:db8::4"]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: empty}
addressType: FQDN
endpoints: []
ports: []
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: portless}
addressType: FQDN
endpoints: [{addresses: [example.org]}]
ports: [{name: any}]
"""
ENDPOINTS: Final = """\
apiVersion: v1
kind: Endpoints
metadata: {name: old, labels: {endpointslice.kubernetes.io/skip-mirror: "true"}}
subsets:
- addresses: [{ip: 192.0.2.1}, {ip: 192.0.2.2, hostname: h}]
  notReadyAddresses: [{ip: 192.0.2.9}]
  ports: [{name: http, port: 8080}, {name: more, port: 81, protocol: UDP}]
"""
CONFIG: Final = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {app: demo}}
data:
  size: "%s"
  long: |
    one
    two
binaryData: {raw: AAEC}
"""
SECRET: Final = """\
apiVersion: v1
kind: Secret
metadata: {name: token, labels: {app: demo}}
stringData: {a: b, more: words}
"""
LEASE: Final = """\
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: mac}
spec: {holderIdentity: agent-1, leaseDurationSeconds: 40, renewTime: "2020-01-02T03:04:05.678901Z"}
"""
LEASE_FREE: Final = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: free}\n"
OWNED: Final = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: dependent
  ownerReferences:
  - {apiVersion: v1, kind: ConfigMap, name: owner, uid: "%(owner)s", blockOwnerDeletion: true, controller: true}
"""
EVENT: Final = """\
apiVersion: v1
kind: Event
metadata: {name: %(name)s, namespace: %(namespace)s, labels: {from: script}}
involvedObject: {apiVersion: %(version)s, kind: %(kind)s, name: %(about)s, namespace: %(namespace)s}
type: %(type)s
reason: %(reason)s
message: "%(message)s"
source: {component: llmkube-agent, host: mac}
firstTimestamp: "2020-01-02T03:04:05Z"
lastTimestamp: "%(last)s"
count: %(count)d
reportingComponent: llmkube-agent
reportingInstance: mac
"""
TYPED: Final = """\
apiVersion: v1
kind: Widget
metadata: {name: x}
"""
