"""A surface that ends: Poisson on a hemisphere whose rim is held, and heat that leaves through it.

    python examples/held_at_the_rim.py [FOLDER]

Laplacian(u) = -2z with u = 0 where z = 0 has the solution u = z on the unit hemisphere.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import lamina


def main(folder: Path) -> dict[str, float]:
    half = lamina.clip(lamina.Sphere(), lambda x: x[:, 2])
    domain = lamina.Domain(half, spacing=0.1)
    held = [lamina.Dirichlet("rim", 0.0)]

    u = lamina.poisson(domain, lambda x: -2 * x[:, 2], held)
    error = float((u.values - domain.points[:, 2]).abs().max())

    # z is an eigenfunction: as heat it decays like exp(-2t).
    flow = lamina.heat(domain, lambda x: x[:, 2], 0.2, held, frames=6, accuracy=1e-4)
    decay = float((flow.values / flow.snapshots[0].clamp_min(0.1))[flow.snapshots[0] > 0.3].mean())
    figures = {"largest_error": error, "decay": decay, "expected_decay": math.exp(-0.4)}
    print(figures)
    flow.page(reference=lambda x, t: math.exp(-2 * t) * x[:, 2]).save(folder / "hemisphere.html")
    return figures


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
