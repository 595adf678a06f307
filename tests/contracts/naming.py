"""Replace values that legitimately differ between two servers by names, so that all others can be compared.

The first uid that a server shows is `uid1` on both servers, the second resourceVersion `rv2`: a write that changes
nothing is seen to keep its resourceVersion, and a new object to have a new uid, without comparing random numbers.
This is the whole list of what may differ:

* uids, resourceVersions, times, ages, continue tokens, made-up names, cluster addresses: replaced by names;
* the resourceVersion of a list or a bookmark: kube-apiserver counts writes that the script does not make;
* the order of a Status's causes and of entries of `managedFields`: the first is random, the second goes by time;
* the entry of `managedFields` for `scale`: kube-apiserver forgets it when the count becomes 0;
* descriptions of built-in kinds' table columns: ours are in our own words;
* `OTHER_WORDS`: the sentence where both refuse for one reason, with the same code, reason and field;
* the answer to a client that takes no JSON (406): kube-apiserver offers more formats.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import httpx

LONGEST: Final = 1000
"""Texts of more characters are written down by their beginning and a hash."""

_UID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME: Final = re.compile(r"\b20(?:2[0-9]|3[0-9])-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_RECORD: Final = re.compile(r"(?<=ResourceVersion in record \()\d+")
_ADDRESS: Final = re.compile(r"10(\.\d+){3}")
_AGE: Final = re.compile(r"(\d+[smhdy])+")
_SEVERAL: Final = re.compile(r"is invalid: \[.*\]$", re.DOTALL)


class Names:
    """The names that one server's own values have got so far."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._generated: dict[str, str] = {}

    def named(self, value: Any) -> Any:
        """Return a JSON value with names for what is the server's own."""
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list):
            return [self.named(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            self._learn(metadata)
        named = {self.text(name): self.named(value[name]) for name in sorted(value)}
        if isinstance(value.get("managedFields"), list):
            shown = [entry for entry in named["managedFields"] if entry.get("subresource") != "scale"]
            named["managedFields"] = sorted(shown, key=_manager_key)
        if "resourceVersion" in value:
            version = str(value["resourceVersion"])
            named["resourceVersion"] = self._versions.get(version, "a version") if "uid" in value else "a version"
        if value.get("continue"):
            named["continue"] = "a token"
        _name_the_rest(named, value)
        if value.get("kind") == "Status" and value.get("apiVersion") == "v1":
            _in_any_order(named)
            _in_other_words(named)
        return named

    def _learn(self, metadata: dict[str, Any]) -> None:
        uid, version, name = (str(metadata.get(key) or "") for key in ("uid", "resourceVersion", "name"))
        if uid:
            self._uids.setdefault(uid, f"uid{len(self._uids) + 1}")
            if version:
                self._versions.setdefault(version, f"rv{len(self._versions) + 1}")
        prefix = str(metadata.get("generateName") or "")
        if prefix and name.startswith(prefix[:58]) and len(name) == len(prefix[:58]) + 5:
            self._generated.setdefault(name, f"{prefix[:58]}<made up {len(self._generated) + 1}>")

    def text(self, text: str) -> str:
        """Return a text with names for what is the server's own."""
        for name, alias in self._generated.items():
            text = text.replace(name, alias)
        text = text.replace(self._namespace, "{ns}")
        text = _UID.sub(lambda match: self._uids.get(match[0], match[0]), text)
        text = _TIME.sub("a time", text)
        return _RECORD.sub(lambda match: self._versions.get(match[0], match[0]), text)


def shortened(value: Any) -> Any:
    """Return a JSON value whose long texts are cut to their beginning and a hash."""
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if not isinstance(value, str) or len(value) <= LONGEST:
        return value
    return f"{value[:100]}… ({len(value)} characters, {hashlib.sha256(value.encode()).hexdigest()[:8]})"


def _name_the_rest(named: dict[str, Any], value: Mapping[str, Any]) -> None:
    if "cells" in value:
        named["cells"] = [_cell(cell) for cell in named["cells"]]
    for definition in named.get("columnDefinitions") or ():
        if not definition["description"].startswith("Custom resource definition column"):
            definition["description"] = "in somebody's words"
    for address in ("clusterIP", "clusterIPs"):
        if value.get(address) and "None" not in value[address]:
            named[address] = "an address"


def _cell(cell: Any) -> Any:
    if isinstance(cell, str) and _AGE.fullmatch(cell):
        return "an age"
    return "an address" if isinstance(cell, str) and _ADDRESS.fullmatch(cell) else cell


def _manager_key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name, "")) for name in ("operation", "manager", "apiVersion", "subresource"))


OTHER_WORDS: Final = (
    (
        re.compile(
            r"(couldn't get version/kind; json parse error|json: cannot unmarshal|parsing time|illegal base64 data"
            r"|converting \(|yaml: |cannot restore slice).*",
            re.DOTALL,
        ),
        "it does not decode",
    ),
    (re.compile(r"(map: |in map: )(map\[.*?\]|\{.*\})", re.DOTALL), r"\1a map"),
    (re.compile(r"(continue key is not valid|error decoding patch|error decoding YAML): .*", re.DOTALL), r"\1"),
    (re.compile(r"StorageError: .*AdditionalErrorMsg: "), ""),
    (re.compile(r" in scheme \S+"), ""),
    (re.compile(r'patch: Invalid value: ".*?[}\]]": ', re.DOTALL), "patch: Invalid value: an object: "),
    (re.compile(r"the provided object is unrecognized"), ""),
    (re.compile(r"(Object 'Kind' is missing in) '\{\".*", re.DOTALL), r"\1 an object"),
)
"""Where both servers refuse alike and say it in words of their own: Go's names for types, its readers' sentences."""


def _in_other_words(status: dict[str, Any]) -> None:
    if status.get("code") == httpx.codes.NOT_ACCEPTABLE:
        status["message"] = "nothing that the client takes"
        status.pop("details", None)
    for pattern, words in OTHER_WORDS:
        if isinstance(status.get("message"), str):
            status["message"] = pattern.sub(words, status["message"])
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("field") == "patch":
            cause["message"] = re.sub(
                r'^Invalid value: ".*?[}\]]": ', "Invalid value: an object: ", cause["message"], flags=re.DOTALL
            )
            for pattern, words in OTHER_WORDS:
                cause["message"] = pattern.sub(words, cause["message"])


def _in_any_order(status: dict[str, Any]) -> None:
    """Sort the causes of a Status and the sentences of its message: kube-apiserver collects them from maps."""
    causes = (status.get("details") or {}).get("causes")
    if not causes:
        return
    status["details"]["causes"] = sorted(causes, key=json.dumps)
    if len(causes) > 1 and _SEVERAL.search(status["message"]):
        beginning = status["message"].partition("is invalid: ")[0]
        every = sorted({f"{cause.get('field', '')}: {cause['message']}" for cause in causes})
        whole = status["message"].removeprefix(beginning)
        if all(each in whole for each in every):
            status["message"] = f"{beginning}is invalid: {every}"
