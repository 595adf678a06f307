"""What an agent writes to: an object of the API server, or one of its subresources. Pure."""

import attrs

from llmkube.k8s.resource import Key, Object


@attrs.frozen
class Slot:
    """One thing that this agent says: an object, or one of its subresources."""

    kind: type[Object]
    key: Key
    subresource: str = ""

    def __str__(self) -> str:
        """`EndpointSlice default/chat.mac`."""
        return f"{self.kind.RESOURCE.kind} {self.key}{'/' + self.subresource if self.subresource else ''}"
