"""What a table of the paper is: a name, and a function that gives its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # "method" (str), "case" (str), and figures: "nmae", "nmaxe", "nrmse", "seconds", ...


@dataclass(frozen=True)
class Setting:
    """How tables are made."""

    quick: bool = False  # the small form that runs in CI
    device: str = "cpu"
    data: Path | None = None  # the evaluation shapes, LAMINA_DATA
    report: Callable[[float, str], None] = lambda fraction, what: None


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    name: str  # the folder under experiments/
    title: str
    figures: tuple[str, ...]  # the figures shown
    rows: Callable[[Setting], list[Row]]
    needs_data: bool = False
