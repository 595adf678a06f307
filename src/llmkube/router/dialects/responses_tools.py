"""Tools of OpenAI's Responses API as functions of chat completions, and their calls. Pure.

https://platform.openai.com/docs/api-reference/responses/create. Clients run `function` tools, `custom` ones, whose
input is a text, and those in a `namespace`, such as an MCP server. Chat completions know functions only: a text becomes
the argument `input`, and a namespace a part of the name. Providers run all other tools, which are left out.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.base.package_data import read_table
from llmkube.router.dialects.dialect import DialectError, JsonObject, check_kinds, objects_in

API: Final = read_table(__package__, "responses_api")
CLIENT_TOOLS: Final[Mapping[str, list[str]]] = API["tools"]
_KINDS: Final = {"type": str, "name": str, "description": str, "parameters": dict, "strict": bool, "format": dict}
_TEXT: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_MAX_NAME: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


@attrs.frozen
class Tool:
    """A tool of a client.

    Attributes:
        name: Its name, in its namespace.
        namespace: "" without one.
        is_text: Whether its input is a text.
    """

    name: str
    namespace: str = ""
    is_text: bool = False


@attrs.define(eq=False)
class ToolNames:
    """Names of the tools of one request in chat completions, which are unique, and at most 64 characters long."""

    _names: dict[Tool, str] = attrs.field(factory=dict)
    _tools: dict[str, Tool] = attrs.field(factory=dict)

    def add(self, tool: Tool) -> str:
        """Return the name of a tool; the first that wants a name gets it, others a digest at its end."""
        if tool not in self._names:
            full = f"{tool.namespace}__{tool.name}" if tool.namespace else tool.name
            name = base = _NOT_IN_NAMES.sub("_", full) if tool.namespace else full
            while len(name) > _MAX_NAME or name in self._tools:
                digest = hashlib.sha256(f"{name} {tool.is_text} {full}".encode()).hexdigest()[:8]
                name = f"{base[: _MAX_NAME - 9]}_{digest}"
            self._names[tool], self._tools[name] = name, tool
        return self._names[tool]

    def tool(self, name: str) -> Tool:
        """Return the tool with a name; a function if it is unknown."""
        return self._tools.get(name) or Tool(name)

    def chosen(self, entry: Mapping[str, Any]) -> Tool:
        """Return the tool that an entry of `tool_choice` names, in its namespace, or with the name that it has here."""
        is_run, is_text = entry.get("type") in ("function", "custom"), entry.get("type") == "custom"
        check_kinds(entry, {"name": str, "namespace": str}, "tool_choice.")
        tool = Tool((is_run and entry.get("name")) or "", entry.get("namespace") or "", is_text)
        return tool if tool in self._names else self.tool(tool.name)


def client_tools(tools: object, where: str, dropped: list[str], namespace: str = "") -> dict[Tool, JsonObject]:
    """Return the tools that the client runs, with the members of their functions except the names.

    Raises:
        DialectError: A tool is malformed.
    """
    found: dict[Tool, JsonObject] = {}
    for at, tool in enumerate(objects_in(tools, where)):
        here, kind, name = f"{where}[{at}]", str(tool.get("type")), tool.get("name")
        check_kinds(tool, _KINDS, f"{here}.")
        if kind not in CLIENT_TOOLS or (kind == "namespace" and namespace):
            dropped.append(f"{here} ({kind:.80})")
            continue
        if not name:
            raise DialectError(f"{here}.name is missing; write the name of the {kind}")
        read, key = ("type", "name", *CLIENT_TOOLS[kind]), Tool(name, namespace, kind == "custom")
        dropped.extend(f"{here}.{member}" for member in tool if member not in read and tool[member] is not None)
        if kind == "namespace":
            found |= client_tools(tool.get("tools"), f"{here}.tools", dropped, name)
            continue
        dropped.extend([f"{here} (repeated)"] if key in found else ())
        found[key] = {member: tool[member] for member in ("description", "strict") if tool.get(member) is not None}
        found[key]["parameters"] = _TEXT if key.is_text else tool.get("parameters") or {}
        if definition := key.is_text and (tool.get("format") or {}).get("definition"):
            dropped.append(f"{here}.format (only described)")
            grammar = f"Its input has this grammar ({tool['format'].get('syntax')}):\n{definition}"
            found[key]["description"] = f"{tool.get('description') or ''}\n\n{grammar}".lstrip()
    return found


def tool_fields(
    asked: Mapping[str, Any], more: Sequence[JsonObject], names: ToolNames, dropped: list[str]
) -> JsonObject:
    """Translate the fields of a request about tools, and add the names of its tools.

    Args:
        asked: The request.
        more: Tools in its items, which were read before.
        names: Gets the names.
        dropped: List to which the names of parts are added that are left out.

    Raises:
        DialectError: A tool is malformed, or one is forced that the client does not run.
    """
    functions = client_tools(asked.get("tools"), "tools", dropped) | client_tools(list(more), "input", [])
    for tool in sorted(functions, key=lambda each: (each.namespace != "", each.is_text)):
        names.add(tool)
    choice, allowed = asked.get("tool_choice"), functions
    entry: JsonObject = choice if isinstance(choice, dict) else {}
    if entry.get("type") == "allowed_tools":
        entries = objects_in(entry.get("tools"), "tool_choice.tools")
        meant = [names.chosen(each) for each in entries]
        dropped.extend(f"tool_choice.tools[{at}]" for at, tool in enumerate(meant) if tool not in functions)
        choice, allowed = entry.get("mode") or "auto", {tool: functions[tool] for tool in meant if tool in functions}
        if choice == "auto" and not allowed:
            choice, allowed = "none", functions
    tool = names.chosen(entry)
    has_none = not allowed and bool(functions or asked.get("tools")) and (choice == "required" or bool(tool.name))
    if has_none or not (tool.name or choice in (None, "auto", "none", "required")):
        fix = 'write auto, none, required, or {"type": "function", "name": …}'
        raise DialectError(f"tool_choice is {asked['tool_choice']!r:.80}; {fix}: no backend runs other tools")
    if tool.name:
        choice = {"type": "function", "function": {"name": names.add(tool)}}
    if not functions and asked.get("tools"):
        return {}  # providers refuse the other fields without tools
    tools = [{"type": "function", "function": {"name": names.add(tool)} | each} for tool, each in allowed.items()]
    fields = {"tools": tools or None, "tool_choice": choice, "parallel_tool_calls": asked.get("parallel_tool_calls")}
    return {name: each for name, each in fields.items() if each is not None}


_START: Final = re.compile(r'\s*\{\s*(?:"input"\s*:\s*"|\}\s*\Z)')
_ANY: Final = re.compile(r"[\s\S]*")
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CHARACTERS: Final = re.compile(rf'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_PAIR})*+')
"""Complete characters of a JSON string."""
_LONGEST: Final = len(r"\ud83d\ude00")


@attrs.define(eq=False)
class TextInput:
    """Reads the text in the arguments of a call of a `custom` tool, piece by piece.

    Arguments that do not begin as the expected object are the text.
    """

    _unread: str = ""
    _reads: re.Pattern[str] | None = None
    _is_done: bool = False

    def take(self, piece: str, *, is_last: bool = False) -> str:
        """Return the text of a piece, so far as it is complete."""
        self._unread += "" if self._is_done else piece
        if self._reads is None:
            start = _START.match(self._unread)
            if start is None and not is_last and len(self._unread) < _MAX_NAME:
                return ""
            self._reads = _ANY if start is None else _CHARACTERS
            self._unread = self._unread[start.end() if start else 0 :]
        found = self._reads.match(self._unread)
        assert found is not None, "both patterns match no characters, too"
        self._unread = self._unread[found.end() :]
        self._is_done = self._is_done or self._unread.startswith('"') or len(self._unread) >= _LONGEST
        return found[0] if self._reads is _ANY else str(json.loads(f'"{found[0]}"', strict=False))
