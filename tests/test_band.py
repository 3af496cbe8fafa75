"""The band holds the nodes near the surface, no others, each once for every component, and finds them again."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band, band_radius
from lamina.paper.interpolation import Lines, cubic_stencil, interpolation_matrix
from lamina.paper.laplacian import laplacian_matrix
from lamina.surfaces.analytic import Sphere, Torus
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.mesh import Mesh


def lattice(spacing, origin=(0.013, -0.021, 0.007)):
    return Lattice(torch.tensor(origin, dtype=torch.float64), spacing)


def two_spheres(offset, radius=1.0, level=3):
    """A unit sphere and another one, as a mesh in two components."""
    V, F = icosphere(level)
    return Mesh(torch.cat([V, radius * V + torch.tensor(offset, dtype=torch.float64)]), torch.cat([F, F + len(V)]))


def test_it_holds_exactly_the_nodes_within_the_radius():
    band = Band.build(Sphere(), lattice(0.15), 0.4)
    i = torch.arange(-12, 13)
    box = torch.stack(torch.meshgrid(i, i, i, indexing="ij"), -1).reshape(-1, 3)
    near = (band.lattice.position(box).norm(dim=1) - 1).abs() <= 0.4
    assert {tuple(n) for n in band.ijk.tolist()} == {tuple(n) for n in box[near].tolist()}
    torch.testing.assert_close(band.feet.points, torch.nn.functional.normalize(band.lattice.position(band.ijk)))


def test_keys_increase_and_every_node_is_found_where_it_is():
    band = Band.build(two_spheres([2.2, 0.0, 0.0]), lattice(0.15), 0.4)
    assert (torch.diff(band.key) > 0).all()
    torch.testing.assert_close(band.find(band.ijk.long(), band.component), torch.arange(len(band)))
    assert band.ijk.dtype == torch.int32


def test_nodes_outside_are_not_found_however_far():
    band = Band.build(Sphere(), lattice(0.15), 0.4)
    centre = torch.zeros(1, 3, dtype=torch.int64)
    rows = torch.tensor([[0, 0, 14], [0, 0, -14], [14, 14, 14], [0, 11, 0]])
    zero = torch.zeros(1, dtype=torch.int64)
    assert (band.find(torch.cat([centre, rows]), zero) == -1).all()


def test_a_run_is_found_where_all_its_nodes_are_and_only_there():
    band = Band.build(Torus(), lattice(0.1), 0.3)
    ijk = band.ijk.long()
    step = torch.tensor([0, 0, 1])
    whole = torch.stack([band.find(ijk + k * step, band.component) >= 0 for k in range(4)]).all(0)
    found = band.find(ijk, band.component, run=4)
    assert whole.any()
    assert not whole.all()
    torch.testing.assert_close(found, torch.where(whole, torch.arange(len(band)), -1))


def test_number_of_nodes_is_the_volume_of_the_shell_over_that_of_a_cell():
    for spacing in (0.1, 0.05):
        radius = band_radius(spacing, Lines.NEAREST, 2)
        shell = 4 * math.pi * (2 * radius + 2 * radius**3 / 3)
        nodes = len(Band.build(Sphere(), lattice(spacing), radius))
        assert nodes == pytest.approx(shell / spacing**3, rel=0.01)


def test_empty_space_costs_nothing():
    """The bounding box holds 10^13 nodes here, the band as many as around two spheres that nearly touch."""
    radius = band_radius(0.1, Lines.NEAREST, 2)
    near, far = (len(Band.build(two_spheres([d, d, d], level=2), lattice(0.1), radius)) for d in (2.0, 2000.0))
    assert far == pytest.approx(near, rel=0.01)


def test_a_node_near_two_components_is_two_nodes_of_the_band():
    band = Band.build(two_spheres([0.0, 0.0, 0.0], radius=1.1, level=2), lattice(0.15), 0.3)
    ijk, count = torch.unique(band.ijk, dim=0, return_counts=True)
    assert count.max() == 2
    inner, outer = (band.find(ijk.long(), torch.full((len(ijk),), c)) for c in (0, 1))
    twice = (inner >= 0) & (outer >= 0)
    torch.testing.assert_close(twice, count == 2)
    gap = band.feet.points[outer[twice]].norm(dim=1) - band.feet.points[inner[twice]].norm(dim=1)
    assert (gap > 0.05).all()


@settings(max_examples=8, deadline=None)
@given(
    spacing=st.floats(0.05, 0.09),
    origin=st.tuples(*[st.floats(-0.1, 0.1)] * 3),
    lines=st.sampled_from(list(Lines)),
    order=st.sampled_from([2, 4]),
)
def test_every_stencil_lies_inside_and_reads_complete_laplacians_only(spacing, origin, lines, order):
    band = Band.build(Torus(1.0, 0.5), lattice(spacing, origin), band_radius(spacing, lines, order // 2))
    index, _ = cubic_stencil(band, band.feet.points, band.component, lines)  # raises where one leaves the band
    complete = torch.diff(laplacian_matrix(band, order).crow_indices()) > 0
    assert complete[index.unique().long()].all()
    assert not complete.all()


def test_matrices_have_int32_indices():
    band = Band.build(Sphere(), lattice(0.2), band_radius(0.2, Lines.NEAREST, 2))
    for matrix in (
        interpolation_matrix(band, band.feet.points, band.component, Lines.NEAREST),
        laplacian_matrix(band, 4),
    ):
        assert matrix.col_indices().dtype == matrix.crow_indices().dtype == torch.int32


@pytest.mark.gpu
def test_the_gpu_gives_what_the_cpu_gives():
    surface = two_spheres([2.2, 0.0, 0.0])
    here = Band.build(surface, lattice(0.1), 0.4)
    moved = Lattice(lattice(0.1).origin.cuda(), 0.1)
    there = Band.build(surface.to("cuda"), moved, 0.4)
    torch.testing.assert_close(there.ijk.cpu(), here.ijk)
    torch.testing.assert_close(there.feet.points.cpu(), here.feet.points)
