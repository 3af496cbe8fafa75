"""Linear surface FEM: matrices, convergence order, components, degenerate and non-manifold input."""

import igl
import numpy as np
import pytest
import torch

from lamina.errors import InputError
from lamina.gallery import sphere_poisson
from lamina.geometry.cotangent import cotangent_stiffness, mass_matrix
from lamina.metrics import errors
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.baselines.reference import reference_poisson, refine
from lamina.surfaces.icosphere import icosphere

SOLVERS = ["pyamg", "splu"]


def ico(level: int) -> tuple[np.ndarray, np.ndarray]:
    vertices, faces = icosphere(level)
    return vertices.numpy(), faces.numpy()


def bumpy() -> tuple[np.ndarray, np.ndarray]:
    """A sphere shaken enough to have obtuse angles."""
    V, F = ico(3)
    return V + 0.04 * np.random.default_rng(0).normal(size=V.shape), F


def on_sphere(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    problem, x = sphere_poisson(), torch.from_numpy(V)
    return problem.solution(x).numpy(), problem.rhs(x).numpy()


def grid(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The unit square in n x n cells of two right triangles."""
    i, j = (a.reshape(-1) for a in np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij"))
    V = np.stack([i / n, j / n, np.zeros(len(i))], 1)
    a = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).reshape(-1)
    b, c, d = a + n + 1, a + n + 2, a + 1
    return V, np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])


def test_matrices_are_those_of_libigl() -> None:
    V, F = bumpy()
    assert abs(cotangent_stiffness(V, F) + igl.cotmatrix(V, F)).max() < 1e-12
    full = igl.massmatrix(V, F, igl.MASSMATRIX_TYPE_FULL)
    lumped = igl.massmatrix(V, F, igl.MASSMATRIX_TYPE_BARYCENTRIC)
    assert abs(mass_matrix(V, F) - full).max() < 1e-15
    assert abs(mass_matrix(V, F, lumped=True) - lumped).max() < 1e-15


def test_stiffness_is_symmetric_semidefinite_with_constants_in_its_kernel() -> None:
    V, F = bumpy()
    K = cotangent_stiffness(V, F)
    assert abs(K - K.T).max() == 0
    assert abs(K @ np.ones(len(V))).max() < 1e-12
    energies = np.linalg.eigvalsh(K.toarray())
    assert energies[0] > -1e-12
    assert energies[1] > 1e-3


def test_mass_integrates_to_the_area_and_load_is_mass_times_field() -> None:
    V, F = bumpy()
    a, b, c = V[F].transpose(1, 0, 2)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2
    one, f = np.ones(len(V)), V[:, 0] * V[:, 1]
    for lumped in (False, True):
        fem = SurfaceFEM(V, F, lumped=lumped)
        assert one @ fem.mass @ one == pytest.approx(area, rel=1e-13)
        assert fem.areas.sum() == pytest.approx(area, rel=1e-13)
        np.testing.assert_allclose(fem.load(f), fem.mass @ f, atol=1e-15)


@pytest.mark.parametrize("lumped", [False, True])
def test_second_order_on_the_sphere(lumped: bool) -> None:
    error = []
    for level in (3, 4, 5):
        V, F = ico(level)
        u, f = on_sphere(V)
        error.append(errors(SurfaceFEM(V, F, lumped=lumped).poisson(f), u, remove_mean=True).nrmse)
    order = np.log2(np.divide(error[:-1], error[1:]))
    assert (order > 1.9).all()
    assert (order < 2.1).all()
    assert error[-1] < 3e-4


@pytest.mark.parametrize("solver", ["cholmod", "cholespy", *SOLVERS])
def test_solvers_agree(solver: str) -> None:
    if solver not in SOLVERS:
        pytest.importorskip({"cholmod": "sksparse.cholmod"}.get(solver, solver))
    V, F = bumpy()
    f = np.cos(3 * V[:, 0]) + V[:, 2]
    expected = SurfaceFEM(V, F, solver="splu").poisson(f)
    found = SurfaceFEM(V, F, solver=solver, tolerance=1e-12).poisson(f)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_equations_hold_for_the_compatible_part() -> None:
    V, F = bumpy()
    fem = SurfaceFEM(V, F, tolerance=1e-12)
    f = V[:, 0] + 5.0
    u = fem.poisson(f)
    np.testing.assert_allclose(-fem.stiffness @ u, fem.mass @ (f - fem.mean(f)), atol=1e-11)
    assert abs(fem.areas @ u) < 1e-12


def test_constant_right_hand_side_gives_zero() -> None:
    V, F = bumpy()
    assert abs(SurfaceFEM(V, F).poisson(np.full(len(V), 3.0))).max() < 1e-12


def test_right_angles_do_not_disconnect_and_rims_are_free() -> None:
    # Lap u = -pi^2 cos(pi x) with zero normal derivative on the rim of the square: u = cos(pi x).
    error = []
    for n in (16, 32, 64):
        V, F = grid(n)
        fem = SurfaceFEM(V, F)
        u = np.cos(np.pi * V[:, 0])
        assert fem.component.max() == 0
        error.append(errors(fem.poisson(-(np.pi**2) * u), u).nrmse)
    assert np.log2(np.divide(error[:-1], error[1:])) == pytest.approx(2.0, abs=0.1)
    assert error[-1] < 2e-4


def test_components_are_solved_apart_and_unused_vertices_are_zero() -> None:
    V, F = ico(3)
    n = len(V)
    both = np.concatenate([[[9.0, 9.0, 9.0]], V, 0.5 * V + [3, 0, 0]])
    faces = np.concatenate([F + 1, F + 1 + n])
    fem = SurfaceFEM(both, faces)
    assert fem.component.max() + 1 == 3
    _, f = on_sphere(V)
    u = fem.poisson(np.concatenate([[0.0], f + 2, 4 * f - 7]))
    alone = SurfaceFEM(V, F).poisson(f)
    assert u[0] == 0
    np.testing.assert_allclose(u[1 : n + 1], alone, atol=1e-7)
    np.testing.assert_allclose(u[n + 1 :], alone, atol=1e-7)  # Lap scales with the inverse square of size
    for part in (slice(1, n + 1), slice(n + 1, None)):
        assert abs(fem.areas[part] @ u[part]) < 1e-12
    assert fem.heat(np.ones(len(both)), 0.1, 2)[0] == 0


def test_faces_without_area_change_nothing() -> None:
    V, F = bumpy()
    extra = np.concatenate([V, V[:1]])  # a duplicate of vertex 0, used by flat faces only
    flat = [[0, 0, 1], [5, 5, 5], [len(V), 0, F[0, 1]]]
    plain, more = SurfaceFEM(V, F), SurfaceFEM(extra, np.concatenate([F, flat]))
    assert abs(plain.stiffness - more.stiffness[:-1, :-1]).max() == 0
    np.testing.assert_allclose(more.poisson(extra[:, 0])[:-1], plain.poisson(V[:, 0]), atol=1e-7)


def three_sheets(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three unit squares that share the edge x = z = 0."""
    V, F = grid(n)
    sheets = [np.stack([V[:, 0] * np.cos(t), V[:, 1], V[:, 0] * np.sin(t)], 1) for t in (0.0, 2.1, 4.0)]
    points, index = np.unique(np.round(np.concatenate(sheets), 12), axis=0, return_inverse=True)
    return points, index.reshape(-1)[np.concatenate([F + k * len(V) for k in range(3)])]


def test_second_order_where_three_sheets_meet() -> None:
    # u = a_k sin(pi s / 2) on sheet k, s the distance from the edge: with a_1 + a_2 + a_3 = 0 what flows into
    # the edge from one sheet flows out into the others.
    error = []
    for n in (12, 24, 48):
        V, F = three_sheets(n)
        edges = np.sort(F[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), 1)
        assert np.unique(edges, axis=0, return_counts=True)[1].max() == 3
        angle = np.arctan2(V[:, 2], V[:, 0]) % (2 * np.pi)
        amplitude = np.choose(np.round(angle / 2.05).astype(int) % 3, [3.0, -1.0, -2.0])
        u = amplitude * np.sin(np.pi / 2 * np.hypot(V[:, 0], V[:, 2]))
        fem = SurfaceFEM(V, F)
        assert fem.component.max() == 0
        error.append(errors(fem.poisson(-(np.pi**2) / 4 * u), u, remove_mean=True).nrmse)
    assert np.log2(np.divide(error[:-1], error[1:])) == pytest.approx(2.0, abs=0.1)


def test_heat_decays_at_the_rate_of_the_discrete_eigenvalue() -> None:
    V, F = ico(4)
    u0 = V[:, 0] * V[:, 1]
    u = SurfaceFEM(V, F, tolerance=1e-12).heat(u0, 0.1, 20)
    amplitude = (u @ u0) / (u0 @ u0)
    assert amplitude == pytest.approx(np.exp(-0.6), rel=2e-3)


def test_heat_is_second_order_in_time_and_conserves_the_integral() -> None:
    V, F = bumpy()
    fem = SurfaceFEM(V, F, solver="splu")
    u0 = np.exp(-4 * ((V - [1, 0, 0]) ** 2).sum(1))
    fine = fem.heat(u0, 0.2, 160)
    error = [abs(fem.heat(u0, 0.2, steps) - fine).max() for steps in (5, 10, 20)]
    assert np.log2(np.divide(error[:-1], error[1:])) == pytest.approx(2.0, abs=0.25)
    assert fem.areas @ fine == pytest.approx(fem.areas @ u0, rel=1e-11)


def test_heat_damps_rough_data_in_one_large_step() -> None:
    V, F = bumpy()
    fem = SurfaceFEM(V, F, solver="splu")
    rough = np.random.default_rng(1).normal(size=len(V))
    u = fem.heat(rough, 1000.0, 1)
    assert abs(u - fem.mean(rough)).max() < 2e-2  # L-stable: the trapezoidal rule alone would leave 1


def test_refinement_keeps_vertices_and_area() -> None:
    V, F = bumpy()
    fine, faces = refine(V, F)
    assert len(faces) == 4 * len(F)
    np.testing.assert_array_equal(fine[: len(V)], V)
    assert mass_matrix(fine, faces).sum() == pytest.approx(mass_matrix(V, F).sum(), rel=1e-13)


def rhs(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(2 * x[:, 0]) * torch.cos(1.5 * x[:, 1]) + x[:, 2]


def test_reference_settles_and_extrapolation_helps() -> None:
    V, F = ico(2)
    fine = reference_poisson(V, F, rhs, tolerance=0, max_vertices=50_000)
    assert not fine.converged
    assert (fine.levels, fine.vertices) == (4, 40962)
    assert 3 < fine.ratio < 4.5
    plain, better = (
        reference_poisson(V, F, rhs, tolerance=4e-4, extrapolate=extrapolate) for extrapolate in (False, True)
    )
    assert better.converged
    assert better.change < 4e-4
    assert errors(plain.values, fine.values).nrmse < 2e-4
    # On the same mesh: what is extrapolated settles on a coarser one.
    better = reference_poisson(V, F, rhs, tolerance=0, max_vertices=plain.vertices + 1)
    assert better.levels == plain.levels
    assert better.change < 0.25 * plain.change
    assert errors(better.values, fine.values).nrmse < 0.25 * errors(plain.values, fine.values).nrmse


def test_reference_never_exceeds_its_size_limit() -> None:
    V, F = ico(2)
    reference = reference_poisson(V, F, rhs, tolerance=0, max_vertices=2 * len(V))
    assert (reference.levels, reference.vertices) == (0, len(V))
    assert reference.change == np.inf
    np.testing.assert_allclose(reference.values, SurfaceFEM(V, F).poisson(rhs(torch.from_numpy(V))), atol=1e-9)


@pytest.mark.parametrize(
    ("V", "F", "message"),
    [
        (np.zeros((3, 2)), [[0, 1, 2]], "V has shape"),
        (np.full((3, 3), np.nan), [[0, 1, 2]], "finite"),
        (np.eye(3), [[0, 1]], "F has shape"),
        (np.eye(3), [[0.0, 1.0, 2.0]], "integers"),
        (np.eye(3), [[0, 1, 3]], "refers to vertices"),
        (np.eye(3), np.zeros((0, 3), int), "m > 0"),
    ],
)
def test_bad_meshes_are_named(V: np.ndarray, F: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SurfaceFEM(V, F)


def test_bad_fields_and_solvers_are_named() -> None:
    V, F = ico(1)
    with pytest.raises(InputError, match="42 vertices"):
        SurfaceFEM(V, F).poisson(np.zeros(5))
    with pytest.raises(InputError, match="steps"):
        SurfaceFEM(V, F).heat(np.zeros(len(V)), 0.1, 0)
    with pytest.raises(InputError, match="expected auto"):
        SurfaceFEM(V, F, solver="magic")


def test_held_values_give_linear_functions_exactly_and_others_to_second_order():
    def solved(n, f, exact):
        x = np.linspace(0, 1, n + 1)
        V = np.stack([*np.meshgrid(x, x, indexing="ij"), np.zeros((n + 1, n + 1))], -1).reshape(-1, 3)
        i, j = (k.reshape(-1) for k in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
        a = i * (n + 1) + j
        F = np.concatenate([np.stack([a, a + n + 1, a + 1], 1), np.stack([a + 1, a + n + 1, a + n + 2], 1)])
        rim = ((V[:, :2] == 0) | (V[:, :2] == 1)).any(1)
        u = SurfaceFEM(V, F).dirichlet(f(V), rim, np.where(rim, exact(V), 7.0))
        return np.abs(u - exact(V)).max()

    assert solved(8, lambda p: 0 * p[:, 0], lambda p: 3 * p[:, 0] - p[:, 1] + 2) < 1e-10
    wave = [
        solved(n, lambda p: -2 * np.sin(p[:, 0]) * np.sin(p[:, 1]), lambda p: np.sin(p[:, 0]) * np.sin(p[:, 1]))
        for n in (8, 16)
    ]
    assert 3.5 < wave[0] / wave[1] < 4.5


def test_values_held_nowhere_are_refused():
    fem = SurfaceFEM(np.eye(3), [[0, 1, 2]])
    with pytest.raises(InputError, match="held must be true at some of the 3 vertices"):
        fem.dirichlet(np.zeros(3), np.zeros(3, dtype=bool), np.zeros(3))


def disc(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The unit disc: a square of 2n x 2n cells, its shells pushed out to circles."""
    V, F = grid(2 * n)
    p = 2 * V[:, :2] - 1
    square, radius = np.abs(p).max(1, keepdims=True), np.linalg.norm(p, axis=1, keepdims=True)
    p = p * square / np.where(radius > 0, radius, 1)
    return np.column_stack([p, np.zeros(len(p))]), F


@pytest.mark.parametrize("held", [False, True], ids=["free", "half of the rim held"])
def test_flux_through_the_rim_is_second_order(held: bool) -> None:
    found = []
    for n in (8, 16, 32):
        V, F = disc(n)
        x, y = V[:, 0], V[:, 1]
        u, flux, fem = 2 * x**2 + x * y + x, 4 * x**2 + 2 * x * y + x, SurfaceFEM(V, F)
        assert fem.rim.sum() == 8 * n
        f = np.full(len(V), 4.0)
        if held:
            at = fem.dirichlet(f, fem.rim & (x <= 1e-9), u, flux=flux)
            found.append(errors(at, u).nrmse)
        else:
            found.append(errors(fem.poisson(f, flux=flux), u, remove_mean=True).nrmse)
    orders = np.log2(np.array(found[:-1]) / found[1:])
    assert found[-1] < 1e-3
    assert orders.min() > 1.7


def test_robust_matrices_agree_on_good_meshes_and_keep_their_sign_on_bad_ones() -> None:
    V, F = ico(3)
    plain, robust = SurfaceFEM(V, F, lumped=True), SurfaceFEM(V, F, robust=True)
    exact, f = on_sphere(V)
    a, b = plain.poisson(f), robust.poisson(f)
    assert errors(b, exact, remove_mean=True).nrmse < 1.1 * errors(a, exact, remove_mean=True).nrmse
    V, F = bumpy()
    off = SurfaceFEM(V, F, robust=True).stiffness.tocoo()
    assert off.data[off.row != off.col].max() < 1e-8 < SurfaceFEM(V, F).stiffness.max()
    plain_off = SurfaceFEM(V, F).stiffness.tocoo()
    assert plain_off.data[plain_off.row != plain_off.col].max() > 0.05


def test_robust_matrices_take_unused_vertices_and_edges_of_three_triangles() -> None:
    V = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [5, 5, 5.0]])
    F = np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4]])
    fem = SurfaceFEM(V, F, robust=True)
    assert fem.areas.sum() == pytest.approx(1.5)
    assert fem.areas[5] == 0
    u = fem.poisson(np.array([0, 1.0, -1, 0, 0, 0]))
    assert np.isfinite(u).all()
    assert u[5] == 0
    assert np.ptp(u) > 0


def test_held_heat_settles_at_the_held_solution() -> None:
    V, F = grid(16)
    fem = SurfaceFEM(V, F)
    value = V[:, 0] ** 2 - V[:, 1] ** 2
    steady = fem.dirichlet(np.zeros(len(V)), fem.rim, value)
    start = np.sin(9 * V[:, 0])
    assert np.abs(fem.heat(start, 5.0, 60, held=fem.rim, values=value) - steady).max() < 1e-8
    # sin(pi x) sin(pi y) decays with 2 pi^2 when the rim is held at zero.
    mode = np.sin(np.pi * V[:, 0]) * np.sin(np.pi * V[:, 1])
    after = fem.heat(mode, 0.05, 20, held=fem.rim)
    assert after @ mode / (mode @ mode) == pytest.approx(np.exp(-(2 * np.pi**2) * 0.05), rel=0.01)
