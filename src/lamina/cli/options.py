"""Options that several commands have, and how their results are printed."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

from lamina.errors import InputError


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Form(StrEnum):
    points = "points"


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


# Headings of the options in the help, in this order.
EQUATION = "Equation"
TIME = "Time"
CONDITIONS = "Conditions"
SURFACE = "Changing the surface"
GRID = "Grid"
RESULT = "Result"
READING = "Reading a file"
SCHEME = "Schemes, and the paper's method"


class GroupedCommand(TyperCommand):
    """A command whose help lists its options under headings, in the order of their first option."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = "Arguments" if isinstance(parameter, TyperArgument) else None
                heading = heading or getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


SurfaceArg = Annotated[
    str,
    typer.Argument(
        help="A file: mesh (OBJ, PLY, STL, OFF, GLB), points (PLY, XYZ, NPZ), Gaussian splats (PLY, SPLAT, SPZ, SOG), "
        "neural field (NPZ, safetensors, PT, a folder of DeepSDF), what lamina fit wrote; or a name: spot, sphere, "
        "torus, ellipsoid, spike, starfruit, flower, tree, bobbly, finespiral, ..."
    ),
]
Activation = Annotated[
    str | None,
    typer.Option(
        help="Of a neural field: relu, elu, tanh, softplus:100, leaky_relu, gelu, silu or sin.", rich_help_panel=READING
    ),
]
Omega = Annotated[
    float | None, typer.Option(help="Of a neural field: omega in sin(omega (W x + b)).", rich_help_panel=READING)
]
FieldKind = Annotated[
    str | None,
    typer.Option(
        "--field",
        help="What a neural field gives: sdf, logit or probability (of being inside).",
        rich_help_panel=READING,
    ),
]
Level = Annotated[
    float | None, typer.Option(help="Of a neural field: its value on the surface.", rich_help_panel=READING)
]
Bounds = Annotated[
    str | None,
    typer.Option(help='Of a neural field: the box with the surface, "x0,y0,z0,x1,y1,z1".', rich_help_panel=READING),
]
Latent = Annotated[
    str | None,
    typer.Option(
        help="Of a neural field: number of a latent code, its entries, or a file (.npy, .pth).", rich_help_panel=READING
    ),
]
Exact = Annotated[
    str | None,
    typer.Option(help="Exact solution in x, y, z (and t for heat); adds errors to the report.", rich_help_panel=RESULT),
]
Spacing = Annotated[
    float | None, typer.Option(help="Grid spacing; by default chosen from the shape.", rich_help_panel=GRID)
]
Nodes = Annotated[
    int | None, typer.Option(help="About how many grid nodes, instead of a spacing.", rich_help_panel=GRID)
]
Order = Annotated[
    str | None,
    typer.Option(help="Order of accuracy: 2, 3, or auto, which measures the surface.", rich_help_panel=GRID),
]
ReconstructionOpt = Annotated[
    str,
    typer.Option(
        "--reconstruction",
        help="Of points and splats: make the surface from fits, jets or triangles; auto chooses.",
        rich_help_panel=GRID,
    ),
]
Extension = Annotated[
    str,
    typer.Option(
        help="auto, closest-point, jet, neural (lamina's network) or attention (the paper's).", rich_help_panel=SCHEME
    ),
]
Scheme = Annotated[
    str | None, typer.Option(help="Baselines: coupled, or shell (the paper's).", rich_help_panel=SCHEME)
]
Weights = Annotated[
    Path | None,
    typer.Option(help="With --extension attention: weights other than those shipped.", rich_help_panel=SCHEME),
]
BandRadius = Annotated[
    float | None,
    typer.Option(help="With --scheme shell: radius of the band; by default 4.5 spacings.", rich_help_panel=SCHEME),
]
Readout = Annotated[
    str | None, typer.Option(help="With --scheme shell: interpolation or rbf.", rich_help_panel=SCHEME)
]
As = Annotated[
    Form | None,
    typer.Option("--as", help="Sample the surface first and solve on the samples.", rich_help_panel=SURFACE),
]
Samples = Annotated[int, typer.Option(help="With --as points: how many samples.", rich_help_panel=SURFACE)]
Noise = Annotated[
    float,
    typer.Option(
        help="With --as points: standard deviation of the noise added to each coordinate.", rich_help_panel=SURFACE
    ),
]
Seed = Annotated[int, typer.Option(help="With --as points: seed of the sampling.", rich_help_panel=SURFACE)]
Denoise = Annotated[
    bool,
    typer.Option(
        "--denoise", help="Of a mesh: find the noise on its vertices and smooth it away first.", rich_help_panel=SURFACE
    ),
]
DeviceOpt = Annotated[Device, typer.Option(help="Where to compute.", rich_help_panel=GRID)]
DType = Annotated[Precision, typer.Option(help="Precision.", rich_help_panel=GRID)]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder for the solution (PLY), pictures, a page to look at it (HTML) and a report.",
        rich_help_panel=RESULT,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.", rich_help_panel=RESULT)
]


Viewpoint = Annotated[
    str | None,
    typer.Option(
        help='Of points without normals: from where they were seen, "x,y,z"; normals look there.',
        rich_help_panel=READING,
    ),
]


def said_of_surface(
    activation: str | None,
    omega: float | None,
    kind: str | None,
    level: float | None,
    bounds: str | None,
    latent: str | None,
    viewpoint: str | None,
) -> dict[str, Any]:
    """What the user says of a file beyond what it says itself, as lamina.load takes it."""
    box = None if bounds is None else _numbers("bounds", bounds, "x0,y0,z0,x1,y1,z1")
    return {
        "activation": activation,
        "omega": omega,
        "kind": kind,
        "level": level,
        "bounds": None if box is None else [box[:3], box[3:]],
        "latent": latent,
        "viewpoint": None if viewpoint is None else _numbers("viewpoint", viewpoint, "x,y,z"),
    }


def _numbers(option: str, text: str, form: str) -> list[float]:
    expected = form.count(",") + 1
    try:
        numbers = [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if len(numbers) != expected:
        raise InputError(f'--{option} is {text!r}; expected {expected} numbers, "{form}".')
    return numbers


def say_next(purpose: str, command: str, path: Path, as_json: bool) -> None:
    """The last line: what to type next."""
    if not as_json:
        print(f"\nTo {purpose}: lamina {command} {shlex.quote(str(path))}")


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
        return
    width = max(len(k) for k in facts)
    for key, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v:.3g}" for k, v in value.items()) or "none"
        elif isinstance(value, float):
            value = f"{value:.6g}"
        elif isinstance(value, list):
            value = f"\n{' ' * (width + 2)}".join(str(v) for v in value) or "none"
        print(f"{key:<{width}}  {value}")


def as_order(text: str | None) -> int | str | None:
    """What --order asks for: a number, "auto", or None. Other words go through, to be refused where they are known."""
    return int(text) if text is not None and text.lstrip("-").isdigit() else text
