"""One self-contained HTML page with every table: figures, pictures, convergence plots, commands."""

from __future__ import annotations

import base64
import html
import json
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path

from lamina.paper.tables.grids import as_html
from lamina.paper.tables.table import Row, Table
from lamina.view.charts import plot_convergence

PAGE_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#22252b;background:#fff}
h1{font-size:1.7rem}h2{font-size:1.25rem;margin-top:3rem;border-top:1px solid #ddd;padding-top:1rem}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0;font-size:.86rem}
caption{text-align:left;font-weight:600;padding:.3rem 0}th,td{padding:.25rem .6rem;text-align:right;white-space:nowrap;
border-bottom:1px solid #eee}tr th:first-child{text-align:left;font-weight:500}tr.paper{background:#f6f2ea}
tr.lamina{background:#eef4fb}td.best{font-weight:700}code{background:#f3f3f5;padding:.1rem .3rem}img{max-width:100%}
.facts{color:#666;font-size:.84rem}ul.failed{color:#8f1330;font-size:.84rem}nav a{margin-right:1rem}
@media(prefers-color-scheme:dark){body{background:#17181c;color:#dfe1e6}tr.paper{background:#2b281f}
tr.lamina{background:#1c2733}th,td{border-color:#333}code{background:#26272c}.facts{color:#999}img{background:#fff}}
"""


def page(folder: Path, tables: Iterable[Table]) -> str:
    """The HTML page of the results in folder/<table>/results.json. Tables without results are listed as not run."""
    parts, links, missing = [], [], []
    for table in tables:
        file = folder / table.name / "results.json"
        if not file.exists():
            missing.append(table)
            continue
        result = json.loads(file.read_text())
        links.append(f'<a href="#{table.name}">{html.escape(table.title)}</a>')
        parts.append(section(table, result, folder / table.name))
    rest = ""
    if missing:
        rest = "<p>Not run: " + ", ".join(html.escape(t.name) for t in missing) + ".</p>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>lamina: the paper's tables</title><style>{PAGE_STYLE}</style></head><body>
<h1>The tables of the paper, and lamina beside them</h1>
<p>Every table of Welschinger, Liu, Wang and Mitra, "Learning to Solve PDEs on Neural Shape Representations" (CVPR
2026), with rows of the paper's own numbers, of its method as lamina has it ("lamina attention"), of lamina's own
methods, and of the baselines. Bold: the smallest error of a column. NMAE, NMaxE and NRMSE are the mean, largest and
root mean square error over the range of the true solution. The paper's times are from its authors' machine, the others
from the machine named under each table.</p><nav>{" ".join(links)}</nav>
{"".join(parts)}{rest}
</body></html>
"""


def section(table: Table, result: dict, folder: Path) -> str:
    rows: list[Row] = result["rows"]
    machine, versions = result["machine"], result["versions"]
    parts = [f'<h2 id="{table.name}">{html.escape(table.title)}</h2>']
    text = folder / "README.md"
    if text.exists():
        parts.append(prose(text.read_text()))
    if result.get("quick"):
        parts.append("<p><strong>Quick form: coarse grids, and stand-ins for the paper's shapes.</strong></p>")
    parts.append(as_html(table, rows))
    if table.name == "convergence":
        parts.append(convergence(rows))
    for picture in sorted(folder.glob("*.png")):
        data = base64.b64encode(picture.read_bytes()).decode()
        caption = html.escape(picture.stem.replace("_", " "))
        parts.append(f'<figure><img src="data:image/png;base64,{data}" alt="{caption}" loading="lazy">'
                     f"<figcaption>{caption}</figcaption></figure>")  # fmt: skip
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    parts.append(
        f'<p class="facts"><code>{html.escape(result["command"])}</code><br>{html.escape(where)}; Python '
        f"{versions['python']}, torch {versions['torch']}, lamina {versions.get('commit') or versions['lamina']}; "
        f"{result['date'][:10]}</p>"
    )
    return "\n".join(parts)


def prose(text: str) -> str:
    """The paragraphs of a README, without its headings and commands."""
    blocks = [block.strip() for block in text.split("\n\n")]
    return "\n".join(f"<p>{html.escape(block)}</p>" for block in blocks if block and block[0] not in "#`|")


def orders(rows: list[Row]) -> dict[str, tuple[list[float], list[float], float]]:
    """Spacings, errors and the slope of the least-squares line through their logarithms, for every method."""
    found = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = sorted(((r["spacing"], r["nmae"]) for r in rows if r["method"] == method and r.get("nmae")), reverse=True)
        if len(own) < 2:
            continue
        x, y = [math.log(h) for h, _ in own], [math.log(e) for _, e in own]
        centre = sum(x) / len(x)
        slope = sum((a - centre) * b for a, b in zip(x, y, strict=True)) / sum((a - centre) ** 2 for a in x)
        found[method] = [h for h, _ in own], [e for _, e in own], slope
    return found


def convergence(rows: list[Row]) -> str:
    """The errors over the spacing on logarithmic axes, with the fitted order of every method in its name."""
    curves = orders(rows)
    if not curves:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "convergence.png"
        named = {f"{m.split(' (')[0]} ({slope:.1f})": e for m, (_, e, slope) in curves.items()}
        spacings = max((h for h, _, _ in curves.values()), key=len)
        plot_convergence(path, spacings, named, title="NMAE; in brackets the fitted order")
        data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt="NMAE over the spacing"></figure>'
