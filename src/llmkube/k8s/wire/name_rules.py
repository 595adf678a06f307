"""Validate names, labels and qualified keys, with kube-apiserver's messages.

Each function returns the problems of a text, empty if it is valid.
Facts: RFC 1123 and 1035 labels as in `k8s.io/apimachinery/pkg/util/validation`.
"""

import re
from typing import Final

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE: Final = f"({_QUALIFIED})?"

_NO_NAME_PART: Final = "name part must be non-empty"
_NAME_PART: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED}')"
)

_MAX_LABEL: Final = 63
_MAX_PORT_NAME: Final = 15
_MAX_SUBDOMAIN: Final = 253


def _length(text: str, limit: int, unit: str = "bytes") -> str:
    return f"must be no more than {limit} {unit}" if len(text.encode()) > limit else ""


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def label(text: str) -> str:
    """Validate an RFC 1123 label: the name of a namespace."""
    if _matches(_LABEL, text):
        return _length(text, _MAX_LABEL, "characters")
    if "." in text and not subdomain(text):
        return "must not contain dots"
    return (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end"
        f" with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
    )


def label_1035(text: str) -> str:
    """Validate an RFC 1035 label: the name of a Service."""
    if _matches(_LABEL_1035, text):
        return _length(text, _MAX_LABEL, "characters")
    return (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic"
        " character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation"
        f" is '{_LABEL_1035}')"
    )


def subdomain(text: str) -> str:
    """Validate an RFC 1123 subdomain: the name of most kinds."""
    if _matches(_SUBDOMAIN, text):
        return _length(text, _MAX_SUBDOMAIN, "characters")
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start"
        " and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
        f" '{_SUBDOMAIN}')"
    )


def label_key(text: str) -> tuple[str, ...]:
    """Return all problems of a label's key."""
    return tuple(problem.replace("a qualified name", "a valid label key", 1) for problem in qualified_all(text))


def port_name(text: str) -> tuple[str, ...]:
    """Return all problems of a port's name (RFC 6335)."""
    problem = []
    if len(text) > _MAX_PORT_NAME:
        problem.append(f"must be no more than {_MAX_PORT_NAME} characters")
    if not _matches("[-a-z0-9]+", text):
        problem.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    elif not re.search("[a-z]", text):
        problem.append("must contain at least one letter (a-z)")
    elif "--" in text:
        problem.append("must not contain consecutive hyphens")
    elif text[0] == "-" or text[-1] == "-":
        problem.append("must not begin or end with a hyphen")
    return tuple(problem)


def qualified_all(text: str) -> tuple[str, ...]:
    """Return all problems of a qualified name."""
    problem = qualified(text)
    return (problem, _NAME_PART) if problem == _NO_NAME_PART else (problem,) if problem else ()


def qualified(text: str) -> str:
    """Validate a qualified name: a label's key, an annotation's key, a finalizer."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix or (slash and not prefix):
        if not prefix:
            return "prefix part must be non-empty"
        return (
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
            " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
            f" '{_QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
    if prefix and (problem := subdomain(prefix)):
        return f"prefix part {problem}"
    if not name:
        return _NO_NAME_PART
    if too_long := _length(name, _MAX_LABEL):
        return f"name part {too_long}"
    return "" if _matches(_QUALIFIED, name) else _NAME_PART


def label_value(text: str) -> str:
    """Validate a label's value."""
    if too_long := _length(text, _MAX_LABEL):
        return too_long
    if _matches(_LABEL_VALUE, text):
        return ""
    return (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start"
        " and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for"
        f" validation is '{_LABEL_VALUE}')"
    )
