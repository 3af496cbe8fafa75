"""Tables, their rows, and the setting of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.errors import InputError

Row = dict[str, Any]  # "method", "case", and figures (nmae, nmaxe, nrmse, seconds, ...) or "failed", the reason


@dataclass(frozen=True)
class Setting:
    """How to run: quick: the small form, for CI. data: folder of the evaluation shapes. seeds: number of seeds."""

    quick: bool = False
    device: str = "cpu"
    data: Path | None = None
    seeds: int = 5
    report: Callable[[float, str], None] = lambda fraction, what: None
    folder: Path | None = None  # of results, also those of GINO
    earlier: dict[str, list[Row]] = field(default_factory=dict)  # rows of the tables that are already made
    pictures: dict[str, Any] = field(default_factory=dict)  # pictures of a table: name -> image

    def file(self, name: str) -> Path:
        """The path of an evaluation shape. Raises InputError if it is missing."""
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
    """A table of the paper: its folder under experiments/, title, shown figures, and the function of its rows."""

    name: str
    title: str
    figures: tuple[str, ...]
    rows: Callable[[Setting], list[Row]]
    needs_data: bool = False
    follows: tuple[str, ...] = ()  # tables whose rows it uses
    trains: bool = False  # whether it trains networks, which takes minutes on a GPU and hours without


def averaged(rows: list[Row], figures: tuple[str, ...]) -> list[Row]:
    """One row for all rows of the same method and case: means, and standard deviations as "<figure>_spread"."""
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
