"""A shape from the temperature on it: centre and radii of an ellipsoid, found by gradients through the solver.

    python examples/recover_a_shape.py [FOLDER]

A lamp in space warms an ellipsoid given by its signed distance; sensors read the temperature where the surface is
nearest to them. From these numbers alone, and from a ball of another size somewhere else to begin with, the six
parameters are found. Every evaluation cuts the new shape anew; gradients go through the cut, the solve and the sensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import lamina

TRUE = [0.10, -0.05, 0.08, 1.0, 0.8, 0.65]  # centre, radii
START = [0.0, 0.0, 0.0, 0.8, 0.8, 0.8]
BOX = [[-1.5] * 3, [1.5] * 3]


def ellipsoid(p: Tensor):
    """About the signed distance to the ellipsoid with centre p[:3] and radii p[3:]."""

    def phi(x: Tensor) -> Tensor:
        scaled = (x - p[:3]) / p[3:]
        return (scaled.square().sum(1).sqrt() - 1) * p[3:].min()

    return phi


def lamp(x: Tensor) -> Tensor:
    return -torch.exp(-2 * (x - x.new_tensor([0.9, 0.5, 0.7])).square().sum(1)) - 0.3 * x[:, 1]


def temperature(p: Tensor) -> lamina.Solution:
    surface = lamina.Implicit(ellipsoid(p), BOX, samples=3000)
    # The same grid for every shape.
    domain = lamina.Domain(surface, spacing=0.15, order=2, origin=(0.0, 0.0, 0.0))
    return lamina.poisson(domain, lamp, screening=2.0, tolerance=1e-10)


def main(folder: Path) -> dict[str, float]:
    sensors = 1.2 * torch.nn.functional.normalize(
        torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    target = temperature(torch.tensor(TRUE, dtype=torch.float64))(sensors)
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([p], max_iter=40, line_search_fn="strong_wolfe", tolerance_change=1e-12)
    pictures, losses = [], []

    def loss() -> float:
        optimiser.zero_grad()
        u = temperature(p)
        value = (u(sensors) - target).square().mean() / target.var()
        value.backward()
        losses.append(float(value.detach()))
        picture = folder / f"shape-{len(losses):02d}.png"
        u.plot(picture, size=(320, 240))
        pictures.append(picture)
        return float(value.detach())

    optimiser.step(loss)
    off = (p.detach() - p.new_tensor(TRUE)).abs().max()
    figures = {"off": float(off), "solves": float(len(losses)), "first_loss": losses[0], "last_loss": min(losses)}
    print([round(v, 5) for v in p.tolist()], figures)
    images = [Image.open(picture).convert("P") for picture in pictures]
    images[0].save(folder / "shape.gif", save_all=True, append_images=images[1:], duration=200, loop=0)
    for picture in pictures[:-1]:
        picture.unlink()
    return figures


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
