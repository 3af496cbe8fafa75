"""What the experiments share: the setting of a run, tables, and their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.errors import InputError

Row = dict[str, Any]  # "method", "case", figures (nmae, nmaxe, nrmse, seconds, ...), or "failed", which says why not


@dataclass(frozen=True)
class Setting:
    """How to run: quick is the small form that CI runs; data the folder of the evaluation shapes; seeds how many."""

    quick: bool = False
    device: str = "cpu"
    data: Path | None = None
    seeds: int = 5
    report: Callable[[float, str], None] = lambda fraction, what: None
    folder: Path | None = None  # where results are, those of GINO among them
    earlier: dict[str, list[Row]] = field(default_factory=dict)  # rows of the tables that were made before
    pictures: dict[str, Any] = field(default_factory=dict)  # what a table draws: name -> image

    def file(self, name: str) -> Path:
        """A file of the evaluation shapes. Raises InputError, saying what to do, where it is missing."""
        if self.data is None:
            raise InputError(
                f"{name} is one of the evaluation shapes, which do not come with lamina; name their folder by --data "
                "or LAMINA_DATA, or use --quick, which needs none."
            )
        if not (self.data / name).exists():
            raise InputError(f"{name} is not in {self.data}; check --data or LAMINA_DATA.")
        return self.data / name


@dataclass(frozen=True)
class Table:
    """One table of the paper: its folder under experiments/, title, the figures shown, and what makes its rows."""

    name: str
    title: str
    figures: tuple[str, ...]
    rows: Callable[[Setting], list[Row]]
    needs_data: bool = False
    follows: tuple[str, ...] = ()  # tables whose rows it is made of
    trains: bool = False  # whether it trains networks: minutes on a GPU, hours without


def averaged(rows: list[Row], figures: tuple[str, ...]) -> list[Row]:
    """Rows of the same method and case as one: means, and standard deviations as "<figure>_spread"."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["case"]), []).append(row)
    merged = []
    for same in groups.values():
        good = [row for row in same if "failed" not in row]
        made = dict((good or same)[0])
        for figure in figures:
            values = [row[figure] for row in good if row.get(figure) is not None]
            if not values:
                continue
            mean = sum(values) / len(values)
            made[figure] = mean
            if len(values) > 1:
                made[f"{figure}_spread"] = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
        made["runs"], made["runs_failed"] = len(good), len(same) - len(good)
        made.pop("seed", None)
        merged.append(made)
    return merged
