"""The zero set of a function phi in a box (2, 3): which cells of a lattice it crosses, and where exactly.

Only signs and values of phi are relied on to find it, so phi need not be a distance nor have a gradient of any
particular length. Beyond the box phi is continued by its value at the nearest point of the box.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import OCTANTS, Lattice, cell_keys, cells_of_keys
from lamina.geometry.triangles import dot, unit
from lamina.linear.adjoint import first_order

ROOT_CELLS = 32  # cells along the longest side of the box in which the zero set is first looked for
FURTHER_LEVELS = 3  # halvings beyond the spacing asked for, where parts are thinner than the cells
HIDDEN = 1e-3  # of the crossed cells: as many cells with a part inside that no corner notices make another halving
MOST_CELLS = 2**22  # near the zero set; beyond, it is searched no finer
ROOT_STEPS, LAST_STEP = 40, 3e-4
# Rows a call of phi: on a CPU as many as keep the layers of a network in its cache, on a GPU enough to fill it.
BATCH = {"cpu": 2**12, "cuda": 2**17}

Function = Callable[[Tensor], Tensor]  # points (n, 3) -> values (n,) or (n, 1)


def batches(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(BATCH.get(x.device.type, BATCH["cuda"]))


def evaluate(phi: Function, y: Tensor) -> Tensor:
    value = phi(y)
    if not isinstance(value, Tensor) or value.shape not in ((len(y),), (len(y), 1)):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"phi must map points {tuple(y.shape)} to a tensor ({len(y)},), got {got}.")
    if torch.is_grad_enabled() and y.requires_grad and not value.requires_grad:
        raise InputError("phi must be differentiable by autograd, got a result without graph; use torch.")
    return value.reshape(-1)


def values(phi: Function, y: Tensor) -> Tensor:
    """phi (n,) at y (n, 3), without gradients."""
    with torch.no_grad():
        return torch.cat([evaluate(phi, part) for part in batches(y)]).to(y.dtype)


def value_and_gradient(phi: Function, y: Tensor) -> tuple[Tensor, Tensor]:
    found, gradients = [], []
    for part in batches(y):
        with torch.enable_grad():
            z = part.detach().requires_grad_()
            value = evaluate(phi, z)
            (gradient,) = torch.autograd.grad(value.sum(), z)
        found.append(value.detach())
        gradients.append(gradient)
    return torch.cat(found), torch.cat(gradients)


def carries_gradients(phi: Function, like: Tensor) -> bool:
    """Whether phi depends on something that wants gradients, as the weights of a network in training do."""
    with torch.enable_grad():
        value = phi(like.detach())
    return isinstance(value, Tensor) and value.requires_grad


def gradient_of(phi: Function, y: Tensor) -> Tensor:
    """grad phi (n, 3) at y (n, 3), with gradients with respect to y and to what phi depends on."""
    parts = []
    with torch.enable_grad():
        for part in batches(y):
            z = part if part.requires_grad else part.detach().requires_grad_()
            parts.append(torch.autograd.grad(evaluate(phi, z).sum(), z, create_graph=True)[0])
    return torch.cat(parts)


def settled_once_more(phi: Function, x: Tensor, along: Tensor) -> Tensor:
    """x (n, 3), on the zero set, after a last Newton step along directions (n, 3).

    It hardly moves, and carries the gradients: if phi or x changes, the root moves along the direction by
    -(d phi) / (grad phi . direction), as the implicit function theorem says.
    """
    value = torch.cat([evaluate(phi, part) for part in batches(x)])
    _, gradient = value_and_gradient(phi, x)
    slope = dot(gradient, along.detach())
    sound = slope.abs() > 1e-3 * (dot(gradient, gradient) * dot(along, along).detach()).sqrt()
    step = torch.where(sound, value / torch.where(sound, slope, 1), 0)
    return first_order(x - step[:, None] * along.detach())


def derivative(gradient: Tensor, z: Tensor, direction: Tensor) -> Tensor:
    """Hessian times direction (n, 3), the gradient's derivative; zero for (piecewise) linear phi."""
    if not gradient.requires_grad:
        return torch.zeros_like(direction)
    (product,) = torch.autograd.grad(dot(gradient, direction).sum(), z, retain_graph=True, allow_unused=True)
    return torch.zeros_like(direction) if product is None else product.detach()


def offset_to(value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance to the zero set to first order (n,), and unit normals (n, 3)."""
    return value / dot(gradient, gradient).sqrt(), unit(gradient)


def project(phi: Function, size: float, y: Tensor, reach: float, steps: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Newton's method for phi = 0 along the gradient, y <- y - phi grad phi / |grad phi|^2.

    Steps are no longer than reach, and shortened until |phi| falls. Returns the points (n, 3), the
    normals there (n, 3) and the distances (n,) that are left to first order.
    """
    tolerance = 4 * torch.finfo(y.dtype).eps * size
    y = y.clone()
    value, gradient = value_and_gradient(phi, y)
    damping = torch.ones_like(value)
    for _ in range(steps):
        offset, normal = offset_to(value, gradient)
        rows = ((offset.abs() > tolerance) & offset.isfinite() & (damping > 1e-3)).nonzero()[:, 0]
        if len(rows) == 0:
            break
        move = (damping[rows] * offset[rows]).clamp(-reach, reach)
        trial = y[rows] - move[:, None] * normal[rows]
        v, g = value_and_gradient(phi, trial)
        better = v.abs() < value[rows].abs()
        damping[rows] = torch.where(better, (2 * damping[rows]).clamp(max=1.0), damping[rows] / 4)
        rows, better = rows[better], better.nonzero()[:, 0]
        y[rows], value[rows], gradient[rows] = trial[better], v[better], g[better]
    offset, normal = offset_to(value, gradient)
    return y, normal, torch.nan_to_num(offset.abs(), nan=torch.inf)


def roots(phi: Function, a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> Tensor:
    """Points (n, 3) with phi = 0 on the segments from a to b (n, 3), where phi has values fa, fb (n,) of other sign.

    The method of Chandrupatla (1997): inverse quadratic interpolation where the last three values allow it, else a
    bisection, so it cannot fail. It converges faster than linearly: a root is left alone after a step of less than
    3e-4 of the segment, provided that phi has fallen by then.
    """
    last, other, flast, fother = torch.ones_like(fa), torch.zeros_like(fa), fb.clone(), fa.clone()
    fallen = 0.1 * torch.minimum(fa.abs(), fb.abs())
    t = fa / (fa - fb)
    rows = torch.arange(len(a), device=a.device)
    for _ in range(ROOT_STEPS):
        p, r, q, fr, fq = (v[rows] for v in (t, last, other, flast, fother))
        fp = values(phi, torch.lerp(a[rows], b[rows], p[:, None]))
        beyond = (fp < 0) != (fr < 0)  # the root lies between p and q, r is beyond
        r, q, fr, fq = (torch.where(beyond, v, w) for v, w in ((q, r), (r, q), (fq, fr), (fr, fq)))
        x, y = (p - q) / (r - q), (fp - fq) / (fr - fq)
        part = fp / (fq - fp) * fr / (fq - fr) + (r - p) / (q - p) * fp / (fr - fp) * fq / (fr - fq)
        part = torch.where((y**2 < x) & ((1 - y) ** 2 < 1 - x), part.clamp(0, 1), 0.5)
        after = torch.where(fp == 0, p, p + part * (q - p))
        last[rows], other[rows], flast[rows], fother[rows], t[rows] = p, q, fp, fq, after
        unsure = (fp.abs() > fallen[rows]) & ((q - p).abs() > LAST_STEP)
        rows = rows[((after - p).abs() > LAST_STEP) | unsure]
        if not len(rows):
            break
    return torch.lerp(a, b, t[:, None])


@dataclass(frozen=True)
class Crossed:
    """Cells of a lattice that the zero set crosses: phi has both signs at their corners."""

    lattice: Lattice
    ijk: Tensor  # (n, 3) int64, nodes
    value: Tensor  # (n,) phi there
    cell: Tensor  # (c, 3) int64
    corner: Tensor  # (c, 8) int64, nodes at the corners, in the order of OCTANTS

    @property
    def position(self) -> Tensor:
        return self.lattice.position(self.ijk)


class _Grid:
    """The cells of a lattice that meet a box, and phi at their nodes as far as it is known."""

    def __init__(self, phi: Function, lattice: Lattice, box: Tensor) -> None:
        self.phi, self.lattice, self.box = phi, lattice, box
        # A hair narrower, so that a box whose sides are planes of the lattice gets no cells beyond them.
        self.low = torch.floor((box[0] - lattice.origin) / lattice.spacing + 1e-9).long()
        self.count = torch.ceil((box[1] - lattice.origin) / lattice.spacing - 1e-9).long() - self.low
        self.key = torch.empty(0, dtype=torch.int64, device=box.device)
        self.value = torch.empty(0, dtype=box.dtype, device=box.device)

    def at(self, x: Tensor) -> Tensor:
        return values(self.phi, torch.minimum(torch.maximum(x, self.box[0]), self.box[1]))

    def inside(self, cell: Tensor) -> Tensor:
        return ((cell >= self.low) & (cell < self.low + self.count)).all(-1)

    def keys(self, ijk: Tensor) -> Tensor:
        """Of nodes or cells (..., 3) in the grid."""
        return cell_keys((ijk - self.low).unbind(-1), self.count + 1)

    def from_keys(self, key: Tensor) -> Tensor:
        return cells_of_keys(key, self.count + 1) + self.low

    def corners(self, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers (c, 8) of the corners of cells (c, 3) among the nodes known by then, and phi there (c, 8)."""
        # Keys are linear: from a cell to its corners it is as far everywhere.
        key = self.keys(cell)[:, None] + self.keys(self.low + OCTANTS.to(cell.device))
        self._know(torch.unique(key))
        place = torch.searchsorted(self.key, key)
        return place, self.value[place]

    def _know(self, key: Tensor) -> None:
        """Evaluate phi at those of the nodes (n,) where it is not known yet."""
        if len(self.key):
            place = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
            key = key[self.key[place] != key]
        if not len(key):
            return
        value = self.at(self.lattice.position(self.from_keys(key)))
        if not bool(torch.isfinite(value).all()):
            raise InputError("phi gave values that are not finite inside bounds; give a smaller box.")
        self.key, order = torch.sort(torch.cat([self.key, key]))
        self.value = torch.cat([self.value, value])[order]


def follow(phi: Function, lattice: Lattice, box: Tensor, seeds: Tensor) -> Crossed:
    """All crossed cells that are connected to those of seeds (s, 3) through faces that the zero set crosses."""
    return _follow(_Grid(phi, lattice, box), seeds)


def _follow(grid: _Grid, seeds: Tensor) -> Crossed:
    faces = torch.stack([OCTANTS[:, d] == side for d in range(3) for side in (0, 1)]).to(seeds.device)  # (6, 8)
    steps = torch.stack([sign * torch.eye(3, dtype=torch.int64)[d] for d in range(3) for sign in (-1, 1)])
    steps = steps.to(seeds.device)
    frontier = torch.unique(grid.keys(seeds[grid.inside(seeds)]))
    seen, crossed = frontier, []
    while len(frontier):
        cell = grid.from_keys(frontier)
        negative = grid.corners(cell)[1] < 0
        mixed = negative.any(1) & ~negative.all(1)
        cell, negative = cell[mixed], negative[mixed]
        crossed.append(cell)
        through = torch.stack([negative[:, f].any(1) & ~negative[:, f].all(1) for f in faces], 1)  # (c, 6)
        neighbour = (cell[:, None] + steps)[through]
        key = torch.unique(grid.keys(neighbour[grid.inside(neighbour)]))
        place = torch.searchsorted(seen, key).clamp_(max=len(seen) - 1)
        frontier = key[seen[place] != key]
        seen = torch.sort(torch.cat([seen, frontier])).values
    cell = torch.cat(crossed) if crossed else seeds[:0]
    corner = grid.corners(cell)[0] if len(cell) else cell.new_zeros(0, 8)
    return Crossed(grid.lattice, grid.from_keys(grid.key), grid.value, cell, corner)


def find(phi: Function, box: Tensor, pieces: float) -> Crossed:
    """The crossed cells of a lattice in the box, of spacing at most sqrt(area / pieces), from coarse to fine.

    A cell is searched on if phi changes sign at its corners, or could vanish inside going by how much it varies from
    corner to corner, |phi| <= |grad phi| times the cell's radius there: that finds parts smaller than a cell. Where phi
    has another sign at the centre of a cell than at its corners, the cells are too large for a part of the surface,
    and are halved up to three times more.
    """
    low, spacing = box[0], float((box[1] - box[0]).max()) / ROOT_CELLS
    grid = _Grid(phi, Lattice(low, spacing), box)
    cell = grid.low + torch.cartesian_prod(*(torch.arange(int(n), device=low.device) for n in grid.count))
    further = 0
    while True:
        corner, value = grid.corners(cell)
        negative = value < 0
        mixed = negative.any(1) & ~negative.all(1)
        near = mixed | (value.abs().amin(1) <= 3**0.5 / 2 * _variation(corner, value, mixed))
        crossed = int(mixed.sum())
        # Cells crossed by a plane of normal n number |n_1| + |n_2| + |n_3| to spacing^2, 3/2 on average.
        wanted = math.sqrt(1.5 * pieces / crossed) if crossed else math.inf  # spacing over that asked for
        if wanted <= 1:
            unnoticed = near & ~mixed
            if further == FURTHER_LEVELS or _hidden(grid, cell[unnoticed], value[unnoticed]) <= HIDDEN * crossed:
                break
            further += 1
        if int(near.sum()) > (MOST_CELLS if crossed else MOST_CELLS // 8):
            break
        # Into three where that is just enough: halves would leave up to four times as many cells as are needed.
        parts = 3 if 2 < wanted <= 3 else 2
        spacing /= parts
        grid = _Grid(phi, Lattice(low, spacing), box)
        children = torch.cartesian_prod(*[torch.arange(parts, device=cell.device)] * 3)
        cell = (parts * cell[near][:, None] + children).reshape(-1, 3)
        cell = cell[grid.inside(cell)]
        if not len(cell):
            return _follow(grid, cell)
    return _follow(grid, cell[mixed])


def _hidden(grid: _Grid, cell: Tensor, value: Tensor) -> int:
    """How many of the cells (c, 3), with values (c, 8) of one sign at their corners, have another at the centre."""
    if not len(cell):
        return 0
    centre = grid.lattice.position(cell) + 0.5 * grid.lattice.spacing
    return int(((grid.at(centre) < 0) != (value[:, 0] < 0)).sum())


def _variation(corner: Tensor, value: Tensor, mixed: Tensor) -> Tensor:
    """Largest change (c,) of values (c, 8) at corners (c, 8) along the edges of each axis, these as a vector's length.

    Also that of the neighbours that phi does not change sign in: round a small part amid a cell its corners agree.
    """
    cube = value.reshape(-1, 2, 2, 2)
    change = sum((cube.select(d, 0) - cube.select(d, 1)).flatten(1).abs().amax(1) ** 2 for d in (1, 2, 3)) ** 0.5
    at_node = value.new_zeros(int(corner.max()) + 1)
    steady = torch.where(mixed, 0.0, change)[:, None].expand_as(corner)
    at_node.scatter_reduce_(0, corner.reshape(-1), steady.reshape(-1), "amax")
    return torch.maximum(change, at_node[corner].amax(1))


def why_empty(phi: Function, box: Tensor) -> str:
    sign = "negative" if bool((values(phi, box) < 0).all()) else "positive"
    return (
        f"phi is {sign} wherever it was evaluated inside bounds {box.tolist()}, where a surface "
        "phi = 0 was expected; give bounds that contain it, or shift phi by its level."
    )


def inside(box: Tensor, y: Tensor) -> Tensor:
    return ((y >= box[0]) & (y <= box[1])).all(1)


def crosses_sides(phi: Function, box: Tensor) -> bool:
    """Whether phi changes sign on the sides of the box."""
    t = torch.linspace(0, 1, 2 * ROOT_CELLS + 1, dtype=box.dtype, device=box.device)
    u, v = (w.reshape(-1) for w in torch.meshgrid(t, t, indexing="ij"))
    ends = (torch.zeros_like(u), torch.ones_like(u))
    sides = [torch.stack([end, u, v], 1).roll(k, 1) for end in ends for k in range(3)]
    value = values(phi, torch.lerp(box[0], box[1], torch.cat(sides)))
    level = 1e-6 * value.abs().max()  # a surface that just fits into its box is not cut by it
    return bool((value < -level).any() and (value > level).any())
