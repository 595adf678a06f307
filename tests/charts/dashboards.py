"""Write the chart's dashboards of runtimes, routers and engines on hosts from `dashboards.toml` (`make manifests`).

The boards Hosts and Inference are written by hand.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "charts" / "llmkube" / "files" / "dashboards"
TABLE = Path(__file__).with_suffix(".toml")
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RUNTIME = (
    "* on (namespace, name) group_left (engine) max by (namespace, name, engine) (llmkube_metal_agent_engine_info{@S})"
)


def boards() -> dict[str, dict[str, Any]]:
    """Return each dashboard by the name of its file."""
    return {one["name"]: board_of(one) for one in tomllib.loads(TABLE.read_text(encoding="utf-8"))["board"]}


def board_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard that an entry of the table describes."""
    labels = given["by"]
    return {
        "uid": f"llmkube-{given['name']}",
        "title": f"LLMKube / {given['title']}",
        "description": given["description"],
        "tags": ["llmkube"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_data_source(), *(_variable(given["from"], labels, at) for at in range(len(labels)))]},
        "annotations": {"list": []},
        "panels": [_panel(number, one, labels) for number, one in enumerate(given["panels"])],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(series: str, labels: list[str], at: int) -> dict[str, Any]:
    """Return the variable of a label, whose values depend on those of the labels before it."""
    chosen = _selector(labels[:at])
    query = f"label_values({series}{f'{{{chosen}}}' if chosen else ''}, {labels[at]})"
    return {
        "name": labels[at],
        "label": labels[at].capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": labels[at]},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _selector(labels: list[str]) -> str:
    return ", ".join(f'{label}=~"${label}"' for label in labels)


def _panel(number: int, given: list[str], labels: list[str]) -> dict[str, Any]:
    title, description, unit, *queries = given
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [_target(chr(ord("A") + at), query, labels) for at, query in enumerate(queries)],
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _target(letter: str, query: str, labels: list[str]) -> dict[str, Any]:
    text = query.replace("@E", RUNTIME).replace("@L", ", ".join(labels)).replace("@S", _selector(labels))
    grouped = re.search(r"by \(([^)]*)\)", text)
    shown = [label for label in grouped[1].split(", ") if label != "le"] if grouped else labels
    quantile = re.match(r"histogram_quantile\(0\.(\d+),", text)
    legend = "/".join(f"{{{{{label}}}}}" for label in shown) + (f" p{quantile[1]:0<2}" if quantile else "")
    return {"refId": letter, "datasource": SOURCE, "expr": text, "legendFormat": legend}


def main() -> None:
    """Write the files."""
    for name, board in boards().items():
        (FOLDER / f"{name}.json").write_text(json.dumps(board, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
