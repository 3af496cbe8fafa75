"""The V-cycle is a linear operator that contracts at a rate independent of the spacing; Krylov methods solve."""

import gc
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamina
from lamina.geometry.lattice import Lattice
from lamina.linear.components import ComponentMean
from lamina.linear.krylov import conjugate_gradients, fgmres
from lamina.linear.multigrid import chebyshev_steps, v_cycle
from lamina.paper.coupled import Coupled
from lamina.surfaces.analytic import Ellipsoid, Sphere, Torus
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.mesh import Mesh

ORIGIN = torch.tensor([0.013, -0.021, 0.007], dtype=torch.float64)


def coupled(surface, spacing, order=2):
    return Coupled(surface, Lattice(ORIGIN, spacing), order)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wave(x):
    return torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]) + x[:, 2]


# Smoother


@given(low=st.floats(0.05, 0.5), high=st.floats(1.0, 3.0), count=st.integers(1, 5))
def test_chebyshev_steps_damp_their_interval_as_well_as_any_polynomial_can(low, high, count):
    steps = chebyshev_steps(low, high, count)
    x = torch.linspace(low, high, 2001, dtype=torch.float64)
    damping = torch.stack([1 - step * x for step in steps]).prod(0).abs()
    ratio = (high + low) / (high - low)
    best = 1 / math.cosh(count * math.acosh(ratio))
    assert float(damping.max()) == pytest.approx(best, rel=1e-6)
    assert steps == sorted(steps)


# V-cycle


@pytest.mark.parametrize(("surface", "bound"), [(Sphere(), 0.2), (Torus(), 0.4)], ids=lambda p: getattr(p, "name", ""))
@pytest.mark.parametrize("order", [2, 4])
def test_contraction_does_not_depend_on_the_spacing(surface, bound, order):
    """Residuals of plain V-cycles, from a smooth right-hand side and from a rough start."""
    for spacing in (0.1, 0.05):
        levels = coupled(surface, spacing, order).shifted(0.0)
        finest = levels[0]
        u = random(len(finest.level.band))
        g = finest.project(finest.apply(finest.level.E @ wave(finest.level.band.feet.points)))
        residual = []
        for _ in range(6):
            u = v_cycle(levels, g, u)
            residual.append(float(finest.project(g - finest.apply(u)).norm()))
        assert residual[-1] < bound**5 * residual[0]


@pytest.mark.parametrize("shift", [0.0, 40.0])
def test_cycle_is_linear(shift):
    levels = coupled(Ellipsoid(), 0.12).shifted(shift)
    n = len(levels[0].level.band)
    g, h, u = random(n), random(n, seed=1), random(n, seed=2)
    combined = v_cycle(levels, 2 * g - 3 * h)
    torch.testing.assert_close(combined, 2 * v_cycle(levels, g) - 3 * v_cycle(levels, h), rtol=0, atol=1e-12)
    from_u = v_cycle(levels, g, u)
    torch.testing.assert_close(from_u, v_cycle(levels, g) + v_cycle(levels, 0 * g, u), rtol=0, atol=1e-10)


@pytest.mark.parametrize("shift", [0.0, 1.0, 1e2, 1e4])
def test_solution_has_the_residual_that_was_asked_for_within_few_cycles(shift):
    scheme = coupled(Sphere(), 0.1, 4)
    g = scheme.load(wave)
    result = scheme.solve(g, shift, tolerance=1e-8)
    residual = scheme.apply(result.solution) - shift * result.solution - g
    if shift == 0:
        residual, g = (scheme.levels[0].mean.remove(v) for v in (residual, g))
    assert result.converged
    assert float(residual.norm() / g.norm()) <= 1e-8 * (1 + 1e-6)
    assert result.residual == pytest.approx(float(residual.norm() / g.norm()), rel=1e-6)
    assert result.iterations <= 8


def test_cycles_do_not_grow_with_the_number_of_nodes():
    cycles = []
    for spacing in (0.12, 0.06, 0.03):
        scheme = coupled(Sphere(), spacing)
        cycles.append(scheme.solve(scheme.load(wave), 0.0, tolerance=1e-8).iterations)
    assert max(cycles) <= 8
    assert cycles[-1] <= cycles[0] + 1


def test_preconditioned_iteration_agrees_with_a_dense_solve():
    scheme = coupled(Sphere(), 0.22)
    assert len(scheme.levels) > 1
    n = scheme.unknowns
    A = torch.stack([scheme.apply(e) for e in torch.eye(n, dtype=torch.float64)], 1)
    g = scheme.load(wave)
    shift = 3.0
    direct = torch.linalg.solve(A - shift * torch.eye(n, dtype=torch.float64), g)
    iterated = scheme.solve(g, shift, tolerance=1e-12).solution
    assert float((iterated - direct).abs().max()) < 1e-9 * float(direct.abs().max())


def test_components_are_solved_as_if_alone():
    """Two spheres whose bands overlap, against each by itself on the same lattice."""
    V, F = icosphere(2)
    apart = torch.tensor([0.0, 0.0, 2.1], dtype=torch.float64)
    both = coupled(Mesh(torch.cat([V, V + apart]), torch.cat([F, F + len(V)])), 0.2)
    solution = both.solve(both.load(wave), 0.0, tolerance=1e-11).solution
    for component, mesh in enumerate((Mesh(V, F), Mesh(V + apart, F))):
        alone = coupled(mesh, 0.2)
        expected = alone.solve(alone.load(wave), 0.0, tolerance=1e-11).solution
        mine = solution[both.levels[0].band.component == component]
        torch.testing.assert_close(mine - mine.mean(), expected - expected.mean(), rtol=0, atol=1e-8)


# Krylov methods


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 60), restart=st.sampled_from([20, 60]))
def test_fgmres_solves_nonsymmetric_systems(seed, n, restart):
    A = torch.eye(n, dtype=torch.float64) + 0.4 * random(n, n, seed=seed) / n**0.5
    b = random(n, seed=seed + 1)
    scale = 1 / A.diagonal()
    result = fgmres(
        lambda x: A @ x,
        b,
        precondition=lambda r: scale * r,
        tolerance=1e-10,
        max_iterations=500,
        restart=restart,
    )
    assert result.converged
    assert float((A @ result.solution - b).norm() / b.norm()) <= 1e-10
    torch.testing.assert_close(result.solution, torch.linalg.solve(A, b), rtol=0, atol=1e-7)


def test_fgmres_accepts_a_preconditioner_that_changes():
    A = torch.diag(torch.linspace(1, 50, 80, dtype=torch.float64)) + 0.1 * random(80, 80)
    calls = []

    def precondition(r):
        calls.append(1)
        return r / (A.diagonal() if len(calls) % 2 else 25.0)

    result = fgmres(lambda x: A @ x, random(80, seed=1), precondition=precondition, tolerance=1e-9)
    assert result.converged
    assert result.iterations == len(calls)


@pytest.mark.parametrize("method", [fgmres, conjugate_gradients])
class TestBothKrylovMethods:
    def system(self):
        A = random(50, 50)
        A = A @ A.T + torch.eye(50, dtype=torch.float64)
        return A, random(50, seed=1)

    def test_symmetric_positive_definite_system(self, method):
        A, b = self.system()
        result = method(lambda x: A @ x, b, precondition=lambda r: r / A.diagonal(), tolerance=1e-10)
        assert result.converged
        torch.testing.assert_close(result.solution, torch.linalg.solve(A, b), rtol=0, atol=1e-7)

    def test_start_at_the_solution_costs_nothing_and_is_left_alone(self, method):
        A, b = self.system()
        start = torch.linalg.solve(A, b)
        before = start.clone()
        result = method(lambda x: A @ x, b, precondition=lambda r: r, start=start, tolerance=1e-8)
        assert result.iterations == 0
        torch.testing.assert_close(start, before, rtol=0, atol=0)

    def test_zero_right_hand_side_gives_zero(self, method):
        A, b = self.system()
        result = method(lambda x: A @ x, 0 * b, precondition=lambda r: r, start=b)
        assert result.converged
        assert not result.solution.any()

    def test_too_few_iterations_are_reported_as_failure_with_the_true_residual(self, method):
        A, b = self.system()
        result = method(lambda x: A @ x, b, precondition=lambda r: r, tolerance=1e-12, max_iterations=3)
        assert not result.converged
        assert result.residual == pytest.approx(float((b - A @ result.solution).norm() / b.norm()), rel=1e-6)
        assert result.residual > 1e-12

    def test_nan_ends_the_iteration(self, method):
        b = torch.ones(5, dtype=torch.float64)
        result = method(lambda x: x * torch.nan, b, precondition=lambda r: r)
        assert not result.converged


# Means


@given(seed=st.integers(0, 2**31), count=st.integers(1, 4))
def test_component_means_are_weighted_and_removed(seed, count):
    n = 40
    component = torch.arange(n) % count
    weights = random(n, seed=seed).abs() + 0.1
    u = random(n, seed=seed + 1)
    mean = ComponentMean(component, count, weights)
    expected = [float((u * weights)[component == c].sum() / weights[component == c].sum()) for c in range(count)]
    assert mean(u).tolist() == pytest.approx(expected)
    assert float(mean(mean.remove(u)).abs().max()) < 1e-12
    torch.testing.assert_close(mean.remove(mean.remove(u)), mean.remove(u))


@pytest.mark.parametrize("order", [2, 3])
def test_a_solve_leaves_no_tensors_behind(order):
    """Nothing waits for Python's garbage collector, which does not see how full a GPU is."""

    def tensors():
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    def solve():
        domain = lamina.Domain(lamina.Sphere(), nodes=1000, order=order)
        lamina.heat(domain, "x", 0.1)

    solve()  # fills the caches of the library
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        solve()
        assert tensors() == before
    finally:
        gc.enable()
