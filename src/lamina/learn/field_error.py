"""How far the level set of a fitted field is from the surface that it was fitted to."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass

import torch

from lamina.geometry.triangles import dot
from lamina.learn.signed_distance import MARGIN, FieldTarget
from lamina.surfaces.fields import Field, LatentDecoder, LevelFunction
from lamina.surfaces.zero_set import evaluate, project

SPREAD = 0.01  # how far from the surface the ways to the level set begin, in half-extents
REACH = 0.05  # longest step of such a way


@dataclass(frozen=True)
class FieldError:
    """Lengths are in the coordinates of the surface."""

    position_rms: float  # RMS distance from the surface to the level set and back
    position_max: float  # the largest
    normal_rms_degrees: float  # RMS angle between the normals of the two
    iou: float  # volume of the common part of the two insides over that of their union

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def field_error(field: Field, target: FieldTarget, shape: int = 0, *, count: int = 5000, seed: int = 1) -> FieldError:
    """Measured at random places, in double precision; shape: which code of a family belongs to the target.

    Points of the surface go to the level set by Newton's method, and points of the level set, found likewise from
    places around the surface, to their closest points on the surface.
    """
    field = copy.deepcopy(field).cpu().double()
    if isinstance(field, LatentDecoder):
        field.choose(shape)
    level = LevelFunction(field)

    def phi(y: torch.Tensor) -> torch.Tensor:
        return level(target.centre + target.scale * y)

    generator = torch.Generator().manual_seed(seed)
    points, _ = target.draw(count, generator)
    size = 2 * float(target.half.norm())
    there, _, _ = project(phi, size, points, REACH)
    start, _ = target.draw(count, generator)
    start = start + SPREAD * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    found, turned, left = project(phi, size, start, REACH)
    arrived = left < 1e-6 * size
    distance, gradient = target(found)
    # Ways that end nowhere near the surface are as long as they are: the level set is missing there.
    lengths = torch.cat([(there - points).norm(dim=1), distance.abs()[arrived]])
    near = arrived & (distance.abs() > 1e-6) & (distance.abs() < REACH)
    turn = torch.rad2deg(torch.arccos(dot(gradient, turned)[near].clamp(-1, 1)))
    box = (2 * torch.rand(2 * count, 3, generator=generator, dtype=torch.float64) - 1) * (target.half + MARGIN)
    with torch.no_grad():
        mine = evaluate(phi, box) < 0
    theirs = target(box)[0] < 0
    either = max(int((mine | theirs).sum()), 1)
    return FieldError(
        target.scale * float(lengths.square().mean().sqrt()),
        target.scale * float(lengths.max()),
        float(turn.square().mean().sqrt()) if bool(near.any()) else 180.0,
        int((mine & theirs).sum()) / either,
    )
