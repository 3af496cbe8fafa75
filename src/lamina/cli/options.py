"""Options that several commands share, and how results are printed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

from lamina.errors import InputError


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class SampleForm(StrEnum):
    points = "points"


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


# Headings of the options in the help.
EQUATION_PANEL = "Equation"
TIME_PANEL = "Time"
CONDITIONS_PANEL = "Conditions"
SURFACE_PANEL = "Changing the surface"
GRID_PANEL = "Grid"
RESULT_PANEL = "Result"
READING_PANEL = "Reading a file"
SCHEME_PANEL = "Schemes, and the paper's method"


class GroupedCommand(TyperCommand):
    """A command whose help lists its options under headings, ordered by the first option of each heading."""

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


class MovedCommand(GroupedCommand):
    """A command of version 0.1 that goes on working for one release. It says on stderr what to type instead."""

    def invoke(self, ctx: Any) -> Any:
        if is_first_process():
            print(
                f"lamina: `lamina {self.name}` is now `lamina paper {self.name}`, with the same options; the old name "
                "works for one more release.",
                file=sys.stderr,
            )
        return super().invoke(ctx)


def is_first_process() -> bool:
    """Whether this process is the only one, or the first of those that torchrun started: it prints for all."""
    return os.environ.get("RANK", "0") == "0"


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
        help="Neural field: its activation: relu, elu, tanh, softplus:100, leaky_relu, gelu, silu or sin.",
        rich_help_panel=READING_PANEL,
    ),
]
Omega = Annotated[
    float | None, typer.Option(help="Neural field: omega in sin(omega (W x + b)).", rich_help_panel=READING_PANEL)
]
FieldKind = Annotated[
    str | None,
    typer.Option(
        "--field",
        help="Neural field: what its values are: sdf, logit or probability (of being inside).",
        rich_help_panel=READING_PANEL,
    ),
]
Level = Annotated[
    float | None, typer.Option(help="Neural field: its value on the surface.", rich_help_panel=READING_PANEL)
]
Bounds = Annotated[
    str | None,
    typer.Option(help='Neural field: box that holds the surface, "x0,y0,z0,x1,y1,z1".', rich_help_panel=READING_PANEL),
]
Latent = Annotated[
    str | None,
    typer.Option(
        help="Neural field: latent code, as its number, its entries, or a file (.npy, .pth).",
        rich_help_panel=READING_PANEL,
    ),
]
Exact = Annotated[
    str | None,
    typer.Option(
        help="Exact solution in x, y, z (heat: and t); its errors are reported.", rich_help_panel=RESULT_PANEL
    ),
]
Spacing = Annotated[
    float | None, typer.Option(help="Grid spacing; by default chosen from the shape.", rich_help_panel=GRID_PANEL)
]
Nodes = Annotated[
    int | None, typer.Option(help="Approximate number of grid nodes, instead of a spacing.", rich_help_panel=GRID_PANEL)
]
Order = Annotated[
    str | None,
    typer.Option(help="Order of accuracy: 2, 3, or auto, which chooses by the shape.", rich_help_panel=GRID_PANEL),
]
ReconstructionOpt = Annotated[
    str,
    typer.Option(
        "--reconstruction",
        help="Of points and splats: make the surface from fits, jets or triangles; auto chooses.",
        rich_help_panel=GRID_PANEL,
    ),
]
Extension = Annotated[
    str,
    typer.Option(
        help="auto, closest-point, jet, neural (lamina's network) or attention (the paper's network).",
        rich_help_panel=SCHEME_PANEL,
    ),
]
Scheme = Annotated[
    str | None, typer.Option(help="Baseline scheme: coupled, or shell (the paper's).", rich_help_panel=SCHEME_PANEL)
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="With --extension attention: file of trained weights, instead of those shipped.",
        rich_help_panel=SCHEME_PANEL,
    ),
]
BandRadius = Annotated[
    float | None,
    typer.Option(
        help="With --scheme shell: radius of the band; by default 4.5 spacings.", rich_help_panel=SCHEME_PANEL
    ),
]
Readout = Annotated[
    str | None,
    typer.Option(
        help="With --scheme shell: how values are read at points, interpolation or rbf.", rich_help_panel=SCHEME_PANEL
    ),
]
As = Annotated[
    SampleForm | None,
    typer.Option(
        "--as", help="Take random samples of the surface first and solve on these.", rich_help_panel=SURFACE_PANEL
    ),
]
Samples = Annotated[int, typer.Option(help="With --as points: number of samples.", rich_help_panel=SURFACE_PANEL)]
Noise = Annotated[
    float,
    typer.Option(
        help="With --as points: standard deviation of the noise added to each coordinate.",
        rich_help_panel=SURFACE_PANEL,
    ),
]
Seed = Annotated[int, typer.Option(help="With --as points: seed of the sampling.", rich_help_panel=SURFACE_PANEL)]
Denoise = Annotated[
    bool,
    typer.Option(
        "--denoise",
        help="Mesh: measure the noise of its vertices and smooth it away first.",
        rich_help_panel=SURFACE_PANEL,
    ),
]
DeviceOpt = Annotated[Device, typer.Option(help="Where to compute.", rich_help_panel=GRID_PANEL)]
DType = Annotated[Precision, typer.Option(help="Precision of the solve.", rich_help_panel=GRID_PANEL)]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder for the solution (PLY), pictures, a page for the browser (HTML) and a report.",
        rich_help_panel=RESULT_PANEL,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.", rich_help_panel=RESULT_PANEL)
]


Viewpoint = Annotated[
    str | None,
    typer.Option(
        help='Points without normals: position of the scanner, "x,y,z"; normals turn towards it.',
        rich_help_panel=READING_PANEL,
    ),
]


def reading_options(
    activation: str | None,
    omega: float | None,
    kind: str | None,
    level: float | None,
    bounds: str | None,
    latent: str | None,
    viewpoint: str | None,
) -> dict[str, Any]:
    """The options that tell how to read a file, under the names that lamina.load takes."""
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


def print_next_command(purpose: str, command: str, path: Path, as_json: bool) -> None:
    """Print the command to type next, as the last line."""
    if not as_json:
        print(f"\nTo {purpose}: lamina {command} {shlex.quote(str(path))}")


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print names and values in two columns, or as one JSON object."""
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
    """The value of --order: a number, "auto", or None. Other words are passed on; the Domain refuses them."""
    return int(text) if text is not None and text.lstrip("-").isdigit() else text
