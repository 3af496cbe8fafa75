"""Noise on the vertices of meshes: how much there is, and the solution after it was smoothed away."""

import numpy as np
import pytest
import torch

import lamina
from lamina.errors import InputError
from lamina.metrics import errors
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.surfaces.denoise import estimate_noise
from lamina.surfaces.icosphere import icosphere


def torus(n=48, m=24):
    """A torus of radii 1 and 0.4, as 2 n m triangles."""
    i, j = (w.reshape(-1) for w in np.meshgrid(np.arange(n), np.arange(m), indexing="ij"))
    a, b = 2 * np.pi * i / n, 2 * np.pi * j / m
    V = np.stack([(1 + 0.4 * np.cos(b)) * np.cos(a), (1 + 0.4 * np.cos(b)) * np.sin(a), 0.4 * np.sin(b)], 1)
    p, q, r, s = i * m + j, (i + 1) % n * m + j, (i + 1) % n * m + (j + 1) % m, i * m + (j + 1) % m
    return V, np.concatenate([np.stack([p, q, r], 1), np.stack([p, r, s], 1)])


def sphere():
    V, F = icosphere(4)
    return V.numpy(), F.numpy()


def plate(n):
    """The square [0, 1]^2 as 2 n^2 triangles."""
    i, j = (w.reshape(-1) for w in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    a, b, c, d = i * (n + 1) + j, (i + 1) * (n + 1) + j, (i + 1) * (n + 1) + j + 1, i * (n + 1) + j + 1
    x, y = np.meshgrid(*[np.linspace(0, 1, n + 1)] * 2, indexing="ij")
    V = np.stack([x, y, 0 * x], -1).reshape(-1, 3)
    return V, np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])


def cube(n=12):
    """The surface of [0, 1]^3, vertices at its edges shared."""
    V, F = plate(n)
    parts = [np.roll(V + np.array([0, 0, z]), k, axis=1) for k in range(3) for z in (0.0, 1.0)]
    points, same = np.unique(np.round(np.concatenate(parts), 9), axis=0, return_inverse=True)
    faces = np.concatenate([F + k * len(V) for k in range(6)])
    return points, same.reshape(-1)[faces]


SHAPES = {"sphere": sphere, "torus": lambda: torus(72, 30), "cube": cube}


def median_edge(V, F):
    return float(np.median(np.linalg.norm(V[F] - V[np.roll(F, 1, axis=1)], axis=2)))


def noisy(V, F, share, seed=0):
    """V with noise of `share` of the median edge, and its standard deviation."""
    sigma = share * median_edge(V, F)
    return V + sigma * np.random.default_rng(seed).standard_normal(V.shape), sigma


def solution(V, F):
    return torch.from_numpy(SurfaceFEM(V, F).poisson(np.sin(2 * V[:, 0]) * V[:, 1] + V[:, 2]))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_clean_mesh_is_left_as_it_is(shape):
    mesh = lamina.Mesh(*SHAPES[shape]())
    before = mesh.points.clone()
    assert mesh.denoised() is mesh
    assert torch.equal(mesh.points, before)
    assert not any("oise" in note for note in mesh.notes)


@pytest.mark.parametrize("shape", ["sphere", "torus"])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5])
def test_noise_is_found_within_a_tenth(shape, share):
    V, F = SHAPES[shape]()
    X, sigma = noisy(V, F, share, seed=3)
    assert estimate_noise(X, F) == pytest.approx(sigma, rel=0.1)


@pytest.mark.parametrize(
    ("shape", "share", "gain"),
    [
        ("sphere", 0.1, 2),
        ("sphere", 0.3, 6),
        ("torus", 0.1, 2),
        ("torus", 0.3, 4),
        ("cube", 0.3, 2.5),
    ],
)
def test_error_of_the_solution_falls_severalfold(shape, share, gain):
    V, F = SHAPES[shape]()
    X, _ = noisy(V, F, share)
    mesh = lamina.Mesh(X, F).denoised()
    true = solution(V, F)
    before, after = (errors(solution(W, F), true, remove_mean=True).nrmse for W in (X, mesh.points.numpy()))
    assert after < before / gain
    assert mesh.faces is not None
    assert np.array_equal(mesh.faces.numpy(), F)
    assert any("Noise of" in note and "was found" in note for note in mesh.notes)


def test_noise_that_is_given_is_taken():
    V, F = torus()
    X, sigma = noisy(V, F, 0.2)
    mesh = lamina.Mesh(X, F)
    told = mesh.denoised(sigma)
    assert any(f"Noise of {sigma:.3g} on the vertices was given" in note for note in told.notes)
    assert np.abs(told.points.numpy() - V).mean() < 0.8 * np.abs(X - V).mean()
    assert mesh.denoised(0) is mesh


def test_result_turns_and_grows_with_the_mesh():
    V, F = torus(32, 16)
    X, _ = noisy(V, F, 0.2)
    turn = np.linalg.qr(np.random.default_rng(5).standard_normal((3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    shift = np.array([3.0, -2.0, 1.0])
    plain = lamina.Mesh(X, F).denoised().points.numpy()
    moved = lamina.Mesh(7 * X @ turn.T + shift, F).denoised().points.numpy()
    assert np.abs(moved - (7 * plain @ turn.T + shift)).max() < 1e-8


def test_rims_do_not_shrink_and_corners_stay_near():
    V, F = plate(24)
    X, sigma = noisy(V, F, 0.2)
    found = lamina.Mesh(X, F).denoised().points.numpy()
    for axis in (0, 1):
        for end in (0.0, 1.0):
            rim = V[:, axis] == end
            assert abs(found[rim, axis].mean() - X[rim, axis].mean()) < 0.2 * sigma
            assert np.abs(found[rim, axis] - end).mean() < np.abs(X[rim, axis] - end).mean()
    assert np.abs(found[:, 2]).mean() < 0.5 * np.abs(X[:, 2]).mean()


def test_strange_meshes_are_smoothed_too():
    """Three sheets at one edge, an unused vertex, a vertex twice at one place, and single precision."""
    V, F = plate(12)
    X = V + 0.02 * np.random.default_rng(2).standard_normal(V.shape)
    fin = np.stack([X[:, 0], 0 * X[:, 1], X[:, 1]], 1)
    # The fin stands on the row of vertices with y = 0 of the plate.
    index = np.where(V[:, 1] == 0, np.arange(len(V)), np.arange(len(V)) + len(V))
    points = np.concatenate([X, fin, [[5.0, 5.0, 5.0]], X[:1]])
    faces = np.concatenate([F, index[F], np.array([[len(points) - 1, F[0, 1], 2 * len(V) - 1]])])
    mesh = lamina.Mesh(points.astype(np.float32), faces)
    found = mesh.denoised(0.02)
    assert found.points.dtype == torch.float32
    assert torch.isfinite(found.points).all()
    assert torch.equal(found.points[-2], mesh.points[-2])
    assert torch.equal(found.points[-1], found.points[0])
    assert float((found.points - mesh.points).abs().max()) < 0.2


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf"), "much"])
def test_bad_noise_is_refused(noise):
    with pytest.raises(InputError, match="noise must be a finite number >= 0"):
        lamina.Mesh(*torus(8, 6)).denoised(noise)


def test_smallest_meshes_do_not_fail():
    V = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    tetrahedron = np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]])
    for faces in (tetrahedron, tetrahedron[:1], tetrahedron[:2]):
        lamina.Mesh(V, faces).denoised()
        assert torch.isfinite(lamina.Mesh(V, faces).denoised(0.1).points).all()
