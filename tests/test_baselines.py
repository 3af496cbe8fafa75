"""Every method by one call: they agree where they should, and say what they cannot do."""

import pytest
import torch

import lamina
from hemisphere import half_icosphere
from lamina.baselines import METHODS, heat, solve
from lamina.errors import InputError
from lamina.gallery import sphere_poisson
from lamina.metrics import errors
from lamina.surfaces.icosphere import icosphere

PROBLEM = sphere_poisson()
EXPECTED = {  # NMAE on the polyhedron with 2562 vertices, or its vertices as points
    "fem": 2e-3, "fem-robust": 4e-3, "cpm": 0.12, "cpm-coupled": 1e-3, "attention": 0.1, "neural": 3e-3,
    "closest-point": 1e-3, "trace": 3e-3, "order-3": 3e-3, "auto": 3e-3,
}  # fmt: skip


def mesh(level: int = 4) -> lamina.Mesh:
    return lamina.Mesh(*icosphere(level))


def half(level: int = 4) -> lamina.Mesh:
    return half_icosphere(level)


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_solve_poisson(method):
    pytest.importorskip("robust_laplacian") if method == "fem-robust" else None
    V = icosphere(4)[0]
    surface = mesh() if method.startswith("fem") or method == "trace" else lamina.PointCloud(V, V)
    answer = solve(surface, PROBLEM.rhs, method, spacing=0.2)
    assert answer.values.shape == (len(V),)
    assert errors(answer.values, PROBLEM.solution(V), remove_mean=True).nmae < EXPECTED[method]
    assert answer.seconds > 0
    assert answer.unknowns > 100


@pytest.mark.parametrize("method", ["fem", "trace"])
def test_heat_with_a_held_rim(method):
    surface = half()

    def harmonic(p):
        return p[:, 0] / (1 + p[:, 2])

    answer = heat(surface, 0.0, 30.0, method, lamina.Dirichlet("rim", harmonic), steps=30, spacing=0.1)
    assert errors(answer.values, harmonic(surface.points)).nmae < 3e-3


def test_fem_takes_conditions_as_the_other_schemes_do():
    surface = half()

    def solution(p):
        return p[:, 0] * p[:, 2] + p[:, 0]

    def rhs(p):
        return -6 * p[:, 0] * p[:, 2] - 2 * p[:, 0]

    given = [
        lamina.Dirichlet(lambda p: p[:, 1] < 0, solution),
        lamina.Neumann(lambda p: p[:, 1] >= 0, lambda p: -p[:, 0]),
    ]
    for method in ("fem", "trace"):
        answer = solve(surface, rhs, method, given, spacing=0.1)
        assert errors(answer.values, solution(surface.points)).nrmse < 2e-2, method


def test_what_a_method_cannot_do_is_said():
    V = icosphere(2)[0]
    cloud = lamina.PointCloud(V, V)
    with pytest.raises(InputError, match="method 'fem' needs triangles"):
        solve(cloud, PROBLEM.rhs, "fem")
    with pytest.raises(InputError, match="Unknown method 'bem'; known: fem"):
        solve(mesh(2), PROBLEM.rhs, "bem")
    with pytest.raises(InputError, match="FEM takes Dirichlet and Neumann conditions, got Robin"):
        solve(half(2), 1.0, "fem", lamina.Robin("rim", 1.0, 1.0))
    with pytest.raises(InputError, match='FEM takes conditions on "rim"'):
        solve(half(2), 1.0, "fem", lamina.Dirichlet(0, 1.0))
    with pytest.raises(InputError, match="another method for a flux"):
        heat(half(2), 1.0, 0.1, "fem", lamina.Neumann("rim", 1.0))


def test_a_trained_operator_is_called_alike():
    class Doubling:
        def poisson(self, surface, f):
            return 2 * f(surface.points)

    answer = solve(mesh(2), lambda p: p[:, 0], Doubling())
    assert torch.equal(answer.values, 2 * icosphere(2)[0][:, 0])
