"""A small network in the manner of DiffusionNet, trained end to end on point clouds: which family is a shape of?

    python examples/learn_from_heat.py [FOLDER]

Ellipsoids, tori and bumpy balls, all stretched, turned and sampled at random. A block diffuses its channels over the
surface, each for a time of its own, which is learned, and then mixes them point by point. DiffusionNet (Sharp et al.
2022) diffuses by the eigenmodes of every shape, computed beforehand; here each forward pass solves the heat equation.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import lamina

FAMILIES, TRAINED, TESTED, POINTS, CHANNELS, EPOCHS = 3, 8, 4, 300, 8, 18


def cloud(family: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points (n, 3) and normals of a random member of a family, of extent about 2."""

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    if family == 1:
        surface: lamina.Surface = lamina.Torus(0.75, 0.28 + 0.12 * float(random(1)))
    else:
        bumps = 0.0 if family == 0 else 0.12 + 0.05 * float(random(1))
        phase = 6 * random(3)

        def radius(s: Tensor) -> Tensor:
            return s * (1 + bumps * torch.sin(5 * s + phase).prod(1, keepdim=True))

        surface = lamina.SphericalMap(radius, level=3)
    feet = surface.sample(POINTS, seed=int(1e6 * random(1)))
    stretch = 0.75 + 0.5 * random(3)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    normals = nn.functional.normalize(feet.normals / stretch)
    return (feet.points * stretch) @ turn, normals @ turn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heat = lamina.nn.HeatLayer(CHANNELS, time=torch.logspace(-2.5, -0.7, CHANNELS), steps=1, tolerance=1e-4)
        self.mix = nn.Sequential(nn.Linear(2 * CHANNELS, 32), nn.ReLU(), nn.Linear(32, CHANNELS))

    def forward(self, u: Tensor, domain: lamina.Domain) -> Tensor:
        return u + self.mix(torch.cat([u, self.heat(u, domain)], 1))


class Classifier(nn.Module):
    """A score for each family, whatever the order of the points and however the shape is turned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, CHANNELS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(2 * CHANNELS, FAMILIES)

    def forward(self, domain: lamina.Domain) -> Tensor:
        x, n = domain.points - domain.points.mean(0), domain.surface.normals
        size = x.square().sum(1).mean().sqrt()
        # Distance from the middle, height of the tangent plane over it, and how far the two turn from each other.
        distance, height = x.norm(dim=1) / size, (x * n).sum(1) / size
        u = self.first(torch.stack([distance, height, height / distance], 1))
        for block in self.blocks:
            u = block(u, domain)
        return self.last(torch.cat([u.mean(0), u.square().mean(0)]))


def main(folder: Path) -> dict[str, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    shapes = [(f, *cloud(f, generator)) for _ in range(TRAINED + TESTED) for f in range(FAMILIES)]
    domains = [
        (f, lamina.Domain(lamina.PointCloud(p, n), spacing=0.2, order=2, extension="jet", dtype=torch.float32))
        for f, p, n in shapes
    ]
    train, test = domains[: FAMILIES * TRAINED], domains[FAMILIES * TRAINED :]
    network = Classifier()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    first = network.blocks[0]
    assert isinstance(first, Block)
    before = first.heat.time.detach().clone()
    losses, seconds = [], []
    for _ in range(EPOCHS):
        start, total = time.perf_counter(), 0.0
        for i in range(0, len(train), 4):
            batch = train[i : i + 4]
            scores = torch.stack([network(domain) for _, domain in batch])
            loss = nn.functional.cross_entropy(scores, torch.tensor([f for f, _ in batch]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(batch) / len(train)
        schedule.step()
        losses.append(total)
        seconds.append(time.perf_counter() - start)
    with torch.no_grad():
        right = sum(int(network(domain).argmax()) == f for f, domain in test)
    start = time.perf_counter()
    for _, domain in train:
        lamina.eigenmodes(domain, 64, tolerance=1e-3)
    spectral = time.perf_counter() - start
    after = first.heat.time.detach()
    figures = {
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "accuracy": right / len(test),
        "times_moved": float((after / before).log().abs().max()),
        "epoch_seconds": min(seconds),
        "eigenmodes_seconds": spectral,
    }
    print(figures)
    _, domain = test[1]
    u0 = domain.points[:, 0]
    lamina.heat(domain, u0, float(after.median())).plot(folder / "diffused.png")
    return figures


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
