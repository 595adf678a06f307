"""What parent and workers tell each other, as JSON.

Times are given as what is left of them: clocks of two processes have no zero in common. Tokens and dollars are texts:
JSON's whole numbers end at 64 bits.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import attrs
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import Claim, Exhausted, Took
from llmkube.router.config.routing_config import Budget, Prices
from llmkube.router.dispatch.circuits import Circuit
from llmkube.router.policy.data_limits import DataLimits
from llmkube.router.responses.shelf import Conversation, NewResponse

Json = Mapping[str, Any]

_SOON = 5e-324


def claim_to(claim: Claim) -> Json:
    """Return a claim as JSON."""
    under = [attrs.asdict(each) for each in claim.under]
    for one in under:
        one["max_usd"] = None if one["max_usd"] is None else str(one["max_usd"])
        one["max_tokens"] = None if one["max_tokens"] is None else str(one["max_tokens"])
    most = [str(claim.most.tokens), str(claim.most.nano_usd)]
    return {"under": under, "most": most, "copies": claim.copies, "cap": claim.cap}


def claim_from(value: Json) -> Claim:
    """Return the claim that `claim_to` has written."""
    under = []
    for each in value["under"]:
        tokens = None if each["max_tokens"] is None else int(each["max_tokens"])
        usd = None if each["max_usd"] is None else Decimal(each["max_usd"])
        under.append(Budget(**{**each, "max_tokens": tokens, "max_usd": usd}))
    tokens, nano_usd = value["most"]
    most = Amount(int(tokens), int(nano_usd))
    return Claim(under=tuple(under), most=most, copies=value["copies"], cap=value["cap"])


def exhausted_to(found: Exhausted) -> Json:
    """Return that a budget has no room, as JSON."""
    return {"budget": found.budget, "wait": found.wait_seconds, "message": found.message}


def exhausted_from(value: Json) -> Exhausted:
    """Return what `exhausted_to` has written."""
    return Exhausted(budget=value["budget"], wait_seconds=value["wait"], message=value["message"])


def took_to(took: Took | None) -> Json | None:
    """Return what a request took, as JSON."""
    if took is None:
        return None
    prices = took.prices
    usd = None if prices is None else [str(prices.prompt_usd), str(prices.completion_usd)]
    return {"prompt": str(took.prompt), "answer": str(took.answer), "usd": usd}


def took_from(value: Json | None) -> Took | None:
    """Return what `took_to` has written."""
    if value is None:
        return None
    usd = value["usd"]
    prices = None if usd is None else Prices(prompt_usd=Decimal(usd[0]), completion_usd=Decimal(usd[1]))
    return Took(prompt=int(value["prompt"]), answer=int(value["answer"]), prices=prices)


def circuit_to(circuit: Circuit, now: float) -> Json:
    """Return a circuit as JSON."""
    return {
        "failures": circuit.failures,
        "opened": circuit.opened,
        "left": circuit.open_until - now if circuit.open_until else None,
        "probing": circuit.probing,
        "unwell": dict(circuit.unwell),
    }


def circuit_from(value: Json, now: float) -> Circuit:
    """Return the circuit that `circuit_to` has written."""
    left = value["left"]
    open_until = 0.0 if left is None else max(now + left, _SOON)  # 0 would be a closed one
    return Circuit(value["failures"], value["opened"], open_until, value["probing"], value["unwell"])


def limits_to(limits: DataLimits) -> Json:
    """Return the limits of some data as JSON."""
    return {"classes": sorted(limits.classes), "regions": None if limits.regions is None else sorted(limits.regions)}


def limits_from(value: Json) -> DataLimits:
    """Return what `limits_to` has written."""
    regions = value["regions"]
    return DataLimits(classes=frozenset(value["classes"]), regions=None if regions is None else frozenset(regions))


def conversation_to(conversation: Conversation) -> Json:
    """Return a conversation as JSON."""
    return {
        "history": [part.decode() for part in conversation.history],
        "limits": limits_to(conversation.limits),
        "bytes": conversation.bytes,
    }


def conversation_from(value: Json, number: int) -> Conversation:
    """Return what `conversation_to` has written, under a number of this side."""
    return Conversation(
        number=number,
        history=[part.encode() for part in value["history"]],
        limits=limits_from(value["limits"]),
        bytes=value["bytes"],
    )


def response_to(new: NewResponse) -> Json:
    """Return a response that is to be kept, as JSON."""
    return {
        "owner": new.owner,
        "id": new.response_id,
        "response": new.response.decode(),
        "asked": new.asked.decode(),
        "answered": new.answered.decode(),
        "limits": limits_to(new.limits),
        "bytes": new.conversation_bytes,
    }


def response_from(value: Json) -> NewResponse:
    """Return what `response_to` has written."""
    return NewResponse(
        owner=value["owner"],
        response_id=value["id"],
        response=value["response"].encode(),
        asked=value["asked"].encode(),
        answered=value["answered"].encode(),
        limits=limits_from(value["limits"]),
        conversation_bytes=value["bytes"],
    )


def families_to(families: Iterable[Metric]) -> list[Json]:
    """Return families of metrics as JSON; those without a sample are left out."""
    return [
        {
            "name": family.name,
            "help": family.documentation,
            "type": family.type,
            "samples": [[each.name, each.labels, repr(float(each.value))] for each in family.samples],
        }
        for family in families
        if family.samples
    ]


WORKER_LABEL = "worker"


def labelled_families(by_worker: Mapping[str, Iterable[Json]]) -> list[Metric]:
    """Return the families of all workers, each sample with the worker that it is from.

    Nothing is added up: a worker that is started again begins its own counters anew, as Prometheus knows it of any
    process, and no sum goes back.
    """
    found: dict[str, Metric] = {}
    for worker, families in by_worker.items():
        for family in families:
            metric = found.setdefault(family["name"], Metric(family["name"], family["help"], family["type"]))
            metric.samples += [
                Sample(name, {WORKER_LABEL: worker, **labels}, float(value))
                for name, labels, value in family["samples"]
            ]
    return list(found.values())
