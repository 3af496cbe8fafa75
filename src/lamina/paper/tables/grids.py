"""Rows as grids in Markdown and HTML: a grid for each figure, a line for each method, a column for each case."""

from __future__ import annotations

import html
from dataclasses import dataclass

from lamina.paper.tables.table import Row, Table

FIGURE_TITLES = {
    "nmae": "NMAE", "nmaxe": "NMaxE", "nrmse": "NRMSE", "seconds": "time (s)", "d_nmae": "NMAE, change in %",
    "d_nmaxe": "NMaxE, change in %", "d_seconds": "time, change in %", "off": "|h - 1|",
    "held_out_mse": "held-out loss", "nrmse_fitted": "NRMSE with the best amplitude", "eps": "eps / dx",
    "patches": "patches",
}  # fmt: skip
MAX_CASES_ACROSS = 6  # With more cases than this the grid is turned: cases go down and methods across.
# A solve with a larger relative residual is reported as stopped. It is far above the default tolerances of the solvers.
MAX_CONVERGED_RESIDUAL = 1e-6
# A reference is reported if its last refinement changed it by more than this share of the smallest error against it.
MAX_REFERENCE_SHARE = 0.1
ERROR_FIGURES = ("nmae", "nmaxe", "nrmse", "nrmse_fitted")


@dataclass(frozen=True)
class Grid:
    """A figure for all methods and cases. cells: (method, case) -> text. best: the smallest errors of each case."""

    figure: str
    methods: list[str]
    cases: list[str]
    cells: dict[tuple[str, str], str]
    best: set[tuple[str, str]]
    failures: list[str]

    @property
    def turned(self) -> bool:
        """Whether cases go down and methods across, because there are many cases."""
        return len(self.cases) > MAX_CASES_ACROSS

    @property
    def down(self) -> list[str]:
        return self.cases if self.turned else self.methods

    @property
    def across(self) -> list[str]:
        return self.methods if self.turned else self.cases

    def line(self, down: str) -> list[tuple[str, bool]]:
        """The cells of a line, and whether each is the best of its case."""
        places = [(other, down) if self.turned else (down, other) for other in self.across]
        return [(self.cells.get(place, ""), place in self.best) for place in places]


def grids(table: Table, rows: list[Row]) -> list[Grid]:
    """A grid for each figure of the table that some row has."""
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
    if figure in ERROR_FIGURES:
        for case in cases:
            own = {place: v for place, v in values.items() if place[1] == case}
            if len(own) > 1:
                best.add(min(own, key=own.__getitem__))
    kept = [m for m in methods if any((m, c) in cells for c in cases)]
    return Grid(figure, kept, cases, cells, best, failures)


def remarks(table: Table, rows: list[Row]) -> list[str]:
    """Failures with their reasons, solves that stopped early, and references that have not settled."""
    found = sorted({failure for g in grids(table, rows) for failure in g.failures})
    for row in rows:
        if (row.get("residual") or 0) > MAX_CONVERGED_RESIDUAL:
            found.append(f"{row['method']}, {row['case']}: the solve stopped at a residual of {row['residual']:.1e}.")
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case and row.get("reference_change") and row.get("nrmse")]
        if own and own[0]["reference_change"] > MAX_REFERENCE_SHARE * min(row["nrmse"] for row in own):
            change = own[0]["reference_change"]
            found.append(f"{case}: the last refinement still changed the reference by {change:.1e} (RMS over range).")
    return found


def shown(figure: str, value: float, spread: float | None = None) -> str:
    """A figure as text: errors and times with three digits, percentages without decimals."""
    if figure.startswith("d_"):
        return f"{value:+.0f} %"
    if figure == "seconds":
        return f"{value:.3g}"
    if figure in ("evaluations", "patches"):
        return f"{value:.0f}"
    if figure in ("h", "eps"):
        return f"{value:.7g}"
    text = f"{value:.2e}"
    return text if spread is None else f"{text} ± {spread:.1e}"


def markdown(table: Table, rows: list[Row], *, quick: bool = False) -> str:
    parts = [f"# {table.title}\n"]
    if quick:
        parts.append("Quick form: coarse grids, and stand-ins for the paper's shapes.\n")
    for g in grids(table, rows):
        parts.append(f"## {FIGURE_TITLES.get(g.figure, g.figure)}\n")
        parts.append("| | " + " | ".join(g.across) + " |")
        parts.append("|---|" + "---|" * len(g.across))
        for down in g.down:
            cells = [f"**{text}**" if best else text for text, best in g.line(down)]
            parts.append(f"| {down} | " + " | ".join(cells) + " |")
        parts.append("")
    parts += [f"- {remark}" for remark in remarks(table, rows)]
    return "\n".join(parts).rstrip() + "\n"


def as_html(table: Table, rows: list[Row]) -> str:
    parts = []
    for g in grids(table, rows):
        parts.append('<div class="wide"><table>')
        parts.append(f"<caption>{html.escape(FIGURE_TITLES.get(g.figure, g.figure))}</caption>")
        parts.append("<tr><th></th>" + "".join(f"<th>{html.escape(name)}</th>" for name in g.across) + "</tr>")
        for down in g.down:
            kind = next((k for k in ("paper", "lamina") if down.startswith(k)), "other")
            cells = [f"<td{' class=best' if best else ''}>{html.escape(text)}</td>" for text, best in g.line(down)]
            parts.append(f"<tr class={kind}><th>{html.escape(down)}</th>{''.join(cells)}</tr>")
        parts.append("</table></div>")
    said = remarks(table, rows)
    if said:
        parts.append("<ul class=failed>" + "".join(f"<li>{html.escape(remark)}</li>" for remark in said) + "</ul>")
    return "\n".join(parts)
