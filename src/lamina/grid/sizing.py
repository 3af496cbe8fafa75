"""The choice of the grid spacing from size, thickness and sampling; and its checks before work begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from lamina.checks import positive
from lamina.errors import InputError
from lamina.search.thickness import medial_radii
from lamina.surfaces.base import Surface

# Cells along the longest side of the bounding box that the default spacing never exceeds. With half of it more thin
# parts stay unresolved; with twice as many a surface has four times as many unknowns. Chosen by trial.
MAX_DEFAULT_CELLS_ACROSS = 160
# The default spacing gives at least this many unknowns: slender shapes would otherwise have few. With so many a solve
# takes about a second, and 20 eigenvalues of two networks that chose this number (a man, a hammer) change by at most 3%
# when the spacing is halved; at a quarter of it they change by 19%.
MIN_DEFAULT_NODES = 12_000
# The default spacing gives at most this many unknowns, so that a solve without options fits into memory: in double
# precision it takes at most 1.2 GB at order 2 and 2.4 GB at order 3. Chosen by trial.
MAX_DEFAULT_NODES = 400_000
# Share of the samples on parts that are too thin for the default spacing. With 0.05, 20 eigenvalues of seven shapes
# change by at most 1.6% when the spacing is halved. With less a few thin spots decide the spacing of the whole shape.
MAX_UNRESOLVED_SHARE_BY_DEFAULT = 0.05
# Samples that the thickness is measured against. With fewer thin parts are missed; the time grows in proportion.
# Chosen by trial.
THICKNESS_SAMPLES = 4000
# Samples, the first of those, at which the thickness is measured. Its quantiles of 0.5 % are then 5 samples. Chosen by
# trial.
THICKNESS_QUERIES = 1000
# A request for fewer unknowns than this is refused: no shape is resolved by them.
MIN_REQUESTED_NODES = 100
# A spacing larger than the longest side over this is refused: so few cells show no detail of a shape.
MIN_CELLS_ACROSS = 4
# The spacing that the refusal suggests is the longest side over this.
SUGGESTED_CELLS_ACROSS = 8
# Bytes for each unknown in single precision over those in double precision: indices stay as they are.
MEMORY_RATIO_SINGLE = 0.7
# Share of the free memory that the suggested spacing would fill. With 1 the suggestion could be refused in its turn.
SUGGESTED_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class GridRequirements:
    """What a discretisation requires of a grid."""

    cells: int  # least number of cells along the longest side by default
    density: float  # unknowns for each dx^2 of surface
    bytes: int  # peak memory for each unknown in float64 (benchmarks/results)
    entries: int = 90  # largest number of entries in a row of its matrices, whose entries have 32-bit numbers
    # Least medial radius of the surface in units of the spacing, so that there is a cell between two sheets. Sheets
    # that are closer stay independent through their connectivity, but the solution is less accurate there.
    clearance: float = 0.5
    # A warning is given if more than this share of the samples lies on parts thinner than the clearance. It is twice
    # the share that the default spacing leaves, so that the default does not warn.
    thin_share: float = 0.1
    effect: str = "the solution is less accurate there"  # what the warning says about thinner parts
    follows_samples: bool = True  # whether the default cells are no smaller than the distance between samples


REQUIREMENTS_OF_ORDER = {
    2: GridRequirements(cells=40, density=3.0, bytes=3000),
    3: GridRequirements(cells=20, density=18.0, bytes=6000),
}


def choose_spacing(surface: Surface, requirements: GridRequirements) -> float:
    """The default spacing.

    It resolves the thickness at 95% of the samples. It is no finer than the distance between samples, where these are
    all that is known, and it gives neither too few unknowns nor too many.
    """
    size = extent(surface)
    unit_nodes = estimated_nodes(surface, 1.0, requirements)
    spacing = min(size / requirements.cells, math.sqrt(unit_nodes / MIN_DEFAULT_NODES))
    radii, _ = _thickness(surface)
    spacing = min(spacing, float(np.quantile(radii, MAX_UNRESOLVED_SHARE_BY_DEFAULT)) / requirements.clearance)
    spacing = max(spacing, size / MAX_DEFAULT_CELLS_ACROSS, math.sqrt(unit_nodes / MAX_DEFAULT_NODES))
    return _two_digits(max(spacing, _finest_of_use(surface, requirements)))


def _finest_of_use(surface: Surface, requirements: GridRequirements) -> float:
    """The distance between samples, below which a finer grid shows no more of a sampled surface; 0 for others."""
    if surface.exact or not requirements.follows_samples:
        return 0.0
    return math.sqrt(float(surface.areas.sum()) / len(surface.points))


def _two_digits(spacing: float) -> float:
    """The spacing, rounded to two digits, which a user can type."""
    return round(spacing, 1 - math.floor(math.log10(spacing)))


def spacing_for_nodes(surface: Surface, nodes: int, requirements: GridRequirements) -> float:
    """The spacing that gives about so many unknowns."""
    if nodes < MIN_REQUESTED_NODES:
        raise InputError(f"nodes must be at least {MIN_REQUESTED_NODES}, got {nodes}.")
    return math.sqrt(estimated_nodes(surface, 1.0, requirements) / nodes)


def estimated_nodes(surface: Surface, spacing: float, requirements: GridRequirements) -> float:
    """An upper estimate of the unknowns: the area times the unknowns for each dx^2. Thin parts share unknowns."""
    return float(surface.areas.sum()) * requirements.density / spacing**2


def check_spacing(surface: Surface, spacing: float) -> float:
    """The spacing as a float. Raises InputError if it is not positive or too coarse for the surface."""
    positive("spacing", spacing)
    size = extent(surface)
    if spacing > size / MIN_CELLS_ACROSS:
        raise InputError(
            f"spacing {spacing:g} is too coarse for a shape {size:.3g} long: the band would hold no detail of it; "
            f"use at most {size / SUGGESTED_CELLS_ACROSS:.2g}."
        )
    return float(spacing)


def check_memory(surface: Surface, spacing: float, requirements: GridRequirements, dtype: torch.dtype) -> None:
    """Raise InputError for a grid that would not fit into memory, before anything is allocated."""
    nodes = estimated_nodes(surface, spacing, requirements)
    most = 2**31 / requirements.entries
    needed = nodes * requirements.bytes * (1.0 if dtype == torch.float64 else MEMORY_RATIO_SINGLE)
    free = _free_memory(surface.points.device)
    if needed > free or nodes > most:
        fitting = spacing * math.sqrt(max(needed / (SUGGESTED_MEMORY_SHARE * free), nodes / most))
        raise InputError(
            f"spacing {spacing:g} gives about {nodes:.3g} nodes, which need about {needed:.3g} bytes; "
            f"{free:.3g} bytes are free: use a spacing of at least {fitting:.2g}."
        )


def thin_share(surface: Surface, spacing: float, requirements: GridRequirements) -> float:
    """Share of the samples on parts that are too thin for the grid of this spacing."""
    return float((_thickness(surface)[0] < requirements.clearance * spacing).mean())


def thin_warning(surface: Surface, spacing: float, requirements: GridRequirements) -> str | None:
    """A warning if parts of the shape are too thin for the grid: where they are, and which spacing is enough.

    None at the distance of the samples, which is the default for sampled surfaces.
    """
    share, finest = thin_share(surface, spacing, requirements), _finest_of_use(surface, requirements)
    if share <= requirements.thin_share or (finest and spacing == _two_digits(finest)):
        return None
    radii, points = _thickness(surface)
    where = formatted_point(points[np.argmin(radii)], spacing)
    what = f"{100 * share:.1f}% of the surface is thinner than the grid of spacing {spacing:g} resolves"
    if finest and spacing < _two_digits(finest):
        return (
            f"{what}, most of all near {where}: {requirements.effect}. The samples are {finest:.2g} apart: a smaller "
            "spacing would not help, denser samples would."
        )
    enough = float(np.quantile(radii, requirements.thin_share, method="lower")) / requirements.clearance
    step = 10.0 ** (math.floor(math.log10(enough)) - 1)
    enough = math.floor(enough / step) * step  # two digits, rounded down so that the spacing is enough
    enough = max(enough, _two_digits(finest)) if finest else enough
    return f"{what}, most of all near {where}: {requirements.effect}. Use spacing {enough:.2g} or smaller."


def formatted_point(x: np.ndarray, spacing: float) -> str:
    """A point (3,) as text, with as many digits as distinguish points a tenth of a cell apart."""
    digits = max(0, 1 - math.floor(math.log10(spacing)))
    return "({})".format(", ".join(f"{v:.{digits}f}" for v in x))


def extent(surface: Surface) -> float:
    """Longest side of the bounding box."""
    bounds = surface.bounds
    return float((bounds[1] - bounds[0]).max())


def _thickness(surface: Surface) -> tuple[np.ndarray, np.ndarray]:
    """Medial radii at at most THICKNESS_QUERIES samples of the surface, and these samples; computed once and cached."""
    if surface.reach is not None:
        return np.array([surface.reach]), surface.points[:1].detach().cpu().numpy()
    if surface.thickness is None:
        pick = _spread_by_area(surface.areas.detach().cpu().double(), THICKNESS_SAMPLES).to(surface.points.device)
        feet = surface.own_feet()
        points, normals = feet.points.detach()[pick], feet.normals.detach()[pick]
        radii = medial_radii(points, normals, THICKNESS_QUERIES, extent(surface))
        surface.thickness = radii.cpu().numpy(), points[:THICKNESS_QUERIES].cpu().numpy()
    return surface.thickness


def _spread_by_area(areas: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers of at most `count` samples in random order, with the same density on the whole surface.

    They are the samples at equal steps of the cumulative area of a shuffled list. A sample that covers several steps is
    taken once. So a share of the chosen samples is a share of the area.
    """
    order = torch.randperm(len(areas), generator=torch.Generator().manual_seed(0))
    total = torch.cumsum(areas[order], 0)
    steps = (torch.arange(count, dtype=total.dtype) + 0.5) * (total[-1] / count)
    chosen = torch.searchsorted(total, steps).clamp_(max=len(areas) - 1)
    return order[torch.unique(chosen)]


def _free_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:  # memory that the system can provide, including its caches
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
