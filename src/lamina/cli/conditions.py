"""Boundary conditions from the command line: "WHERE = VALUE"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.cli.options import CONDITIONS, SURFACE
from lamina.errors import InputError

WHERE = (
    'WHERE is rim, rim 2 (one loop of several, 0 the longest), a comparison such as "z < 0 and x > y" (the rim, or '
    'the part of the surface, where it holds), a formula such as "z - 0.3" (the curve where it vanishes) or a '
    "file with the points of a polyline (.npy, .txt, .csv)"
)
DirichletOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--dirichlet",
        help=f'u = VALUE there, as "WHERE = VALUE"; may be given several times. {WHERE}.',
        rich_help_panel=CONDITIONS,
    ),
]
NeumannOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--neumann",
        help='du/dn = VALUE there, n leading off the surface, as "WHERE = VALUE".',
        rich_help_panel=CONDITIONS,
    ),
]
RobinOpt = Annotated[
    list[str] | None,
    typer.Option("--robin", help='du/dn + C u = VALUE there, as "WHERE = VALUE, C".', rich_help_panel=CONDITIONS),
]
ClipOpt = Annotated[
    str | None,
    typer.Option(
        "--clip", help="Solve on the part of the surface where this formula is positive.", rich_help_panel=SURFACE
    ),
]


def conditions(dirichlet: list[str] | None, neumann: list[str] | None, robin: list[str] | None) -> list[Any]:
    """The conditions of the three options, in that order."""
    from lamina.pde.conditions import Dirichlet, Neumann, Robin

    found: list[Any] = [Dirichlet(*_place_and_value("--dirichlet", text)) for text in dirichlet or ()]
    found += [Neumann(*_place_and_value("--neumann", text)) for text in neumann or ()]
    for text in robin or ():
        before, comma, coefficient = text.rpartition(",")
        if not comma:
            raise InputError(f'--robin is {text!r}; expected "WHERE = VALUE, C", such as "rim = 1, 2.5".')
        found.append(Robin(*_place_and_value("--robin", before), _value(coefficient)))
    return found


def _place_and_value(option: str, text: str) -> tuple[Any, Any]:
    parts = re.split(r"(?<![<>=!])=(?!=)", text)
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise InputError(f'{option} is {text!r}; expected "WHERE = VALUE", such as "rim = 0" or "z - 0.3 = sin(x)".')
    return _place(option, parts[0].strip()), _value(parts[1])


def _value(text: str) -> Any:
    """A function of points, or of points and time if there is a t in it."""
    from lamina.expression import OverTime, parse

    found = parse(text, variables=("x", "y", "z", "t"))
    return OverTime(found) if "t" in found.variables else found


def _place(option: str, text: str) -> Any:
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
        raise InputError(f"{option} holds on {str(path)!r}, and there is no such file; give the points of a polyline.")
    try:
        if path.suffix == ".npy":
            points = np.load(path, allow_pickle=False)
        else:
            points = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
        return torch.from_numpy(np.asarray(points, dtype=np.float64))
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise InputError(f"{option} holds on {str(path)!r}, which is no array of points (k, 3): {error}.") from error
