"""Surfaces given as the zero set of a function: formulas, neural SDFs, occupancy networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from lamina.errors import InputError
from lamina.geometry.curvature import SurfaceFeatures, from_shape_operator
from lamina.geometry.lattice import OCTANTS
from lamina.geometry.triangles import dot, unit
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.sampled import (
    BATCH,
    Model,
    Sampled,
    even_subset,
    linked_components,
    minimise,
    owners,
    tangent_frame,
)

RIM_STEPS = 30
ROOT_CELLS = 32  # cells along the longest side of the box in which the zero set is first looked for


class Implicit(Sampled):
    """The zero set of phi, a differentiable torch function (n, 3) -> (n,) or (n, 1), inside a box (2, 3).

    phi need not be a distance: only phi / |grad phi| enters, so it will do if its gradient does not vanish
    where phi does. About `samples` points are spread evenly over the zero set, no two of a sheet nearer than
    0.74 of the mean spacing sqrt(area / samples). Their areas sum to that of the surface: within 0.1 % if it
    is smooth, 1 % if it has edges, too small where sheets are nearer to each other than the spacing. Such
    sheets may also be taken for each other by closest points, and components for one: give more samples.
    Normals point along grad phi. If phi is a module, the surface takes its precision and device; otherwise
    those of bounds, if a tensor, or float64 on the CPU.
    """

    representation = "implicit"

    def __init__(
        self,
        phi: Callable[[Tensor], Tensor],
        bounds: Tensor | np.ndarray | list | tuple,
        *,
        samples: int = 10000,
        name: str = "implicit",
        seed: int = 0,
    ) -> None:
        super().__init__(name)
        if not callable(phi):
            raise InputError(f"phi must be a function of an (n, 3) tensor, got {type(phi).__name__}.")
        if not (isinstance(samples, int) and samples > 0):
            raise InputError(f"samples must be a positive integer, got {samples!r}.")
        self.phi = phi
        self.box = _checked_box(bounds, phi)
        self.size = float((self.box[1] - self.box[0]).norm())
        self.open = _crosses_sides(self)
        if self.open:
            self.notes.append("The zero set crosses the sides of the box: the surface is cut and open there.")
        self._set_samples(_cells_of_size(self, samples), samples, seed)

    def _set_samples(self, cells: _Cells, samples: int, seed: int) -> None:
        """Project the centres of the cells to the surface, label components, and thin to samples."""
        h, radius = float(cells.size.max()), 0.5 * float(cells.size.norm())
        # Moved sideways at random, the centres above each other do not project to the same points.
        generator = torch.Generator().manual_seed(seed)
        jitter = 0.5 * h * (torch.rand(len(cells.centres), 2, generator=generator) - 0.5).to(cells.centres)
        start = cells.centres + torch.einsum("na,nac->nc", jitter, tangent_frame(cells.normals))
        dense, normals, offset = _project(self, start, 2 * radius)
        distance = (dense - start).norm(dim=1)
        keep = _inside(self.box, dense) & (offset <= 1e-3 * h) & (distance < 1.5 * h)
        keep &= _crosses(self, dense, 0.01 * h * normals)
        if not bool(keep.any()):
            raise InputError(_why_empty(self, cells))
        dense, normals, distance = dense[keep], normals[keep], distance[keep]
        # Coarea: area = sum over cells of their volume times a smooth delta function of the distance.
        weight = float(cells.size.prod()) * (1 + torch.cos(distance * (math.pi / (1.5 * h)))) / (3 * h)
        p, n, w = (t.cpu().double().numpy() for t in (dense, normals, weight))
        label = linked_components(p, n, h)
        chosen = even_subset(p, n, label, samples, w.sum(), seed)
        owner, gap = owners(p, label, chosen)
        index = torch.from_numpy(chosen).to(dense.device)
        self.points, self.normals = dense[index], normals[index]
        self.areas = torch.from_numpy(np.bincount(owner, w, len(chosen))).to(dense)
        self.component = torch.from_numpy(label[chosen]).to(dense.device)
        self.guesses, self.guess_component = self.points, self.component
        # A point of the surface lies in a cell, and the centre of that cell has been projected near it.
        self.covering = gap + radius
        self.spacing = math.sqrt(w.sum() / len(chosen))

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count random points, nearly uniform by area: the samples, drawn by area, moved at random."""
        generator = torch.Generator().manual_seed(seed)
        index = torch.multinomial(self.areas.cpu().double(), count, True, generator=generator)
        step = self.spacing * (torch.rand(count, 2, generator=generator, dtype=torch.float64) - 0.5)
        index, step = index.to(self.points.device), step.to(self.points)
        moved = self.points[index] + torch.einsum("na,nac->nc", step, tangent_frame(self.normals[index]))
        return self._feet(moved, index)

    def _find_features(self) -> SurfaceFeatures:
        """The `bend` of the closest-point model is the shape operator in its tangents."""
        models = [self._model(part, part) for part in self.points.split(BATCH)]
        frame, bend = (torch.cat([getattr(model, key) for model in models]) for key in ("frame", "bend"))
        return from_shape_operator(self.points, self.normals, frame, bend)

    def _refine(self, x: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        y = minimise(self._model, x, self.guesses[guess], 2 * self.covering, self.size)
        y, normals, _ = _project(self, y, self.covering, steps=3)
        if self.open:
            rows = (~_inside(self.box, y)).nonzero()[:, 0]
            if len(rows):
                y[rows], normals[rows] = self._on_rim(x[rows], y[rows], guess[rows])
        return y, normals

    def _on_rim(self, x: Tensor, y: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Closest points on the curve where the zero set leaves the box, near feet y (n, 3) beyond it.

        Alternates steps towards x along the curve with Newton steps back to phi = 0, both within the sides
        of the box that y has reached. Rows for which that fails stay at their guess.
        """
        tolerance = torch.finfo(y.dtype).eps ** 0.75 * self.size
        best, normals = self.guesses[guess], self.normals[guess]
        y = torch.minimum(torch.maximum(y, self.box[0]), self.box[1])
        for _ in range(RIM_STEPS):
            value, gradient = _value_and_gradient(self.phi, y)
            free = ((y > self.box[0]) & (y < self.box[1])).to(y)
            offset, normal = _offset(value, free * gradient)
            nearer = dot(x - y, x - y) < dot(x - best, x - best)
            better = ((offset.abs() <= tolerance) & nearer)[:, None]
            best, normals = torch.where(better, y, best), torch.where(better, unit(gradient), normals)
            r = free * (x - y)
            r = r - dot(r, normal)[:, None] * normal
            step = 0.7 * r - offset.clamp(-self.covering, self.covering)[:, None] * normal
            y = torch.minimum(torch.maximum(y + torch.nan_to_num(step), self.box[0]), self.box[1])
        return best, normals

    def _model(self, x: Tensor, y: Tensor) -> _LevelModel:
        """With n = grad phi / |grad phi|, e = phi / |grad phi|, W = H(phi) / |grad phi|, tangents T:

        minimising |x - y|^2 / 2 subject to phi = 0 by Newton's method on the Lagrangian (sequential
        quadratic programming) gives, with d = (x - y).n and the normal part -e of the step,

            (I + d T'W T) a = T'(x - y) + d e T'W n.
        """
        with torch.enable_grad():
            z = y.detach().requires_grad_()
            value = _evaluate(self.phi, z)
            (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True)
            length = dot(gradient, gradient).sqrt().detach().clamp_min(torch.finfo(x.dtype).tiny)
            normal = gradient.detach() / length[:, None]
            frame = tangent_frame(normal)
            product = torch.stack([_derivative(gradient, z, frame[:, k]) for k in (0, 1)], 1)
        product = torch.nan_to_num(product / length[:, None, None])  # the rows of T'W
        e = value.detach() / length
        r = x - y
        d = dot(r, normal)
        bend = torch.einsum("nac,nbc->nab", product, frame)
        bend = torch.stack([bend[:, 0, 0], 0.5 * (bend[:, 0, 1] + bend[:, 1, 0]), bend[:, 1, 1]], 1)
        across = torch.einsum("nac,nc->na", product, normal)
        gradient = -torch.einsum("nac,nc->na", frame, r) - (d * e)[:, None] * across
        hessian = d[:, None] * bend + torch.tensor([1.0, 0.0, 1.0], dtype=x.dtype, device=x.device)
        foot = r + e[:, None] * normal  # to the surface, to first order, so that misses are not rewarded
        value = 0.5 * dot(foot, foot)
        noise = 8 * torch.finfo(x.dtype).eps * (value + value.sqrt() * self.size)
        value = torch.nan_to_num(value, nan=torch.inf)
        return _LevelModel(y, value, noise, gradient, hessian, frame, normal, e, bend)


@dataclass(frozen=True)
class _LevelModel(Model):
    """Model whose `at` is a point near the zero set."""

    normal: Tensor  # (n, 3)
    offset: Tensor  # (n,) e, the distance to the zero set to first order
    bend: Tensor  # (n, 3) the entries 11, 12, 22 of T'W T: minus the second fundamental form

    def moved(self, step: Tensor) -> Tensor:
        """Along the parabola that osculates the zero set."""
        a, b = step.unbind(1)
        height = 0.5 * (self.bend[:, 0] * a * a + 2 * self.bend[:, 1] * a * b + self.bend[:, 2] * b * b)
        # A bend beyond what a step of this length can follow is no use as a prediction.
        height = torch.minimum(height.abs(), torch.hypot(a, b)) * height.sign()
        return super().moved(step) - (height + self.offset)[:, None] * self.normal

    def improved_by(self, trial: Self) -> Tensor:
        """Nearer, close to the zero set, and on the same sheet: neighbouring sheets face opposite ways."""
        step = trial.at - self.at
        close = trial.offset.abs() <= 0.5 * dot(step, step).sqrt()
        # Off the zero set f is known to first order only: it may rise by the second while the offset falls.
        nearing = trial.offset.abs() <= 0.5 * self.offset.abs()
        slack = self.noise + torch.where(nearing, 100 * self.offset**2, 0.0)
        return (trial.value <= self.value + slack) & close & (dot(self.normal, trial.normal) > 0)

    def repaired(self, x: Tensor, trial: Self) -> Tensor:
        """Closest point to x on the line where the tangent planes of the two models meet.

        Where phi is piecewise linear (ReLU networks) the foot is often on a crease, and steps from
        either side overshoot it. The planes are {y: n_k . (y - at_k) = -e_k}; y = x + c_1 n_1 + c_2 n_2.
        """
        n1, n2 = self.normal, trial.normal
        b1 = dot(n1, self.at - x) - self.offset
        b2 = dot(n2, trial.at - x) - trial.offset
        cosine = dot(n1, n2)
        sine2 = (1 - cosine * cosine).clamp_min(torch.finfo(x.dtype).eps)
        c1, c2 = (b1 - cosine * b2) / sine2, (b2 - cosine * b1) / sine2
        crease = x + c1[:, None] * n1 + c2[:, None] * n2
        step = trial.at - self.at
        far = dot(crease - self.at, crease - self.at) > 4 * dot(step, step)
        return torch.where(far[:, None], self.at + 0.25 * step, crease)


def _evaluate(phi: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    value = phi(y)
    if not isinstance(value, Tensor) or value.shape not in ((len(y),), (len(y), 1)):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"phi must map points {tuple(y.shape)} to a tensor ({len(y)},), got {got}.")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise InputError("phi must be differentiable by autograd, got a result without graph; use torch.")
    return value.reshape(-1)


def _value_and_gradient(phi: Callable[[Tensor], Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    values, gradients = [], []
    for part in y.split(BATCH):
        with torch.enable_grad():
            z = part.detach().requires_grad_()
            value = _evaluate(phi, z)
            (gradient,) = torch.autograd.grad(value.sum(), z)
        values.append(value.detach())
        gradients.append(gradient)
    return torch.cat(values), torch.cat(gradients)


def _derivative(gradient: Tensor, z: Tensor, direction: Tensor) -> Tensor:
    """Hessian times direction (n, 3), the gradient's derivative; zero for (piecewise) linear phi."""
    if not gradient.requires_grad:
        return torch.zeros_like(direction)
    (product,) = torch.autograd.grad(dot(gradient, direction).sum(), z, retain_graph=True, allow_unused=True)
    return torch.zeros_like(direction) if product is None else product.detach()


def _project(surface: Implicit, y: Tensor, reach: float, steps: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Newton's method for phi = 0 along the gradient, y <- y - phi grad phi / |grad phi|^2.

    Steps are no longer than reach, and shortened until |phi| falls. Returns the points (n, 3), the
    normals there (n, 3) and the distances (n,) that are left to first order.
    """
    tolerance = 4 * torch.finfo(y.dtype).eps * surface.size
    y = y.clone()
    value, gradient = _value_and_gradient(surface.phi, y)
    damping = torch.ones_like(value)
    for _ in range(steps):
        offset, normal = _offset(value, gradient)
        rows = ((offset.abs() > tolerance) & offset.isfinite() & (damping > 1e-3)).nonzero()[:, 0]
        if len(rows) == 0:
            break
        move = (damping[rows] * offset[rows]).clamp(-reach, reach)
        trial = y[rows] - move[:, None] * normal[rows]
        v, g = _value_and_gradient(surface.phi, trial)
        better = v.abs() < value[rows].abs()
        damping[rows] = torch.where(better, (2 * damping[rows]).clamp(max=1.0), damping[rows] / 4)
        rows, better = rows[better], better.nonzero()[:, 0]
        y[rows], value[rows], gradient[rows] = trial[better], v[better], g[better]
    offset, normal = _offset(value, gradient)
    return y, normal, torch.nan_to_num(offset.abs(), nan=torch.inf)


def _offset(value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance to the zero set to first order (n,), and unit normals (n, 3)."""
    return value / dot(gradient, gradient).sqrt(), unit(gradient)


@dataclass(frozen=True)
class _Cells:
    """Cells of a grid in the box that are near the zero set."""

    centres: Tensor  # (n, 3)
    normals: Tensor  # (n, 3) directions of grad phi there
    size: Tensor  # (3,) their sides
    distance: Tensor  # (n,) of the centres to the zero set, to first order
    signs: tuple[bool, bool]  # whether phi was somewhere negative, positive


def _cells_of_size(surface: Implicit, samples: int) -> _Cells:
    """Cells near the zero set, about 1.6 of them to a sample spacing sqrt(area / samples)."""
    coarsest = h = float((surface.box[1] - surface.box[0]).max()) / ROOT_CELLS
    cells = _cells_near(surface, h)
    for _ in range(4):  # the area is not known before the cells are
        width = 1.5 * float(cells.size.max())
        delta = (1 + torch.cos(cells.distance.clamp(max=width) * (math.pi / width))) / (2 * width)
        area = float(cells.size.prod() * delta.sum())
        target = math.sqrt(max(area, coarsest**2) / samples) / 1.6
        if h <= 1.2 * target:
            break
        h = max(target, h / 8)
        cells = _cells_near(surface, h)
    return cells


def _cells_near(surface: Implicit, h: float) -> _Cells:
    """Cells of side about h that may hold zeros, found from coarse to fine.

    A cell is searched on if its centre is within twice the cell's radius of the zero set to first
    order, which finds parts smaller than a cell, or if phi changes sign towards a neighbour's centre,
    which finds the zero set of functions that flatten away from it.
    """
    low, extent = surface.box[0], surface.box[1] - surface.box[0]
    levels = max(0, math.floor(math.log2(float(extent.max()) / (ROOT_CELLS * h) + 1e-9)))
    count = torch.ceil(extent / (h * 2**levels) - 1e-6).long().clamp_min(2)
    ijk = torch.cartesian_prod(*(torch.arange(int(n), device=low.device) for n in count))
    negative = positive = False
    for level in range(levels + 1):
        size = extent / count
        centres = low + (ijk + 0.5) * size
        value, gradient = _value_and_gradient(surface.phi, centres)
        if not bool(torch.isfinite(value).all()):
            raise InputError("phi gave values that are not finite inside bounds; give a smaller box.")
        negative, positive = negative or bool((value < 0).any()), positive or bool((value > 0).any())
        distance, normals = _offset(value, gradient)
        distance = torch.nan_to_num(distance.abs(), nan=0.0)
        near = ((distance <= size.norm()) | _sign_changes(ijk, count, value)).nonzero()[:, 0]
        ijk, centres, distance, normals = ijk[near], centres[near], distance[near], normals[near]
        if level < levels:
            ijk, count = (2 * ijk[:, None] + OCTANTS.to(ijk.device)).reshape(-1, 3), 2 * count
    return _Cells(centres, torch.nan_to_num(normals), size, distance, (negative, positive))


def _why_empty(surface: Implicit, cells: _Cells) -> str:
    if all(cells.signs):
        return (
            "phi changes sign in the box, but Newton's method finds no zero of it; give a phi whose gradient "
            "does not vanish where phi does, or jump there (for occupancies, the logits)."
        )
    sign = "negative" if cells.signs[0] else "positive" if cells.signs[1] else "zero"
    return (
        f"phi is {sign} wherever it was evaluated inside bounds {surface.box.tolist()}, where a surface "
        "phi = 0 was expected; give bounds that contain it, or shift phi by its level."
    )


def _inside(box: Tensor, y: Tensor) -> Tensor:
    return ((y >= box[0]) & (y <= box[1])).all(1)


def _crosses(surface: Implicit, y: Tensor, step: Tensor) -> Tensor:
    """Whether phi changes from negative to positive from y - step to y + step (n,)."""
    phi = surface.phi
    with torch.no_grad():
        parts = zip((y - step).split(BATCH), (y + step).split(BATCH), strict=True)
        return torch.cat([(_evaluate(phi, a) < 0) & (_evaluate(phi, b) > 0) for a, b in parts])


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


def _crosses_sides(surface: Implicit) -> bool:
    """Whether phi changes sign on the sides of the box."""
    t = torch.linspace(0, 1, 2 * ROOT_CELLS + 1, dtype=surface.box.dtype, device=surface.box.device)
    u, v = (w.reshape(-1) for w in torch.meshgrid(t, t, indexing="ij"))
    ends = (torch.zeros_like(u), torch.ones_like(u))
    sides = [torch.stack([end, u, v], 1).roll(k, 1) for end in ends for k in range(3)]
    points = torch.lerp(surface.box[0], surface.box[1], torch.cat(sides))
    with torch.no_grad():
        value = _evaluate(surface.phi, points)
    level = 1e-6 * value.abs().max()  # a surface that just fits into its box is not cut by it
    return bool((value < -level).any() and (value > level).any())


def _checked_box(bounds: Tensor | np.ndarray | list | tuple, phi: object) -> Tensor:
    try:
        box = bounds if isinstance(bounds, Tensor) else torch.from_numpy(np.asarray(bounds, dtype=np.float64))
        box = box if box.is_floating_point() else box.double()
    except (TypeError, ValueError, RuntimeError):
        box = torch.empty(0)
    if box.shape != (2, 3) or not bool(torch.isfinite(box).all()) or not bool((box[0] < box[1]).all()):
        raise InputError(
            f"bounds must be the lower and the upper corner of a box, [[x, y, z], [X, Y, Z]], got {bounds!r}."
        )
    box = box.detach().clone()
    if isinstance(phi, nn.Module):
        weight = next((p for p in phi.parameters() if p.is_floating_point()), box)
        box = box.to(weight.device, weight.dtype)
    return box
