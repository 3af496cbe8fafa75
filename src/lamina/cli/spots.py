"""The default initial state of `lamina solve heat`: hot and cold spots that suit the shape."""

from __future__ import annotations

import torch
from torch import Tensor

SPOT_COUNT = 12  # Chosen by eye: spots of SPOT_WIDTH leave gaps between them, and every side of a shape shows some.
# Standard deviation of a spot over half the longest side of the shape. It was chosen by eye: a spot is large enough to
# be seen from a distance, and twelve spots do not cover the shape.
SPOT_WIDTH = 0.2
MIN_SPOT_CELLS = 3  # A spot has a standard deviation of at least this many grid spacings, so that the grid resolves it.


def initial_spots(points: Tensor, half: float, spacing: float) -> tuple[str, float]:
    """A formula for SPOT_COUNT spots +-exp(-r^2 / (2 w^2)) spread over points (m, 3), and the time w^2 / 2.

    In that time the peak of a spot on a plane falls to one half. half: half the longest side of the shape. spacing: of
    the grid.
    """
    width = max(SPOT_WIDTH * half, MIN_SPOT_CELLS * spacing)
    formula = ""
    for number, (x, y, z) in enumerate(far_apart(points, SPOT_COUNT).tolist()):
        squares = " + ".join(f"({name} - {v:.4g})^2" for name, v in (("x", x), ("y", y), ("z", z)))
        sign = (" - " if number % 2 else " + ") if number else ""
        formula += sign + f"exp(-({squares}) / {2 * width**2:.4g})".replace("- -", "+ ")
    return formula, width**2 / 2


def far_apart(points: Tensor, count: int) -> Tensor:
    """Up to `count` of the points (m, 3). The first is the farthest from the mean, each next one from those before."""
    distance = (points - points.mean(0)).norm(dim=1)
    chosen = []
    for _ in range(min(count, len(points))):
        chosen.append(points[distance.argmax()])
        if len(chosen) == 1:
            distance = torch.full_like(distance, torch.inf)
        distance = torch.minimum(distance, (points - chosen[-1]).norm(dim=1))
    return torch.stack(chosen)
