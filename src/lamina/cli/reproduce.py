"""`lamina paper reproduce`: run the tables of the CVPR 2026 paper anew."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from lamina.cli.options import Device, DeviceOpt, Json, print_facts
from lamina.errors import InputError, SolveError
from lamina.paper.tables.table import Table


def reproduce(
    table: Annotated[str, typer.Argument(help='The name of a table, "all", or "list", which prints the names.')],
    quick: Annotated[bool, typer.Option("--quick", help="A small form that takes seconds and needs no data.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for results, tables and the page; by default ./reproduction."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the evaluation shapes; by default the variable LAMINA_DATA.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, for tables with a spread.")] = 5,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Run a table of the CVPR 2026 paper anew and print it beside the paper's numbers. "all" runs every table."""
    from lamina.paper.tables.grids import markdown
    from lamina.paper.tables.registry import TABLES, run
    from lamina.paper.tables.report import page
    from lamina.paper.tables.table import Setting
    from lamina.progress import progress

    if table == "list":
        print_facts({name: t.title for name, t in TABLES.items()}, json_)
        return
    if table != "all" and table not in TABLES:
        raise InputError(f"There is no table {table!r}; known: all, {', '.join(TABLES)}.")
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; expected at least 1.")
    variable = os.environ.get("LAMINA_DATA")
    data = data or (Path(variable) if variable else None)
    if data is not None and not data.is_dir():
        raise InputError(f"{data} is not a folder; name the folder of the evaluation shapes by --data or LAMINA_DATA.")
    folder = _make_folder(out or Path("reproduction"))
    options = {"--quick": quick, "--out": out, "--seeds": seeds if seeds != 5 else None, "--device": device.value}
    typed = [[name] if value is True else [name, str(value)] for name, value in options.items() if value]
    command = shlex.join(["lamina", "paper", "reproduce", table, *(word for option in typed for word in option)])
    chosen = list(TABLES.values()) if table == "all" else [TABLES[table]]
    written, skipped = {}, []
    with progress("reproducing", False if json_ else None) as update:
        earlier: dict = {}
        for i, t in enumerate(chosen):
            if table == "all" and not quick and (reason := _reason_to_skip(t, data, device)):
                skipped.append(f"{t.name}: {reason}")
                continue
            if quick and _has_full_results(folder / t.name / "results.json"):
                raise InputError(
                    f"{folder / t.name} has results of the full form, which --quick would overwrite; use another --out."
                )

            def report(fraction: float, what: str, i: int = i, name: str = t.name) -> None:
                update((i + min(fraction, 0.99)) / len(chosen), f"{name}: {what}")

            report(0.0, "starting")
            try:
                rows = run(t, Setting(quick, device.value, data, seeds, report, earlier=earlier), folder, command)
            except (InputError, SolveError) as error:
                if table != "all":
                    raise
                skipped.append(f"{t.name}: {error}")
                continue
            written[t.name] = str(folder / t.name / "table.md")
            if not json_:
                print(markdown(t, rows, quick=quick), flush=True)
    (folder / "index.html").write_text(page(folder, TABLES.values()), encoding="utf-8")
    for line in skipped:
        print(f"Left out: {line}", file=sys.stderr)
    print_facts({"page": str(folder / "index.html"), **written}, json_)


def _make_folder(folder: Path) -> Path:
    """Make the folder before the work, so that a bad name costs no time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made: {error.strerror}; name another folder.") from None
    return folder


def _has_full_results(results: Path) -> bool:
    """Whether the file exists and holds results of the full form."""
    return results.exists() and json.loads(results.read_text()).get("quick") is not True


def _reason_to_skip(table: Table, data: Path | None, device: Device) -> str:
    """Why "all" leaves a table out; empty if it does not."""
    if table.needs_data and data is None:
        return "it needs the evaluation shapes; name their folder by --data or LAMINA_DATA."
    if table.trains and device is Device.cpu:
        return "it trains dozens of networks, which takes hours without a GPU; use --device cuda, or name this table."
    return ""
