"""Gaussians to Gaussians: solve on splats, and write them back coloured by the solution.

    python examples/splats.py [FOLDER]

The splats are made here: flat Gaussians on an ellipsoid, and some floaters around it, as captures have.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import lamina


def gaussians(count: int, floaters: int) -> dict[str, torch.Tensor]:
    """Discs along the surface of an ellipsoid, and round faint Gaussians off it."""
    drawn = lamina.Ellipsoid(1.0, 0.8, 0.6).sample(count, 0)
    generator = torch.Generator().manual_seed(1)
    stray = 3 * torch.rand(floaters, 3, generator=generator, dtype=torch.float64) - 1.5
    # The quaternion (w, x, y, z) that turns the z axis to the normal n is (1 + n_z, -n_y, n_x, 0), made unit.
    n = drawn.normals
    turn = torch.stack([1 + n[:, 2], -n[:, 1], n[:, 0], torch.zeros_like(n[:, 0])], 1)
    turn = torch.cat([turn, torch.tensor([[1.0, 0, 0, 0]]).expand(floaters, 4)])
    size = (12.0 / count) ** 0.5
    flat, round_ = torch.tensor([[size, size, 0.1 * size]]).expand(count, 3), torch.full((floaters, 3), 0.5 * size)
    opacities = torch.cat([torch.full((count,), 0.9), torch.full((floaters,), 0.2)])
    return {
        "centres": torch.cat([drawn.points, stray]),
        "scales": torch.cat([flat, round_]).double(),
        "rotations": torch.nn.functional.normalize(turn.double()),
        "opacities": opacities.double(),
    }


def main(folder: Path) -> dict[str, float]:
    splats = lamina.Splats(**gaussians(3000, 60))
    print(*splats.notes, sep="\n")
    print("left out:", splats.dropped)
    domain = lamina.Domain(splats, spacing=0.1)
    u = lamina.poisson(domain, lambda x: x[:, 0])

    # The same problem on the ellipsoid itself tells how good the surface is that was found.
    truth = lamina.poisson(lamina.Domain(lamina.Ellipsoid(1.0, 0.8, 0.6), 0.1), lambda x: x[:, 0])
    exact = truth(splats.points)
    difference = (u.values - u.values.mean()) - (exact - exact.mean())
    figures = {
        "kept": len(splats.kept) / len(splats.data),
        "nmae": float(difference.abs().mean() / (exact.max() - exact.min())),
    }
    print(figures)

    u.save(folder / "splats.ply")  # all Gaussians again, in the colours of u
    u.page(reference=exact - exact.mean() + u.values.mean()).save(folder / "splats.html")
    return figures


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
