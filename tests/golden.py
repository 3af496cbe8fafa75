"""The golden figures: one error for each representation, order and equation, which a change of structure must not move.

    python tests/golden.py      # measure, and write golden.json

Every representation stands for the unit sphere, where harmonics solve every equation; the network is a surface of its
own with a manufactured solution.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

import lamina
from lamina import gallery

FILE = Path(__file__).with_name("golden.json")
SPACING = {2: 0.13, 3: 0.26}
Exact = Callable[[Tensor], Tensor]


class Cosines(nn.Module):
    """cos x + cos y + cos z = 2, a round cube, as a network with one hidden layer of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(3))
            self.first.bias.fill_(math.pi / 2)
            self.last.weight.fill_(-1.0)
            self.last.bias.fill_(2.0)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sin(self.first(x)))[..., 0]


def sphere_cloud(noise: float = 0.0) -> lamina.PointCloud:
    feet = lamina.Sphere().sample(4000, 1)
    if not noise:
        return lamina.PointCloud(feet.points, feet.normals)
    shift = torch.randn(4000, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return lamina.PointCloud(feet.points + noise * shift)


def sphere_splats() -> lamina.Splats:
    """Flat discs on the sphere; (w, x, y, z) turns the z axis to the normal."""
    n = lamina.Sphere().sample(3000, 3).points
    turn = torch.stack([1 + n[:, 2], -n[:, 1], n[:, 0], torch.zeros_like(n[:, 0])], 1)
    scales = torch.tensor([0.05, 0.04, 0.004], dtype=torch.float64).expand(len(n), 3)
    return lamina.Splats(n, scales, turn / turn.norm(dim=1, keepdim=True), torch.full_like(n[:, 0], 0.9))


def ball(x: Tensor) -> Tensor:
    return (x * x).sum(-1) - 1


def squashed(x: Tensor) -> Tensor:
    return x


def network() -> lamina.Surface:
    return lamina.Implicit(Cosines(), bounds=((-2.0, -2.0, -2.0), (2.0, 2.0, 2.0)))


def sphere_mesh() -> lamina.Mesh:
    from lamina.surfaces.icosphere import icosphere

    return lamina.Mesh(*icosphere(5))


REPRESENTATIONS: dict[str, Callable[[], lamina.Surface]] = {
    "analytic": lamina.Sphere,
    "mesh": sphere_mesh,
    "implicit": partial(lamina.Implicit, ball, bounds=((-1.3, -1.3, -1.3), (1.3, 1.3, 1.3))),
    "map": partial(lamina.SphericalMap, squashed),
    "cloud": sphere_cloud,
    "noisy cloud": partial(sphere_cloud, 0.005),
    "splats": sphere_splats,
}
CLIPPED = ("analytic", "mesh", "implicit", "map", "cloud")


@cache
def surface(name: str) -> lamina.Surface:
    return network() if name == "network" else REPRESENTATIONS[name]()


@cache
def domain(name: str, order: int) -> lamina.Domain:
    return lamina.Domain(surface(name), SPACING[order], order=order)


@cache
def half(name: str, order: int) -> lamina.Domain:
    return lamina.Domain(lamina.clip(surface(name), lambda x: x[:, 2]), SPACING[order], order=order)


def nrmse(u: lamina.Solution, exact: Exact, free: bool = True) -> float:
    """Root mean square of the error over the range, its mean taken off where the solution is free by a constant."""
    true = exact(u.domain.points)
    error = (u.values - true).detach()
    error = error - error.mean() if free else error
    return float(error.square().mean().sqrt() / (true.max() - true.min()))


def poisson(name: str, order: int) -> float:
    problem = gallery.sphere_poisson()
    return nrmse(lamina.poisson(domain(name, order), problem.rhs, tolerance=1e-10), problem.solution)


def screened(name: str, order: int) -> float:
    problem = gallery.sphere_poisson()

    def f(x: Tensor) -> Tensor:
        return problem.rhs(x) - 2 * problem.solution(x)

    return nrmse(lamina.poisson(domain(name, order), f, screening=2.0, tolerance=1e-10), problem.solution)


def varying(name: str, order: int) -> float:
    """div((1 + z^2/2) grad z) = -2 z (1 + z^2/2) + z (1 - z^2)."""

    def f(x: Tensor) -> Tensor:
        z = x[:, 2]
        return -2 * z * (1 + z * z / 2) + z * (1 - z * z)

    u = lamina.poisson(domain(name, order), f, diffusivity=lambda x: 1 + x[:, 2] ** 2 / 2, tolerance=1e-10)
    return nrmse(u, lambda x: x[:, 2])


def heat(name: str, order: int) -> float:
    problem = gallery.sphere_heat()
    u = lamina.heat(domain(name, order), problem.initial, 0.1, steps=40)
    return nrmse(u, lambda x: problem.solution(x, 0.1), free=False)


def modes(name: str, order: int) -> float:
    found = lamina.eigenmodes(domain(name, order), 9, tolerance=1e-7).eigenvalues[1:]
    exact = found.new_tensor([2.0] * 3 + [6.0] * 5)
    return float(((found - exact) / exact).square().mean().sqrt())


def held(name: str, order: int) -> float:
    problem = gallery.hemisphere_poisson()
    conditions = lamina.Dirichlet("rim", problem.solution)
    u = lamina.poisson(half(name, order), problem.rhs, conditions, tolerance=1e-10)
    return nrmse(u, problem.solution, free=False)


def manufactured(name: str, order: int) -> float:
    phi = Cosines()
    for p in phi.parameters():
        p.requires_grad_(False)
    problem = gallery.manufactured(name, network, phi, gallery.torus_poisson().solution)
    return nrmse(lamina.poisson(domain(name, order), problem.rhs, tolerance=1e-10), problem.solution)


EQUATIONS = {
    "poisson": poisson, "screened": screened, "varying": varying, "heat": heat, "modes": modes, "held": held,
}  # fmt: skip


def cases() -> Iterator[tuple[str, int, str]]:
    for order in SPACING:
        for name in REPRESENTATIONS:
            for equation in EQUATIONS:
                if equation != "held" or name in CLIPPED:
                    yield name, order, equation
        yield "network", order, "manufactured"


def figure(name: str, order: int, equation: str) -> float:
    return manufactured(name, order) if equation == "manufactured" else EQUATIONS[equation](name, order)


def main() -> None:
    found = {}
    for name, order, equation in cases():
        found[f"{name}, order {order}, {equation}"] = value = float(f"{figure(name, order, equation):.4g}")
        print(f"{name}, order {order}, {equation}: {value:.3g}", flush=True)
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
