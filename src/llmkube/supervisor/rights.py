"""The permissions of an agent in the API server, and the identity of one host."""

from collections.abc import Collection
from typing import Final

import attrs

from llmkube.k8s import events
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Lease, Node, Secret, Service, ServiceAccount
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.leases import host_monitor
from llmkube.k8s.rbac import APPLY, LIST_AND_WATCH, Permission, Program
from llmkube.k8s.wire.names import ADDRESSES_ANNOTATION, HOST_ACCOUNT_PREFIX

PROGRAM: Final = Program(
    "llmkube-agent",
    (
        *(Permission(kind, LIST_AND_WATCH) for kind in (Model, InferenceService, ModelPool)),
        *(Permission(kind, frozenset({"patch"}), subresource="status") for kind in (Model, InferenceService)),
        # To check whether a service is gone if only the claim of a dead host is left.
        Permission(InferenceService, frozenset({"get"})),
        # An object with the name of a service may belong to another owner, and is read before it is written.
        Permission(Service, APPLY | {"get"}),
        # Both forms: an agent whose settings have changed deletes the other one.
        Permission(EndpointSlice, APPLY | {"delete"}),
        Permission(Endpoints, APPLY | {"get", "delete"}),
        # To find leftovers of an earlier agent, and every ten minutes objects that another client removed or changed.
        *(Permission(kind, frozenset({"list"})) for kind in (Service, EndpointSlice, Endpoints)),
        # The nodes' networks need no key; an agent of one namespace has those that `agent join` wrote instead.
        Permission(Node, LIST_AND_WATCH),
        # Its own Lease, and claims, which are created, taken over and deleted; the claims of all hosts are watched.
        Permission(Lease, APPLY | {"delete"}, place="system"),
        *host_monitor.PERMISSIONS,
        # The Secret in `Model.spec.sourceSecretRef`, when its file has to be fetched; never listed, never watched.
        Permission(Secret, frozenset({"get"}), opt_in=True),
        *events.PERMISSIONS,
    ),
)


def host_program(host: str, networks: Collection[str]) -> Program:
    """Return the program of one host's agent, with its own ServiceAccount, which may renew its own token.

    Args:
        host: Result of `host_id`.
        networks: Networks (CIDR) in which its engines may be; the policies read them from the account.
    """
    name = f"{HOST_ACCOUNT_PREFIX}{host}"
    token = Permission(
        ServiceAccount, frozenset({"create"}), place="system", subresource="token", names=frozenset({name})
    )
    return attrs.evolve(
        PROGRAM, name=name, needs=(*PROGRAM.needs, token), annotations={ADDRESSES_ANNOTATION: ",".join(networks)}
    )
