"""Surfaces given as the zero set of a function: formulas, neural SDFs, occupancy networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from lamina.checks import positive_integer
from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures, from_shape_operator
from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot, unit
from lamina.linear.adjoint import first_order
from lamina.shapes import Float, shaped
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.newton import FUNCTION_BATCH, DistanceModel, NewtonSurface, minimise, solve_two
from lamina.surfaces.zero_samples import sample_zero_set
from lamina.surfaces.zero_set import (
    carries_gradients,
    derivative,
    evaluate,
    in_box,
    offset_to,
    project,
    value_and_gradient,
)

# Steps of the search for closest points on the curve where the zero set leaves its box. On a straight rim each step
# leaves 0.3 of the error (see below), so that 30 reach rounding; half leave 1e-8, double cost twice the time.
BOX_RIM_STEPS = 30
# Share of the way along the rim that a step takes: less than 1, so that curved rims are not overshot; chosen by trial.
# Half leaves 0.65 of the error in each step; double overshoots every time.
BOX_RIM_STEP_SHARE = 0.7
# A step is accepted only if the first-order distance to the zero set behind it is at most this share of the step's
# length. Chosen by trial: half refuses good steps on curved parts, double accepts steps that leave the surface.
MAX_OFFSET_OVER_STEP = 0.5
# If that distance falls at least by half, f may rise by this many times its square before the step, because f is known
# to first order only off the zero set. Chosen by trial.
SECOND_ORDER_SLACK = 100
# A point on a crease is tried if it is at most this many steps away, and otherwise a quarter of the step.
MAX_CREASE_STEPS = 2


class Implicit(NewtonSurface):
    """The zero set of a function inside a box: a formula, a neural SDF, an occupancy network.

    The function need not be a distance. Only phi / |grad phi| enters, so the gradient must not vanish where phi does.
    The samples are spread evenly over the zero set, no two of a sheet nearer than 0.74 of the mean spacing sqrt(area /
    samples). Their areas add up to that of the surface: within 0.1 % if it is smooth, 2 % if it has edges, and too
    small if sheets are nearer to each other than the spacing. Closest points may confuse such sheets, and components
    may be merged: give more samples then. Normals point along grad phi.

    Parameters
    ----------
    phi : callable
        A differentiable torch function (n, 3) -> (n,) or (n, 1). If it is a module, the surface takes its precision and
        device; otherwise those of `bounds` if this is a tensor, or float64 on the CPU.
    bounds : Tensor or array_like
        Corners (2, 3) of the box.
    samples : int, default 10000
        About how many points to spread over the zero set.
    name : str, default "implicit"
        What reports call the surface.
    seed : int, default 0
        The seed of the random numbers that place the samples.

    Raises
    ------
    InputError
        If the arguments are invalid, or if phi has no zero in the box.

    Examples
    --------
    >>> import lamina
    >>> ball = lamina.Implicit(lambda x: x.norm(dim=1) - 1, [[-1.5] * 3, [1.5] * 3], samples=300)
    >>> ball.component_count, ball.open
    (1, False)
    """

    representation = "implicit"
    smooth = True

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
        positive_integer("samples", samples)
        self.phi = phi
        self.box = _checked_box(bounds, phi)
        self.size = float((self.box[1] - self.box[0]).norm())
        with torch.no_grad():
            found = sample_zero_set(self.phi, self.box, samples, seed)
        self.points, self.normals, self.areas = found.points, found.normals, found.areas
        self.component = found.component
        self.starts, self.start_component, self.covering_radius = self.points, self.component, found.covering_radius
        self.spacing = math.sqrt(float(self.areas.sum()) / len(self.points))
        self.open = found.open
        self.tracked = carries_gradients(phi, self.points[:1])
        if self.open:
            self.notes.append("The zero set crosses the sides of the box: the surface is cut and open there.")

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count random points, nearly uniform by area: samples are drawn by their areas and moved at random."""
        generator = torch.Generator().manual_seed(seed)
        index = torch.multinomial(self.areas.cpu().double(), count, True, generator=generator)
        step = self.spacing * (torch.rand(count, 2, generator=generator, dtype=torch.float64) - 0.5)
        index, step = index.to(self.points.device), step.to(self.points)
        moved = self.points[index] + torch.einsum("na,nac->nc", step, tangent_basis(self.normals[index]))
        return self._feet(moved, index)

    def own_feet(self) -> ClosestPoints:
        """`points`, which move along their normals when the zero set moves."""
        feet = super().own_feet()
        if not (self.tracked and torch.is_grad_enabled()):
            return feet
        points, normals = self._attached(self.points, self.points, self.normals)
        return replace(feet, points=points, normals=normals)

    def own_areas(self) -> Tensor:
        """`areas`: a piece that moves by d along its normal grows by the sum of its curvatures times d."""
        if not (self.tracked and torch.is_grad_enabled()):
            return self.areas
        models = [self._model(part, part) for part in self.points.split(FUNCTION_BATCH)]
        curvature = torch.cat([m.bend[:, 0] + m.bend[:, 2] for m in models])
        moved = dot(self.own_feet().points - self.points, self.normals)
        return self.areas * (1 + curvature * moved)

    def _find_features(self) -> SurfaceFeatures:
        """From the closest-point model, whose `bend` is the shape operator in its tangents."""
        models = [self._model(part, part) for part in self.points.split(FUNCTION_BATCH)]
        frame, bend = (torch.cat([getattr(model, key) for model in models]) for key in ("frame", "bend"))
        return from_shape_operator(self.points, self.normals, frame, bend)

    def _refine(self, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        y = minimise(self._model, x, self.starts[start], 2 * self.covering_radius, self.size)
        y, normals, _ = project(self.phi, self.size, y, self.covering_radius, steps=3)
        if self.open:
            rows = (~in_box(self.box, y)).nonzero()[:, 0]
            if len(rows):
                y[rows], normals[rows] = self._on_rim(x[rows], y[rows], start[rows])
        return y, normals

    def _attached(self, x: Tensor, y: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Feet y (n, 3) of x (n, 3) and normals there, with the gradients of x and of phi.

        y and m solve x - y = m grad phi(y), phi(y) = 0. When x and phi change, y moves by e = -d phi / |grad phi| along
        the normal and by a along the tangents, where, in the terms of `_model`,

            (I + d T'W T) a = T'dx - d e T'W n - d T'd(grad phi) / |grad phi|.
        """
        parts = [
            self._attached_part(*rows)
            for rows in zip(*(t.split(FUNCTION_BATCH) for t in (x, y.detach(), normals.detach())), strict=True)
        ]
        points, normals = (torch.cat(part) for part in zip(*parts, strict=True))
        return points, normals

    def _attached_part(self, x: Tensor, y: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        frame = tangent_basis(normal)
        z = y.clone().requires_grad_()
        value = evaluate(self.phi, z)
        (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True)
        length = dot(gradient, gradient).sqrt().detach().clamp_min(torch.finfo(x.dtype).tiny)
        product = torch.stack([derivative(gradient, z, frame[:, k]) for k in (0, 1)], 1)
        product = torch.nan_to_num(product / length[:, None, None])  # the rows of T'W
        e = -(value - value.detach()) / length
        turned = (gradient - gradient.detach()) / length[:, None]
        d = dot(x.detach() - y, normal)
        along = torch.einsum("nac,nc->na", frame, x - x.detach() - d[:, None] * turned)
        along = along - (d * e)[:, None] * torch.einsum("nac,nc->na", product, normal)
        bend = torch.einsum("nac,nbc->nab", product, frame)
        identity = torch.eye(2, dtype=x.dtype, device=x.device)
        step = solve_two(identity + d[:, None, None] * 0.5 * (bend + bend.transpose(1, 2)), along)
        moved = torch.einsum("na,nac->nc", step, frame) + e[:, None] * normal
        tilt = torch.einsum("nac,nc->na", frame, turned) + torch.einsum("nac,nc->na", product, moved)
        turn = torch.einsum("na,nac->nc", tilt, frame)
        return first_order(y + moved), first_order(normal + turn)

    def _feet(self, x: Tensor, start: Tensor) -> ClosestPoints:
        with torch.no_grad():
            feet = super()._feet(x.detach(), start)
        if torch.is_grad_enabled() and (self.tracked or x.requires_grad):
            points, normals = self._attached(x, feet.points, feet.normals)
            feet = replace(feet, points=points, normals=normals)
        if not self.open:
            return feet
        edge = ((feet.points <= self.box[0]) | (feet.points >= self.box[1])).any(1)
        return replace(feet, beyond=edge)

    def _on_rim(self, x: Tensor, y: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Closest points on the curve where the zero set leaves the box, near feet y (n, 3) beyond it.

        Each step goes towards x along the curve and by Newton's method back to phi = 0, within the sides of the box
        that y has reached. Rows for which that fails stay at their start.
        """
        tolerance = torch.finfo(y.dtype).eps ** 0.75 * self.size
        best, normals = self.starts[start], self.normals[start]
        y = torch.minimum(torch.maximum(y, self.box[0]), self.box[1])
        for _ in range(BOX_RIM_STEPS):
            value, gradient = value_and_gradient(self.phi, y)
            free = ((y > self.box[0]) & (y < self.box[1])).to(y)
            offset, normal = offset_to(value, free * gradient)
            nearer = dot(x - y, x - y) < dot(x - best, x - best)
            better = ((offset.abs() <= tolerance) & nearer)[:, None]
            best, normals = torch.where(better, y, best), torch.where(better, unit(gradient), normals)
            r = free * (x - y)
            r = r - dot(r, normal)[:, None] * normal
            step = BOX_RIM_STEP_SHARE * r - offset.clamp(-self.covering_radius, self.covering_radius)[:, None] * normal
            y = torch.minimum(torch.maximum(y + torch.nan_to_num(step), self.box[0]), self.box[1])
        return best, normals

    def _model(self, x: Tensor, y: Tensor) -> _LevelModel:
        """With n = grad phi / |grad phi|, e = phi / |grad phi|, W = H(phi) / |grad phi|, tangents T:

        Newton's method on the Lagrangian of |x - y|^2 / 2 with phi = 0 (sequential quadratic programming) takes the
        step -e along the normal and, with d = (x - y).n, the step a along the tangents, where

            (I + d T'W T) a = T'(x - y) + d e T'W n.
        """
        with torch.enable_grad():
            z = y.detach().requires_grad_()
            value = evaluate(self.phi, z)
            (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True)
            length = dot(gradient, gradient).sqrt().detach().clamp_min(torch.finfo(x.dtype).tiny)
            normal = gradient.detach() / length[:, None]
            frame = tangent_basis(normal)
            product = torch.stack([derivative(gradient, z, frame[:, k]) for k in (0, 1)], 1)
        product = torch.nan_to_num(product / length[:, None, None])  # the rows of T'W
        e = value.detach() / length
        r = x - y
        d = dot(r, normal)
        bend = torch.einsum("nac,nbc->nab", product, frame)
        bend = torch.stack([bend[:, 0, 0], 0.5 * (bend[:, 0, 1] + bend[:, 1, 0]), bend[:, 1, 1]], 1)
        across = torch.einsum("nac,nc->na", product, normal)
        gradient = -torch.einsum("nac,nc->na", frame, r) - (d * e)[:, None] * across
        hessian = d[:, None] * bend + torch.tensor([1.0, 0.0, 1.0], dtype=x.dtype, device=x.device)
        foot = r + e[:, None] * normal  # from the surface to first order, so that a y off the surface has no advantage
        value = 0.5 * dot(foot, foot)
        noise = 8 * torch.finfo(x.dtype).eps * (value + value.sqrt() * self.size)
        value = torch.nan_to_num(value, nan=torch.inf)
        return _LevelModel(y, value, noise, gradient, hessian, frame, normal, e, bend)


@shaped
@dataclass(frozen=True)
class _LevelModel(DistanceModel):
    """Models whose `at` are points near the zero set."""

    normal: Float[Tensor, "n 3"]
    offset: Float[Tensor, " n"]  # e, the signed distance to the zero set to first order
    bend: Float[Tensor, "n 3"]  # the entries 11, 12, 22 of T'W T: minus the second fundamental form

    def moved(self, step: Tensor) -> Tensor:
        """The points reached along the parabola that osculates the zero set."""
        a, b = step.unbind(1)
        height = 0.5 * (self.bend[:, 0] * a * a + 2 * self.bend[:, 1] * a * b + self.bend[:, 2] * b * b)
        # Where the parabola rises more than the step is long, the prediction is useless.
        height = torch.minimum(height.abs(), torch.hypot(a, b)) * height.sign()
        return super().moved(step) - (height + self.offset)[:, None] * self.normal

    def improved_by(self, trial: Self) -> Tensor:
        """Whether trial is nearer to x, close to the zero set, and on the same sheet.

        Neighbouring sheets face opposite ways, so that their normals tell them apart.
        """
        step = trial.at - self.at
        close = trial.offset.abs() <= MAX_OFFSET_OVER_STEP * dot(step, step).sqrt()
        # Off the zero set f is known to first order only: it may rise by a second-order term while the offset falls.
        nearing = trial.offset.abs() <= 0.5 * self.offset.abs()
        slack = self.noise + torch.where(nearing, SECOND_ORDER_SLACK * self.offset**2, 0.0)
        return (trial.value <= self.value + slack) & close & (dot(self.normal, trial.normal) > 0)

    def repaired(self, x: Tensor, trial: Self) -> Tensor:
        """Closest point to x on the line where the tangent planes of the two models meet.

        Where phi is piecewise linear (ReLU networks), the foot is often on a crease, and steps from either side
        overshoot it. The planes are {y: n_k . (y - at_k) = -e_k}; y = x + c_1 n_1 + c_2 n_2.
        """
        n1, n2 = self.normal, trial.normal
        b1 = dot(n1, self.at - x) - self.offset
        b2 = dot(n2, trial.at - x) - trial.offset
        cosine = dot(n1, n2)
        sine2 = (1 - cosine * cosine).clamp_min(torch.finfo(x.dtype).eps)
        c1, c2 = (b1 - cosine * b2) / sine2, (b2 - cosine * b1) / sine2
        crease = x + c1[:, None] * n1 + c2[:, None] * n2
        step = trial.at - self.at
        far = dot(crease - self.at, crease - self.at) > MAX_CREASE_STEPS**2 * dot(step, step)
        return torch.where(far[:, None], self.at + 0.25 * step, crease)


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
