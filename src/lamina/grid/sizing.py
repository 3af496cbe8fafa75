"""Choosing a grid: spacing from size, thickness and sampling; warnings and refusals before work begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from lamina.checks import positive
from lamina.errors import InputError
from lamina.search.thickness import medial_radii
from lamina.surfaces.base import Surface

MOST_CELLS = 160
# Slender shapes have few cells by default. With so many unknowns a solve takes about a second, and 20 eigenvalues
# of two networks that chose this number (a man, a hammer) change by at most 3% when the spacing is halved; at a quarter
# of it they change by 19%.
LEAST_DEFAULT_NODES = 12_000
MOST_DEFAULT_NODES = 400_000


@dataclass(frozen=True)
class Needs:
    """What a discretisation needs of a grid."""

    cells: int  # along the longest side, where nothing asks for more
    density: float  # unknowns for each dx^2 of surface,
    bytes: int  # and the bytes that each takes at its peak in float64 (benchmarks/results)
    entries: int = 90  # the most in a row of its matrices, whose entries are counted in 32 bits
    # Medial radius that it needs, in units of the spacing. Cut cells want a cell between two sheets, and keep closer
    # ones apart by their connectivity.
    clearance: float = 0.5
    # Share of the samples on thin parts that is not worth a word. With up to 5%, which the default spacing leaves,
    # 20 eigenvalues of seven shapes change by at most 1.6% when the spacing is halved.
    thin_share: float = 0.1
    effect: str = "the solution is less accurate there"  # of parts that are thinner
    follows_samples: bool = True  # whether cells smaller than the distance between samples are of no use


ORDER = {2: Needs(cells=40, density=3.0, bytes=3000), 3: Needs(cells=20, density=18.0, bytes=6000)}
SAMPLES = 4000  # to measure thickness against,
ASKED = 1000  # at so many of them
LEFT_THIN = 0.05  # share of the samples on parts that the default spacing need not resolve


def choose_spacing(surface: Surface, needs: Needs) -> float:
    """Fine enough for 95% of the shape's thin parts, no finer than its samples, neither too few nodes nor too many."""
    size = extent(surface)
    unit_nodes = estimated_nodes(surface, 1.0, needs)
    spacing = min(size / needs.cells, math.sqrt(unit_nodes / LEAST_DEFAULT_NODES))
    radii, _ = _thickness(surface)
    spacing = min(spacing, float(np.quantile(radii, LEFT_THIN)) / needs.clearance)
    spacing = max(spacing, size / MOST_CELLS, math.sqrt(unit_nodes / MOST_DEFAULT_NODES))
    return _two_digits(max(spacing, _finest_of_use(surface, needs)))


def _finest_of_use(surface: Surface, needs: Needs) -> float:
    """The distance between samples, below which a finer grid shows no more of a sampled surface; 0 for others."""
    if surface.exact or not needs.follows_samples:
        return 0.0
    return math.sqrt(float(surface.areas.sum()) / len(surface.points))


def _two_digits(spacing: float) -> float:
    """Two digits are enough, and a user can type them."""
    return round(spacing, 1 - math.floor(math.log10(spacing)))


def spacing_for_nodes(surface: Surface, nodes: int, needs: Needs) -> float:
    if nodes < 100:
        raise InputError(f"nodes must be at least 100, got {nodes}.")
    return math.sqrt(estimated_nodes(surface, 1.0, needs) / nodes)


def estimated_nodes(surface: Surface, spacing: float, needs: Needs) -> float:
    """Area times the unknowns for each dx^2; thin parts share nodes, so at most this."""
    return float(surface.areas.sum()) * needs.density / spacing**2


def check_spacing(surface: Surface, spacing: float) -> float:
    positive("spacing", spacing)
    size = extent(surface)
    if spacing > size / 4:
        raise InputError(
            f"spacing {spacing:g} is too coarse for a shape {size:.3g} long: the band would hold no detail of it; "
            f"use at most {size / 8:.2g}."
        )
    return float(spacing)


def check_memory(surface: Surface, spacing: float, needs: Needs, dtype: torch.dtype) -> None:
    """Refuse, before anything is allocated, a grid that would not fit."""
    nodes = estimated_nodes(surface, spacing, needs)
    most = 2**31 / needs.entries
    needed = nodes * needs.bytes * (1.0 if dtype == torch.float64 else 0.7)
    free = _free_memory(surface.points.device)
    if needed > free or nodes > most:
        fitting = spacing * math.sqrt(max(needed / (0.8 * free), nodes / most))
        raise InputError(
            f"spacing {spacing:g} gives about {nodes:.3g} nodes, which need about {needed:.3g} bytes; "
            f"{free:.3g} bytes are free: use a spacing of at least {fitting:.2g}."
        )


def thin_share(surface: Surface, spacing: float, needs: Needs) -> float:
    """Share of the samples that lie on parts thinner than the grid resolves at this spacing."""
    return float((_thickness(surface)[0] < needs.clearance * spacing).mean())


def thin_warning(surface: Surface, spacing: float, needs: Needs) -> str | None:
    """A sentence when parts of the shape are thinner than the grid can resolve: where, and what would do.

    None at the distance of the samples, which is the default for sampled surfaces.
    """
    share, finest = thin_share(surface, spacing, needs), _finest_of_use(surface, needs)
    if share <= needs.thin_share or (finest and spacing == _two_digits(finest)):
        return None
    radii, points = _thickness(surface)
    where = place(points[np.argmin(radii)], spacing)
    what = f"{100 * share:.1f}% of the surface is thinner than the grid of spacing {spacing:g} resolves"
    if finest and spacing < _two_digits(finest):
        return (
            f"{what}, most of all near {where}: {needs.effect}. The samples are {finest:.2g} apart: a smaller spacing "
            "would not help, denser samples would."
        )
    enough = float(np.quantile(radii, needs.thin_share, method="lower")) / needs.clearance
    step = 10.0 ** (math.floor(math.log10(enough)) - 1)
    enough = math.floor(enough / step) * step  # two digits, rounded down so that they are enough
    enough = max(enough, _two_digits(finest)) if finest else enough
    return f"{what}, most of all near {where}: {needs.effect}. Use spacing {enough:.2g} or smaller."


def place(x: np.ndarray, spacing: float) -> str:
    """A point (3,), with the digits that tell places a tenth of a cell apart."""
    digits = max(0, 1 - math.floor(math.log10(spacing)))
    return "({})".format(", ".join(f"{v:.{digits}f}" for v in x))


def extent(surface: Surface) -> float:
    """Longest side of the bounding box."""
    bounds = surface.bounds
    return float((bounds[1] - bounds[0]).max())


def _thickness(surface: Surface) -> tuple[np.ndarray, np.ndarray]:
    """Medial radii at (at most ASKED of) the surface's samples, and these; computed once for a surface."""
    if surface.reach is not None:
        return np.array([surface.reach]), surface.points[:1].detach().cpu().numpy()
    if surface.thickness is None:
        pick = _spread_by_area(surface.areas.detach().cpu().double(), SAMPLES).to(surface.points.device)
        feet = surface.own_feet()
        points, normals = feet.points.detach()[pick], feet.normals.detach()[pick]
        radii = medial_radii(points, normals, ASKED, extent(surface))
        surface.thickness = radii.cpu().numpy(), points[:ASKED].cpu().numpy()
    return surface.thickness


def _spread_by_area(areas: torch.Tensor, count: int) -> torch.Tensor:
    """At most count samples in random order, as dense everywhere as the area: shares of them are shares of it.

    Samples at equal steps of the summed area of a shuffled list; one that covers several steps is taken once.
    """
    order = torch.randperm(len(areas), generator=torch.Generator().manual_seed(0))
    total = torch.cumsum(areas[order], 0)
    steps = (torch.arange(count, dtype=total.dtype) + 0.5) * (total[-1] / count)
    place = torch.searchsorted(total, steps).clamp_(max=len(areas) - 1)
    return order[torch.unique(place)]


def _free_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:  # what the system could give, its caches included
        with open("/proc/meminfo") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable"))
        return 1024 * float(available.split()[1])
    except (OSError, StopIteration):
        return math.inf


def describe(surface: Surface) -> dict[str, object]:
    """Facts about a surface for `lamina info`."""
    radii, _ = _thickness(surface)
    low, high = surface.bounds.tolist()
    return {
        "name": surface.name,
        "representation": surface.representation,
        "points": len(surface.points),
        "faces": 0 if surface.faces is None else len(surface.faces),
        "components": surface.component_count,
        "bounds": [low, high],
        "extent": extent(surface),
        "area": float(surface.areas.sum()),
        "thinnest": 2 * float(np.quantile(radii, 0.005)),
        "median_thickness": 2 * float(np.median(radii)),
    }
