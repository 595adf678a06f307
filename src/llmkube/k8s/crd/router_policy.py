"""What holds for all rules of a ModelRouter: data classes, budgets, who may ask, where decisions are written down."""

from typing import ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import DECIMAL, LocalObjectReference, SecretKeySelector
from llmkube.k8s.fields import REQUIRED, Rule, SchemaFacts, Wired, field

ROUTER_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
NAME_CHARACTERS: Final = 63
MAX_CLASSES: Final = 16
DATA_CLASS: Final = SchemaFacts(min_length=1, max_length=NAME_CHARACTERS)


@attrs.frozen(kw_only=True)
class Classification(Wired):
    """How the data class of a request is found, and which classes are sensitive."""

    mode: str = field("What decides the class.", "header-only", enum=("header-only", "detector", "hybrid"))
    header_key: str | None = field("Header with the class; unset means x-llmkube-classification.", min_length=1)
    default_classification: str | None = field(
        "Class of a request that names none; unset leaves it without.", min_length=1, max_length=NAME_CHARACTERS
    )
    sensitive_classifications: tuple[str, ...] = field(
        "Classes that stay local or are refused; unset means pii and phi.",
        (),
        min_items=1,
        max_items=MAX_CLASSES,
        items=DATA_CLASS,
    )


@attrs.frozen(kw_only=True)
class AuditLog(Wired):
    """Where decisions are written down."""

    RULES: ClassVar = (Rule("self.sink != 'file' || has(self.filePath)", "sink file needs a filePath"),)
    sink: str = field("Where entries go.", "stdout", enum=("stdout", "file", "otlp"))
    file_path: str | None = field("File for sink file.", min_length=1)
    include_request_body: bool | None = field("Writes requests down as a whole.")


@attrs.frozen(kw_only=True)
class JWT(Wired):
    """How tokens of clients are checked."""

    RULES: ClassVar = (
        Rule("has(self.jwksURI) != has(self.jwksSecretRef)", "the keys are in either jwksURI or jwksSecretRef"),
    )
    provider: str = field("Name of the issuer, for people.", REQUIRED, min_length=1)
    issuer: str = field("Issuer that tokens must name.", REQUIRED, min_length=1)
    audiences: tuple[str, ...] = field(
        "Audiences of which tokens must name one.", (), max_items=16, items=SchemaFacts(min_length=1)
    )
    jwks_uri: str | None = field("URL of the issuer's keys, a JWK Set.", min_length=1, name="jwksURI")
    jwks_secret_ref: SecretKeySelector | None = field(
        "Entry of a Secret with the issuer's keys, a JWK Set, instead of jwksURI.", atomic=True
    )
    team_claim: str = field("Claim with the team.", REQUIRED, min_length=1)
    header_key: str | None = field(
        "Header in which rules find the team, whatever a client sends in it; unset means x-llmkube-team.", min_length=1
    )


@attrs.frozen(kw_only=True)
class Allowlist(Wired):
    """Models that a team may use."""

    team: str = field(
        "Name of the team: the value of the token's claim, or of an entry of keysSecretRef.",
        REQUIRED,
        min_length=1,
        max_length=253,
        pattern=r"^\S(.*\S)?$",
    )
    models: tuple[str, ...] = field(
        "Patterns (* and ?) of models; none means all.", (), items=SchemaFacts(min_length=1)
    )


@attrs.frozen(kw_only=True)
class Auth(Wired):
    """Who may ask, and for what."""

    RULES: ClassVar = (
        Rule(
            "!has(self.allowlists) || self.allowlists.size() == 0 || has(self.jwt) || has(self.keysSecretRef)",
            "allowlists need a jwt or a keysSecretRef, which tell the team",
        ),
    )
    jwt: JWT | None = field("How tokens of clients are checked.")
    keys_secret_ref: LocalObjectReference | None = field(
        "Secret with the keys of clients: the name of each entry is a team, each line of it one of its keys.",
        atomic=True,
    )
    allowlists: tuple[Allowlist, ...] = field(
        "Models per team; once there is one, a team without may use none.", (), list_map_keys=("team",)
    )


@attrs.frozen(kw_only=True)
class Budget(Wired):
    """Most tokens or dollars within a time window."""

    RULES: ClassVar = (
        Rule("has(self.maxTokens) || has(self.maxUSD)", "a budget needs maxTokens or maxUSD"),
        Rule("(self.scope == 'rule') == has(self.ruleName)", "ruleName goes with scope rule", ".ruleName"),
    )
    name: str = field("Name of the budget.", REQUIRED, pattern=ROUTER_NAME, max_length=NAME_CHARACTERS)
    scope: str = field("What shares the budget.", REQUIRED, enum=("router", "rule", "team"))
    rule_name: str | None = field("Rule that the budget is for.", max_length=NAME_CHARACTERS)
    header_key: str | None = field("Header with the team, for scope team; unset means x-llmkube-team.", min_length=1)
    max_tokens: int | None = field("Most tokens in a window.", minimum=1, format="int64")
    max_usd: str | None = field("Most dollars in a window, as a decimal number.", pattern=DECIMAL, name="maxUSD")
    window_seconds: int = field("Length of the window in seconds.", 3600, minimum=1)


@attrs.frozen(kw_only=True)
class BudgetStore(Wired):
    """A Redis or Valkey server that keeps budgets for all processes of a router, over their restarts."""

    address: str = field("HOST:PORT of the server.", REQUIRED, max_length=300, pattern=r"^\S+:[0-9]{1,5}$")
    tls: bool = field("Whether it is reached over TLS.", False)
    database: int = field("Number of its database.", 0, minimum=0, maximum=1_000_000)
    username: str = field("User of it; unset means its default user.", "", max_length=253)
    password_secret_ref: SecretKeySelector | None = field("Secret with the password.", atomic=True)


@attrs.frozen(kw_only=True)
class RouterPolicy(Wired):
    """What holds for all rules."""

    classification: Classification | None = field("How the data class of a request is found.")
    budgets: tuple[Budget, ...] = field("Limits for tokens and dollars.", (), max_items=64, list_map_keys=("name",))
    budget_store: BudgetStore | None = field("Server that keeps the budgets; without one, each process by itself.")
    auth: Auth | None = field("Who may ask, and for what.")
    audit_log: AuditLog | None = field("Where decisions are written down.")
