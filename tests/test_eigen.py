"""Eigenmodes: the spectrum of the sphere, of a mesh as finite elements see it, and LOBPCG on small pencils."""

import math
from functools import cache

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image
from scipy.sparse.linalg import eigsh

import lamina
from lamina.geometry.cotangent import cotangent_stiffness, mass_matrix
from lamina.linear.lobpcg import lobpcg
from lamina.paper.baselines.reference import refine
from lamina.surfaces.icosphere import icosphere

# Degree d has the eigenvalue d (d + 1), 2 d + 1 times.
SPHERE = torch.tensor([d * (d + 1) for d in range(6) for _ in range(2 * d + 1)], dtype=torch.float64)


@cache
def sphere_domain(spacing: float) -> lamina.Domain:
    return lamina.Domain(lamina.Sphere(level=3), spacing, order=2)


@cache
def sphere_modes(spacing: float) -> lamina.Eigenmodes:
    return lamina.eigenmodes(sphere_domain(spacing), 36)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# LOBPCG


def pencil(n, seed, zeros=0):
    """Stiffness with eigenvalues spread over four decades (and some zeros), and a positive definite mass."""
    Q = torch.linalg.qr(random(n, n, seed=seed))[0]
    spectrum = torch.logspace(0, 4, n, dtype=torch.float64)
    spectrum[:zeros] = 0
    B = random(n, n, seed=seed + 1)
    return Q * spectrum @ Q.T, B @ B.T / n + torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize(("seed", "zeros", "wanted"), [(0, 0, 6), (1, 3, 8), (2, 1, 1), (3, 0, 20)])
def test_lowest_eigenpairs_of_a_random_pencil(seed, zeros, wanted):
    n = 150
    K, M = pencil(n, seed, zeros)
    shifted = torch.linalg.inv(K + M)
    found = lobpcg(
        lambda v: K @ v,
        lambda v: M @ v,
        random(n, wanted + 4, seed=9),
        wanted,
        precondition=lambda r: shifted @ r,
        scale=1.0,
        tolerance=1e-9,
    )
    expected, vectors = scipy.linalg.eigh(K.numpy(), M.numpy(), subset_by_index=[0, wanted - 1])
    np.testing.assert_allclose(found.values, expected, rtol=1e-9, atol=1e-9)
    X = found.vectors
    torch.testing.assert_close(X.T @ M @ X, torch.eye(wanted, dtype=torch.float64), rtol=0, atol=1e-10)
    # The spans agree: every found vector is reproduced by the expected ones, zeros being one space.
    V = torch.from_numpy(vectors)
    torch.testing.assert_close(V @ (V.T @ (M @ X)), X, rtol=0, atol=1e-6)
    residual = (K @ X - M @ X * found.values).norm(dim=0) / ((found.values + 1.0) * (M @ X).norm(dim=0))
    torch.testing.assert_close(found.residuals, residual, rtol=0.1, atol=1e-11)
    assert float(residual.max()) <= 1e-9


def test_a_poor_preconditioner_takes_longer_and_ends_at_the_same_values():
    K, M = pencil(80, 5)
    start = random(80, 8)
    good, poor = torch.linalg.inv(K + M), (1 / (K + M).diagonal())[:, None]
    exact, crude = (
        lobpcg(
            lambda v: K @ v, lambda v: M @ v, start, 4, precondition=p, scale=1.0, tolerance=1e-7, max_iterations=900
        )
        for p in (lambda r: good @ r, lambda r: poor * r)
    )
    assert crude.iterations > 2 * exact.iterations
    torch.testing.assert_close(crude.values, exact.values, rtol=1e-8, atol=0)


def test_running_out_of_iterations_is_told_by_the_residuals():
    K, M = pencil(80, 5)
    poor = (1 / K.diagonal())[:, None]
    found = lobpcg(
        lambda v: K @ v,
        lambda v: M @ v,
        random(80, 8),
        4,
        precondition=lambda r: poor * r,
        scale=1.0,
        tolerance=1e-12,
        max_iterations=3,
    )
    assert found.iterations == 3
    assert float(found.residuals.max()) > 1e-12


# The sphere


def test_the_first_36_eigenvalues_of_the_sphere_are_within_a_percent():
    modes = sphere_modes(0.07)
    assert len(modes) == 36
    assert abs(float(modes.eigenvalues[0])) <= 1e-9
    torch.testing.assert_close(modes.eigenvalues[1:], SPHERE[1:], rtol=3e-3, atol=0)
    assert modes.residual <= 1e-5
    assert modes.iterations <= 20


def test_multiplicities_are_those_of_the_harmonics():
    """Nothing in between the clusters, even on a coarse grid: no spurious modes."""
    for spacing in (0.14, 0.07):
        gaps = sphere_modes(spacing).eigenvalues.diff()
        jumps = (gaps > 1.0).nonzero()[:, 0] + 1
        assert jumps.tolist() == [1, 4, 9, 16, 25]
        inside = gaps[gaps <= 1.0]
        assert float(inside.max()) < 0.1


def test_eigenvalues_are_second_order():
    """The mean error of each cluster falls at least fourfold, from the degree 3 on, where it is not all cancelled."""
    for degree in (3, 4, 5):
        here = slice(degree**2, (degree + 1) ** 2)
        coarse, fine = (float((sphere_modes(h).eigenvalues - SPHERE)[here].mean().abs()) for h in (0.14, 0.07))
        assert math.log2(coarse / fine) >= 1.7


def test_no_spurious_modes_up_to_a_tenth_of_the_unknowns():
    """On a coarse grid the counting function must not run ahead of that of the sphere."""
    domain = sphere_domain(0.2)
    count = 81
    assert count < domain.unknowns / 10
    found = lamina.eigenmodes(domain, count).eigenvalues
    degree = torch.arange(9, dtype=torch.float64).repeat_interleave(2 * torch.arange(9) + 1)
    assert float((found / (degree * (degree + 1)))[1:].min()) > 0.93


def test_functions_are_orthonormal_over_the_surface():
    modes = sphere_modes(0.07)
    scheme = modes.domain.scheme
    gram = modes.unknowns @ (scheme.M @ modes.unknowns.T)
    torch.testing.assert_close(gram, torch.eye(36, dtype=torch.float64), rtol=0, atol=1e-9)
    # The mass of the scheme carries a correction; the integrals themselves agree to its order.
    fine = lamina.Sphere(level=5)
    values = modes(fine.points)[::5].numpy()
    gram = values @ mass_matrix(fine.points, fine.faces) @ values.T
    np.testing.assert_allclose(gram, np.eye(len(values)), rtol=0, atol=0.02)


def test_functions_are_the_harmonics():
    """Degree one spans x, y and z: each coordinate is reproduced by modes 1 to 3."""
    modes = sphere_modes(0.07)
    basis = modes.values[1:4].T
    points = modes.domain.points
    fitted = basis @ torch.linalg.lstsq(basis, points).solution
    assert float((fitted - points).abs().max()) < 5e-3


def test_eigenpairs_solve_the_discrete_problem():
    modes = sphere_modes(0.14)
    scheme = modes.domain.scheme
    K, M, X = scheme.K, scheme.M, modes.unknowns.T
    right = M @ X * modes.eigenvalues
    assert float(((K @ X - right).norm(dim=0) / (1 + right.norm(dim=0))).max()) <= 1e-5


# Meshes


def blob():
    V, F = icosphere(2)
    return V * torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64), F


def test_eigenvalues_of_a_mesh_agree_with_finite_elements_on_the_refined_mesh():
    V, F = blob()
    found = lamina.eigenmodes(lamina.Domain(lamina.Mesh(V, F), 0.06), 12).eigenvalues
    fem = []
    for _ in range(3):  # the polyhedron stays the same; linear elements converge to it like h^2 from above
        V, F = refine(V, F)
        fem.append(np.sort(eigsh(cotangent_stiffness(V, F), 12, mass_matrix(V, F), sigma=-1.0)[0]))
    limit = fem[2] + (fem[2] - fem[1]) / 3
    assert abs(float(found[0])) <= 1e-8
    np.testing.assert_allclose(found[1:], limit[1:], rtol=3e-3)


def test_two_components_have_two_zeros_and_then_the_spectra_of_both():
    V, F = icosphere(3)
    shift = torch.tensor([0.0, 0.0, 2.3], dtype=torch.float64)
    mesh = lamina.Mesh(torch.cat([V, 0.5 * V + shift]), torch.cat([F, F + len(V)]))
    modes = lamina.eigenmodes(lamina.Domain(mesh, 0.1), 13)
    found = modes.eigenvalues
    assert float(found[:2].abs().max()) <= 1e-9
    # 2 three times, 6 five times from the large one; 2/0.25 = 8 three times from the small one.
    torch.testing.assert_close(found[2:], torch.tensor([2.0] * 3 + [6.0] * 5 + [8.0] * 3).double(), rtol=0.02, atol=0)
    # The kernel is constant on either sphere; its two functions can tell them apart.
    kernel = modes.values[:2]
    assert float(kernel[:, : len(V)].std(1).max()) < 1e-6
    assert float(kernel[:, len(V) :].std(1).max()) < 1e-6
    assert abs(float(torch.linalg.det(kernel[:, [0, -1]]))) > 0.1


def test_an_open_square_has_the_cosines():
    """pi^2 (m^2 + n^2) on the unit square with free rims."""
    square = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.float64)
    mesh = lamina.Mesh(square, torch.tensor([[0, 1, 2], [0, 2, 3]]))
    found = lamina.eigenmodes(lamina.Domain(mesh, 0.04), 6).eigenvalues
    expected = math.pi**2 * torch.tensor([0.0, 1, 1, 2, 4, 4]).double()
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=1e-8)


def test_a_constant_diffusivity_multiplies_the_eigenvalues():
    domain = sphere_domain(0.14)
    modes = lamina.eigenmodes(domain, 9, diffusivity=2.5)
    torch.testing.assert_close(modes.eigenvalues, 2.5 * sphere_modes(0.14).eigenvalues[:9], rtol=1e-8, atol=1e-9)


def test_a_diffusivity_along_one_axis_stretches_the_square():
    square = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.float64)
    mesh = lamina.Mesh(square, torch.tensor([[0, 1, 2], [0, 2, 3]]))
    D = torch.diag(torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))
    found = lamina.eigenmodes(lamina.Domain(mesh, 0.04), 4, diffusivity=lambda x: D.expand(len(x), 3, 3)).eigenvalues
    expected = math.pi**2 * torch.tensor([0.0, 1, 4, 4]).double()
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=1e-8)


# Use


def test_modes_are_evaluated_saved_and_drawn_like_solutions(tmp_path):
    modes = sphere_modes(0.14)
    mode = modes.mode(5)
    assert isinstance(mode, lamina.Solution)
    torch.testing.assert_close(mode.values, modes.values[5])
    points = modes.domain.points[:40]
    torch.testing.assert_close(modes(points), modes.values[:, :40], rtol=0, atol=1e-10)
    torch.testing.assert_close(mode(points), modes.values[5, :40], rtol=0, atol=1e-10)
    with np.load(mode.save(tmp_path / "mode.npz")) as archive:
        np.testing.assert_array_equal(archive["values"].reshape(-1), mode.values.numpy())
    assert Image.open(mode.plot(tmp_path / "mode.png", size=(120, 120))).size == (120, 120)
    assert mode.report()["scheme"] == "trace"


def test_a_baseline_is_not_replaced_in_silence():
    domain = lamina.paper.BandDomain(lamina.Sphere(level=3), 0.15, scheme="coupled")
    with pytest.raises(lamina.InputError, match="eigenmodes needs functions on cut cells"):
        lamina.eigenmodes(domain, 4)


@pytest.mark.parametrize("k", [0, -3, 2.5, 10**6, "ten"])
def test_numbers_of_modes_that_make_no_sense_are_refused(k):
    most = sphere_domain(0.14).unknowns // 5
    with pytest.raises(lamina.InputError, match=f"k must be an integer from 1 to {most}, a fifth of the unknowns, got"):
        lamina.eigenmodes(sphere_domain(0.14), k)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.0, math.nan])
def test_bad_tolerances_are_refused(tolerance):
    with pytest.raises(lamina.InputError, match="tolerance must lie between 0 and 1"):
        lamina.eigenmodes(sphere_domain(0.14), 4, tolerance=tolerance)


def test_a_tolerance_out_of_reach_is_an_error_that_says_how_far_it_came():
    with pytest.raises(lamina.SolveError, match=r"relative residual of .* after \d+ iterations \(asked: 1e-17\)"):
        lamina.eigenmodes(sphere_domain(0.2), 2, tolerance=1e-17)


def test_single_precision_agrees_to_its_digits():
    domain = lamina.Domain(lamina.Sphere(level=3), 0.14, order=2, dtype=torch.float32)
    modes = lamina.eigenmodes(domain, 9, tolerance=1e-3)
    assert modes.eigenvalues.dtype == modes.unknowns.dtype == torch.float32
    expected = sphere_modes(0.14).eigenvalues[1:9]
    torch.testing.assert_close(modes.eigenvalues[1:].double(), expected, rtol=1e-4, atol=0)
    assert abs(float(modes.eigenvalues[0])) < 1e-4
