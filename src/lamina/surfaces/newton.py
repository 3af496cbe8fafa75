"""Surfaces whose closest points are found from the nearest of many guesses, then by Newton's method.

Half the squared distance f = |x - y|^2 / 2 from x to the surface is minimised in two tangential
coordinates a around the current y: with its gradient g and Hessian H (both exact, by autograd) the step is

    a = -|H|^{-1} g,    |a| <= trust,

|H| being H with its eigenvalues made positive, so that the step goes downhill even where H is indefinite.
It is accepted if f falls; else the trust radius shrinks to a quarter of the step. Near a minimum this is
Newton's method. Nocedal and Wright, "Numerical Optimization" (2006), chapters 3.4 and 4.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor, nn

from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import dot
from lamina.search.nearest import Nearest
from lamina.search.neighbours import PointTree
from lamina.surfaces.base import ClosestPoints, NearNodes, Surface

BATCH = 2**17  # rows a call of a user's function: bounds memory, and is enough to fill a GPU
MAX_STEPS = 30


class Sampled(Surface):
    """A surface with dense guesses on it, from which `_refine` finds closest points.

    guesses (g, 3) lie on the surface, guess_component (g,) says on which component; no point of the
    surface is farther than `covering` from the guesses of its component.
    """

    guesses: Tensor
    guess_component: Tensor
    covering: float
    _nearest: Nearest | None = None
    _points: PointTree | None = None

    @abstractmethod
    def _refine(self, x: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Closest points (n, 3) and normals (n, 3) for x (n, 3), starting at the guesses numbered (n,)."""

    def closest_points(self, x: Tensor) -> ClosestPoints:
        """Feet of x (n, 3): the minimum of the distance that Newton's method finds from the nearest guess."""
        if x.device.type == "cpu":  # where a k-d tree is many times faster than the dual-tree search
            return self._feet(x, self._tree.query(x.detach(), 1)[0][:, 0])
        return self._feet(x, self.nearest.to_points(x.detach())[0])

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        """All lattice nodes whose distance to (a component of) the surface is at most radius.

        A node within radius of the surface is within radius + covering of a guess.
        """
        ijk, component, guess, _ = self.nearest.to_nodes(lattice, radius + self.covering)
        x = lattice.position(ijk)
        feet = self._feet(x, guess)
        offset = x - feet.points
        near = dot(offset, offset).detach() <= (radius * (1 + 1e-9)) ** 2
        return NearNodes(ijk[near], replace(feet, component=component).take(near))

    @property
    def nearest(self) -> Nearest:
        """The search tree over the guesses, built when first asked for."""
        if self._nearest is None:
            self._nearest = Nearest(self.guesses, self.guess_component)
        return self._nearest

    @property
    def _tree(self) -> PointTree:
        if self._points is None:
            self._points = PointTree(self.guesses.detach())
        return self._points

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same surface on another device or in another precision; networks are copied, then moved, those that want
        gradients with every call anew."""
        moved = super().to(device, dtype)
        assert isinstance(moved, type(self))
        for key, value in vars(self).items():
            if isinstance(value, nn.Module):
                other = Elsewhere(value, device, dtype) if self.tracked else copy.deepcopy(value).to(device, dtype)
                setattr(moved, key, other)
        moved._nearest = moved._points = None
        return moved

    def _feet(self, x: Tensor, guess: Tensor) -> ClosestPoints:
        parts = [self._refine(*rows) for rows in zip(x.split(BATCH), guess.split(BATCH), strict=True)]
        points, normals = (torch.cat(part) for part in zip(*parts, strict=True))
        return ClosestPoints(points, normals, self.guess_component[guess])


class Elsewhere(nn.Module):
    """A network as if it were on another device and in another precision, with gradients to its own weights."""

    def __init__(self, network: nn.Module, device: torch.device | str | None, dtype: torch.dtype | None):
        super().__init__()
        self.network, self.device, self.dtype = (network,), device, dtype  # not a part of this one

    def forward(self, x: Tensor) -> Tensor:
        (network,) = self.network
        tensors = dict(network.named_parameters()) | dict(network.named_buffers())
        moved = {
            key: t.to(device=self.device, dtype=self.dtype if t.is_floating_point() else None)
            for key, t in tensors.items()
        }
        return torch.func.functional_call(network, moved, (x,))


@dataclass(frozen=True)
class Model:
    """Second-order model of f = |x - y|^2 / 2 in tangential coordinates, row by row; see the module."""

    at: Tensor  # (n, 3) where it was made: a point of space, or of a parameter domain
    value: Tensor  # (n,) f
    noise: Tensor  # (n,) rounding error to be expected in f
    gradient: Tensor  # (n, 2) g
    hessian: Tensor  # (n, 3) the entries 11, 12, 22 of H
    frame: Tensor  # (n, 2, 3) the tangents that belong to the two coordinates

    def take(self, rows: Tensor) -> Self:
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def put(self, rows: Tensor, other: Self) -> None:
        """Replace the given rows (indices, or a mask) by those of other."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(other, f.name)

    def moved(self, step: Tensor) -> Tensor:
        """Where a step (n, 2) leads (n, 3)."""
        return self.at + torch.einsum("na,nac->nc", step, self.frame)

    def improved_by(self, trial: Self) -> Tensor:
        """Whether each row of trial, made a step away from this one, is better (n,)."""
        return trial.value <= self.value + self.noise

    def repaired(self, x: Tensor, trial: Self) -> Tensor | None:
        """Where to try (n, 3) after a trial that was no improvement; None: only shorter steps help."""
        return None


Evaluate = Callable[[Tensor, Tensor], Model]


def minimise(evaluate: Evaluate, x: Tensor, start: Tensor, trust: float, scale: float) -> Tensor:
    """Locations (n, 3) of the local minima of f reached from start (n, 3).

    evaluate(x, at) makes the models; trust is the first bound on steps, scale the size of the surface, both
    in the units of `at`. The distance never rises: rows that stop converging keep the best they had.
    """
    eps = torch.finfo(x.dtype).eps
    # Convergence is quadratic, so that after a step of the order of sqrt(eps) the error is of order eps.
    last_step, small = min(0.5 * eps**0.5, 2e-5) * scale, eps ** (1 / 3) * scale
    result = start.clone()
    rows = torch.arange(len(x), device=x.device)
    model = evaluate(x, start.clone())
    reach = torch.full_like(model.value, trust)
    last = torch.zeros_like(reach)  # length of the last full Newton step, 0 if the last was not one
    for _ in range(MAX_STEPS):
        step, length = newton_step(model.gradient, model.hessian, reach)
        stalled = (length > 0.5 * last) & (last > 0) & (last <= small)  # at the level of rounding
        done = (length <= last_step) | stalled
        stay = stalled | (length >= reach)  # a step cut short was about to be refused
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


def _repair(evaluate: Evaluate, x: Tensor, model: Model, trial: Model, better: Tensor, tiny: float) -> Tensor:
    """Give rows whose trial failed the second chance that their model suggests; change model in place.

    Returns the rows that the model suggests to leave where they are.
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
    w[p, q] the divided difference; here w(t) = 1 / max(|t|, p / 1000).
    """
    h11, h12, h22 = H.unbind(1)
    tiny = torch.finfo(g.dtype).tiny ** 0.5
    mean, half = (h11 + h22) / 2, torch.hypot((h11 - h22) / 2, h12).clamp_min(tiny)
    largest = mean.abs() + half
    wp, wq = (1 / torch.maximum(t.abs(), 1e-3 * largest) for t in (mean + half, mean - half))
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
    """Solutions (n, 2) of A x = b, A (n, 2, 2); where A is singular, as at centres of curvature, of one that is not."""
    determinant = A[:, 0, 0] * A[:, 1, 1] - A[:, 0, 1] * A[:, 1, 0]
    floor = 1e-6 * A.abs().amax((1, 2)) ** 2
    determinant = torch.where(determinant.abs() < floor, floor, determinant)
    first = A[:, 1, 1] * b[:, 0] - A[:, 0, 1] * b[:, 1]
    second = A[:, 0, 0] * b[:, 1] - A[:, 1, 0] * b[:, 0]
    return torch.stack([first, second], 1) / determinant[:, None]


def even_subset(points: NDArray, normals: NDArray, label: NDArray, count: int, area: float, seed: int) -> NDArray:
    """Indices of about count of the dense points (n, 3), evenly spread: a Poisson-disk sample.

    No two points of a sheet are within a radius of each other, and all
    others are within it of a chosen one. At random such samples hold 0.7 area / radius^2 points.
    """
    radius = np.sqrt(0.7 * area / count)
    pairs, distance = _pairs_within(points, 1.2 * radius)
    rivals = (label[pairs[:, 0]] == label[pairs[:, 1]]) & _same_sheet(pairs, normals)
    pairs, distance = pairs[rivals], distance[rivals]
    priority = np.random.default_rng(seed).permutation(len(points)).astype(float)
    for _ in range(3):
        chosen = _independent(pairs[distance < radius], priority)
        radius = min(radius * np.sqrt(len(chosen) / count), distance.max(initial=radius))
    return chosen


def owners(points: NDArray, label: NDArray, chosen: NDArray) -> tuple[NDArray, float]:
    """Which of the chosen points of its component is nearest to each point (n,); the largest distance."""
    # Components are set apart along a fourth axis, so that one search serves all.
    far = np.ptp(points, axis=0).sum() + 1
    lifted = np.column_stack([points, far * label])
    distance, owner = KDTree(lifted[chosen]).query(lifted)
    return np.asarray(owner), float(np.max(distance))


def _pairs_within(points: NDArray, radius: float) -> tuple[NDArray, NDArray]:
    """All pairs (p, 2) of points nearer than radius, and their distances (p,)."""
    pairs = KDTree(points).query_pairs(radius, output_type="ndarray")
    return pairs, np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)


def _same_sheet(pairs: NDArray, normals: NDArray) -> NDArray:
    """Whether the normals of each pair (p, 2) differ by less than 120 degrees, as across any blunt edge."""
    return np.einsum("ij,ij->i", normals[pairs[:, 0]], normals[pairs[:, 1]]) > -0.5


def _independent(pairs: NDArray, priority: NDArray) -> NDArray:
    """Indices of a maximal set of points no two of which form a pair (p, 2).

    In each round a point that comes before all its undecided neighbours stays, and these go
    (Luby, 1986, "A simple parallel algorithm for the maximal independent set problem").
    """
    undecided, chosen = np.ones(len(priority), dtype=bool), np.zeros(len(priority), dtype=bool)
    i, j = np.concatenate([pairs, pairs[:, ::-1]]).T
    while undecided.any():
        rival = np.full(len(priority), -np.inf)
        np.maximum.at(rival, i, priority[j])
        winner = undecided & (priority > rival)
        chosen |= winner
        undecided &= ~winner
        undecided[j[winner[i]]] = False
        alive = undecided[i] & undecided[j]
        i, j = i[alive], j[alive]
    return chosen.nonzero()[0]
