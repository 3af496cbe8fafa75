"""Boundary conditions on the command line: "WHERE = VALUE"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.cli.options import CONDITIONS_PANEL, SURFACE_PANEL
from lamina.errors import InputError

WHERE_HELP = (
    'WHERE is one of: rim; rim 2 (a loop of the rim, 0 the longest); a comparison such as "z < 0 and x > y" (the part '
    'of the rim or of the surface where it holds); a formula such as "z - 0.3" (the curve where it is zero); a file '
    "with the points of a polyline (.npy, .txt, .csv)"
)
DirichletOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--dirichlet",
        help=f'"WHERE = VALUE": u = VALUE there; may be given several times. {WHERE_HELP}.',
        rich_help_panel=CONDITIONS_PANEL,
    ),
]
NeumannOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--neumann",
        help='"WHERE = VALUE": du/dn = VALUE there, n pointing off the surface.',
        rich_help_panel=CONDITIONS_PANEL,
    ),
]
RobinOpt = Annotated[
    list[str] | None,
    typer.Option("--robin", help='"WHERE = VALUE, C": du/dn + C u = VALUE there.', rich_help_panel=CONDITIONS_PANEL),
]
ClipOpt = Annotated[
    str | None,
    typer.Option(
        "--clip", help="Solve on the part of the surface where this formula is positive.", rich_help_panel=SURFACE_PANEL
    ),
]


def conditions(dirichlet: list[str] | None, neumann: list[str] | None, robin: list[str] | None) -> list[Any]:
    """The conditions of the three options, in that order."""
    from lamina.pde.conditions import Dirichlet, Neumann, Robin

    found: list[Any] = [Dirichlet(*_where_and_value("--dirichlet", text)) for text in dirichlet or ()]
    found += [Neumann(*_where_and_value("--neumann", text)) for text in neumann or ()]
    for text in robin or ():
        before, comma, coefficient = text.rpartition(",")
        if not comma:
            raise InputError(f'--robin is {text!r}; expected "WHERE = VALUE, C", such as "rim = 1, 2.5".')
        found.append(Robin(*_where_and_value("--robin", before), _value(coefficient)))
    return found


def _where_and_value(option: str, text: str) -> tuple[Any, Any]:
    parts = re.split(r"(?<![<>=!])=(?!=)", text)
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise InputError(f'{option} is {text!r}; expected "WHERE = VALUE", such as "rim = 0" or "z - 0.3 = sin(x)".')
    return _where(option, parts[0].strip()), _value(parts[1])


def _value(text: str) -> Any:
    """A function of points; also of time, if the formula has a t."""
    from lamina.expression import OverTime, parse

    found = parse(text, variables=("x", "y", "z", "t"))
    return OverTime(found) if "t" in found.variables else found


def _where(option: str, text: str) -> Any:
    loop = re.fullmatch(r"rim\s+(\d+)", text)
    if loop:
        return int(loop[1])
    if Path(text).suffix in (".npy", ".txt", ".csv"):
        return _polyline(option, Path(text))
    from lamina.pde.conditions import read_place

    try:
        return read_place(text)
    except InputError as error:
        raise InputError(f"{option} {error}") from None


def _polyline(option: str, path: Path) -> Any:
    import numpy as np
    import torch

    if not path.is_file():
        raise InputError(
            f"{option} holds on {str(path)!r}, but there is no such file; give a file with the points of a polyline."
        )
    try:
        if path.suffix == ".npy":
            points = np.load(path, allow_pickle=False)
        else:
            points = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
        return torch.from_numpy(np.asarray(points, dtype=np.float64))
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise InputError(
            f"{option} holds on {str(path)!r}, which is not an array of points (k, 3): {error}."
        ) from error
