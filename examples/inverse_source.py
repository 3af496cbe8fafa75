"""Inverse problems: how strong a heat source is, and where, from the temperature that it makes.

    python examples/inverse_source.py [FOLDER]

The first is that of the CVPR 2026 paper: a source of intensity h warms a torus, and h is found from the temperature
by gradient descent through the solver, from h = 0.8 to the h = 1 that made the target. The second finds a source that
varies over the surface, one unknown for each of its points.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import lamina


def intensity(domain: lamina.Domain) -> tuple[float, int]:
    """The intensity found, and the iterations that it took."""

    def temperature(h: Tensor | float) -> Tensor:
        def source(x: Tensor) -> Tensor:
            return h * torch.exp(-8 * (x - x.new_tensor([1.4, 0.0, 0.0])).square().sum(1))

        return lamina.heat(domain, 0.0, 0.1, source=source, steps=8, tolerance=1e-10).values

    target = temperature(1.0).detach()
    h = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([h], max_iter=20, tolerance_grad=1e-14, tolerance_change=1e-16)
    scale, calls = float(target.square().sum()), 0

    def loss() -> float:
        nonlocal calls
        calls += 1
        optimiser.zero_grad()
        value = (temperature(h) - target).square().sum() / scale
        value.backward()
        return float(value.detach())

    optimiser.step(loss)
    return float(h.detach()), calls


def everywhere(domain: lamina.Domain) -> tuple[lamina.Solution, float]:
    """The temperature that the source found makes, and how far that source is from the true one, in the mean."""
    x = domain.points
    true = torch.sin(2 * x[:, 0]) * torch.cos(2 * x[:, 1]) + x[:, 2]
    target = lamina.poisson(domain, true, screening=1.0, tolerance=1e-10).values
    found = torch.zeros_like(true, requires_grad=True)
    optimiser = torch.optim.LBFGS([found], max_iter=60, history_size=20, tolerance_grad=0, tolerance_change=0)
    scale = float(target.square().mean())

    def loss() -> float:
        optimiser.zero_grad()
        u = lamina.poisson(domain, found, screening=1.0, tolerance=1e-10).values
        value = (u - target).square().mean() / scale
        value.backward()
        return float(value.detach())

    optimiser.step(loss)
    source = found.detach()
    error = float((source - true).square().mean().sqrt() / true.square().mean().sqrt())
    return lamina.poisson(domain, source, screening=1.0), error


def main(folder: Path) -> dict[str, float]:
    domain = lamina.Domain(lamina.Torus(1.0, 0.4), spacing=0.1)
    h, iterations = intensity(domain)
    u, error = everywhere(domain)
    figures = {"h": h, "off": abs(h - 1), "iterations": float(iterations), "source_error": error}
    print(figures)
    u.plot(folder / "source.png")
    return figures


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
