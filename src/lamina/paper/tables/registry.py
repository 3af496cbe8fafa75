"""All tables, and the function that runs one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lamina.io.export import atomic_write
from lamina.paper.tables import ablations, dirichlet, inverse, meshes, representations, spheres
from lamina.paper.tables.result_files import circumstances, read_rows, write_results
from lamina.paper.tables.table import Row, Setting, Table

TABLE_MODULES = (spheres, representations, meshes, dirichlet, inverse, ablations)
TABLES: dict[str, Table] = {table.name: table for module in TABLE_MODULES for table in module.TABLES}


def run(table: Table, setting: Setting, folder: Path, command: str) -> list[Row]:
    """Make the table's rows, and write folder/<name>/results.json, table.md and pictures."""
    for name in table.follows:
        if name not in setting.earlier and (found := read_rows(folder, name, setting)):
            setting.earlier[name] = found
    own = replace(setting, folder=folder, pictures={})
    about = circumstances(command, quick=setting.quick, device=setting.device, seeds=setting.seeds)
    rows = write_results(folder, table, table.rows(own), about)
    setting.earlier[table.name] = rows
    for name, picture in own.pictures.items():
        path = folder / table.name / f"{name}.png"
        atomic_write(path, lambda file, image=picture: image.save(file, format="PNG", optimize=True))
    return rows
