"""The policy of a ModelRouter: data classes, budgets, client authentication and the audit log."""

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
    """Classification of requests by data class, and the sensitive classes."""

    mode: str = field("Source of the data class.", "header-only", enum=("header-only", "detector", "hybrid"))
    header_key: str | None = field("Header with the data class; defaults to x-llmkube-classification.", min_length=1)
    default_classification: str | None = field(
        "Data class of a request without one; unset leaves it unclassified.", min_length=1, max_length=NAME_CHARACTERS
    )
    sensitive_classifications: tuple[str, ...] = field(
        "Data classes whose requests stay local or are refused; defaults to pii and phi.",
        (),
        min_items=1,
        max_items=MAX_CLASSES,
        items=DATA_CLASS,
    )


@attrs.frozen(kw_only=True)
class AuditLog(Wired):
    """Audit log of routing decisions."""

    RULES: ClassVar = (Rule("self.sink != 'file' || has(self.filePath)", "sink file needs a filePath"),)
    sink: str = field("Destination of the entries.", "stdout", enum=("stdout", "file", "otlp"))
    file_path: str | None = field("Path of the log file, if sink is file.", min_length=1)
    include_request_body: bool | None = field("Whether entries include the request body.")


@attrs.frozen(kw_only=True)
class JWT(Wired):
    """Verification of clients' JSON Web Tokens."""

    RULES: ClassVar = (
        Rule("has(self.jwksURI) != has(self.jwksSecretRef)", "the keys are in either jwksURI or jwksSecretRef"),
    )
    provider: str = field("Name of the issuer, for people.", REQUIRED, min_length=1)
    issuer: str = field("Issuer that tokens must name.", REQUIRED, min_length=1)
    audiences: tuple[str, ...] = field(
        "Audiences; a token must name at least one of them.", (), max_items=16, items=SchemaFacts(min_length=1)
    )
    jwks_uri: str | None = field("URL of the issuer's JWK Set.", min_length=1, name="jwksURI")
    jwks_secret_ref: SecretKeySelector | None = field(
        "Key of a Secret with the issuer's JWK Set, instead of jwksURI.", atomic=True
    )
    team_claim: str = field("Claim with the team.", REQUIRED, min_length=1)
    header_key: str | None = field(
        "Header that the router sets to the team, for rules; defaults to x-llmkube-team.", min_length=1
    )


@attrs.frozen(kw_only=True)
class Allowlist(Wired):
    """Models that a team may use."""

    team: str = field(
        "Name of the team: the value of the token's claim, or an entry of keysSecretRef.",
        REQUIRED,
        min_length=1,
        max_length=253,
        pattern=r"^\S(.*\S)?$",
    )
    models: tuple[str, ...] = field(
        "Patterns (* and ?) of models; empty means all.", (), items=SchemaFacts(min_length=1)
    )


@attrs.frozen(kw_only=True)
class Auth(Wired):
    """Authentication of clients and the models that they may use."""

    RULES: ClassVar = (
        Rule(
            "!has(self.allowlists) || self.allowlists.size() == 0 || has(self.jwt) || has(self.keysSecretRef)",
            "allowlists need a jwt or a keysSecretRef, which tell the team",
        ),
    )
    jwt: JWT | None = field("Verification of clients' JSON Web Tokens.")
    keys_secret_ref: LocalObjectReference | None = field(
        "Secret with the API keys of clients: each entry is a team, each line of its value one key or record of one.",
        atomic=True,
    )
    prompt_caches: str | None = field(
        "Whether engines may reuse the cached prompts of one team for another, which can show one what the other sent. "
        "Default: per-team.",
        enum=("per-team", "shared"),
    )
    allowlists: tuple[Allowlist, ...] = field(
        "Models per team; if any is given, a team without an entry may use none.", (), list_map_keys=("team",)
    )


@attrs.frozen(kw_only=True)
class Budget(Wired):
    """Limit of tokens or dollars within a time window."""

    RULES: ClassVar = (
        Rule("has(self.maxTokens) || has(self.maxUSD)", "a budget needs maxTokens or maxUSD"),
        Rule("(self.scope == 'rule') == has(self.ruleName)", "ruleName goes with scope rule", ".ruleName"),
    )
    name: str = field("Name of the budget.", REQUIRED, pattern=ROUTER_NAME, max_length=NAME_CHARACTERS)
    scope: str = field("Scope that shares the budget.", REQUIRED, enum=("router", "rule", "team"))
    rule_name: str | None = field("Rule that the budget applies to.", max_length=NAME_CHARACTERS)
    header_key: str | None = field("Header with the team, for scope team; defaults to x-llmkube-team.", min_length=1)
    max_tokens: int | None = field("Maximum tokens per window.", minimum=1, format="int64")
    max_usd: str | None = field("Maximum US dollars per window, as a decimal number.", pattern=DECIMAL, name="maxUSD")
    window_seconds: int = field("Length of the window in seconds.", 3600, minimum=1)


@attrs.frozen(kw_only=True)
class BudgetStore(Wired):
    """Redis or Valkey server that stores budgets for all processes of a router, across restarts."""

    address: str = field("HOST:PORT of the server.", REQUIRED, max_length=300, pattern=r"^\S+:[0-9]{1,5}$")
    tls: bool = field("Whether to connect over TLS.", False)
    database: int = field("Number of the database.", 0, minimum=0, maximum=1_000_000)
    username: str = field("User name; unset means the server's default user.", "", max_length=253)
    password_secret_ref: SecretKeySelector | None = field("Key of a Secret with the password.", atomic=True)


@attrs.frozen(kw_only=True)
class RouterPolicy(Wired):
    """Policy for all rules of a router."""

    classification: Classification | None = field("Classification of requests by data class.")
    budgets: tuple[Budget, ...] = field("Limits on tokens and dollars.", (), max_items=64, list_map_keys=("name",))
    budget_store: BudgetStore | None = field("Server that stores the budgets; without it, each process has its own.")
    auth: Auth | None = field("Authentication of clients and the models that they may use.")
    audit_log: AuditLog | None = field("Audit log of routing decisions.")
