"""Charts of horizontal bars as SVG, readable on a light and on a dark page. Pure."""

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

import attrs

_COLOURS: Final = ("#3b78c4", "#c9772f", "#3a9467", "#9a5bb0", "#b3484f", "#6d7f1f")
_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 880, 240, 100, 30, 18


@attrs.frozen
class Bar:
    """A row: its parts one after the other, with their names; `limit` is marked by a line."""

    label: str
    parts: Sequence[tuple[str, float]]
    text: str
    limit: float = 0.0


def chart(title: str, sections: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Return the bars below each other; the bars of one section share a scale."""
    shapes, y = [f'<text x="16" y="28" class="title">{escape(title)}</text>'], 52
    for name, bars in sections:
        shapes.append(f'<text x="16" y="{y + 6}" class="head">{escape(name)}</text>')
        y += 18
        largest = max((max(bar.limit, sum(size for _, size in bar.parts)) for bar in bars), default=0.0) or 1.0
        for bar in bars:
            middle, x, scale = y + _BAR / 2 + 4, float(_LEFT), (_WIDTH - _LEFT - _RIGHT) / largest
            label = bar.label if len(bar.label) <= 34 else f"{bar.label[:33]}…"
            shapes.append(f'<text x="16" y="{middle}">{escape(label)}</text>')
            for at, (part, size) in enumerate(bar.parts):
                width, colour = size * scale, _COLOURS[at % len(_COLOURS)]
                box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"'
                shapes.append(f"<rect {box}><title>{escape(part)}</title></rect>")
                if part and 7 * len(part) < width:
                    shapes.append(f'<text x="{x + 5:.1f}" y="{middle}" class="in">{escape(part)}</text>')
                x += width
            if bar.limit:
                at_limit = _LEFT + bar.limit * scale
                shapes.append(f'<path d="M{at_limit:.1f} {y - 4}v{_BAR + 8}" class="limit"/>')
                x = max(x, at_limit)
            shapes.append(f'<text x="{x + 8:.1f}" y="{middle}">{escape(bar.text)}</text>')
            y += _ROW
        y += 16
    style = (
        "text{font:12px sans-serif;fill:#222}.title{font-size:16px;font-weight:600}.head{font-weight:600}.in{fill:#fff}"
        ".page{fill:#fff}.limit{stroke:#222;stroke-width:2}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.in{fill:#fff}.page{fill:#181a1f}.limit{stroke:#ddd}}"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" role="img">'
    )
    page = f'<title>{escape(title)}</title><style>{style}</style><rect class="page" width="100%" height="100%"/>'
    return "\n".join([head, page, *shapes, "</svg>", ""])
