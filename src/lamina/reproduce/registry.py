"""All tables, and how one is run and written.

Each module makes some of the tables (`Table` in base.py); `run` makes the rows of one, and writes results.json,
table.md and pictures into its folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from lamina.export import atomic_write
from lamina.reproduce import dirichlet, inverse, meshes, representations, spheres
from lamina.reproduce.base import Row, Setting, Table
from lamina.reproduce.record import machine, now, plain, versions
from lamina.reproduce.tables import markdown

TABLES: dict[str, Table] = {
    table.name: table
    for module in (spheres, representations, meshes, dirichlet, inverse)
    for table in module.TABLES
}


def run(table: Table, setting: Setting, folder: Path, command: str) -> list[Row]:
    """Make the table's rows, and write folder/<name>/results.json, table.md and pictures."""
    own = Setting(setting.quick, setting.device, setting.data, setting.seeds, setting.report, setting.earlier, {})
    started = machine()  # before, for the load of the run itself does not spoil its times
    rows: list[Row] = plain(table.rows(own))
    setting.earlier[table.name] = rows
    document = {
        "table": table.name, "title": table.title, "date": now(), "command": command, "quick": setting.quick,
        "device": setting.device, "seeds": setting.seeds, "machine": started, "versions": versions(), "rows": rows,
    }  # fmt: skip
    place = folder / table.name
    place.mkdir(parents=True, exist_ok=True)
    _write(place / "results.json", json.dumps(document, indent=1) + "\n")
    _write(place / "table.md", markdown(table, rows))
    for name, picture in own.pictures.items():
        atomic_write(place / f"{name}.png", lambda file, image=picture: image.save(file, format="PNG", optimize=True))
    return rows


def _write(path: Path, text: str) -> None:
    atomic_write(path, lambda file: file.write(text.encode()))
