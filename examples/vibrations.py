"""Eigenfunctions of the surface Laplacian: how a shape would ring.

    python examples/vibrations.py [FOLDER]

On the unit sphere the eigenvalues are l(l + 1), each 2l + 1 times.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import lamina
from lamina.view.page import page
from lamina.view.scene import Scene


def main(folder: Path) -> dict[str, float]:
    modes = lamina.eigenmodes(lamina.Domain(lamina.Sphere(level=4), spacing=0.15, order=2), 9)
    expected = torch.tensor([0.0, 2, 2, 2, 6, 6, 6, 6, 6], dtype=modes.eigenvalues.dtype)
    error = float(((modes.eigenvalues - expected).abs() / expected.clamp_min(1)).max())
    print("eigenvalues", ", ".join(f"{float(v):.3f}" for v in modes.eigenvalues))

    # A star fruit rings differently; in the page the time slider steps through its modes.
    surface = lamina.starfruit()
    found = lamina.eigenmodes(lamina.Domain(surface, spacing=0.15, order=2), 6)
    assert surface.faces is not None
    scene = Scene(
        "modes of the star fruit", surface.points.numpy(), found.values.numpy(), tuple(float(i) for i in range(6)),
        surface.faces.numpy(), surface.normals.numpy(),
    )  # fmt: skip
    page(scene).save(folder / "modes.html")
    return {"largest_error": error}


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
