"""Patches of a band: what they hold, that they cover it, and what a network sees in their frames."""

import math
import re
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamina
from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures
from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band
from lamina.learn.fit_data import random_rotations
from lamina.paper.attention import Samples, band_near_samples, cover_band
from lamina.paper.patches import (
    LocalPatches,
    coverage_radius,
    coverage_warning,
    localise,
    safe_radius,
    samples_in_boxes,
)
from lamina.surfaces.icosphere import icosphere

SPACING, RADIUS, K, MARGIN = 0.2, 0.4, 60, 0.5
# Off the symmetry planes of the shapes, so that no two nodes are equally far from a sample.
ORIGIN = torch.tensor([0.0131, -0.0217, 0.0073], dtype=torch.float64)


def two_spheres(apart=2.15):
    """Their bands overlap: the gap is 0.15 and the radius of the bands 0.4."""
    V, F = icosphere(4)
    shift = torch.tensor([apart, 0.0, 0.0], dtype=torch.float64)
    return lamina.Mesh(torch.cat([V, V + shift]), torch.cat([F, F + len(V)]))


@cache
def example(name):
    surface = {
        "ellipsoid": lambda: lamina.Ellipsoid(level=4),
        "torus": lamina.Torus,
        "two spheres": two_spheres,
    }[name]()
    band = Band.build(surface, Lattice(ORIGIN, SPACING), RADIUS)
    band, samples = band_near_samples(surface, band, RADIUS)
    assert samples.features is surface.features()
    return surface, band


def covered(surface, band, k=K, spacing=0.27, radius=RADIUS):
    return cover_band(band, radius, Samples(surface.features(), surface.component), k, spacing, MARGIN)


@cache
def example_patches(name):
    return covered(*example(name))


every_example = pytest.mark.parametrize("name", ["ellipsoid", "torus", "two spheres"])


# What patches hold


@every_example
def test_every_band_node_is_in_a_patch(name):
    _, band = example(name)
    assert torch.equal(torch.unique(example_patches(name).nodes), torch.arange(len(band)))


@every_example
def test_nodes_are_the_k_nearest_of_the_component_nearest_first(name):
    surface, band = example(name)
    patches = example_patches(name)
    positions = band.lattice.position(band.ijk)
    distance = torch.cdist(surface.points[patches.centres], positions)
    distance[surface.component[patches.centres][:, None] != band.component] = torch.inf
    expected = distance.sort(1).values[:, :K]
    torch.testing.assert_close(distance.gather(1, patches.nodes), expected)
    torch.testing.assert_close(patches.distances, expected)
    assert all(len(set(row)) == K for row in patches.nodes.tolist())


@every_example
def test_samples_are_those_of_the_component_in_the_dilated_box(name):
    surface, band = example(name)
    patches = example_patches(name)
    positions = band.lattice.position(band.ijk)
    for i in range(0, len(patches), 7):
        box = positions[patches.nodes[i]]
        low, high = box.amin(0), box.amax(0)
        low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
        inside = ((surface.points >= low) & (surface.points <= high)).all(1)
        inside &= surface.component == surface.component[patches.centres[i]]
        found = patches.samples[patches.patch == i]
        assert torch.equal(found.sort().values, inside.nonzero()[:, 0])
        assert int(patches.centres[i]) in found.tolist()
    assert (patches.patch.diff() >= 0).all()


def test_taking_some_patches_keeps_their_samples():
    patches = example_patches("ellipsoid")
    some = patches.take(3, 8)
    assert len(some) == 5
    assert torch.equal(some.nodes, patches.nodes[3:8])
    assert torch.equal(some.centres, patches.centres[3:8])
    for i in range(5):
        assert torch.equal(some.samples[some.patch == i], patches.samples[patches.patch == i + 3])


def test_patches_of_touching_components_do_not_mix():
    surface, band = example("two spheres")
    patches = example_patches("two spheres")
    mine = surface.component[patches.centres]
    assert torch.equal(torch.unique(mine), torch.tensor([0, 1]))
    assert (band.component[patches.nodes] == mine[:, None]).all()
    assert (surface.component[patches.samples] == mine[patches.patch]).all()
    # There was something to mix: boxes that hold samples of both.
    positions = band.lattice.position(band.ijk)
    box = positions[patches.nodes]
    found, patch = samples_in_boxes(surface.points, box.amin(1), box.amax(1))
    assert (surface.component[found] != mine[patch]).any()


def test_a_component_smaller_than_a_patch_repeats_its_farthest_node():
    V, F = icosphere(3)
    shift = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)
    surface = lamina.Mesh(torch.cat([V, 0.15 * V + shift]), torch.cat([F, F + len(V)]))
    band = Band.build(surface, Lattice(ORIGIN, SPACING), 0.2)
    patches = covered(surface, band, radius=0.2)
    small = surface.component[patches.centres] == 1
    count = int((band.component == 1).sum())
    assert 8 < count < K
    rows = patches.nodes[small]
    assert len(rows)
    for row, centre in zip(rows, patches.centres[small], strict=True):
        members = (band.component == 1).nonzero()[:, 0]
        away = (band.lattice.position(band.ijk[members]) - surface.points[centre]).norm(dim=1)
        assert torch.equal(row[:count], members[away.argsort()])
        assert (row[count:] == row[count - 1]).all()


# Where patches are


def test_placement_is_deterministic():
    one, other = covered(*example("torus")), covered(*example("torus"))
    assert one is not other
    for name in ("centres", "nodes", "samples", "patch", "distances"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_closer_spacing_places_more_patches():
    surface, band = example("ellipsoid")
    counts = [len(covered(surface, band, spacing=s)) for s in (0.45, 0.27, 0.1)]
    assert counts[0] < counts[1] < counts[2]
    assert counts[0] < len(band) / 4  # and far fewer than one for each node


@pytest.mark.parametrize("name", ["ellipsoid", "two spheres"])
def test_as_many_patches_as_asked_for_are_spread_evenly(name):
    surface, band = example(name)
    samples = Samples(surface.features(), surface.component)
    few, many, same = (cover_band(band, RADIUS, samples, K, 0.27, MARGIN, n) for n in (0, 2000, 1))
    assert torch.equal(same.centres, few.centres)
    assert torch.equal(many.centres.unique(), torch.cat([few.centres, many.centres]).unique())
    assert 2000 <= len(many) <= 2000 + surface.component_count
    # Farthest first: where the samples stay apart from the nearest centre, the distance has gone down.
    gap = [torch.cdist(surface.points, surface.points[p.centres]).amin(1).max() for p in (few, many)]
    assert gap[1] < 0.6 * gap[0]
    assert (surface.component[many.centres][:, None] == band.component[many.nodes]).all()


def test_nodes_just_beyond_the_nearest_k_take_the_last_place():
    """A band as wide as the coverage condition allows, where patches of the k nearest nodes alone leave gaps."""
    surface, k = lamina.Sphere(level=5), 25
    radius = coverage_radius(k, SPACING)
    band, samples = band_near_samples(surface, Band.build(surface, Lattice(ORIGIN, SPACING), radius), radius)
    patches = cover_band(band, radius, samples, k, 0.27, MARGIN)
    assert len(patches.nodes.unique()) == len(band)
    away = torch.cdist(samples.features.points[patches.centres], band.lattice.position(band.ijk))
    nearest = away.topk(k, largest=False)
    squeezed = patches.distances[:, -1] > nearest.values[:, -1] + 1e-9
    assert 0 < int(squeezed.sum()) < 0.1 * len(patches)
    assert (patches.distances[:, -1] <= 1.15 * nearest.values[:, -1] + 1e-9).all()
    torch.testing.assert_close(patches.distances[:, :-1], nearest.values[:, :-1])


def test_a_band_too_wide_for_k_is_refused_with_the_number_of_nodes_left_out():
    surface, band = example("ellipsoid")
    k = 8
    with pytest.raises(InputError, match="in no patch of 8 nodes") as caught:
        covered(surface, band, k=k)
    missing, total = map(int, re.findall(r"\d+", str(caught.value))[:2])
    # No sample at all has the others among its nearest, wherever patches are placed.
    distance = torch.cdist(surface.points, band.lattice.position(band.ijk))
    reachable = len(torch.unique(distance.topk(k, largest=False).indices))
    assert total == len(band)
    assert total - reachable <= missing < total
    assert reachable < total


def test_coverage_radius_is_that_of_a_ball_of_k_cells():
    assert 4 / 3 * math.pi * (coverage_radius(400, 0.05) / 0.05) ** 3 == pytest.approx(400)
    assert coverage_radius(400, 0.05) == pytest.approx(0.2285, abs=1e-4)  # the paper's 0.2 is covered


def advice(text):
    """Radius, spacing and k that the sentence recommends."""
    number = r"(\d[\d.e+-]*\d|\d)"
    reach, coarser = (float(re.search(f"{word} {number}", text).group(1)) for word in ("reach", "at least"))
    return reach, coarser, int(re.search(r"k = (\d+)", text).group(1))


@given(k=st.integers(10, 2000), spacing=st.floats(1e-3, 10), excess=st.floats(1.01, 6))
def test_coverage_warning_names_the_least_changes_that_satisfy_the_condition(k, spacing, excess):
    radius = excess * coverage_radius(k, spacing)
    text = coverage_warning(radius, spacing, k)
    assert text is not None
    assert f"radius {radius:.3g}" in text
    assert f"patches of {k} nodes at spacing {spacing:g}" in text
    reach, coarser, enough = advice(text)
    digits = 1 + 1.1e-2  # the sentence has three
    assert coverage_warning(reach / digits, spacing, k) is None
    assert coverage_warning(reach * digits, spacing, k) is not None
    assert coverage_warning(radius, coarser * digits, k) is None
    assert coverage_warning(radius, coarser / digits, k) is not None
    assert coverage_warning(radius, spacing, enough) is None
    assert coverage_warning(radius, spacing, enough - 2) is not None


@pytest.mark.parametrize("k", [60, 100, 150, 250])
def test_what_the_coverage_warning_advises_can_be_taken_literally(k):
    for radius in (0.25, 0.3, 0.35, 0.4):
        reach, coarser, enough = advice(coverage_warning(radius, 0.05, k))
        assert coverage_warning(reach, 0.05, k) is None
        assert coverage_warning(radius, coarser, k) is None
        assert coverage_warning(radius, 0.05, enough) is None


def test_no_warning_within_the_coverage_radius():
    assert coverage_warning(coverage_radius(400, 0.05), 0.05, 400) is None
    assert coverage_warning(0.2, 0.05, 400) is None


# Samples in boxes


def in_boxes(points, low, high):
    found, box = samples_in_boxes(*(torch.as_tensor(v) for v in (points, low, high)))
    assert (box.diff() >= 0).all()
    pairs = list(zip(box.tolist(), found.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def in_boxes_by_force(points, low, high):
    inside = ((points >= low[:, None]) & (points <= high[:, None])).all(2)
    return {(int(a), int(b)) for a, b in zip(*np.nonzero(inside), strict=True)}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), count=st.integers(1, 60), boxes=st.integers(1, 12), size=st.floats(0.05, 4),
    flat=st.booleans(), dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_samples_in_random_boxes(seed, count, boxes, size, flat, dtype):
    random = np.random.default_rng(seed)
    points = random.normal(size=(count, 3)).astype(dtype)
    points[:, 2] *= not flat
    low = random.normal(scale=1.5, size=(boxes, 3)).astype(dtype)
    high = low + random.uniform(0, size, size=(boxes, 3)).astype(dtype)
    assert in_boxes(points, low, high) == in_boxes_by_force(points, low, high)


@given(seed=st.integers(0, 2**32 - 1))
def test_samples_on_the_faces_of_boxes_are_inside(seed):
    """Small integers: every comparison is one of equals."""
    random = np.random.default_rng(seed)
    points = random.integers(-2, 3, size=(40, 3)).astype(float)
    low = random.integers(-3, 3, size=(8, 3)).astype(float)
    high = low + random.integers(1, 4, size=(8, 3))
    assert in_boxes(points, low, high) == in_boxes_by_force(points, low, high)


def test_boxes_between_and_outside_the_samples_hold_none():
    points = np.array([[0.0, 0, 0], [1, 1, 1], [0, 1, 0]])
    low = np.array([[0.2, 0.2, 0.2], [5, 5, 5], [-9, -9, -9], [0, 0, 3], [-0.5, -0.5, -0.5]])
    high = low + np.array([0.5, 1, 1, 1, 2])[:, None]
    assert in_boxes(points, low, high) == {(4, 0), (4, 1), (4, 2)}


# Local frames


def moved(surface, rotation, shift, size=1.0):
    """Features of the surface after x -> size R x + shift."""
    return SurfaceFeatures(
        size * surface.points @ rotation.T + shift, surface.frames @ rotation.T, surface.curvatures / size
    )


def assert_same_view(a: LocalPatches, b: LocalPatches):
    for name in ("nodes", "points", "normals", "curvatures"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("seed", "size"), [(0, 1.0), (1, 1.0), (2, 0.01), (3, 40.0)])
def test_a_network_sees_the_same_after_a_similarity(seed, size):
    """Scaling everything by s and giving the scale 1 / s leaves lengths, and curvatures, as they were."""
    surface, band = example("ellipsoid")
    patches, positions = example_patches("ellipsoid"), band.lattice.position(band.ijk)
    before = localise(patches, positions, surface.features(), 1.0)
    generator = torch.Generator().manual_seed(seed)
    R, shift = random_rotations(1, generator)[0], torch.randn(3, generator=generator, dtype=torch.float64)
    after = localise(patches, size * positions @ R.T + shift, moved(surface.features(), R, shift, size), 1 / size)
    assert_same_view(before, after)


def test_turning_the_surface_alone_changes_what_a_network_sees():
    surface, band = example("ellipsoid")
    patches, positions = example_patches("ellipsoid"), band.lattice.position(band.ijk)
    before = localise(patches, positions, surface.features(), 1.0)
    R = random_rotations(1, torch.Generator().manual_seed(5))[0]
    after = localise(patches, positions, moved(surface.features(), R, 0.0), 1.0)  # the nodes stay behind
    assert (before.nodes - after.nodes).abs().max() > 0.1


def test_local_coordinates_are_along_the_normal_and_the_principal_directions():
    surface, band = example("torus")
    patches, positions = example_patches("torus"), band.lattice.position(band.ijk)
    features, scale = surface.features(), 0.25
    local = localise(patches, positions, features, scale)
    for i in (0, 11):
        centre = int(patches.centres[i])
        n, t1, t2 = features.frames[centre]
        for j in (0, K - 1):
            offset = positions[patches.nodes[i, j]] - features.points[centre]
            expected = scale * torch.stack([offset @ n, offset @ t1, offset @ t2])
            torch.testing.assert_close(local.nodes[i, j], expected)
        rows = (patches.patch == i).nonzero()[:, 0]
        at = rows[patches.samples[rows] == centre]
        torch.testing.assert_close(local.points[at], torch.zeros(1, 3, dtype=torch.float64))
        torch.testing.assert_close(local.normals[at], torch.tensor([[1.0, 0, 0]], dtype=torch.float64))
        k1, k2 = features.curvatures[centre] / scale
        torch.testing.assert_close(local.curvatures[at], torch.stack([(k1 + k2) / 2, k1 * k2])[None])


def test_features_stand_side_by_side_in_the_order_named():
    surface, band = example("ellipsoid")
    local = localise(example_patches("ellipsoid"), band.lattice.position(band.ijk), surface.features(), 1.0)
    assert torch.equal(local.features(("normals", "curvatures")), torch.cat([local.normals, local.curvatures], 1))
    assert local.features(()).shape == (len(local.points), 0)


@pytest.mark.parametrize("k", [60, 150, 400])
def test_a_band_of_the_safe_radius_is_covered_wherever_the_lattice_lies(k):
    assert safe_radius(400) == 4.5
    for seed in range(6):
        shift = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        surface = lamina.Ellipsoid()
        band = Band.build(surface, Lattice(0.1 * shift, 0.1), 0.1 * safe_radius(k))
        band, samples = band_near_samples(surface, band, 0.1 * safe_radius(k))
        cover_band(band, 0.1 * safe_radius(k), samples, k, 0.27, 0.5)  # raises where it is not
