"""The files of a run: results.json with machine, versions, date and command, and table.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lamina.io.export import atomic_write
from lamina.paper.tables.grids import markdown
from lamina.paper.tables.provenance import machine, now, plain, versions
from lamina.paper.tables.table import Row, Setting, Table


def circumstances(command: str, **more: Any) -> dict[str, Any]:
    """Machine, versions, date and command. Call it before a run, whose own load would be recorded otherwise."""
    return {"date": now(), "command": command, **more, "machine": machine(), "versions": versions()}


def write_results(folder: Path, table: Table, rows: list[Row], about: dict[str, Any]) -> list[Row]:
    """Write results.json and table.md into folder/<name of the table>. Returns the rows as written."""
    own = folder / table.name
    own.mkdir(parents=True, exist_ok=True)
    rows = plain(rows)
    document = {"table": table.name, "title": table.title, **plain(about), "rows": rows}
    table_text = markdown(table, rows, quick=bool(about.get("quick")))
    for name, text in (("results.json", json.dumps(document, indent=1) + "\n"), ("table.md", table_text)):
        atomic_write(own / name, lambda file, text=text: file.write(text.encode()))
    return rows


def read_rows(folder: Path, name: str, setting: Setting) -> list[Row]:
    """The rows of an earlier run of a table in the same setting; empty if there was none."""
    path = folder / name / "results.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    same = (found.get("quick"), found.get("device")) == (setting.quick, setting.device)
    return found["rows"] if same else []
