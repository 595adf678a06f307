"""Who may be given what the store has of a source. Pure.

What took a credential goes to Models of other namespaces only when their own credential works: the source is asked.
"""

import attrs


@attrs.frozen
class Audience:
    """Who may have the weights of one record without another question to their source.

    Attributes:
        public: Every Model: the source gave them to a request without a credential.
        namespaces: Models of these: a credential of theirs has worked.
        credentials: Keyed digests of the credentials that have worked (`Store.keyed_digest`).
    """

    public: bool = False
    namespaces: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()

    def admits(self, namespace: str | None) -> bool:
        """Whether a Model of this namespace may have them; None is the owner of the store."""
        return self.public or namespace is None or namespace in self.namespaces

    def shares_with(self, credential: str) -> bool:
        """Whether who presents this credential may have them under another source's name; empty is none."""
        return self.public or (bool(credential) and credential in self.credentials)

    def extended(self, namespace: str | None, credential: str) -> "Audience":
        """Return the audience after the source has given them to a request with this credential; empty is none."""
        if not credential:
            return attrs.evolve(self, public=True)
        added = () if namespace is None else (namespace,)
        return attrs.evolve(
            self,
            namespaces=tuple(dict.fromkeys((*self.namespaces, *added))),
            credentials=tuple(dict.fromkeys((*self.credentials, credential))),
        )


PUBLIC = Audience(public=True)
"""What took no credential."""

OWNER = Audience()
"""What only the store's owner may have until a credential has worked."""
