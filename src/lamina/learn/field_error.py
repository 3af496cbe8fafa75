"""The distance between the level set of a fitted field and the surface that it was fitted to."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass

import torch

from lamina.geometry.triangles import dot
from lamina.learn.signed_distance import BOX_MARGIN, MIN_DISTANCE_WITH_DIRECTION, SignedDistanceTarget
from lamina.surfaces.fields import Field, LatentDecoder, LevelFunction
from lamina.surfaces.zero_set import evaluate, project

# Lengths in units of the longest half-extent of the shape.
START_DISTANCE = 0.01  # standard deviation of the points around the surface that are moved to the level set
MAX_NEWTON_STEP = 0.05  # longest step to the level set; where normals are compared the two are also nearer than this
# A point is on the level set if its distance from it, to first order, is below this part of the diagonal of the box.
ARRIVED = 1e-6


@dataclass(frozen=True)
class FieldError:
    """Errors of a fitted field; lengths are in the coordinates of the surface."""

    position_rms: float  # RMS distance from the surface to the level set, and from the level set to the surface
    position_max: float  # largest of these distances
    normal_rms_degrees: float  # RMS angle between the normals of surface and level set
    iou: float  # volume of the intersection of the two insides over the volume of their union

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def field_error(
    field: Field, target: SignedDistanceTarget, shape: int = 0, *, count: int = 5000, seed: int = 1
) -> FieldError:
    """The error of a field, measured at random points in double precision.

    Points of the surface are moved to the level set by Newton's method. Points of the level set, found in the same
    way from points around the surface, are compared with their closest points on the surface.
    shape: the number of the target's latent code, if the field is a family. count: of points. seed: of the points.
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
    on_level, _, _ = project(phi, size, points, MAX_NEWTON_STEP)
    start, _ = target.draw(count, generator)
    start = start + START_DISTANCE * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    near_level, level_normals, left = project(phi, size, start, MAX_NEWTON_STEP)
    arrived = left < ARRIVED * size
    distance, gradient = target(near_level)
    # Where the level set is missing, points are moved far: these lengths count as they are.
    lengths = torch.cat([(on_level - points).norm(dim=1), distance.abs()[arrived]])
    near = arrived & (distance.abs() > MIN_DISTANCE_WITH_DIRECTION) & (distance.abs() < MAX_NEWTON_STEP)
    turn = torch.rad2deg(torch.arccos(dot(gradient, level_normals)[near].clamp(-1, 1)))
    box = (2 * torch.rand(2 * count, 3, generator=generator, dtype=torch.float64) - 1) * (target.half + BOX_MARGIN)
    with torch.no_grad():
        inside_field = evaluate(phi, box) < 0
    inside_surface = target(box)[0] < 0
    either = max(int((inside_field | inside_surface).sum()), 1)
    return FieldError(
        target.scale * float(lengths.square().mean().sqrt()),
        target.scale * float(lengths.max()),
        float(turn.square().mean().sqrt()) if bool(near.any()) else 180.0,
        int((inside_field & inside_surface).sum()) / either,
    )
