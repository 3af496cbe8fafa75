"""The schedule of the learning rate of a fit."""

from __future__ import annotations

import math

WARM_UP_SHARE = 0.05  # share of the steps in which the rate rises to its peak: Adam's averages are not settled before
FINAL_RATE = 1e-4  # of the peak: the rate does not fall to zero


def warm_cosine(done: float) -> float:
    """The learning rate over its peak after a share `done` of the steps: a linear rise, then half a cosine down."""
    return min(done / WARM_UP_SHARE, 1.0) * (0.5 + 0.5 * math.cos(math.pi * min(done, 1.0))) + FINAL_RATE
