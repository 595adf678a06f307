"""What the script of kubectl commands creates, changes and gets wrong: files in `manifests`, some with gaps to fill."""

from pathlib import Path
from typing import Final

from llmkube.k8s.crd.definitions import crds_yaml


def _read(name: str) -> str:
    return (Path(__file__).parent / "manifests" / f"{name}.yaml").read_text(encoding="utf-8")


OUR_CRDS: Final = crds_yaml()
GIZMOS: Final = "gizmos.text.llmkube.dev"

GIZMO_CRD: Final = _read("gizmo_crd")
GIZMO: Final = _read("gizmo")
GIZMO_TWO: Final = _read("gizmo_two")
GIZMO_HELD: Final = _read("gizmo_held")
GIZMO_BAD: Final = _read("gizmo_bad")
GIZMO_PARTS: Final = _read("gizmo_parts")
MODEL: Final = _read("model")
SERVICE_OF_MODEL: Final = _read("service_of_model")
BOTH: Final = MODEL + "---\n" + SERVICE_OF_MODEL
SERVICE: Final = _read("service")
SERVICES: Final = _read("services")
SLICES: Final = _read("slices")
ENDPOINTS: Final = _read("endpoints")
CONFIG: Final = _read("config")
SECRET: Final = _read("secret")
LEASE: Final = _read("lease")
LEASE_FREE: Final = _read("lease_free")
OWNED: Final = _read("owned")
EVENT: Final = _read("event")
TYPED: Final = _read("typed")
