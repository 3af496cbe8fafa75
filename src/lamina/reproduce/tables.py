"""Rows as grids: one for each figure, methods down and cases across, in Markdown and HTML."""

from __future__ import annotations

import html
from dataclasses import dataclass

from lamina.reproduce.base import Row, Table

NAMES = {
    "nmae": "NMAE", "nmaxe": "NMaxE", "nrmse": "NRMSE", "seconds": "time (s)", "d_nmae": "NMAE, change in %",
    "d_nmaxe": "NMaxE, change in %", "d_seconds": "time, change in %", "off": "|h - 1|", "held_out": "held-out loss",
}  # fmt: skip
ERRORS = ("nmae", "nmaxe", "nrmse")


@dataclass(frozen=True)
class Grid:
    """figure: what is shown. cells: (method, case) -> text; best: the cells with the smallest error of a case."""

    figure: str
    methods: list[str]
    cases: list[str]
    cells: dict[tuple[str, str], str]
    best: set[tuple[str, str]]
    failures: list[str]


def grids(table: Table, rows: list[Row]) -> list[Grid]:
    """One for each figure of the table that some row has."""
    return [grid(figure, rows) for figure in table.figures if any(row.get(figure) is not None for row in rows)]


def grid(figure: str, rows: list[Row]) -> Grid:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    cells: dict[tuple[str, str], str] = {}
    values: dict[tuple[str, str], float] = {}
    failures = []
    for row in rows:
        place = row["method"], row["case"]
        if row.get(figure) is not None:
            cells[place] = shown(figure, row[figure], row.get(f"{figure}_spread"))
            values[place] = row[figure]
        elif row.get("failed"):
            cells[place] = "failed"
            failures.append(f"{row['method']}, {row['case']}: {row['failed']}")
    best = set()
    if figure in ERRORS:
        for case in cases:
            own = {place: v for place, v in values.items() if place[1] == case}
            if len(own) > 1:
                best.add(min(own, key=own.__getitem__))
    kept = [m for m in methods if any((m, c) in cells for c in cases)]
    return Grid(figure, kept, cases, cells, best, failures)


def shown(figure: str, value: float, spread: float | None = None) -> str:
    """A figure as it is printed: errors with three digits, times with two or three, percentages whole."""
    if figure.startswith("d_"):
        return f"{value:+.0f} %"
    if figure == "seconds":
        return f"{value:.3g}"
    if figure in ("evaluations", "runs"):
        return f"{value:.0f}"
    if figure == "h":
        return f"{value:.7g}"
    text = f"{value:.2e}"
    return text if spread is None else f"{text} ± {spread:.1e}"


def markdown(table: Table, rows: list[Row]) -> str:
    parts = [f"# {table.title}\n"]
    for g in grids(table, rows):
        parts.append(f"## {NAMES.get(g.figure, g.figure)}\n")
        parts.append("| | " + " | ".join(g.cases) + " |")
        parts.append("|---|" + "---|" * len(g.cases))
        for method in g.methods:
            cells = []
            for case in g.cases:
                text = g.cells.get((method, case), "")
                cells.append(f"**{text}**" if (method, case) in g.best else text)
            parts.append(f"| {method} | " + " | ".join(cells) + " |")
        parts.append("")
    failures = {failure for g in grids(table, rows) for failure in g.failures}
    parts += [f"- {failure}" for failure in sorted(failures)]
    return "\n".join(parts).rstrip() + "\n"


def as_html(table: Table, rows: list[Row]) -> str:
    parts = []
    for g in grids(table, rows):
        parts.append('<div class="wide"><table>')
        parts.append(f"<caption>{html.escape(NAMES.get(g.figure, g.figure))}</caption>")
        parts.append("<tr><th></th>" + "".join(f"<th>{html.escape(case)}</th>" for case in g.cases) + "</tr>")
        for method in g.methods:
            kind = "paper" if method.startswith("paper") else "lamina" if method.startswith("lamina") else "other"
            cells = []
            for case in g.cases:
                text = html.escape(g.cells.get((method, case), ""))
                cells.append(f"<td{' class=best' if (method, case) in g.best else ''}>{text}</td>")
            parts.append(f"<tr class={kind}><th>{html.escape(method)}</th>{''.join(cells)}</tr>")
        parts.append("</table></div>")
    failures = sorted({failure for g in grids(table, rows) for failure in g.failures})
    if failures:
        parts.append("<ul class=failed>" + "".join(f"<li>{html.escape(f)}</li>" for f in failures) + "</ul>")
    return "\n".join(parts)
