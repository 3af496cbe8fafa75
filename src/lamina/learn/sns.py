"""Training of spherical neural surfaces (`lamina.surfaces.sns`), and their error against the target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lamina.device import available
from lamina.errors import InputError
from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot, unit
from lamina.learn.schedule import warm_cosine
from lamina.learn.sphere_target import SphereTarget, sphere_target
from lamina.surfaces.base import Surface
from lamina.surfaces.sns import SNSConfig, SphericalNeuralSurface
from lamina.surfaces.spherical_map import SphericalMap

DIFFERENCE_ANGLE = 0.01  # between the points of a difference quotient; in single precision smaller ones lose digits
DIFFERENCE_ANGLE_DOUBLE = 1e-3  # the same in double precision
SNS_STEPS = 4000  # of Adam, by default
SLOPE_WEIGHT = 0.1  # of squared relative errors of slopes, against squared relative errors of positions; by trial
# The squared size of a slope counts as at least this part of the squared size of the shape. Where the target hardly
# moves, its slopes have no direction to be fitted.
MIN_SQUARED_SLOPE = 0.01

Target = Callable[[Tensor], Tensor] | SphericalMap | SphereTarget
Report = Callable[[float, str], None]


def fit_sns(
    target: Target,
    config: SNSConfig | None = None,
    *,
    steps: int = SNS_STEPS,
    batch: int = 1024,
    pool: int = 2**16,
    learning_rate: float = 0.01,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    report: Report | None = None,
) -> SphericalNeuralSurface:
    """The spherical neural surface closest to a target, a map of unit vectors (n, 3) to points (n, 3).

    The fit minimises the mean over points of the sphere of

        |d|^2 / r^2 + 0.1 (|d_1|^2 + |d_2|^2) / (|y_1|^2 + |y_2|^2),

    where d is the error of the position, and d_i, y_i are difference quotients of the error and of the target in two
    orthogonal directions. Relative errors of slopes are errors of normals.
    steps: of Adam, with a cosine decay of the learning rate from its peak learning_rate. pool: random points on the
    sphere; batch: how many of them a step sees. The same seed gives the same weights on the same machine.
    report(fraction, detail): called now and then.
    """
    aim = target if isinstance(target, SphereTarget) else sphere_target(target)
    if min(steps, batch, pool) < 1:
        raise InputError(f"steps, batch and pool must be at least 1; got {steps}, {batch}, {pool}.")
    device = available(device)
    generator = torch.Generator().manual_seed(seed)
    where, wanted = _pool(aim, pool, generator)
    model = SphericalNeuralSurface(config, seed=seed)
    model.centre = wanted[0].mean(0).float()
    model.scale = (wanted[0] - wanted[0].mean(0)).square().sum(1).mean().sqrt().float()
    model.to(device=device, dtype=dtype)
    slopes = (wanted[1:] - wanted[:1]) / DIFFERENCE_ANGLE
    size = slopes.square().sum((0, 2)) / 2
    weight = SLOPE_WEIGHT / 2 / size.clamp_min(MIN_SQUARED_SLOPE * float(model.scale) ** 2)
    where, wanted, weight = (v.to(device=device, dtype=dtype) for v in (where, wanted, weight))
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_cosine((step + 1) / steps))
    unit_of_length = model.scale**2
    for step in range(steps):
        rows = torch.randint(pool, (batch,), generator=generator).to(device)
        error = model(where[:, rows].reshape(-1, 3)).reshape(3, -1, 3) - wanted[:, rows]
        position = error[0].square().sum(1).mean()
        turn = (weight[rows] * ((error[1:] - error[:1]) / DIFFERENCE_ANGLE).square().sum((0, 2))).mean()
        optimiser.zero_grad()
        (position / unit_of_length + turn).backward()
        optimiser.step()
        schedule.step()
        if report is not None and step % 50 == 0:
            report(step / steps, f"position error {float(position.detach().sqrt()):.2g}")
    return model.requires_grad_(False)


def _pool(target: SphereTarget, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Unit vectors (3, count, 3) and their targets (3, count, 3).

    The second and third are at the angle DIFFERENCE_ANGLE from the first, in orthogonal directions.
    """
    s = target.draw(count, generator)
    t1, t2 = tangent_basis(s).unbind(1)
    angle = 2 * math.pi * torch.rand(count, 1, generator=generator, dtype=s.dtype)
    t1 = angle.cos() * t1 + angle.sin() * t2
    where = torch.cat([s, *(unit(s + DIFFERENCE_ANGLE * t) for t in (t1, torch.linalg.cross(s, t1)))])
    return where.reshape(3, count, 3), target(where).reshape(3, count, 3)


def fit_from_surface(
    surface: Surface, config: SNSConfig | None = None, *, steps: int | None = None, **options: Any
) -> tuple[SphericalNeuralSurface, dict[str, Any]]:
    """The spherical neural surface of a SphericalMap or of a closed Mesh without handles, and facts about the fit.

    options: as of `fit_sns`. Raises InputError for other surfaces.
    """
    start = time.perf_counter()
    target, steps = sphere_target(surface), SNS_STEPS if steps is None else steps
    model = fit_sns(target, config, steps=steps, **options)
    seconds = time.perf_counter() - start
    error = fit_error(model, target)
    facts = {
        "surface": surface.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps,
        "seconds": round(seconds, 1),
        "size": float(model.scale),  # RMS distance from the centre, in whose units errors are to be read
        "position_rms": error.position,
        "position_max": error.worst,
        "normal_rms_degrees": error.normal,
    }
    return model, facts


@dataclass(frozen=True)
class FitError:
    """Errors of a fitted surface against its target, at random points."""

    position: float  # RMS distance
    worst: float  # largest distance
    normal: float  # RMS angle between the normals, in degrees


def fit_error(model: SphericalNeuralSurface, target: Target, *, count: int = 20_000, seed: int = 1) -> FitError:
    """The error of a model at count random points; normals are cross products of difference quotients."""
    aim = target if isinstance(target, SphereTarget) else sphere_target(target)
    s = aim.draw(count, torch.Generator().manual_seed(seed))
    like = model.centre
    angle = DIFFERENCE_ANGLE_DOUBLE if like.dtype == torch.float64 else DIFFERENCE_ANGLE
    t1, t2 = tangent_basis(s).unbind(1)
    where = torch.cat([s, *(unit(s + angle * t) for t in (t1, -t1, t2, -t2))])
    with torch.no_grad():
        mine = model(where.to(like)).to(where).reshape(5, count, 3)
    theirs = aim(where).reshape(5, count, 3)
    distance = (mine[0] - theirs[0]).norm(dim=1)
    n, m = (torch.linalg.cross(y[1] - y[2], y[3] - y[4]) for y in (mine, theirs))
    turn = torch.rad2deg(torch.atan2(torch.linalg.cross(n, m).norm(dim=1), dot(n, m)))
    return FitError(*(float(v) for v in (distance.square().mean().sqrt(), distance.max(), turn.square().mean().sqrt())))
