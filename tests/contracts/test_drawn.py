"""Whatever a spec says, the embedded server takes it or says what is wrong with which field."""

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.drawn import objects
from contracts.playing import open_embedded, open_session
from contracts.script_kinds import API_VERSION, manifest
from contracts.session import JSON, Operation
from lengths import EXAMPLES, SOAK


@settings(max_examples=EXAMPLES // 6, derandomize=not SOAK, suppress_health_check=list(HealthCheck))
@given(st.lists(objects(), min_size=20, max_size=20))
async def test_a_drawn_spec_is_taken_or_refused_by_name(drawn: Sequence[tuple[str, Any]]):
    """The answer is 422 with a cause that names a field, or the spec, which is taken again as it came back."""
    async with open_embedded() as http, open_session(http) as session:

        async def post(kind: str, spec: Any) -> Any:
            path = f"/apis/{API_VERSION}/namespaces/{{ns}}/{kind.lower()}s"
            return await session.send(Operation("POST", path, manifest(kind, spec), JSON, {"dryRun": "All"}))

        for kind, spec in drawn:
            first = await post(kind, spec)
            if first["kind"] != "Status":
                assert (await post(kind, first["spec"]))["spec"] == first["spec"]
                continue
            assert first["code"] == 422, first
            causes = first["details"]["causes"]
            assert any("spec" in f"{cause['field']} {cause['message']}" for cause in causes), causes
