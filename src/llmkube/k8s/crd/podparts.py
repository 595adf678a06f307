"""The parts of a pod that our kinds carry as free-form maps are spelled out in the CRDs, as Kubernetes types them.

No class decodes them: renderers pass them on to the pod as they came, and a cache of ten thousand services pays nothing
for the three hundred fields below. The API server knows them all, so that `kubectl explain` shows them and a misspelled
`tcpSocket.prot` is refused when it is applied, not when a pod is made.

The notation: `int32`, `[]string`, `map[string]string` are types; `!` behind a name means that the field is required,
`=` behind a type gives the default; a list with one map in it is a list of objects, a pair of a name and a map is one
whose items have that field as key. Facts: the Kubernetes API, v1.36,
types of `k8s.io/api/core/v1`.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

Part = Mapping[str, Any]

_ATOMIC: Final = "~"
"""A key that no field has: the object is owned and replaced as a whole (`x-kubernetes-map-type: atomic`)."""

_SIGNED_QUANTITY: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_EITHER: Final[Mapping[str, Any]] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_SCALARS: Final[Mapping[str, Mapping[str, Any]]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "int-or-string": _EITHER,
    "quantity": {**_EITHER, "pattern": _SIGNED_QUANTITY},
}

# -- selectors and references -----------------------------------------------------------------------------------------

_REQUIREMENT: Final = {"key!": "string", "operator!": "string", "values": "[]string"}
_SELECTOR: Final = {_ATOMIC: "", "matchExpressions": [_REQUIREMENT], "matchLabels": "map[string]string"}
_NODE_TERM: Final = {"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}
_NAME: Final = {_ATOMIC: "", "name": 'string=""'}
_KEY: Final = {_ATOMIC: "", "key!": "string", "name": 'string=""', "optional": "bool"}
_FIELD: Final = {_ATOMIC: "", "apiVersion": "string", "fieldPath!": "string"}
_RESOURCE_FIELD: Final = {_ATOMIC: "", "containerName": "string", "divisor": "quantity", "resource!": "string"}

# -- scheduling -------------------------------------------------------------------------------------------------------

_POD_TERM: Final = {
    "labelSelector": _SELECTOR,
    "matchLabelKeys": "[]string",
    "mismatchLabelKeys": "[]string",
    "namespaceSelector": _SELECTOR,
    "namespaces": "[]string",
    "topologyKey!": "string",
}
_POD_AFFINITY: Final = {
    "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm!": _POD_TERM, "weight!": "int32"}],
    "requiredDuringSchedulingIgnoredDuringExecution": [_POD_TERM],
}
_AFFINITY: Final = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"preference!": {_ATOMIC: "", **_NODE_TERM}, "weight!": "int32"}
        ],
        "requiredDuringSchedulingIgnoredDuringExecution": {_ATOMIC: "", "nodeSelectorTerms!": [_NODE_TERM]},
    },
    "podAffinity": _POD_AFFINITY,
    "podAntiAffinity": _POD_AFFINITY,
}
_TOLERATION: Final = {
    "effect": "string",
    "key": "string",
    "operator": "string",
    "tolerationSeconds": "int64",
    "value": "string",
}
_SPREAD: Final = {
    "labelSelector": _SELECTOR,
    "matchLabelKeys": "[]string",
    "maxSkew!": "int32",
    "minDomains": "int32",
    "nodeAffinityPolicy": "string",
    "nodeTaintsPolicy": "string",
    "topologyKey!": "string",
    "whenUnsatisfiable!": "string",
}
_AMOUNTS: Final = {"limits": "map[string]quantity", "requests": "map[string]quantity"}
_RESOURCES: Final = {"claims": ("name", {"name!": "string", "request": "string"}), **_AMOUNTS}

# -- containers -------------------------------------------------------------------------------------------------------

_ENV_SOURCE: Final = {
    "configMapKeyRef": _KEY,
    "fieldRef": _FIELD,
    "fileKeyRef": {
        _ATOMIC: "",
        "key!": "string",
        "optional": "bool=false",
        "path!": "string",
        "volumeName!": "string",
    },
    "resourceFieldRef": _RESOURCE_FIELD,
    "secretKeyRef": _KEY,
}
_PROBE: Final = {
    "exec": {"command": "[]string"},
    "failureThreshold": "int32",
    "grpc": {"port!": "int32", "service": 'string=""'},
    "httpGet": {
        "host": "string",
        "httpHeaders": [{"name!": "string", "value!": "string"}],
        "path": "string",
        "port!": "int-or-string",
        "scheme": "string",
    },
    "initialDelaySeconds": "int32",
    "periodSeconds": "int32",
    "successThreshold": "int32",
    "tcpSocket": {"host": "string", "port!": "int-or-string"},
    "terminationGracePeriodSeconds": "int64",
    "timeoutSeconds": "int32",
}
_PROFILE: Final = {"localhostProfile": "string", "type!": "string"}
_SHARED_SECURITY: Final = {
    "appArmorProfile": _PROFILE,
    "runAsGroup": "int64",
    "runAsNonRoot": "bool",
    "runAsUser": "int64",
    "seLinuxOptions": {"level": "string", "role": "string", "type": "string", "user": "string"},
    "seccompProfile": _PROFILE,
    "windowsOptions": {
        "gmsaCredentialSpec": "string",
        "gmsaCredentialSpecName": "string",
        "hostProcess": "bool",
        "runAsUserName": "string",
    },
}
_SECURITY: Final = {
    "allowPrivilegeEscalation": "bool",
    "capabilities": {"add": "[]string", "drop": "[]string"},
    "privileged": "bool",
    "procMount": "string",
    "readOnlyRootFilesystem": "bool",
    **_SHARED_SECURITY,
}
_POD_SECURITY: Final = {
    "fsGroup": "int64",
    "fsGroupChangePolicy": "string",
    "seLinuxChangePolicy": "string",
    "supplementalGroups": "[]int64",
    "supplementalGroupsPolicy": "string",
    "sysctls": [{"name!": "string", "value!": "string"}],
    **_SHARED_SECURITY,
}
_MOUNT: Final = {
    "mountPath!": "string",
    "mountPropagation": "string",
    "name!": "string",
    "readOnly": "bool",
    "recursiveReadOnly": "string",
    "subPath": "string",
    "subPathExpr": "string",
}

# -- volumes ----------------------------------------------------------------------------------------------------------

_FILE: Final = {"key!": "string", "mode": "int32", "path!": "string"}
_DOWNWARD: Final = {"fieldRef": _FIELD, "mode": "int32", "path!": "string", "resourceFieldRef": _RESOURCE_FIELD}
_FILES: Final = {_ATOMIC: "", "items": [_FILE], "name": 'string=""', "optional": "bool"}
_CLAIM: Final = {
    "accessModes": "[]string",
    "dataSource": {_ATOMIC: "", "apiGroup": "string", "kind!": "string", "name!": "string"},
    "dataSourceRef": {"apiGroup": "string", "kind!": "string", "name!": "string", "namespace": "string"},
    "resources": _AMOUNTS,
    "selector": _SELECTOR,
    "storageClassName": "string",
    "volumeAttributesClassName": "string",
    "volumeMode": "string",
    "volumeName": "string",
}
_PROJECTED: Final = {
    "clusterTrustBundle": {
        "labelSelector": _SELECTOR,
        "name": "string",
        "optional": "bool",
        "path!": "string",
        "signerName": "string",
    },
    "configMap": _FILES,
    "downwardAPI": {"items": [_DOWNWARD]},
    "podCertificate": {
        "certificateChainPath": "string",
        "credentialBundlePath": "string",
        "keyPath": "string",
        "keyType!": "string",
        "maxExpirationSeconds": "int32",
        "signerName!": "string",
        "userAnnotations": "map[string]string",
    },
    "secret": _FILES,
    "serviceAccountToken": {"audience": "string", "expirationSeconds": "int64", "path!": "string"},
}
_DISK: Final = {"fsType": "string", "readOnly": "bool"}
_VOLUME: Final = {
    "name!": "string",
    "configMap": {**_FILES, "defaultMode": "int32"},
    "csi": {
        **_DISK,
        "driver!": "string",
        "nodePublishSecretRef": _NAME,
        "volumeAttributes": "map[string]string",
    },
    "downwardAPI": {"defaultMode": "int32", "items": [_DOWNWARD]},
    "emptyDir": {"medium": "string", "sizeLimit": "quantity"},
    "ephemeral": {
        "volumeClaimTemplate": {
            "metadata": {"annotations": "map[string]string", "labels": "map[string]string"},
            "spec!": _CLAIM,
        }
    },
    "hostPath": {"path!": "string", "type": "string"},
    "image": {"pullPolicy": "string", "reference": "string"},
    "nfs": {"path!": "string", "readOnly": "bool", "server!": "string"},
    "persistentVolumeClaim": {"claimName!": "string", "readOnly": "bool"},
    "projected": {"defaultMode": "int32", "sources": [_PROJECTED]},
    "secret": {"defaultMode": "int32", "items": [_FILE], "optional": "bool", "secretName": "string"},
    # one per storage system, from before there was csi
    "awsElasticBlockStore": {**_DISK, "partition": "int32", "volumeID!": "string"},
    "azureDisk": {
        "cachingMode": "string",
        "diskName!": "string",
        "diskURI!": "string",
        "fsType": 'string="ext4"',
        "kind": "string",
        "readOnly": "bool=false",
    },
    "azureFile": {"readOnly": "bool", "secretName!": "string", "shareName!": "string"},
    "cephfs": {
        "monitors!": "[]string",
        "path": "string",
        "readOnly": "bool",
        "secretFile": "string",
        "secretRef": _NAME,
        "user": "string",
    },
    "cinder": {**_DISK, "secretRef": _NAME, "volumeID!": "string"},
    "fc": {**_DISK, "lun": "int32", "targetWWNs": "[]string", "wwids": "[]string"},
    "flexVolume": {**_DISK, "driver!": "string", "options": "map[string]string", "secretRef": _NAME},
    "flocker": {"datasetName": "string", "datasetUUID": "string"},
    "gcePersistentDisk": {**_DISK, "partition": "int32", "pdName!": "string"},
    "gitRepo": {"directory": "string", "repository!": "string", "revision": "string"},
    "glusterfs": {"endpoints!": "string", "path!": "string", "readOnly": "bool"},
    "iscsi": {
        **_DISK,
        "chapAuthDiscovery": "bool",
        "chapAuthSession": "bool",
        "initiatorName": "string",
        "iqn!": "string",
        "iscsiInterface": 'string="default"',
        "lun!": "int32",
        "portals": "[]string",
        "secretRef": _NAME,
        "targetPortal!": "string",
    },
    "photonPersistentDisk": {"fsType": "string", "pdID!": "string"},
    "portworxVolume": {**_DISK, "volumeID!": "string"},
    "quobyte": {
        "group": "string",
        "readOnly": "bool",
        "registry!": "string",
        "tenant": "string",
        "user": "string",
        "volume!": "string",
    },
    "rbd": {
        **_DISK,
        "image!": "string",
        "keyring": 'string="/etc/ceph/keyring"',
        "monitors!": "[]string",
        "pool": 'string="rbd"',
        "secretRef": _NAME,
        "user": 'string="admin"',
    },
    "scaleIO": {
        "fsType": 'string="xfs"',
        "gateway!": "string",
        "protectionDomain": "string",
        "readOnly": "bool",
        "secretRef!": _NAME,
        "sslEnabled": "bool",
        "storageMode": 'string="ThinProvisioned"',
        "storagePool": "string",
        "system!": "string",
        "volumeName": "string",
    },
    "storageos": {**_DISK, "secretRef": _NAME, "volumeName": "string", "volumeNamespace": "string"},
    "vsphereVolume": {
        "fsType": "string",
        "storagePolicyID": "string",
        "storagePolicyName": "string",
        "volumePath!": "string",
    },
}

POD_PARTS: Final[Mapping[str, Part]] = {
    "Affinity": _AFFINITY,
    "EnvVarSource": _ENV_SOURCE,
    "PodSecurityContext": _POD_SECURITY,
    "Probe": _PROBE,
    "ResourceRequirements": _RESOURCES,
    "SecurityContext": _SECURITY,
    "Toleration": _TOLERATION,
    "TopologySpreadConstraint": _SPREAD,
    "Volume": _VOLUME,
    "VolumeMount": _MOUNT,
}
"""By their Kubernetes names."""


def part_schema(name: str) -> dict[str, Any]:
    """The structural schema of a part of a pod, fresh on each call and without a shared node in it.

    Raises:
        KeyError: There is no such part.
    """
    return _object(POD_PARTS[name])


def _schema(said: Any) -> dict[str, Any]:
    if isinstance(said, list):
        return {"type": "array", "items": _object(said[0]), "x-kubernetes-list-type": "atomic"}
    if isinstance(said, tuple):
        key, item = said
        keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        return {"type": "array", "items": _object(item), **keyed}
    if isinstance(said, Mapping):
        return _object(said)
    word, has_default, default = str(said).partition("=")
    if word.startswith("[]"):
        return {"type": "array", "items": _scalar(word[2:]), "x-kubernetes-list-type": "atomic"}
    if word.startswith("map[string]"):
        return {"type": "object", "additionalProperties": _scalar(word.removeprefix("map[string]"))}
    return _scalar(word) | ({"default": json.loads(default)} if has_default else {})


def _scalar(word: str) -> dict[str, Any]:
    return copy.deepcopy(dict(_SCALARS[word]))  # YAML would write a shared part as a reference


def _object(part: Part) -> dict[str, Any]:
    names = [name for name in part if name != _ATOMIC]
    schema: dict[str, Any] = {"type": "object", "properties": {name.rstrip("!"): _schema(part[name]) for name in names}}
    required = [name.rstrip("!") for name in names if name.endswith("!")]
    if required:
        schema["required"] = required
    return schema | ({"x-kubernetes-map-type": "atomic"} if _ATOMIC in part else {})
