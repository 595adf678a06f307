"""Each line carries its own hash and that of the line before."""

import hashlib
import json

import pytest

from llmkube.router.receipts.chain import ReceiptChain


def test_a_line_hashes_its_canonical_json():
    """Anybody can reckon it with a JSON library and SHA-256: keys in order, no spaces, without the hash itself."""
    chain = ReceiptChain(chain="c")
    lines = [
        chain.start(config="sha256:1", fields={"router": "ml/front"}),
        chain.decision({"rule": "r", "cost": 0.25, "name": "ä"}),
        chain.reload(config="sha256:2", fields={}),
        chain.end({}),
    ]
    before = ""
    for number, line in enumerate(lines):
        assert line.endswith(b"}\n")
        said = json.loads(line)
        claimed = said.pop("hash")
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert claimed == hashlib.sha256(canonical.encode()).hexdigest()
        assert (said["prev"], said["seq"], said["chain"]) == (before, number, "c")
        before = claimed
    assert chain.last_hash == before
    assert [json.loads(line)["kind"] for line in lines] == ["start", "decision", "config", "end"]


def test_what_the_chain_writes_cannot_be_given():
    """A decision with a field `hash` would be read as another's."""
    chain = ReceiptChain(chain="c")
    for key in ("chain", "seq", "kind", "prev", "hash"):
        with pytest.raises(ValueError, match=f"the chain itself writes {key}"):
            chain.decision({key: 1})
