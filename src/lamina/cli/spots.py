"""The initial state of `lamina solve heat` where none is given: hot and cold spots that suit the shape."""

from __future__ import annotations

import torch
from torch import Tensor

COUNT = 12
WIDTH = 0.2  # of half the longest side: a spot is seen from afar, and twelve do not cover the shape


def spots(points: Tensor, half: float, spacing: float) -> tuple[str, float]:
    """A formula for COUNT spots +-exp(-r^2 / (2 w^2)) spread over points (m, 3), and the time w^2 / 2.

    In that time a spot on a plane falls to a half. half: half the longest side of the shape. Spots are no narrower
    than three cells, so that the grid shows them.
    """
    width = max(WIDTH * half, 3 * spacing)
    formula = ""
    for number, (x, y, z) in enumerate(far_apart(points, COUNT).tolist()):
        squares = " + ".join(f"({name} - {v:.4g})^2" for name, v in (("x", x), ("y", y), ("z", z)))
        sign = (" - " if number % 2 else " + ") if number else ""
        formula += sign + f"exp(-({squares}) / {2 * width**2:.4g})".replace("- -", "+ ")
    return formula, width**2 / 2


def far_apart(points: Tensor, count: int) -> Tensor:
    """Up to `count` of the points (m, 3), each as far from those before as can be; the first is far from the middle."""
    distance = (points - points.mean(0)).norm(dim=1)
    chosen = []
    for _ in range(min(count, len(points))):
        chosen.append(points[distance.argmax()])
        if len(chosen) == 1:
            distance = torch.full_like(distance, torch.inf)
        distance = torch.minimum(distance, (points - chosen[-1]).norm(dim=1))
    return torch.stack(chosen)
