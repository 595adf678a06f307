"""ownerReferences: with which owner an object is deleted. Pure."""

from typing import Any

from llmkube.k8s.resource import Key, Object


def controller_reference(owner: Object) -> dict[str, Any]:
    """Return the reference of what `owner` controls, as a manifest has it.

    `blockOwnerDeletion` stays false: to set it takes a right on the owner's finalizers that no program here has.
    """
    return {
        "apiVersion": owner.RESOURCE.api_version,
        "kind": owner.RESOURCE.kind,
        "name": owner.key.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def is_controlled_by(owned: Object, uid: str) -> bool:
    """Whether the owner of that uid is the one that manages the object."""
    return any(owner.controller and owner.uid == uid for owner in owned.metadata.owner_references)


def controller_key(owned: Object, kind: str) -> Key | None:
    """Return the owner of this kind that manages the object; None when there is none."""
    for owner in owned.metadata.owner_references:
        if owner.controller and owner.kind == kind:
            return Key(owned.metadata.namespace, owner.name)
    return None
