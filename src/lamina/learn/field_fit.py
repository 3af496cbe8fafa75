"""Neural fields fitted to a surface: signed distances (SIREN, DeepSDF) and occupancy.

Let d be the signed distance to the surface and g its gradient, at points on the surface, near it and in the box around
it. Let v be a random direction, each component with mean square 1. The fit minimises the mean of

    siren       10 s(d) |phi - d| + 40 max(0, |d| / 2 - sign(d) phi) + 0.1 s(d)^2 (v . (grad phi - g))^2,
                s(d) = 1 / (1 + |d| / 0.1),
    deepsdf     10 |clamp(phi) - clamp(d)| + 0.1 [|d| < 0.1] (v . (grad phi - g))^2 + 1e-3 |z|^2,  clamp at +-0.1
    occupancy   m(d) H(sigmoid(-d / tau), phi) + 0.1 s(d) (v . (tau grad phi + g))^2,  s(d) = sech^2(d / 2 tau),
                m(d) = 4 where |d| > 5 tau, 1 elsewhere,

in units of the shape's longest half-extent. The mean over v of the squared product is |grad phi - g|^2. So one
derivative in forward mode fits both the normals and |grad phi| = 1. H is the cross-entropy of a logit phi against a
probability. With hard labels the boundary could be anywhere between the points; a width of tau = 0.01 fixes it.
Sitzmann et al. (2020), "Implicit neural representations with periodic activation functions"; Park et al. (2019),
"DeepSDF"; Mescheder et al. (2019), "Occupancy networks".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lamina.checks import positive
from lamina.device import available
from lamina.errors import InputError
from lamina.geometry.triangles import dot
from lamina.learn.field_error import field_error
from lamina.learn.schedule import warm_cosine
from lamina.learn.signed_distance import BOX_MARGIN, SignedDistanceTarget, signed_distance_target
from lamina.surfaces.base import Surface
from lamina.surfaces.fields import Field, FieldConfig, LatentDecoder, Perceptron

# Lengths in units of the longest half-extent. All constants were chosen by trial.
CLAMP_DISTANCE = 0.1  # beyond this distance from the surface errors count less (siren) or not at all (deepsdf)
OCCUPANCY_WIDTH = 0.01  # tau, over which the probability of being inside falls from 1 to 0
GRADIENT_WEIGHT = 0.1  # of squared errors of the gradient, against errors of the value at their own weight
VALUE_WEIGHT = 10.0  # of errors of the signed distance in siren and deepsdf
CODE_WEIGHT = 1e-3  # of |z|^2, which keeps the latent codes of a family near the origin
# Weight of wrong signs and of points far from the surface. Few points see a wrong sign far away, so each counts more.
FAR_WEIGHT = 4.0
FAR_IN_WIDTHS = 5.0  # a point is far in the occupancy loss beyond this many OCCUPANCY_WIDTH
# Least and largest standard deviation of points near the surface. Their logarithms are drawn uniformly.
MIN_SPREAD_NEAR_SURFACE, MAX_SPREAD_NEAR_SURFACE = 0.002, 0.3

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class FieldFit:
    """The network and the settings of its fit."""

    kind: str = "siren"  # or "deepsdf" or "occupancy"
    width: int = 128  # of the hidden layers
    depth: int = 3  # number of hidden layers
    activation: str = "sin"
    omega: float = 30.0  # of sin(omega x)
    latent: int = 8  # length of the latent codes of deepsdf
    steps: int = 2000  # of Adam
    batch: int = 2048  # points in each step
    pool: int = 200_000  # points at which distances are computed, for each surface
    rate: float = 1e-3  # peak of the learning rate

    def __post_init__(self) -> None:
        if self.kind not in LOSSES:
            raise InputError(f"Unknown kind of field {self.kind!r}; known: {', '.join(LOSSES)}.")
        counts = {key: getattr(self, key) for key in ("width", "depth", "latent", "steps", "batch", "pool")}
        for key, value in counts.items():
            if value < 1:
                raise InputError(f"{key} must be at least 1, got {value}.")
        positive("rate", self.rate)

    def config(self, box: Tensor, centre: Tensor, scale: float) -> FieldConfig:
        """The configuration of a field in the coordinates x, whose surface lies in the box (2, 3)."""
        family = self.kind == "deepsdf"
        return FieldConfig(
            widths=(self.width,) * self.depth,
            activation=self.activation,
            latent=self.latent if family else 0,
            skips=(self.depth // 2 + 1,) if family and self.depth > 2 else (),
            beta=20.0,
            omega=self.omega,
            centre=tuple(centre.tolist()),
            scale=scale,
            kind="logit" if self.kind == "occupancy" else "sdf",
            bounds=tuple(tuple(corner) for corner in box.tolist()),
        )


DEFAULTS: dict[str, dict[str, Any]] = {
    "siren": {},
    "occupancy": {},
    "deepsdf": {"depth": 4},
}


def plan_for(kind: str, **asked: Any) -> FieldFit:
    """The default settings for a kind of field, with some of them replaced."""
    return FieldFit(kind, **(DEFAULTS.get(kind, {}) | asked))


@dataclass(frozen=True)
class TargetSamples:
    """Points at which a field is compared with its targets, and the targets there."""

    points: Tensor  # (n, 3)
    distance: Tensor  # (n,) signed distances
    gradient: Tensor  # (n, 3) their gradients
    shape: Tensor  # (n,) int64, number of the target

    def take(self, index: Tensor) -> TargetSamples:
        return TargetSamples(self.points[index], self.distance[index], self.gradient[index], self.shape[index])


def draw_target_samples(
    target: SignedDistanceTarget, count: int, generator: torch.Generator, shape: int = 0
) -> TargetSamples:
    """Random points with the signed distances of a target there, in float32.

    Two fifths lie on the surface, two fifths near it, a tenth inwards of it and a tenth anywhere. Inwards means up to a
    half-extent along the normals. Those points crowd where the shape is thickest; that volume is small, and random
    points would miss it. Those anywhere lie in a box larger than the bounds, which a field must respect.
    """
    on, inwards = 2 * count // 5, count // 10
    points, normals = target.draw(on, generator)
    start, _ = target.draw(on, generator)
    low, high = math.log(MIN_SPREAD_NEAR_SURFACE), math.log(MAX_SPREAD_NEAR_SURFACE)
    spread = torch.empty(on, 1, dtype=torch.float64).uniform_(low, high, generator=generator).exp()
    start = start + spread * torch.randn(on, 3, generator=generator, dtype=torch.float64)
    deep, along = target.draw(inwards, generator)
    deep = deep - torch.rand(inwards, 1, generator=generator, dtype=torch.float64) * along
    box = 2 * torch.rand(count - 2 * on - inwards, 3, generator=generator, dtype=torch.float64) - 1
    off = torch.cat([start, deep, box * (target.half + 2 * BOX_MARGIN)])
    distance, gradient = target(off)
    return TargetSamples(
        torch.cat([points, off]).float(),
        torch.cat([torch.zeros_like(points[:, 0]), distance]).float(),
        torch.cat([normals, gradient]).float(),
        torch.full((count,), shape),
    )


def fit_field(
    targets: Sequence[SignedDistanceTarget],
    plan: FieldFit | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    report: Report | None = None,
) -> Field:
    """The field of one target; or, with kind "deepsdf", the family of fields of one or several targets in one box.

    The fit uses Adam with a cosine decay of the learning rate. On one machine a seed always gives the same weights.
    report(fraction, detail): called now and then. Raises InputError for several targets of any other kind.
    """
    plan = plan or FieldFit()
    if len(targets) == 0 or (len(targets) > 1 and plan.kind != "deepsdf"):
        raise InputError(f"{plan.kind} is fitted to one surface, got {len(targets)}; several make a deepsdf.")
    device = available(device)
    generator = torch.Generator().manual_seed(seed)
    samples = _pool(targets, plan.pool, generator, report)
    samples = TargetSamples(
        *(v.to(device) for v in (samples.points, samples.distance, samples.gradient, samples.shape))
    )
    first = targets[0]
    config = plan.config(first.bounds, first.centre, first.scale)
    # Trained in the target's coordinates y: far from the origin single precision would not resolve x.
    net = Perceptron(replace(config, centre=(0.0, 0.0, 0.0), scale=1.0), seed=seed).to(device)
    codes = nn.Parameter((torch.randn(len(targets), max(config.latent, 1), generator=generator) / 10).to(device))
    parameters = [*net.parameters(), codes] if config.latent else [*net.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=plan.rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_cosine((step + 1) / plan.steps))
    for step in range(plan.steps):
        rows = torch.randint(len(samples.points), (plan.batch,), generator=generator).to(device)
        direction = torch.randn(plan.batch, 3, generator=generator).to(device)
        here = samples.take(rows)
        code = codes[here.shape] if config.latent else None
        both = torch.func.jvp(lambda y, code=code: net(y, code), (here.points,), (direction,))
        loss = LOSSES[plan.kind](both[0], both[1], here, dot(here.gradient, direction))
        if code is not None:
            loss = loss + CODE_WEIGHT * code.square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if report is not None and step % 20 == 0:
            report(0.1 + 0.85 * step / plan.steps, f"loss {float(loss.detach()):.2g}")
    fitted = Perceptron(config).to(device)
    fitted.load_state_dict(net.state_dict())
    field = LatentDecoder(fitted, codes.detach()) if config.latent else fitted
    return field.requires_grad_(False).eval()


def _pool(
    targets: Sequence[SignedDistanceTarget], count: int, generator: torch.Generator, report: Report | None
) -> TargetSamples:
    parts = []
    for shape, target in enumerate(targets):
        if report is not None:
            report(0.1 * (shape + 0.5) / len(targets), f"distances to {target.name}")
        parts.append(draw_target_samples(target, count, generator, shape))
    return TargetSamples(*(torch.cat([getattr(part, key) for part in parts]) for key in vars(parts[0])))


def _siren_loss(value: Tensor, slope: Tensor, at: TargetSamples, wanted: Tensor) -> Tensor:
    share = 1 / (1 + at.distance.abs() / CLAMP_DISTANCE)
    # The gradient of the distance jumps far from the surface; it counts less there.
    turn = share.square() * (slope - wanted).square()
    miss = share * (value - at.distance).abs()
    # Wrong signs cost much, because few points see them; right signs cost nothing.
    astray = FAR_WEIGHT * functional.relu(0.5 * at.distance.abs() - at.distance.sign() * value)
    return (VALUE_WEIGHT * (miss + astray) + GRADIENT_WEIGHT * turn).mean()


def _deepsdf_loss(value: Tensor, slope: Tensor, at: TargetSamples, wanted: Tensor) -> Tensor:
    miss = (value.clamp(-CLAMP_DISTANCE, CLAMP_DISTANCE) - at.distance.clamp(-CLAMP_DISTANCE, CLAMP_DISTANCE)).abs()
    turn = (at.distance.abs() < CLAMP_DISTANCE) * (slope - wanted).square()
    return (VALUE_WEIGHT * miss + GRADIENT_WEIGHT * turn).mean()


def _occupancy_loss(value: Tensor, slope: Tensor, at: TargetSamples, wanted: Tensor) -> Tensor:
    aim = torch.sigmoid(-at.distance / OCCUPANCY_WIDTH)
    turn = 4 * aim * (1 - aim) * (OCCUPANCY_WIDTH * slope + wanted).square()
    # Points far away are few for the volume they stand for, and cost nothing once they are right.
    weight = torch.where(at.distance.abs() > FAR_IN_WIDTHS * OCCUPANCY_WIDTH, FAR_WEIGHT, 1.0)
    return functional.binary_cross_entropy_with_logits(value, aim, weight) + GRADIENT_WEIGHT * turn.mean()


LOSSES = {"siren": _siren_loss, "deepsdf": _deepsdf_loss, "occupancy": _occupancy_loss}


def fit_from_surfaces(
    surfaces: Sequence[Surface], plan: FieldFit | None = None, *, seed: int = 0, **options: Any
) -> tuple[Field, dict[str, Any]]:
    """The field of a surface, or the family of fields of several, and facts about the fit.

    options: as of `fit_field`.
    """
    plan = plan or FieldFit()
    start = time.perf_counter()
    boxes = torch.stack([surface.bounds.detach().cpu().double() for surface in surfaces])
    box = torch.stack([boxes[:, 0].amin(0), boxes[:, 1].amax(0)])
    targets = [signed_distance_target(surface, box) for surface in surfaces]
    field = fit_field(targets, plan, seed=seed, **options)
    seconds = time.perf_counter() - start
    facts: dict[str, Any] = {
        "kind": plan.kind,
        "surface": ", ".join(surface.name for surface in surfaces),
        "parameters": sum(p.numel() for p in field.parameters()),
        "steps": plan.steps,
        "seconds": round(seconds, 1),
        "size": targets[0].scale,  # longest half-extent, in whose units errors are to be read
    }
    errors = [field_error(field, target, shape) for shape, target in enumerate(targets)]
    if len(errors) == 1:
        facts |= errors[0].as_dict()
    else:
        facts |= {f"{i} {targets[i].name}": error.as_dict() for i, error in enumerate(errors)}
    facts["notes"] = [note for target in targets for note in target.notes]
    return field, facts
