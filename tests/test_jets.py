"""Neighbours, estimated normals and jets: exactness, convergence rates, behaviour on bad data."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.fits.jets import Jets, Neighbourhoods, fit_and_predict, fit_jets
from lamina.fits.normals import orient_normals, pca_normals, signs_disagree
from lamina.fits.polynomials import (
    coefficient_count,
    derivatives_by_monomials,
    height_derivatives,
    height_slopes,
    slopes_by_monomials,
)
from lamina.fits.project import project
from lamina.geometry.frames import tangent_frames
from lamina.search.neighbours import PieceTrees, connected_pieces, k_nearest, voronoi_areas
from lamina.surfaces.analytic import Sphere, Torus


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def along(a, b):
    return (a * b).sum(-1)


def length(v):
    return v.norm(dim=-1)


# Neighbours


@given(st.integers(1, 12), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_nearest_neighbours_are_those_of_the_distance_matrix(k, seed):
    points, queries = random(60, 3, seed=seed), random(15, 3, seed=seed + 1)
    index, distance = k_nearest(points, k, queries)
    expected, _ = torch.cdist(queries, points).sort(1)
    torch.testing.assert_close(distance, expected[:, :k])
    torch.testing.assert_close(length(points[index] - queries[:, None]), distance)


def test_neighbours_within_pieces_stay_there_and_small_pieces_repeat_their_farthest():
    points = random(30, 3)
    component = (torch.arange(30) < 3).long()
    index, distance = PieceTrees(points, component).query(points, component, 5)
    assert bool((component[index] == component[:, None]).all())
    assert bool((index[:3, 2:] == index[:3, 2:3]).all())
    assert bool((distance.diff(dim=1) >= 0).all())


def test_pieces_are_objects_and_sheets_back_to_back():
    ball = Sphere().sample(800, 1)
    points = torch.cat([ball.points, 0.5 * ball.points[:300] + torch.tensor([3.0, 0, 0], dtype=torch.float64)])
    pieces = connected_pieces(points)
    assert pieces.max() == 1
    assert bool((pieces[:800] == 0).all())
    assert bool((pieces[800:] == 1).all())

    sheet = torch.rand(900, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sheet[:, 2] = 0
    up = torch.tensor([0.0, 0, 1], dtype=torch.float64).expand(900, 3)
    both = torch.cat([sheet, sheet + 0.001 * up + 0.003]), torch.cat([up, -up])
    assert connected_pieces(both[0]).max() == 0, "nothing but normals can tell such sheets apart"
    assert torch.equal(connected_pieces(*both), (torch.arange(1800) >= 900).long())


def test_voronoi_areas_add_up_to_the_area():
    area = 4 * math.pi
    ball = Sphere().sample(5000, 3)
    assert abs(float(voronoi_areas(ball.points, ball.normals).sum()) / area - 1) < 0.01
    regular = Sphere(level=4)
    cells = voronoi_areas(regular.points, regular.normals)
    assert abs(float(cells.sum()) / area - 1) < 2e-3
    assert float(cells.max() / cells.min()) < 1.5

    noisy = ball.points + 0.01 * random(5000, 3)
    assert abs(float(voronoi_areas(noisy, ball.normals).sum()) / area - 1) < 0.03


def test_frames_are_right_handed_and_orthonormal_also_at_the_poles():
    normals = torch.cat([random(50, 3), torch.eye(3).double(), -torch.eye(3).double()])
    normals = normals / normals.norm(dim=1, keepdim=True)
    frames = tangent_frames(normals)
    eye = torch.eye(3, dtype=torch.float64).expand(len(normals), 3, 3)
    torch.testing.assert_close(frames @ frames.transpose(1, 2), eye)
    torch.testing.assert_close(torch.linalg.det(frames), torch.ones(len(normals), dtype=torch.float64))


# Normals


@pytest.mark.parametrize("surface", [Sphere(), Torus()], ids=["sphere", "torus"])
def test_estimated_normals_are_accurate_and_point_outwards(surface):
    samples = surface.sample(4000, 1)
    normals = orient_normals(samples.points, pca_normals(samples.points))
    cosine = along(normals, samples.normals)
    assert float(cosine.min()) > 0.97, "outwards everywhere, within 14 degrees"
    assert float(cosine.mean()) > 0.999


@given(st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_orientation_undoes_any_flips(seed):
    samples = Torus().sample(1500, 2)
    flips = torch.where(random(1500, 1, seed=seed) < 0, -1.0, 1.0).double()
    assert torch.equal(orient_normals(samples.points, flips * samples.normals), samples.normals)
    assert signs_disagree(samples.points, flips * samples.normals)
    assert not signs_disagree(samples.points, samples.normals)


def test_every_object_is_oriented_outwards_by_itself():
    ball = Sphere().sample(700, 4)
    shift = torch.tensor([5.0, 0, 0], dtype=torch.float64)
    points, outwards = torch.cat([ball.points, ball.points + shift]), torch.cat([ball.normals, ball.normals])
    flipped = torch.cat([-ball.normals, ball.normals])
    assert torch.equal(orient_normals(points, flipped), outwards)


def test_normals_of_noisy_points_come_from_wider_neighbourhoods():
    ball = Sphere().sample(6000, 5)
    points = ball.points + 0.01 * random(6000, 3)
    automatic, fixed = ((1 - along(pca_normals(points, k), ball.normals).abs()).mean().sqrt() for k in (None, 24))
    assert automatic < 0.6 * fixed


# Jets


def polynomial_patch(degree, seed=0):
    """Samples of the graph of a random polynomial, with normals, the first at the origin of its domain."""
    generator = torch.Generator().manual_seed(seed)
    ab = 2 * torch.rand(120, 2, generator=generator, dtype=torch.float64) - 1
    ab[0] = 0
    ab.requires_grad_(True)
    height = torch.zeros(120, dtype=torch.float64)
    for i in range(degree + 1):
        for j in range(degree + 1 - i):
            c = 0.4 ** (i + j) * 0.3 * torch.randn(1, generator=generator, dtype=torch.float64)
            height = height + c * ab[:, 0] ** i * ab[:, 1] ** j
    slope = torch.autograd.grad(height.sum(), ab)[0]
    normals = torch.cat([-slope, torch.ones(120, 1, dtype=torch.float64)], 1)
    points = torch.cat([ab.detach(), height.detach()[:, None]], 1)
    return points, normals / normals.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("slopes", [True, False])
@pytest.mark.parametrize("degree", [1, 2, 4, 6])
def test_a_polynomial_graph_is_reproduced(degree, slopes):
    points, normals = polynomial_patch(degree)
    upright = torch.tensor([[0.0, 0, 1]], dtype=torch.float64)
    index = length(points - points[0]).argsort()[None]
    jets = fit_jets(points, normals, index, degree, directions=upright, slopes=slopes)
    assert float(jets.residual) < 1e-12
    # Points lifted off the graph along its normals come back, with the normals.
    near = length(points[:, :2]) < 0.3
    x = points[near] + 0.02 * normals[near]
    jets = Jets(**{**vars(jets), "reach": torch.ones(1, dtype=torch.float64)})
    foot, normal = project(jets, x, torch.zeros(len(x), dtype=torch.int64))
    torch.testing.assert_close(foot, points[near], rtol=0, atol=1e-11)
    torch.testing.assert_close(normal, normals[near], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("degree", "k", "slopes"), [(2, 12, True), (4, 16, True), (2, 16, False), (4, 32, False)])
def test_closest_points_converge_with_the_degree(degree, k, slopes):
    """With spacing h: O(h^(q+1)) on the surface, O(h^q) for normals and so for feet of points off it."""
    surface, distance = Torus(), 0.05
    probe = surface.sample(2000, 99)
    on, off, turn = [], [], []
    for count in (3000, 12000):
        samples = surface.sample(count, 1)
        jets = fit_jets(samples.points, samples.normals, k_nearest(samples.points, k)[0], degree, slopes=slopes)
        index = k_nearest(samples.points, 1, probe.points)[0][:, 0]
        foot, normal = project(jets, probe.points, index)
        on.append(length(foot - probe.points).median())
        turn.append(length(normal - probe.normals).median())
        x = probe.points + distance * probe.normals
        off.append(length(project(jets, x, index)[0] - probe.points).median())
    rate_on, rate_off, rate_turn = (float((e[0] / e[1]).log2()) for e in (on, off, turn))
    assert rate_on > degree + 1 - 0.3
    assert rate_off > degree - 0.2
    assert rate_turn > degree - 0.2


def test_feet_are_stationary_and_no_point_of_the_jet_is_closer():
    samples = Torus().sample(1500, 3)
    jets = fit_jets(samples.points, samples.normals, k_nearest(samples.points, 16)[0], 4)
    index = torch.arange(400)
    x = samples.points[:400] + 0.15 * random(400, 3)
    foot, normal = project(jets, x, index)
    local = torch.einsum("nij,nj->ni", jets.frames[:400], foot - jets.centres[:400]) / jets.scale[:400, None]
    inside = length(local[:, :2]) < 0.999 * jets.reach[:400]
    assert 50 < int(inside.sum()) < 400, "both feet inside the disc and on its rim are tested"
    sideways = (x - foot) - along(x - foot, normal)[:, None] * normal
    assert float(length(sideways[inside]).max()) < 1e-9
    # Moving over the surface, by projecting points shifted along it, comes no closer.
    for seed in range(5):
        other, _ = project(jets, foot + 0.3 * jets.scale[:400, None] * random(400, 3, seed=seed), index)
        assert bool((length(x - foot) <= length(x - other) * (1 + 1e-3))[inside].all())


def fit_without(points, normals, index, degree, slopes=True):
    """Jets around the first neighbours of rows index (m, k), fitted to the others alone."""
    centres, directions = points[index[:, 0]], normals[index[:, 0]]
    return fit_jets(points, normals, index[:, 1:], degree, centres=centres, directions=directions, slopes=slopes)


def test_leaving_a_sample_out_predicts_it_from_the_others_alone():
    samples = Sphere().sample(500, 4)
    index, _ = k_nearest(samples.points, 16)
    moved = samples.points.clone()
    moved[7] = 1.01 * moved[7]
    jets = fit_without(moved, samples.normals, index[7:8], 4)
    assert abs(float(jets.height) + 0.01) < 1e-4
    assert abs(float(fit_jets(moved, samples.normals, index[7:8], 4).height)) < 0.01


def test_the_residual_measures_noise():
    ball = Sphere().sample(4000, 6)
    index, _ = k_nearest(ball.points, 100)
    for sigma in (0.002, 0.01):
        noisy = ball.points + sigma * random(4000, 3)
        residual = fit_jets(noisy, ball.normals, index[:500], 2, slopes=False).residual
        assert 0.9 < float(residual.square().mean().sqrt()) / sigma < 1.1


def test_another_sheet_has_no_say():
    flat = torch.rand(400, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    flat[:, 2] = 0
    up = torch.tensor([0.0, 0, 1], dtype=torch.float64).expand(400, 3)
    points, normals = torch.cat([flat, flat + 0.01]), torch.cat([up, -up])
    jets = fit_jets(points, normals, k_nearest(points, 24)[0][:400], 4)
    assert float(jets.coefficients.abs().max()) < 1e-12


@pytest.mark.parametrize("slopes", [True, False])
def test_degenerate_neighbourhoods_fall_back_to_lower_degrees(slopes):
    line = torch.zeros(30, 3, dtype=torch.float64)
    line[:, 0] = torch.linspace(0, 1, 30)
    normals = torch.tensor([0.0, 0, 1], dtype=torch.float64).expand(30, 3)
    few = torch.tensor([[0, 1, 2]])
    for index in (k_nearest(line, 20)[0], few, torch.zeros(1, 20, dtype=torch.int64)):
        jets = fit_jets(line, normals, index, 6, slopes=slopes)
        x = line[index[:, 0]] + 0.1
        foot, normal = project(jets, x, torch.arange(len(index)))
        assert bool(torch.isfinite(foot).all())
        assert bool(torch.isfinite(normal).all())
        assert float(foot[:, 2].abs().max()) < 1e-9


def test_single_precision_is_as_accurate_as_it_can_be():
    ball = Sphere().sample(2000, 8)
    points, normals = ball.points.float(), ball.normals.float()
    jets = fit_jets(points, normals, k_nearest(points, 16)[0], 4)
    assert jets.coefficients.dtype == torch.float32
    foot, normal = project(jets, 1.1 * points, torch.arange(2000))
    assert float(length(foot - ball.points).max()) < 2e-6
    assert float(length(normal - ball.normals).max()) < 1e-5


@pytest.mark.gpu
@pytest.mark.gpu
def test_gpu_and_cpu_agree():
    samples = Torus().sample(3000, 9)
    x = samples.points + 0.05 * random(3000, 3)
    feet = []
    for device in ("cpu", "cuda"):
        points, normals = samples.points.to(device), samples.normals.to(device)
        index, _ = k_nearest(points, 16)
        nearest = k_nearest(points, 1, x.to(device))[0][:, 0]
        feet.append(project(fit_jets(points, normals, index, 4), x.to(device), nearest)[0].cpu())
    torch.testing.assert_close(feet[0], feet[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("degree", [1, 2, 4, 6])
def test_polynomials_by_monomials_are_those_by_horners_rule(degree):
    generator = torch.Generator().manual_seed(degree)
    c, ab = (torch.randn(n, 50, generator=generator, dtype=torch.float64) for n in (coefficient_count(degree), 2))
    a, b = ab.unbind(0)
    expected = height_derivatives(c, a, b, degree)
    for found in (derivatives_by_monomials(c, degree)(a, b), torch.stack(slopes_by_monomials(c, a, b, degree))):
        torch.testing.assert_close(found, expected[: len(found)], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(torch.stack(height_slopes(c, a, b, degree)), expected[:3])


@pytest.mark.parametrize(("degree", "k", "slopes"), [(2, 12, True), (4, 40, False), (6, 24, True)])
def test_fits_with_and_without_their_samples_are_those_made_apart(degree, k, slopes):
    samples = Torus().sample(1500, 0)
    index, _ = k_nearest(samples.points, k)
    jets, height = fit_and_predict(samples.points, samples.normals, index, degree, slopes=slopes)
    apart = fit_jets(samples.points, samples.normals, index, degree, slopes=slopes)
    without = fit_without(samples.points, samples.normals, index, degree, slopes=slopes)
    torch.testing.assert_close(jets.coefficients, apart.coefficients, rtol=0, atol=1e-9)
    torch.testing.assert_close(jets.residual, apart.residual, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(height, without.height, rtol=0, atol=1e-9)
    seen = Neighbourhoods.of(samples.points, samples.normals, k_nearest(samples.points, k + 9)[0])
    predicted, scale = seen.predict(k, degree, slopes)
    torch.testing.assert_close(predicted, without.height, rtol=0, atol=1e-9)
    torch.testing.assert_close(scale, without.scale)


def test_a_sample_with_no_neighbour_that_counts_predicts_nothing():
    points = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    normals = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [0.0, 0.0, -1.0]], dtype=torch.float64)
    _, height = fit_and_predict(points, normals, torch.tensor([[0, 1, 2]]), 2)
    assert bool(torch.isinf(height).all())
