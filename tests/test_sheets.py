"""Unknowns of cut cells: shared through the glue, copied for every sheet, slivers left to their neighbours."""

import math

import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial.transform import Rotation

import lamina
from lamina.geometry.lattice import OCTANTS, Lattice
from lamina.grid.cut import cut_surface
from lamina.grid.cut_surface import MIN_ELEMENT_AREA
from lamina.grid.sheets import CutElements
from lamina.spaces.operators import CutCellOperators
from lamina.surfaces.icosphere import icosphere


def elements(cells, *glue):
    """Elements in the cells, glued by (a, b, axis)."""
    a, b, axis = (torch.tensor(column, dtype=torch.int64) for column in zip(*glue, strict=True))
    return CutElements(torch.tensor(cells), (a, b, axis), len(cells))


def row(count):
    """A row of cells along x: `count` + 1 faces of four corners."""
    return elements([[i, 0, 0] for i in range(count)], *[(i, i + 1, 0) for i in range(count - 1)])


def areas(*values):
    return torch.tensor(values, dtype=torch.float64)


def nodes(e: CutElements):
    """Lattice node (active, 8, 3) of each corner."""
    return e.cell[: e.active, None] + OCTANTS


def assert_consistent(e: CutElements):
    """Unknowns are numbered without gaps, and each sits at one lattice node."""
    assert torch.unique(e.unknown).tolist() == list(range(e.unknowns))
    place = torch.empty(e.unknowns, 3, dtype=torch.int64)
    place[e.unknown.reshape(-1)] = nodes(e).reshape(-1, 3)
    assert torch.equal(place[e.unknown], nodes(e))


# Unknowns


def test_a_row_of_cells_shares_its_faces():
    e = row(4)
    assert e.unknowns == 20
    assert_consistent(e)
    right, left = OCTANTS[:, 0] == 1, OCTANTS[:, 0] == 0
    assert torch.equal(e.unknown[0, right], e.unknown[1, left])


def test_two_sheets_of_a_cell_have_corners_of_their_own_until_they_meet():
    """Two elements in cell 0, both glued to one in cell 1: the common face is shared, the rest is not."""
    apart = elements([[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]], (0, 2, 0), (1, 3, 0))
    joined = elements([[0, 0, 0], [0, 0, 0], [1, 0, 0]], (0, 2, 0), (1, 2, 0))
    assert apart.unknowns == 24
    assert joined.unknowns == 16
    assert apart.component.tolist() == [0, 1, 0, 1]
    assert joined.component.tolist() == [0, 0, 0]
    assert_consistent(joined)
    common = set(joined.unknown[0].tolist()) & set(joined.unknown[1].tolist())
    assert len(common) == 4


def test_without_copies_every_cell_is_one_element_glued_to_all_its_neighbours():
    apart = elements([[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0]], (0, 2, 0), (1, 3, 0))
    one, place = apart.without_copies()
    assert one.cell.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert place.tolist() == [0, 0, 1, 1, 2]
    assert one.unknowns == 16
    assert one.component.tolist() == [0, 0, 0]


# Slivers


def test_a_sliver_at_the_end_of_a_row_goes_to_its_neighbour():
    e, host = row(4).absorbed(areas(1.0, 1.0, 1.0, 0.01), 0.05)
    assert e.active == 3
    assert e.unknowns == 16
    assert host.tolist() == [0, 1, 2, 2]
    assert_consistent(e)


def test_what_was_absorbed_is_last_and_the_others_keep_their_order():
    e, host = row(4).absorbed(areas(0.01, 1.0, 1.0, 1.0), 0.05)
    assert e.cell[:, 0].tolist() == [1, 2, 3, 0]
    assert e.active == 3
    assert host.tolist() == [0, 0, 1, 2]


def test_area_is_kept():
    area = areas(0.01, 1.0, 0.02, 0.9, 0.03)
    cells = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [2, 0, 0], [3, 0, 0]]
    e, host = elements(cells, (0, 1, 0), (1, 2, 1), (1, 3, 0), (3, 4, 0)).absorbed(area, 0.05)
    assert e.active == 2
    held = torch.zeros(e.active, dtype=area.dtype).index_add_(0, host, area)
    assert held.tolist() == pytest.approx([1.03, 0.93])


def test_the_neighbour_with_the_most_surface_takes_a_sliver():
    """A corner: the sliver at (1, 0, 0) has neighbours at (0, 0, 0) and (1, 1, 0), which share its edge."""
    corner = elements([[0, 0, 0], [1, 0, 0], [1, 1, 0]], (0, 1, 0), (1, 2, 1))
    for area, expected in ((areas(0.4, 0.01, 0.8), [1, 1, 1]), (areas(0.8, 0.01, 0.4), [0, 0, 0])):
        e, host = corner.absorbed(area, 0.05)
        assert e.active == 2
        assert e.cell[host[1]].tolist() == [expected[0], expected[1], 0]
        # The two that are left hold together by the edge that the sliver passed on: two corners.
        assert e.unknowns == 14
        assert e.component[:2].tolist() == [0, 0]
        assert_consistent(e)


def test_a_sliver_between_two_cells_on_opposite_sides_stays():
    """Without it they would share no corner and come apart."""
    e, host = row(3).absorbed(areas(1.0, 0.01, 0.9), 0.05)
    assert e.active == 3
    assert host.tolist() == [0, 1, 2]
    assert e.unknowns == 16


def test_a_sliver_whose_neighbours_are_slivers_too_stays():
    e, host = row(3).absorbed(areas(0.01, 0.02, 0.04), 0.05)
    assert e.active == 3
    assert host.tolist() == [0, 1, 2]


# Coarsening


def test_coarse_cells_hold_what_is_glued_in_them():
    coarse, parent = row(4).coarsened()
    assert coarse.cell.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert parent.tolist() == [0, 0, 1, 1]
    assert coarse.unknowns == 12
    apart = elements([[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]], (0, 2, 0), (1, 3, 0))
    coarse, parent = apart.coarsened()
    assert coarse.cell.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert parent.tolist() == [0, 1, 0, 1]


def test_a_coarse_cell_of_slivers_alone_stays_inactive():
    """Cell 4 of a row of five goes to cell 3; its coarse cell, number 2, then holds nothing."""
    e, _ = row(5).absorbed(areas(1.0, 1.0, 1.0, 1.0, 0.01), 0.05)
    coarse, parent = e.coarsened()
    assert len(coarse.cell) == 3
    assert coarse.active == 2
    assert coarse.cell[2].tolist() == [2, 0, 0]
    assert parent.tolist() == [0, 0, 1, 1, 2]
    assert coarse.unknowns == 12


# On surfaces


def thin_box(pose, thickness=0.03):
    """A closed box of 1 x 0.7 x `thickness`, turned at random."""
    corners = OCTANTS.double() * torch.tensor([1.0, 0.7, thickness], dtype=torch.float64)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = torch.tensor([t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))])
    R = torch.from_numpy(Rotation.random(random_state=pose).as_matrix())
    return lamina.Mesh(corners @ R, faces)


def nested_spheres(pose):
    """Two spheres less than half a cell apart: two components."""
    V, F = icosphere(2)
    R = torch.from_numpy(Rotation.random(random_state=pose).as_matrix())
    return lamina.Mesh(torch.cat([V, 0.95 * V]) @ R, torch.cat([F, F + len(V)]))


def spikes(pose):
    """A sphere drawn out to needles, whose tips are slivers in cells of their own."""
    V, F = icosphere(3)
    axis = V[:12]  # the corners of the icosahedron
    near = (V @ axis.T).amax(1)
    return lamina.Mesh(V * (0.4 + 0.6 * torch.exp(200 * (near - 1)))[:, None], F)


def shift_of(pose):
    return torch.rand(3, generator=torch.Generator().manual_seed(pose), dtype=torch.float64)


@pytest.mark.parametrize("pose", range(4))
@pytest.mark.parametrize("shape", [thin_box, nested_spheres, spikes])
def test_slivers_are_absorbed_and_no_part_comes_loose(shape, pose):
    """The matrices of all levels have as many connected parts as the surface; none more, none fewer."""
    mesh = shape(pose)
    spacing = 0.12 * (1 + 0.1 * math.sin(pose))
    cut = cut_surface(mesh, Lattice(spacing * shift_of(pose), spacing))
    assert 0 < cut.elements.active < len(cut.elements.cell)
    assert_consistent(cut.elements)
    assert cut.quadrature.area == pytest.approx(float(mesh.areas.sum()), rel=1e-12)
    area = torch.zeros(cut.elements.active, dtype=torch.float64).index_add_(0, cut.element, cut.quadrature.weights)
    assert float((area < MIN_ELEMENT_AREA * spacing**2).double().mean()) < 0.05
    scheme = CutCellOperators(cut)
    for level in scheme.levels:
        K = level.matrix(1.0, 0.0)
        n = level.unknowns
        graph = csr_matrix((K.values().numpy() != 0, K.col_indices().numpy(), K.crow_indices().numpy()), shape=(n, n))
        count, label = connected_components(graph, directed=False)
        assert count == mesh.component_count == scheme.component_count
        # The labels that the scheme keeps agree with the graph's, whatever the numbering.
        assert len({*zip(label.tolist(), level.component.tolist(), strict=True)}) == count


@pytest.mark.parametrize("pose", range(3))
def test_the_parents_of_active_elements_are_active_and_hold_their_cells(pose):
    domain = lamina.Domain(thin_box(pose), 0.05)
    e = domain.scheme.cut.elements
    assert e.active < len(e.cell)
    for _ in range(3):
        coarse, parent = e.coarsened()
        assert int(parent[: e.active].max()) == coarse.active - 1
        assert torch.unique(parent[: e.active]).tolist() == list(range(coarse.active))
        assert torch.equal(coarse.cell[parent], torch.div(e.cell, 2, rounding_mode="floor"))
        assert torch.equal(coarse.component[parent], e.component)
        assert_consistent(coarse)
        e = coarse
