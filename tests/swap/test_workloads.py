"""The published workloads do not change, and any policy could serve each of their models."""

import hashlib

from swap.workloads import SEEDS, generate


def test_the_published_workloads_are_unchanged():
    """The first twenty seeds give the same workloads as when they were published."""
    text = "\n".join(repr(generate(seed)) for seed in SEEDS[:20])
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "a5c16f452d54a5008f31f1cb2ea46c660ae0e1bb741e957e9e5d218a9a200732"
    )


def test_every_model_fits_beside_those_that_nothing_displaces():
    """Without pressure each model of a workload can be loaded."""
    for seed in SEEDS[:20]:
        workload = generate(seed)
        staying = [each for each in workload.models if each.always or each.pinned]
        for model in workload.models:
            for device, size in model.bytes.items():
                others = sum(each.bytes.get(device, 0) for each in staying if each is not model)
                assert size + others <= workload.limits[device], (seed, model.name)
