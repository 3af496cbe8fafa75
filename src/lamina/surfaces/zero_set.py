"""The zero set of a function phi in a box (2, 3): where it is, and how to get there by Newton's method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import OCTANTS
from lamina.geometry.triangles import dot, unit
from lamina.surfaces.sampled import BATCH

ROOT_CELLS = 32  # cells along the longest side of the box in which the zero set is first looked for

Function = Callable[[Tensor], Tensor]  # points (n, 3) -> values (n,) or (n, 1)


def evaluate(phi: Function, y: Tensor) -> Tensor:
    value = phi(y)
    if not isinstance(value, Tensor) or value.shape not in ((len(y),), (len(y), 1)):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"phi must map points {tuple(y.shape)} to a tensor ({len(y)},), got {got}.")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise InputError("phi must be differentiable by autograd, got a result without graph; use torch.")
    return value.reshape(-1)


def value_and_gradient(phi: Function, y: Tensor) -> tuple[Tensor, Tensor]:
    values, gradients = [], []
    for part in y.split(BATCH):
        with torch.enable_grad():
            z = part.detach().requires_grad_()
            value = evaluate(phi, z)
            (gradient,) = torch.autograd.grad(value.sum(), z)
        values.append(value.detach())
        gradients.append(gradient)
    return torch.cat(values), torch.cat(gradients)


def derivative(gradient: Tensor, z: Tensor, direction: Tensor) -> Tensor:
    """Hessian times direction (n, 3), the gradient's derivative; zero for (piecewise) linear phi."""
    if not gradient.requires_grad:
        return torch.zeros_like(direction)
    (product,) = torch.autograd.grad(dot(gradient, direction).sum(), z, retain_graph=True, allow_unused=True)
    return torch.zeros_like(direction) if product is None else product.detach()


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


def offset_to(value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance to the zero set to first order (n,), and unit normals (n, 3)."""
    return value / dot(gradient, gradient).sqrt(), unit(gradient)


@dataclass(frozen=True)
class Cells:
    """Cells of a grid in the box that are near the zero set."""

    centres: Tensor  # (n, 3)
    normals: Tensor  # (n, 3) directions of grad phi there
    size: Tensor  # (3,) their sides
    distance: Tensor  # (n,) of the centres to the zero set, to first order
    signs: tuple[bool, bool]  # whether phi was somewhere negative, positive


def cells_of_size(phi: Function, box: Tensor, samples: int) -> Cells:
    """Cells near the zero set, about 1.6 of them to a sample spacing sqrt(area / samples)."""
    coarsest = h = float((box[1] - box[0]).max()) / ROOT_CELLS
    cells = _cells_near(phi, box, h)
    for _ in range(4):  # the area is not known before the cells are
        width = 1.5 * float(cells.size.max())
        delta = (1 + torch.cos(cells.distance.clamp(max=width) * (math.pi / width))) / (2 * width)
        area = float(cells.size.prod() * delta.sum())
        target = math.sqrt(max(area, coarsest**2) / samples) / 1.6
        if h <= 1.2 * target:
            break
        h = max(target, h / 8)
        cells = _cells_near(phi, box, h)
    return cells


def _cells_near(phi: Function, box: Tensor, h: float) -> Cells:
    """Cells of side about h that may hold zeros, found from coarse to fine.

    A cell is searched on if its centre is within twice the cell's radius of the zero set to first
    order, which finds parts smaller than a cell, or if phi changes sign towards a neighbour's centre,
    which finds the zero set of functions that flatten away from it.
    """
    low, extent = box[0], box[1] - box[0]
    levels = max(0, math.floor(math.log2(float(extent.max()) / (ROOT_CELLS * h) + 1e-9)))
    count = torch.ceil(extent / (h * 2**levels) - 1e-6).long().clamp_min(2)
    ijk = torch.cartesian_prod(*(torch.arange(int(n), device=low.device) for n in count))
    negative = positive = False
    for level in range(levels + 1):
        size = extent / count
        centres = low + (ijk + 0.5) * size
        value, gradient = value_and_gradient(phi, centres)
        if not bool(torch.isfinite(value).all()):
            raise InputError("phi gave values that are not finite inside bounds; give a smaller box.")
        negative, positive = negative or bool((value < 0).any()), positive or bool((value > 0).any())
        distance, normals = offset_to(value, gradient)
        distance = torch.nan_to_num(distance.abs(), nan=0.0)
        near = ((distance <= size.norm()) | _sign_changes(ijk, count, value)).nonzero()[:, 0]
        ijk, centres, distance, normals = ijk[near], centres[near], distance[near], normals[near]
        if level < levels:
            ijk, count = (2 * ijk[:, None] + OCTANTS.to(ijk.device)).reshape(-1, 3), 2 * count
    return Cells(centres, torch.nan_to_num(normals), size, distance, (negative, positive))


def why_empty(box: Tensor, cells: Cells) -> str:
    if all(cells.signs):
        return (
            "phi changes sign in the box, but Newton's method finds no zero of it; give a phi whose gradient "
            "does not vanish where phi does, or jump there (for occupancies, the logits)."
        )
    sign = "negative" if cells.signs[0] else "positive" if cells.signs[1] else "zero"
    return (
        f"phi is {sign} wherever it was evaluated inside bounds {box.tolist()}, where a surface "
        "phi = 0 was expected; give bounds that contain it, or shift phi by its level."
    )


def inside(box: Tensor, y: Tensor) -> Tensor:
    return ((y >= box[0]) & (y <= box[1])).all(1)


def crosses(phi: Function, y: Tensor, step: Tensor) -> Tensor:
    """Whether phi changes from negative to positive from y - step to y + step (n,)."""
    with torch.no_grad():
        parts = zip((y - step).split(BATCH), (y + step).split(BATCH), strict=True)
        return torch.cat([(evaluate(phi, a) < 0) & (evaluate(phi, b) > 0) for a, b in parts])


def _sign_changes(ijk: Tensor, count: Tensor, value: Tensor) -> Tensor:
    """Whether (n,) a cell and one of its six neighbours have values of different sign."""
    key = (ijk[:, 0] * count[1] + ijk[:, 1]) * count[2] + ijk[:, 2]
    order = torch.argsort(key)
    ordered = key[order]
    changes = torch.zeros_like(value, dtype=torch.bool)
    for axis, stride in enumerate((count[1] * count[2], count[2], 1)):
        mine = (ijk[:, axis] + 1 < count[axis]).nonzero()[:, 0]
        wanted = key[mine] + stride
        position = torch.searchsorted(ordered, wanted).clamp(max=len(key) - 1)
        found = ordered[position] == wanted
        mine, other = mine[found], order[position[found]]
        differ = (value[mine] > 0) != (value[other] > 0)
        changes[mine[differ]] = True
        changes[other[differ]] = True
    return changes


def crosses_sides(phi: Function, box: Tensor) -> bool:
    """Whether phi changes sign on the sides of the box."""
    t = torch.linspace(0, 1, 2 * ROOT_CELLS + 1, dtype=box.dtype, device=box.device)
    u, v = (w.reshape(-1) for w in torch.meshgrid(t, t, indexing="ij"))
    ends = (torch.zeros_like(u), torch.ones_like(u))
    sides = [torch.stack([end, u, v], 1).roll(k, 1) for end in ends for k in range(3)]
    points = torch.lerp(box[0], box[1], torch.cat(sides))
    with torch.no_grad():
        value = evaluate(phi, points)
    level = 1e-6 * value.abs().max()  # a surface that just fits into its box is not cut by it
    return bool((value < -level).any() and (value > level).any())
