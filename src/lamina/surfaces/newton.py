"""Surfaces whose closest points Newton's method finds, from the nearest of many starts on the surface.

Half the squared distance f = |x - y|^2 / 2 from x to the surface is minimised in two tangential coordinates a around
the current y. With the gradient g and the Hessian H of f, both exact by autograd, the step is

    a = -|H|^{-1} g,    |a| <= trust,

where |H| is H with its eigenvalues made positive, so that the step goes downhill even where H is indefinite. The step
is accepted if f falls. Otherwise the trust radius shrinks to a quarter of the step. Near a minimum this is Newton's
method. Nocedal and Wright, "Numerical Optimization" (2006), chapters 3.4 and 4.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor, nn

from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import dot
from lamina.search.nearest import Nearest
from lamina.search.neighbours import PointTree
from lamina.shapes import Float, shaped
from lamina.surfaces.base import RADIUS_SLACK, ClosestPoints, NearNodes, Surface

FUNCTION_BATCH = 2**17  # points given to a user's function in one call: bounds memory, and is enough to fill a GPU
# Steps after which a row keeps the best point that it has. Convergence is quadratic and mostly takes few steps. Half
# would stop rows early that cross creases in short steps; double costs time on rows that do not converge at all.
MAX_NEWTON_STEPS = 30
# A row has converged after a step shorter than this times sqrt(eps), in units of the surface's size: convergence is
# quadratic, so the error left is of order eps. Half makes that error four times smaller, double four times larger.
NEWTON_TOLERANCE_IN_ROOT_EPS = 0.5
# Upper bound on that tolerance, in the same units: in single precision the rule above alone would give 1.7e-4.
MAX_NEWTON_TOLERANCE = 2e-5
# An eigenvalue of |H| counts as at least this share of the larger one, so that steps stay finite where f is flat in one
# direction, as at centres of curvature. Chosen by trial; the trust radius bounds the longer steps that half allows.
MIN_EIGENVALUE_RATIO = 1e-3
# A determinant counts as zero below this share of the squared largest entry. Chosen by trial: half lets gradients near
# centres of curvature be twice as large, double bounds them at half.
MIN_DETERMINANT_RATIO = 1e-6


class NewtonSurface(Surface):
    """A surface with many starts on it, from which `_refine` finds closest points.

    starts (g, 3): points on the surface. start_component (g,): the component of each.
    covering_radius: no point of the surface is farther than this from the nearest start of its component.
    """

    starts: Tensor
    start_component: Tensor
    covering_radius: float
    _nearest: Nearest | None = None
    _points: PointTree | None = None

    @abstractmethod
    def _refine(self, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Closest points (n, 3) and normals (n, 3) for x (n, 3), from the starts with the numbers start (n,)."""

    def closest_points(self, x: Tensor) -> ClosestPoints:
        """Feet of x (n, 3): the local minimum of the distance that Newton's method reaches from the nearest start."""
        if x.device.type == "cpu":  # where a k-d tree is many times faster than the dual-tree search
            return self._feet(x, self._tree.query(x.detach(), 1)[0][:, 0])
        return self._feet(x, self.nearest.to_points(x.detach())[0])

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        """All lattice nodes whose distance to (a component of) the surface is at most radius.

        A node within radius of the surface is within radius + covering_radius of a start.
        """
        ijk, component, start, _ = self.nearest.to_nodes(lattice, radius + self.covering_radius)
        x = lattice.position(ijk)
        feet = self._feet(x, start)
        offset = x - feet.points
        near = dot(offset, offset).detach() <= (radius * (1 + RADIUS_SLACK)) ** 2
        return NearNodes(ijk[near], replace(feet, component=component).take(near))

    @property
    def nearest(self) -> Nearest:
        """The search tree over the starts, built when first asked for."""
        if self._nearest is None:
            self._nearest = Nearest(self.starts, self.start_component)
        return self._nearest

    @property
    def _tree(self) -> PointTree:
        if self._points is None:
            self._points = PointTree(self.starts.detach())
        return self._points

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same surface on another device or in another precision.

        Networks are copied and the copies moved. A network whose weights want gradients is not copied: its weights are
        moved anew in every call, so that gradients reach them."""
        moved = super().to(device, dtype)
        for key, value in vars(self).items():
            if isinstance(value, nn.Module):
                other = MovedNetwork(value, device, dtype) if self.tracked else copy.deepcopy(value).to(device, dtype)
                setattr(moved, key, other)
        moved._nearest = moved._points = None
        return moved

    def _feet(self, x: Tensor, start: Tensor) -> ClosestPoints:
        parts = [self._refine(*rows) for rows in zip(x.split(FUNCTION_BATCH), start.split(FUNCTION_BATCH), strict=True)]
        points, normals = (torch.cat(part) for part in zip(*parts, strict=True))
        return ClosestPoints(points, normals, self.start_component[start])


class MovedNetwork(nn.Module):
    """A network evaluated on another device and in another precision, with gradients to its own weights."""

    def __init__(self, network: nn.Module, device: torch.device | str | None, dtype: torch.dtype | None):
        super().__init__()
        # In a tuple, so that torch does not take the network for a part of this module.
        self.network, self.device, self.dtype = (network,), device, dtype

    def forward(self, x: Tensor) -> Tensor:
        (network,) = self.network
        tensors = dict(network.named_parameters()) | dict(network.named_buffers())
        moved = {
            key: t.to(device=self.device, dtype=self.dtype if t.is_floating_point() else None)
            for key, t in tensors.items()
        }
        return torch.func.functional_call(network, moved, (x,))


@shaped
@dataclass(frozen=True)
class DistanceModel:
    """Second-order models of f = |x - y|^2 / 2 in tangential coordinates, one a row; the module has the formula."""

    at: Float[Tensor, "n 3"]  # where the model was made: a point of space or of a parameter domain
    value: Float[Tensor, " n"]  # f
    noise: Float[Tensor, " n"]  # expected rounding error of f
    gradient: Float[Tensor, "n 2"]  # g
    hessian: Float[Tensor, "n 3"]  # the entries 11, 12, 22 of H
    frame: Float[Tensor, "n 2 3"]  # the tangents that belong to the two coordinates

    def take(self, rows: Tensor) -> Self:
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def put(self, rows: Tensor, other: Self) -> None:
        """Replace the given rows (indices, or a mask) by those of other, in place."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(other, f.name)

    def moved(self, step: Tensor) -> Tensor:
        """The points (n, 3) that steps (n, 2) lead to."""
        return self.at + torch.einsum("na,nac->nc", step, self.frame)

    def improved_by(self, trial: Self) -> Tensor:
        """Whether each row of trial, a model made one step away, is better than the row here (n,)."""
        return trial.value <= self.value + self.noise

    def repaired(self, x: Tensor, trial: Self) -> Tensor | None:
        """Points (n, 3) to try after trials that were no improvement; None: only shorter steps help."""
        return None


ModelAt = Callable[[Tensor, Tensor], DistanceModel]


def minimise(evaluate: ModelAt, x: Tensor, start: Tensor, trust: float, scale: float) -> Tensor:
    """Locations (n, 3) of the local minima of f reached from start (n, 3).

    evaluate(x, at) makes the models. trust is the first bound on steps and scale the size of the surface, both in the
    units of `at`. The distance never rises: rows that stop converging keep their best point.
    """
    eps = torch.finfo(x.dtype).eps
    # Convergence is quadratic: after a step of the order of sqrt(eps) the error is of order eps.
    last_step = min(NEWTON_TOLERANCE_IN_ROOT_EPS * eps**0.5, MAX_NEWTON_TOLERANCE) * scale
    small = eps ** (1 / 3) * scale
    result = start.clone()
    rows = torch.arange(len(x), device=x.device)
    model = evaluate(x, start.clone())
    reach = torch.full_like(model.value, trust)
    last = torch.zeros_like(reach)  # length of the last step if that was a full Newton step, otherwise 0
    for _ in range(MAX_NEWTON_STEPS):
        step, length = newton_step(model.gradient, model.hessian, reach)
        stalled = (length > 0.5 * last) & (last > 0) & (last <= small)  # short steps that no longer shrink: rounding
        done = (length <= last_step) | stalled
        stay = stalled | (length >= reach)  # a step that the trust radius cut this short would be refused
        result[rows] = torch.where(stay[:, None], model.at, model.moved(step))
        keep = (~done).nonzero()[:, 0]
        if len(keep) == 0:
            return result
        if len(keep) < len(done):
            rows, x, model = rows[keep], x[keep], model.take(keep)
            step, length, reach = step[keep], length[keep], reach[keep]
        trial = evaluate(x, model.moved(step))
        better = model.improved_by(trial)
        full = better & (length < reach)
        reach = torch.where(better, torch.where(full, reach, 2 * reach), length / 4)
        last = torch.where(full, length, torch.zeros_like(length))
        reach[_repair(evaluate, x, model, trial, better, last_step)] = 0
        model.put(better, trial.take(better))
    result[rows] = model.at
    return result


def _repair(
    evaluate: ModelAt, x: Tensor, model: DistanceModel, trial: DistanceModel, better: Tensor, tiny: float
) -> Tensor:
    """Try for rows whose trial failed the second point that their model suggests, and put successes into model.

    Returns the rows whose suggested point is the one that they have: these are to stay.
    """
    failed = (~better).nonzero()[:, 0]
    old = model.take(failed)
    other = old.repaired(x[failed], trial.take(failed)) if len(failed) else None
    if other is None:
        return failed[:0]
    second = evaluate(x[failed], other)
    saved = (old.improved_by(second) & (second.value < old.value)).nonzero()[:, 0]
    model.put(failed[saved], second.take(saved))
    return failed[dot(other - old.at, other - old.at) <= tiny**2]


def newton_step(g: Tensor, H: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """-|H|^{-1} g (n, 2), no longer than reach (n,), and its length (n,).

    A function of a symmetric 2x2 matrix with eigenvalues p >= q is w(H) = w(q) I + w[p, q] (H - q I),
    w[p, q] the divided difference; here w(t) = 1 / max(|t|, m / 1000) with m = max(|p|, |q|).
    """
    h11, h12, h22 = H.unbind(1)
    tiny = torch.finfo(g.dtype).tiny ** 0.5
    mean, half = (h11 + h22) / 2, torch.hypot((h11 - h22) / 2, h12).clamp_min(tiny)
    largest = mean.abs() + half
    wp, wq = (1 / torch.maximum(t.abs(), MIN_EIGENVALUE_RATIO * largest) for t in (mean + half, mean - half))
    slope = (wp - wq) / (2 * half)
    shift = wq - slope * (mean - half)
    step = -torch.stack(
        [
            shift * g[:, 0] + slope * (h11 * g[:, 0] + h12 * g[:, 1]),
            shift * g[:, 1] + slope * (h12 * g[:, 0] + h22 * g[:, 1]),
        ],
        1,
    )
    step = torch.nan_to_num(step, nan=0.0, posinf=0.0, neginf=0.0)
    length = torch.hypot(step[:, 0], step[:, 1])
    factor = (reach / length.clamp_min(tiny)).clamp(max=1.0)
    return step * factor[:, None], length * factor


def solve_two(A: Tensor, b: Tensor) -> Tensor:
    """Solutions (n, 2) of A x = b for A (n, 2, 2). Where A is singular, as at centres of curvature, its determinant is
    replaced by a small number."""
    determinant = A[:, 0, 0] * A[:, 1, 1] - A[:, 0, 1] * A[:, 1, 0]
    floor = MIN_DETERMINANT_RATIO * A.abs().amax((1, 2)) ** 2
    determinant = torch.where(determinant.abs() < floor, floor, determinant)
    first = A[:, 1, 1] * b[:, 0] - A[:, 0, 1] * b[:, 1]
    second = A[:, 0, 0] * b[:, 1] - A[:, 1, 0] * b[:, 0]
    return torch.stack([first, second], 1) / determinant[:, None]
