"""The zero set of a function phi in a box (2, 3): which cells of a lattice it crosses, and where exactly.

The search uses only signs and values of phi, so phi need not be a distance and its gradient may have any length.
Outside the box phi is continued by its value at the nearest point of the box.
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
from lamina.shapes import Float, Int, shaped

# Cells along the longest side of the box in which the zero set is first looked for. At half small parts of a surface
# are missed more often; double evaluates phi at eight times as many points, 260,000.
COARSEST_CELLS = 32
# Halvings of the cells beyond the spacing that was asked for, where parts of the surface are thinner than the cells.
# Each takes four times as many cells near the surface; with fewer, thin parts stay unseen.
MAX_EXTRA_HALVINGS = 3
# Cells are halved again while more than this share of the crossed cells hide a part of the surface: phi has one sign at
# the corners and another at the centre. Chosen by trial: at half, few hidden parts cost four times as many cells more
# often; at double, more of them stay unseen.
MAX_HIDDEN_SHARE = 1e-3
# Cells near the zero set beyond which they are not divided further, which bounds memory: at half large requests end in
# coarser cells, at double they take twice the memory.
MAX_NEAR_CELLS = 2**22
# While no cell is crossed, an eighth of that must do: a surface that is not there would be searched for at full cost.
UNCROSSED_CELLS_RATIO = 8
MAX_ROOT_STEPS = 40  # of Chandrupatla's method: bisection alone reaches ROOT_TOLERANCE in 12
# A root is left alone after a step shorter than this share of its segment. The method converges faster than linearly,
# so the error left is far smaller than the step; half costs an evaluation of phi in some rows, double saves one.
ROOT_TOLERANCE = 3e-4
# But not before |phi| is below this share of its smaller value at the ends of the segment; chosen by trial.
MAX_ROOT_VALUE_RATIO = 0.1
# A direction is too close to the tangent plane for a Newton step along it if the cosine between it and the gradient is
# less than this: the step would be a thousand times the distance to the zero set. Such points are not moved.
MIN_SLOPE_COSINE = 1e-3
# Newton's method along the gradient gives a row up when the share of the step that it takes falls to this, after five
# reductions to a quarter. Half allows one more, double changes nothing.
MIN_STEP_SHARE = 1e-3
# Values of phi on the sides of the box that are less than this share of the largest one there count as zero, so that a
# surface that just fits into its box is not taken for one that the box cuts. Chosen by trial.
MAX_RELATIVE_SIDE_VALUE = 1e-6
# Points given to phi in one call: on a CPU few enough to keep the layers of a network in its cache, on a GPU enough to
# fill it.
ZERO_SET_BATCH = {"cpu": 2**12, "cuda": 2**17}

Function = Callable[[Tensor], Tensor]  # points (n, 3) -> values (n,) or (n, 1)


def batches(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(ZERO_SET_BATCH.get(x.device.type, ZERO_SET_BATCH["cuda"]))


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
    """Whether phi depends on tensors that want gradients, as the weights of a network in training do."""
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


def last_newton_step(phi: Function, x: Tensor, along: Tensor) -> Tensor:
    """Points x (n, 3) of the zero set after a last Newton step along directions (n, 3).

    The step hardly moves x, but the result has gradients: when phi or x changes, the root moves along the direction by
    -(d phi) / (grad phi . direction), by the implicit function theorem.
    """
    value = torch.cat([evaluate(phi, part) for part in batches(x)])
    _, gradient = value_and_gradient(phi, x)
    slope = dot(gradient, along.detach())
    sound = slope.abs() > MIN_SLOPE_COSINE * (dot(gradient, gradient) * dot(along, along).detach()).sqrt()
    step = torch.where(sound, value / torch.where(sound, slope, 1), 0)
    return first_order(x - step[:, None] * along.detach())


def derivative(gradient: Tensor, z: Tensor, direction: Tensor) -> Tensor:
    """The Hessian of phi times direction (n, 3), from the gradient with its graph; zero for (piecewise) linear phi."""
    if not gradient.requires_grad:
        return torch.zeros_like(direction)
    (product,) = torch.autograd.grad(dot(gradient, direction).sum(), z, retain_graph=True, allow_unused=True)
    return torch.zeros_like(direction) if product is None else product.detach()


def offset_to(value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distances (n,) to the zero set, to first order, and unit normals (n, 3)."""
    return value / dot(gradient, gradient).sqrt(), unit(gradient)


def project(phi: Function, size: float, y: Tensor, reach: float, steps: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Newton's method for phi = 0 along the gradient, y <- y - phi grad phi / |grad phi|^2.

    Steps are at most reach long, and are shortened until |phi| falls. Returns the points (n, 3), the normals there
    (n, 3) and, to first order, the distances (n,) that are left.
    """
    tolerance = 4 * torch.finfo(y.dtype).eps * size
    y = y.clone()
    value, gradient = value_and_gradient(phi, y)
    damping = torch.ones_like(value)
    for _ in range(steps):
        offset, normal = offset_to(value, gradient)
        rows = ((offset.abs() > tolerance) & offset.isfinite() & (damping > MIN_STEP_SHARE)).nonzero()[:, 0]
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
    """Points (n, 3) with phi = 0 on the segments from a to b (n, 3), where phi has values fa, fb (n,) of opposite sign.

    The method of Chandrupatla (1997) interpolates by an inverse quadratic where the last three values allow it and
    bisects otherwise, so it cannot fail. It converges faster than linearly: a root is left alone after a step of less
    than 3e-4 of the segment, provided that |phi| has fallen to a tenth.
    """
    last, other, flast, fother = torch.ones_like(fa), torch.zeros_like(fa), fb.clone(), fa.clone()
    fallen = MAX_ROOT_VALUE_RATIO * torch.minimum(fa.abs(), fb.abs())
    t = fa / (fa - fb)
    rows = torch.arange(len(a), device=a.device)
    for _ in range(MAX_ROOT_STEPS):
        p, r, q, fr, fq = (v[rows] for v in (t, last, other, flast, fother))
        fp = values(phi, torch.lerp(a[rows], b[rows], p[:, None]))
        beyond = (fp < 0) != (fr < 0)  # then the root lies between p and r: q and r change places
        r, q, fr, fq = (torch.where(beyond, v, w) for v, w in ((q, r), (r, q), (fq, fr), (fr, fq)))
        x, y = (p - q) / (r - q), (fp - fq) / (fr - fq)
        part = fp / (fq - fp) * fr / (fq - fr) + (r - p) / (q - p) * fp / (fr - fp) * fq / (fr - fq)
        part = torch.where((y**2 < x) & ((1 - y) ** 2 < 1 - x), part.clamp(0, 1), 0.5)
        after = torch.where(fp == 0, p, p + part * (q - p))
        last[rows], other[rows], flast[rows], fother[rows], t[rows] = p, q, fp, fq, after
        unsure = (fp.abs() > fallen[rows]) & ((q - p).abs() > ROOT_TOLERANCE)
        rows = rows[((after - p).abs() > ROOT_TOLERANCE) | unsure]
        if not len(rows):
            break
    return torch.lerp(a, b, t[:, None])


@shaped
@dataclass(frozen=True)
class CrossedCells:
    """Cells of a lattice that the zero set crosses: phi has both signs at the corners of each."""

    lattice: Lattice
    ijk: Int[Tensor, "n 3"]  # nodes
    value: Float[Tensor, " n"]  # phi there
    cell: Int[Tensor, "c 3"]
    corner: Int[Tensor, "c 8"]  # nodes at the corners, in the order of OCTANTS

    @property
    def position(self) -> Tensor:
        return self.lattice.position(self.ijk)


class _Grid:
    """The cells of a lattice that meet a box, and phi at those of their nodes where it has been evaluated."""

    def __init__(self, phi: Function, lattice: Lattice, box: Tensor) -> None:
        self.phi, self.lattice, self.box = phi, lattice, box
        # The box is taken 1e-9 cells smaller: where its sides are planes of the lattice, no cells beyond them belong to
        # the grid.
        self.low = torch.floor((box[0] - lattice.origin) / lattice.spacing + 1e-9).long()
        self.count = torch.ceil((box[1] - lattice.origin) / lattice.spacing - 1e-9).long() - self.low
        self.key = torch.empty(0, dtype=torch.int64, device=box.device)
        self.value = torch.empty(0, dtype=box.dtype, device=box.device)

    def at(self, x: Tensor) -> Tensor:
        return values(self.phi, torch.minimum(torch.maximum(x, self.box[0]), self.box[1]))

    def inside(self, cell: Tensor) -> Tensor:
        return ((cell >= self.low) & (cell < self.low + self.count)).all(-1)

    def keys(self, ijk: Tensor) -> Tensor:
        """Keys (...) of nodes or cells (..., 3) in the grid."""
        return cell_keys((ijk - self.low).unbind(-1), self.count + 1)

    def from_keys(self, key: Tensor) -> Tensor:
        return cells_of_keys(key, self.count + 1) + self.low

    def corners(self, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers (c, 8) of the corners of cells (c, 3) among the known nodes, and phi there (c, 8)."""
        # Keys are linear in the indices: the differences between a cell and its corners are the same everywhere.
        key = self.keys(cell)[:, None] + self.keys(self.low + OCTANTS.to(cell.device))
        self._know(torch.unique(key))
        place = torch.searchsorted(self.key, key)
        return place, self.value[place]

    def _know(self, key: Tensor) -> None:
        """Evaluate phi at those nodes with keys (n,) where it is not known yet."""
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


def connected_crossed_cells(phi: Function, lattice: Lattice, box: Tensor, seeds: Tensor) -> CrossedCells:
    """All crossed cells that are connected to cells of seeds (s, 3) through faces that the zero set crosses."""
    return _connected(_Grid(phi, lattice, box), seeds)


def _connected(grid: _Grid, seeds: Tensor) -> CrossedCells:
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
    return CrossedCells(grid.lattice, grid.from_keys(grid.key), grid.value, cell, corner)


def crossed_cells(phi: Function, box: Tensor, pieces: float) -> CrossedCells:
    """The crossed cells of a lattice in the box, of spacing at most sqrt(area / pieces), found from coarse to fine.

    A cell is divided if phi changes sign at its corners or could vanish inside it. It could if |phi| <= |grad phi|
    times the radius of the cell, where |grad phi| is estimated by how much phi varies from corner to corner: that finds
    parts smaller than a cell. Where phi has another sign at the centre of a cell than at its corners, the cells are too
    large for a part of the surface, and all are halved up to three times more.
    """
    low, spacing = box[0], float((box[1] - box[0]).max()) / COARSEST_CELLS
    grid = _Grid(phi, Lattice(low, spacing), box)
    cell = grid.low + torch.cartesian_prod(*(torch.arange(int(n), device=low.device) for n in grid.count))
    further = 0
    while True:
        corner, value = grid.corners(cell)
        negative = value < 0
        mixed = negative.any(1) & ~negative.all(1)
        near = mixed | (value.abs().amin(1) <= 3**0.5 / 2 * _variation(corner, value, mixed))
        crossed = int(mixed.sum())
        # A plane of normal n crosses |n_1| + |n_2| + |n_3| cells for each spacing^2 of its area, 3/2 on average.
        wanted = math.sqrt(1.5 * pieces / crossed) if crossed else math.inf  # the spacing over the one asked for
        if wanted <= 1:
            unnoticed = near & ~mixed
            if further == MAX_EXTRA_HALVINGS:
                break
            if _hidden(grid, cell[unnoticed], value[unnoticed]) <= MAX_HIDDEN_SHARE * crossed:
                break
            further += 1
        if int(near.sum()) > (MAX_NEAR_CELLS if crossed else MAX_NEAR_CELLS // UNCROSSED_CELLS_RATIO):
            break
        # Cells are divided in three where that is just enough: two halvings make up to four times the cells needed.
        parts = 3 if 2 < wanted <= 3 else 2
        spacing /= parts
        grid = _Grid(phi, Lattice(low, spacing), box)
        children = torch.cartesian_prod(*[torch.arange(parts, device=cell.device)] * 3)
        cell = (parts * cell[near][:, None] + children).reshape(-1, 3)
        cell = cell[grid.inside(cell)]
        if not len(cell):
            return _connected(grid, cell)
    return _connected(grid, cell[mixed])


def _hidden(grid: _Grid, cell: Tensor, value: Tensor) -> int:
    """How many of the cells (c, 3), with values (c, 8) of one sign at their corners, have the other at their centre."""
    if not len(cell):
        return 0
    centre = grid.lattice.position(cell) + 0.5 * grid.lattice.spacing
    return int(((grid.at(centre) < 0) != (value[:, 0] < 0)).sum())


def _variation(corner: Tensor, value: Tensor, mixed: Tensor) -> Tensor:
    """How much values (c, 8) vary at corners (c, 8) of cells (c,): the largest change along the edges of each axis,
    and of the three the length as a vector.

    A cell takes the largest variation of its neighbours in which phi does not change sign: around a part of the surface
    that lies amid a cell, the corners of that cell agree.
    """
    cube = value.reshape(-1, 2, 2, 2)
    change = sum((cube.select(d, 0) - cube.select(d, 1)).flatten(1).abs().amax(1) ** 2 for d in (1, 2, 3)) ** 0.5
    at_node = value.new_zeros(int(corner.max()) + 1)
    steady = torch.where(mixed, 0.0, change)[:, None].expand_as(corner)
    at_node.scatter_reduce_(0, corner.reshape(-1), steady.reshape(-1), "amax")
    return torch.maximum(change, at_node[corner].amax(1))


def no_zero_set_found(phi: Function, box: Tensor) -> str:
    """The message for a box in which phi does not change sign."""
    sign = "negative" if bool((values(phi, box) < 0).all()) else "positive"
    return (
        f"phi is {sign} wherever it was evaluated inside bounds {box.tolist()}, where a surface "
        "phi = 0 was expected; give bounds that contain it, or shift phi by its level."
    )


def in_box(box: Tensor, y: Tensor) -> Tensor:
    return ((y >= box[0]) & (y <= box[1])).all(1)


def crosses_sides(phi: Function, box: Tensor) -> bool:
    """Whether phi changes sign on the sides of the box."""
    t = torch.linspace(0, 1, 2 * COARSEST_CELLS + 1, dtype=box.dtype, device=box.device)
    u, v = (w.reshape(-1) for w in torch.meshgrid(t, t, indexing="ij"))
    ends = (torch.zeros_like(u), torch.ones_like(u))
    sides = [torch.stack([end, u, v], 1).roll(k, 1) for end in ends for k in range(3)]
    value = values(phi, torch.lerp(box[0], box[1], torch.cat(sides)))
    level = MAX_RELATIVE_SIDE_VALUE * value.abs().max()
    return bool((value < -level).any() and (value > level).any())
