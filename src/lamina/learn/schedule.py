"""How the learning rate of a fit goes up and down."""

from __future__ import annotations

import math

WARM_UP = 0.05  # part of the steps in which it rises


def warm_cosine(done: float) -> float:
    """Learning rate over its peak when part `done` of the steps is done: rising, then half a cosine down."""
    return min(done / WARM_UP, 1.0) * (0.5 + 0.5 * math.cos(math.pi * min(done, 1.0))) + 1e-4
