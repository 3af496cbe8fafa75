"""A network as a surface: train a small perceptron to a shape, then solve on its zero set.

    python examples/neural_field.py [FOLDER]

Any torch function of (n, 3) points is a surface; it need not be a distance. Here Adam fits it to a torus.
`lamina fit siren bunny.ply -o bunny.safetensors` does it properly, for any mesh.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import lamina


def signed_distance(x: Tensor) -> Tensor:
    """Of the torus (1, 0.4)."""
    ring = x[:, :2].norm(dim=1) - 1.0
    return torch.stack([ring, x[:, 2]], 1).norm(dim=1) - 0.4


def trained(steps: int = 400) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 48), nn.Softplus(10), nn.Linear(48, 48), nn.Softplus(10), nn.Linear(48, 1))
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    near = lamina.Torus(1.0, 0.4).sample(20000, 0).points.float()
    for _ in range(steps):
        # Half of the places near the surface, half anywhere in the box.
        x = near[torch.randint(len(near), (1000,))] + 0.1 * torch.randn(1000, 3)
        x = torch.cat([x, 3.2 * torch.rand(1000, 3) - 1.6])
        loss = (network(x)[:, 0] - signed_distance(x)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return network.double().requires_grad_(False)


def main(folder: Path) -> dict[str, float]:
    network = trained()
    surface = lamina.Implicit(lambda x: network(x)[:, 0], [[-1.6, -1.6, -0.7], [1.6, 1.6, 0.7]], name="network")
    off = float(signed_distance(surface.points).abs().max())
    domain = lamina.Domain(surface, spacing=0.1)
    u = lamina.poisson(domain, lambda x: x[:, 0])

    truth = lamina.poisson(lamina.Domain(lamina.Torus(1.0, 0.4), 0.08), lambda x: x[:, 0])
    exact = truth(surface.points)
    difference = u.values - u.values.mean() - (exact - exact.mean())
    figures = {"off": off, "nmae": float(difference.abs().mean() / (exact.max() - exact.min()))}
    print(f"zero set at most {off:.3f} off the torus; solution differs by {figures['nmae']:.1e} of its range")
    u.plot(folder / "network.png", size=(480, 480))
    u.save(folder / "network.html")
    return figures


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
