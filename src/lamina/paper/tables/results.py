"""What a run leaves: results.json with the machine, versions, date and command, and table.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lamina.io.export import atomic_write
from lamina.paper.tables.base import Row, Setting, Table
from lamina.paper.tables.definitions import markdown
from lamina.paper.tables.record import machine, now, plain, versions


def circumstances(command: str, **more: Any) -> dict[str, Any]:
    """Machine, versions, date and command. To be asked for before a run, whose own load spoils no times."""
    return {"date": now(), "command": command, **more, "machine": machine(), "versions": versions()}


def write_results(folder: Path, table: Table, rows: list[Row], about: dict[str, Any]) -> list[Row]:
    """Write results.json and table.md into folder/<name of the table>; the rows as they were written."""
    place = folder / table.name
    place.mkdir(parents=True, exist_ok=True)
    rows = plain(rows)
    document = {"table": table.name, "title": table.title, **plain(about), "rows": rows}
    table_text = markdown(table, rows, quick=bool(about.get("quick")))
    for name, text in (("results.json", json.dumps(document, indent=1) + "\n"), ("table.md", table_text)):
        atomic_write(place / name, lambda file, text=text: file.write(text.encode()))
    return rows


def read_rows(folder: Path, name: str, setting: Setting) -> list[Row]:
    """The rows of an earlier run of a table in the same setting; none where there was none."""
    path = folder / name / "results.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    same = (found.get("quick"), found.get("device")) == (setting.quick, setting.device)
    return found["rows"] if same else []
