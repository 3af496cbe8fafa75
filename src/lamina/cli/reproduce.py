"""lamina reproduce."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from lamina.cli.options import Device, DeviceOpt, Json, print_facts
from lamina.errors import InputError
from lamina.reproduce.base import Table


def reproduce(
    table: Annotated[str, typer.Argument(help='The name of a table, "all", or "list", which prints the names.')],
    quick: Annotated[bool, typer.Option("--quick", help="A small form, in seconds, on shapes made by code.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for results, tables and the page; by default reproduction."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the evaluation shapes; by default LAMINA_DATA.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds, where a table has a spread.")] = 5,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Run a table of the CVPR 2026 paper anew, the paper's numbers beside ours; all: every one, and a page of them."""
    from lamina.progress import progress
    from lamina.reproduce.base import Setting
    from lamina.reproduce.registry import TABLES, run
    from lamina.reproduce.report import page
    from lamina.reproduce.tables import markdown

    if table == "list":
        print_facts({name: t.title for name, t in TABLES.items()}, json_)
        return
    if table != "all" and table not in TABLES:
        raise InputError(f"There is no table {table!r}; known: all, {', '.join(TABLES)}.")
    folder = out or Path("reproduction")
    named = os.environ.get("LAMINA_DATA")
    data = data or (Path(named) if named else None)
    command = shlex.join(["lamina", "reproduce", *[a for a in sys.argv[2:] if a != str(data)]])
    chosen = list(TABLES.values()) if table == "all" else [TABLES[table]]
    made, left = {}, []
    with progress("reproducing", False if json_ else None) as update:
        earlier: dict = {}
        for i, t in enumerate(chosen):
            if table == "all" and not quick and (reason := _left_out(t, data, device)):
                left.append(f"{t.name}: {reason}")
                continue

            def report(fraction: float, what: str, i: int = i, name: str = t.name) -> None:
                update((i + min(fraction, 0.99)) / len(chosen), f"{name}: {what}")

            report(0.0, "starting")
            rows = run(t, Setting(quick, device.value, data, seeds, report, earlier=earlier), folder, command)
            made[t.name] = str(folder / t.name / "table.md")
            if not json_:
                print(markdown(t, rows), flush=True)
    (folder / "index.html").write_text(page(folder, TABLES.values()), encoding="utf-8")
    for line in left:
        print(f"Left out: {line}", file=sys.stderr)
    print_facts({"page": str(folder / "index.html"), **made}, json_)


def _left_out(table: Table, data: Path | None, device: Device) -> str:
    """Why "all" leaves a table out; nothing if it does not."""
    if table.needs_data and data is None:
        return "it needs the evaluation shapes; name their folder by --data or LAMINA_DATA."
    if table.trains and device is Device.cpu:
        return "it trains dozens of networks, which takes hours without a GPU; use --device cuda, or name it."
    return ""
