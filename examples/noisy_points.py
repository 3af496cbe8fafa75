"""Poisson on a noisy point cloud without normals, against the exact solution.

    python examples/noisy_points.py [FOLDER]

On the unit sphere Laplacian(u) = -6xy has the solution u = xy. The points lie on it up to noise of half a percent, and
lamina is told nothing but the points.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import lamina
from lamina.metrics import errors


def main(folder: Path) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    clean = torch.nn.functional.normalize(torch.randn(3000, 3, generator=generator, dtype=torch.float64))
    noisy = clean + 0.005 * torch.randn(clean.shape, generator=generator, dtype=torch.float64)

    cloud = lamina.PointCloud(noisy)
    print(*cloud.notes, sep="\n")
    domain = lamina.Domain(cloud, spacing=0.1)
    u = lamina.poisson(domain, lambda x: -6 * x[:, 0] * x[:, 1])

    exact = clean[:, 0] * clean[:, 1]
    found = errors(u.values, exact, remove_mean=True)
    print(f"mean error {found.nmae:.1e} of the range, largest {found.nmaxe:.1e}")

    # In the page: 3 for side by side, 4 for the error.
    u.page(reference=exact - exact.mean() + u.values.mean()).save(folder / "points.html")
    return {"nmae": found.nmae, "nmaxe": found.nmaxe}


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
