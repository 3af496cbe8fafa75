"""The shell scheme: the graph Laplacian of the band, its Galerkin hierarchy, and how far the paper's method gets."""

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import spsolve

import lamina
from hemisphere import half_icosphere
from lamina.errors import InputError
from lamina.gallery import sphere_poisson
from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band
from lamina.linear.assembly import rows_to_csr
from lamina.linear.multigrid import v_cycle
from lamina.metrics import errors
from lamina.paper.interpolation import Lines, interpolation_matrix, linear_stencil
from lamina.paper.laplacian import laplacian_matrix, staircase_laplacian
from lamina.paper.rbf_readout import rbf_matrix
from lamina.paper.shell import Shell
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.icosphere import icosphere

ORIGIN = torch.tensor([0.013, -0.021, 0.007], dtype=torch.float64)
SPHERE, TORUS = lamina.Sphere(), lamina.Torus()
PROBLEM = sphere_poisson()


def band_of(surface, spacing, width, dtype=torch.float64):
    """width: eps / dx."""
    return Band.build(surface.to(dtype=dtype), Lattice(ORIGIN.to(dtype), spacing), width * spacing)


def closest_point_extension(band, width):
    """Cubic where its stencils fit."""
    if width >= math.sqrt(12):
        return interpolation_matrix(band, band.feet.points, band.component, Lines.NONE)
    return rows_to_csr(*linear_stencil(band, band.feet.points, band.component), len(band))


def shell(surface, spacing, width, dtype=torch.float64, **options):
    band = band_of(surface, spacing, width, dtype)
    return Shell(band, closest_point_extension(band, width), False, surface.component_count, **options)


def two_spheres(apart=2.2):
    """Unit spheres; their bands overlap where the gap is less than twice eps."""
    V, F = icosphere(3)
    shift = torch.tensor([apart, 0.0, 0.0], dtype=torch.float64)
    return lamina.Mesh(torch.cat([V, V + shift]), torch.cat([F, F + len(V)]))


def scipy_of(A):
    return csr_array((A.values().numpy(), A.col_indices().numpy(), A.crow_indices().numpy()), shape=A.shape)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wave(x):
    return torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]) + x[:, 2]


# The Laplacian


@pytest.mark.parametrize("surface", [SPHERE, TORUS, two_spheres()], ids=["sphere", "torus", "two spheres"])
def test_laplacian_is_symmetric_with_the_signs_of_an_m_matrix_and_constants_in_its_kernel(surface):
    band = band_of(surface, 0.15, 2)
    L = scipy_of(staircase_laplacian(band))
    assert abs(L - L.T).max() == 0
    assert (L.diagonal() < 0).all()
    assert (L - diags_array(L.diagonal())).min() >= 0
    for c in range(surface.component_count):
        assert np.abs(L @ (band.component == c).double().numpy()).max() < 1e-10 / band.spacing**2


def test_laplacian_replaces_a_missing_neighbour_by_the_node():
    band = band_of(SPHERE, 0.25, 2)
    number = {tuple(n): a for a, n in enumerate(band.ijk.tolist())}
    u = random(len(band))
    expected = torch.zeros_like(u)
    for (i, j, k), a in number.items():
        around = [(i - 1, j, k), (i + 1, j, k), (i, j - 1, k), (i, j + 1, k), (i, j, k - 1), (i, j, k + 1)]
        expected[a] = sum(u[number.get(n, a)] - u[a] for n in around) / band.spacing**2
    torch.testing.assert_close(staircase_laplacian(band) @ u, expected)


def test_laplacian_is_negative_semidefinite_with_one_zero_for_each_component():
    band = band_of(two_spheres(), 0.4, 2)
    values = torch.linalg.eigvalsh(staircase_laplacian(band).to_dense())
    assert int((values.abs() < 1e-10).sum()) == 2
    assert float(values[-3]) < -0.1


def test_laplacian_is_the_ordinary_one_away_from_the_edge():
    band = band_of(TORUS, 0.1, 3)
    ordinary = laplacian_matrix(band, 2)
    inner = torch.diff(ordinary.crow_indices()) > 0
    u = random(len(band))
    torch.testing.assert_close((staircase_laplacian(band) @ u)[inner], (ordinary @ u)[inner])
    assert inner.any()
    assert not inner.all()


# The hierarchy


def interpolation_of(level):
    n = level.unknowns
    index = (np.arange(n).repeat(8), level.coarse_unknown.numpy().reshape(-1))
    P = csr_array((level.coarse_weight.numpy().reshape(-1), index), shape=(n, level.coarse_count))
    P.sum_duplicates()
    return P


@pytest.mark.parametrize("surface", [SPHERE, two_spheres(2.3)], ids=["sphere", "two spheres"])
@pytest.mark.parametrize("width", [2, 4])
def test_coarse_matrices_are_the_galerkin_products(surface, width):
    levels = shell(surface, 0.15, width).levels
    assert len(levels) >= 2
    for fine, coarse in pairwise(levels):
        P = interpolation_of(fine)
        np.testing.assert_allclose(P.sum(1), 1, rtol=0, atol=1e-14)
        for stiffness, mass in ((1.0, 0.0), (0.0, 1.0)):
            product = P.T @ scipy_of(fine.matrix(stiffness, mass)) @ P
            difference = product - scipy_of(coarse.matrix(stiffness, mass))
            assert abs(difference).max() <= 1e-12 * abs(product).max()
        assert (fine.component.numpy()[:, None] == coarse.component.numpy()[fine.coarse_unknown.numpy()]).all()


def test_interpolation_from_the_coarse_lattice_is_exact_on_trilinear_functions():
    """Node by node: the eight unknowns of a node are the corners of its coarse cell, in order."""
    scheme = shell(SPHERE, 0.1, 4)
    level = scheme.levels[0]
    ijk = scheme.band.ijk.double()
    cell = torch.floor(ijk / 2)
    corners = torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=torch.float64)
    at = 2 * (cell[:, None] + corners)  # (n, 8, 3), in units of dx
    position = torch.full((level.coarse_count, 3), torch.nan, dtype=torch.float64)
    position[level.coarse_unknown.reshape(-1)] = at.reshape(-1, 3)
    torch.testing.assert_close(position[level.coarse_unknown], at)  # corners that are one unknown lie in one place

    def f(x):
        return 1 + x[:, 0] - 2 * x[:, 1] * x[:, 2] + 0.1 * x.prod(1)

    prolonged = (level.coarse_weight * f(position)[level.coarse_unknown]).sum(1)
    torch.testing.assert_close(prolonged, f(ijk))


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_the_cycle_is_symmetric(shift):
    scheme = shell(TORUS, 0.12, 2)
    levels = scheme.shifted(shift)
    r, s = (levels[0].mean.remove(random(scheme.unknowns, seed=i)) for i in (0, 1))
    a, b = torch.dot(s, v_cycle(levels, r)), torch.dot(r, v_cycle(levels, s))
    assert float(a) == pytest.approx(float(b), rel=1e-9, abs=1e-9 * float(r.norm() * v_cycle(levels, s).norm()))


@pytest.mark.parametrize("surface", [SPHERE, TORUS], ids=["sphere", "torus"])
def test_iterations_are_few_and_do_not_grow_with_the_number_of_nodes(surface):
    found = []
    for spacing in (0.1, 0.05, 0.025):
        scheme = shell(surface, spacing, 4)
        g = scheme.load(wave)
        result = scheme.solve(g, 0.0, tolerance=1e-8)
        residual = scheme.apply(result.solution) - scheme.compatible(g)
        assert float(residual.norm() / g.norm()) <= 1e-8
        found.append(result.iterations)
        assert scheme.solve(g, 1 / spacing**2, tolerance=1e-8).iterations <= 8
    assert max(found) <= 9
    assert found[-1] <= found[0] + 1


@pytest.mark.parametrize("width", [math.sqrt(3), 2, 6])
def test_iterations_are_few_in_narrow_and_wide_bands(width):
    scheme = shell(SPHERE, 0.06, width)
    assert scheme.solve(scheme.load(wave), 0.0, tolerance=1e-8).iterations <= 9


# Solving


@pytest.mark.parametrize("shift", [0.0, 0.7, 500.0])
def test_solution_is_that_of_a_direct_solve(shift):
    scheme = shell(SPHERE, 0.15, 2)
    g = scheme.load(wave) + 0.3
    n = scheme.unknowns
    A = scipy_of(staircase_laplacian(scheme.band)) - shift * diags_array(np.ones(n))
    right = g.numpy()
    if shift == 0:  # up to a constant: one node held at zero
        right = right - right.mean()
        direct = np.zeros(n)
        direct[1:] = spsolve(A.tocsc()[1:, 1:], right[1:])
        direct -= direct.mean()
    else:
        direct = spsolve(A.tocsc(), right)
    result = scheme.solve(g, shift, tolerance=1e-12)
    assert result.converged
    np.testing.assert_allclose(result.solution.numpy(), direct, rtol=0, atol=1e-9 * np.abs(direct).max())
    torch.testing.assert_close(scheme.incompatible(g, result.solution), g.mean()[None])


def test_a_start_at_the_solution_costs_nothing():
    scheme = shell(SPHERE, 0.15, 4)
    g = scheme.load(wave)
    for shift in (0.0, 20.0):
        u = scheme.solve(g, shift, tolerance=1e-10).solution
        again = scheme.solve(g, shift, tolerance=1e-8, start=u)
        assert again.iterations == 0
        torch.testing.assert_close(again.solution, u)


def test_each_component_is_solved_as_if_alone_and_has_zero_mean():
    """Their bands overlap; the source is on the first one only, and no mean is taken from the other."""
    both = shell(two_spheres(), 0.1, 4)
    assert both.component_count == 2
    overlap = torch.unique(both.band.ijk, dim=0)
    assert len(overlap) < both.unknowns

    def source(x):
        return torch.where(x[:, 0] < 1.1, wave(x) + 2, 0 * x[:, 0])

    u = both.solve(both.load(source), 0.0, tolerance=1e-11).solution
    for c in (0, 1):
        assert abs(float(u[both.component == c].mean())) < 1e-12
    alone = shell(lamina.Mesh(*icosphere(3)), 0.1, 4)
    expected = alone.solve(alone.load(source), 0.0, tolerance=1e-11).solution
    torch.testing.assert_close(u[both.component == 0], expected, rtol=0, atol=1e-8)
    assert float(u[both.component == 1].abs().max()) < 1e-9
    shifted = both.remove_mean(u, lambda u: torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert [round(float(shifted[both.component == c].mean()), 9) for c in (0, 1)] == [-1, -2]


def test_single_precision():
    scheme = shell(SPHERE, 0.1, 4, torch.float32)
    result = scheme.solve(scheme.load(wave), 0.0, tolerance=1e-4)
    assert result.converged
    assert result.solution.dtype == torch.float32
    exact = shell(SPHERE, 0.1, 4)
    expected = exact.solve(exact.load(wave), 0.0, tolerance=1e-8).solution
    assert float((result.solution - expected).abs().max()) < 1e-3


# How accurate the paper's scheme is


@cache
def nmae(spacing, width):
    """u = xyz + (x^2 - y^2)/2 on the unit sphere, with the exact extension of f."""
    scheme = shell(SPHERE, spacing, width)
    u = scheme.solve(scheme.load(PROBLEM.rhs), 0.0, tolerance=1e-8).solution
    return errors(scheme.readout(SPHERE.own_feet()) @ u, PROBLEM.solution(SPHERE.points), remove_mean=True).nmae


def test_with_a_band_of_a_fixed_number_of_cells_it_does_not_converge():
    """dx 0.05: 1.98e-2, dx 0.025: 1.66e-2 (0.0125: 1.59e-2): second order would be a quarter, first order half."""
    coarse, fine = nmae(0.05, 4.5), nmae(0.025, 4.5)
    assert coarse == pytest.approx(1.9e-2, rel=0.1)
    assert fine == pytest.approx(1.7e-2, rel=0.1)
    assert fine > 0.75 * coarse


def test_the_error_is_that_of_the_staircase_and_grows_as_the_band_gets_thinner():
    """About a share of dx / (3 eps) too large: eps/dx = 4, 3, 2 at dx 0.05 give 2.1e-2, 2.6e-2, 4.0e-2."""
    assert nmae(0.05, 2) == pytest.approx(4.0e-2, rel=0.1)
    assert 1.7 < nmae(0.05, 2) / nmae(0.05, 4) < 2.2
    assert nmae(0.05, 4) < nmae(0.05, 3) < nmae(0.05, 2)


def test_in_a_band_of_fixed_thickness_it_converges_slowly_to_the_solution_in_the_shell():
    """eps 0.2: 3.9e-2, 2.1e-2, 1.2e-2 at dx 0.1, 0.05, 0.025: first order, down to what the thickness costs."""
    found = [nmae(0.2 / cells, cells) for cells in (2, 4, 8)]
    assert all(1.5 < coarse / fine < 2.2 for coarse, fine in pairwise(found))


# Heat


def decay(scheme, harmonic, steps=60):
    """Rate at which explicit steps of dt = 0.1 dx^2 take a harmonic down, and what else they make of it."""
    dt = 0.1 * scheme.spacing**2
    u = scheme.sample(harmonic)
    for _ in range(steps):
        u = scheme.explicit_step(u, dt)
    read, exact = scheme.readout(SPHERE.own_feet()) @ u, harmonic(SPHERE.points)
    left = float(torch.dot(read, exact) / torch.dot(exact, exact))
    return -math.log(left) / (steps * dt), float((read - left * exact).abs().max())


@pytest.mark.parametrize(("degree", "harmonic"), [(1, lambda x: x[:, 2]), (3, lambda x: x.prod(1))], ids=["z", "xyz"])
def test_explicit_steps_decay_a_harmonic_at_its_rate(degree, harmonic):
    """Off by less than 1e-3: the extension after every step takes out what the staircase did."""
    rate, other = decay(shell(SPHERE, 0.05, 4.5), harmonic)
    assert rate == pytest.approx(degree * (degree + 1), rel=5e-3)
    assert other < 1e-4


def test_an_extension_of_positive_weights_is_itself_a_diffusion():
    """Trilinear interpolation at closest points: 1.5 times the rate, whatever the spacing."""
    for spacing in (0.1, 0.05):
        rate, _ = decay(shell(SPHERE, spacing, 2), lambda x: x[:, 2])
        assert 1.4 < rate / 2 < 1.7


def test_explicit_step_is_the_papers():
    scheme = shell(SPHERE, 0.15, 4)
    u, dt = random(scheme.unknowns), 1e-3
    extended = scheme.E @ u
    torch.testing.assert_close(
        scheme.explicit_step(u, dt), extended + dt * (staircase_laplacian(scheme.band) @ extended)
    )


# Data in and out


def test_data_are_taken_at_closest_points_or_at_the_nodes_themselves():
    band = band_of(SPHERE, 0.15, 4)
    E = closest_point_extension(band, 4)
    at_feet, at_nodes = Shell(band, E, False, 1), Shell(band, E, True, 1)
    radius = torch.linalg.norm(band.lattice.position(band.ijk), dim=1)
    torch.testing.assert_close(at_feet.sample(lambda x: x.norm(dim=1)), torch.ones_like(radius))
    torch.testing.assert_close(at_nodes.sample(lambda x: x.norm(dim=1)), radius)
    torch.testing.assert_close(at_nodes.load(wave), E @ wave(band.lattice.position(band.ijk)))


@pytest.mark.parametrize(("width", "entries", "degree"), [(math.sqrt(3), 8, 1), (3.4, 8, 1), (3.6, 64, 3), (6, 64, 3)])
def test_readout_is_cubic_where_the_band_is_wide_enough_and_trilinear_elsewhere(width, entries, degree):
    scheme = shell(SPHERE, 0.1, width)
    feet = SPHERE.own_feet()
    R = scheme.readout(feet).matrix
    assert len(R.values()) == entries * len(feet.points)

    def f(x):
        return x[:, 0] ** degree - 2 * (x[:, 1] * x[:, 2]) ** degree

    torch.testing.assert_close(R @ f(scheme.band.lattice.position(scheme.band.ijk)), f(feet.points))


def test_readout_is_trilinear_where_a_wide_band_lacks_a_node_of_the_cubic_stencil():
    whole = band_of(SPHERE, 0.1, 4)
    height = (whole.lattice.position(whole.ijk) - whole.feet.points).norm(dim=1)
    pole = SPHERE.closest_points(torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64))
    far = (whole.lattice.position(whole.ijk) - pole.points).norm(dim=1) > 0.2
    kept = far | (height < 0.18)
    feet = ClosestPoints(whole.feet.points[kept], whole.feet.normals[kept], whole.feet.component[kept])
    band = Band(whole.lattice, whole.ijk[kept], feet, whole.key[kept], whole.low, whole.shape)
    E = rows_to_csr(*linear_stencil(band, band.feet.points, band.component), len(band))
    scheme = Shell(band, E, True, 1)
    assert len(scheme.readout(pole).matrix.values()) == 8
    south = SPHERE.closest_points(torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64))
    assert len(scheme.readout(south).matrix.values()) == 64
    both = SPHERE.closest_points(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], dtype=torch.float64))
    mixed = scheme.readout(both).matrix
    assert mixed.crow_indices().tolist() == [0, 8, 72]
    x = band.lattice.position(band.ijk)
    torch.testing.assert_close(mixed @ (x[:, 2] - 2 * x[:, 0] * x[:, 1]), both.points[:, 2])


def test_a_band_too_narrow_to_read_is_refused():
    band = band_of(SPHERE, 0.1, 1.2)
    identity = rows_to_csr(
        torch.arange(len(band), dtype=torch.int32)[:, None], torch.ones(len(band), 1).double(), len(band)
    )
    with pytest.raises(InputError, match="stencils leave the band"):
        Shell(band, identity, False, 1).readout(SPHERE.own_feet())


def test_bad_input_is_refused_in_words():
    band = band_of(SPHERE, 0.2, 4)
    E = closest_point_extension(band, 4)
    with pytest.raises(InputError, match="known: interpolation, rbf"):
        Shell(band, E, False, 1, readout="nearest")
    with pytest.raises(InputError, match="build both from one band"):
        Shell(band_of(SPHERE, 0.3, 4), E, False, 1)


def test_table_has_a_row_for_each_level():
    scheme = shell(SPHERE, 0.1, 4)
    table = scheme.table()
    assert [round(row[0], 9) for row in table] == [0.1, 0.2, 0.4]
    assert table[0][1] == scheme.unknowns == len(scheme.band)
    assert table[0][2] == len(scheme.E.values()) + len(staircase_laplacian(scheme.band).values())


# Gaussian radial basis functions


def smooth(p):
    x, y, z = p.unbind(1)
    return torch.sin(2 * x + y) * torch.cos(y - z) * torch.exp(z * x / 2)


def rbf_error(spacing, width=4, dtype=torch.float64, points=None, **options):
    band = band_of(SPHERE, spacing, width, dtype)
    points = (SPHERE.points if points is None else points).to(dtype)
    R = rbf_matrix(band, points, torch.zeros(len(points), dtype=torch.int64), **options)
    return R @ smooth(band.lattice.position(band.ijk)) - smooth(points)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_rbf_weights_sum_to_one(dtype, rounding):
    band = band_of(SPHERE, 0.1, 2, dtype)
    R = rbf_matrix(band, SPHERE.points.to(dtype), SPHERE.component)
    assert R.values().dtype == dtype
    weights = R.values().reshape(-1, 32)
    assert float((weights.sum(1) - 1).abs().max()) < 10 * rounding
    assert float(weights.abs().sum(1).max()) < 3
    u = torch.full((len(band),), 3.7, dtype=dtype)
    torch.testing.assert_close(R @ u, u[:1].expand(len(SPHERE.points)), rtol=rounding * 10, atol=0)


def test_rbf_solves_the_bordered_system():
    band = band_of(SPHERE, 0.1, 4)
    point = SPHERE.points[77:78]
    R = rbf_matrix(band, point, SPHERE.component[:1], neighbours=20, width=1.2)
    index, weights = R.col_indices().long(), R.values()
    distance = (band.lattice.position(band.ijk) - point).norm(dim=1)
    assert set(index.tolist()) == set(distance.topk(20, largest=False).indices.tolist())
    x = torch.cat([band.lattice.position(band.ijk)[index], point])
    G = torch.exp(-torch.cdist(x, x).square() / (2 * (1.2 * 0.1) ** 2))
    border = torch.ones(21, 21, dtype=torch.float64)
    border[:20, :20] = G[:20, :20]
    border[20, 20] = 0
    right = torch.cat([G[20, :20], torch.ones(1, dtype=torch.float64)])
    torch.testing.assert_close(weights, torch.linalg.solve(border, right)[:20], rtol=0, atol=1e-10)


def test_rbf_is_of_first_order():
    """5.1e-3, 2.6e-3, 1.1e-3 at dx 0.1, 0.05, 0.025: constants are reproduced, linear functions are not."""
    error = [float(rbf_error(h).abs().max()) for h in (0.1, 0.05, 0.025)]
    assert error[1] < 3e-3
    assert math.log2(error[0] / error[2]) / 2 == pytest.approx(1, abs=0.2)


def test_rbf_in_single_precision_is_as_accurate():
    double, single = rbf_error(0.05), rbf_error(0.05, dtype=torch.float32)
    assert float((single - double).abs().max()) < 1e-4


def test_rbf_takes_the_value_at_a_node():
    band = band_of(SPHERE, 0.1, 4)
    near = (band.lattice.position(band.ijk) - band.feet.points).norm(dim=1) < 0.1
    error = rbf_error(0.1, points=band.lattice.position(band.ijk)[near])
    assert float(error.abs().max()) < 1e-9


def test_rbf_uses_nodes_of_its_own_component_only():
    mesh = two_spheres()
    band = band_of(mesh, 0.1, 4)
    u = band.component.double()
    feet = mesh.own_feet()
    torch.testing.assert_close(rbf_matrix(band, feet.points, feet.component) @ u, feet.component.double())


def test_rbf_makes_do_with_fewer_nodes():
    """A ball of nodes around a tiny sphere holds fewer than were asked for."""
    tiny = lamina.Sphere(0.01)
    band = band_of(tiny, 0.1, 2)
    assert len(band) < 60
    R = rbf_matrix(band, tiny.points, tiny.component, neighbours=60)
    assert bool(torch.isfinite(R.values()).all())
    torch.testing.assert_close(R @ torch.ones(len(band), dtype=torch.float64), torch.ones(len(tiny.points)).double())


def test_rbf_refuses_points_far_away_and_impossible_options():
    band = band_of(SPHERE, 0.1, 2)
    far = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(InputError, match="3 of 3 points have no node"):
        rbf_matrix(band, far, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="1 to 216 neighbours"):
        rbf_matrix(band, SPHERE.points, SPHERE.component, neighbours=300)


def test_rbf_readout_of_the_shell_is_the_rbf_matrix():
    scheme = shell(SPHERE, 0.1, 4, readout="rbf")
    feet = SPHERE.own_feet()
    u = random(scheme.unknowns)
    torch.testing.assert_close(scheme.readout(feet) @ u, rbf_matrix(scheme.band, feet.points, feet.component) @ u)


def test_held_rims_in_explicit_steps_are_first_order() -> None:
    """Hemisphere with u held on its rim: heat settles at u = x / (1 + z), which is harmonic."""

    def harmonic(p: torch.Tensor) -> torch.Tensor:
        return p[:, 0] / (1 + p[:, 2])

    hemisphere = half_icosphere(5)
    found = []
    for spacing in (0.2, 0.1):
        domain = lamina.paper.BandDomain(hemisphere, spacing, scheme="shell", show_progress=False)
        u = lamina.heat(domain, 0.0, 4.0, lamina.Dirichlet("rim", harmonic), show_progress=False)
        found.append(errors(u.values, harmonic(domain.points)).nrmse)
    assert found[1] < 0.03
    assert found[1] < 0.65 * found[0]


def test_explicit_steps_refuse_other_conditions() -> None:
    message = "Explicit steps take only Dirichlet conditions on rims"
    half = lamina.paper.BandDomain(
        lamina.clip(lamina.Sphere(), lambda p: p[:, 2]), 0.25, scheme="shell", show_progress=False
    )
    with pytest.raises(lamina.InputError, match=message):
        lamina.heat(half, 0.0, 0.1, lamina.Neumann("rim", 1.0))
    whole = lamina.paper.BandDomain(lamina.Sphere(), 0.25, scheme="shell", show_progress=False)
    with pytest.raises(lamina.InputError, match=message):
        lamina.heat(whole, 0.0, 0.1, lamina.Dirichlet("rim", 1.0))
