"""Element matrices of the trace scheme against sums over the triangles, and their assembly against a dense one."""

import dataclasses
from functools import cache

import pytest
import torch

import lamina
from lamina.geometry.basis import Q1
from lamina.geometry.cotangent import mass_matrix
from lamina.geometry.lattice import OCTANTS
from lamina.geometry.triangles import triangle_areas
from lamina.grid.cut_surface import CutSurface
from lamina.grid.sheets import CutElements
from lamina.linear.assembly import assemble
from lamina.spaces.galerkin import (
    STABILISATION_Q1,
    child_interpolation,
    consistent_mass,
    element_matrices,
    sliver_stiffness,
    stabilisation,
    surface_stiffness,
)
from lamina.surfaces.icosphere import icosphere


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@cache
def mesh(kind: str) -> lamina.Mesh:
    """No saddle vertices, so that the stiffness is that of the triangles alone."""
    if kind == "sphere":
        return lamina.Mesh(*icosphere(2))
    corners = OCTANTS.double()[:, [2, 0, 1]] * torch.tensor([1.0, 0.8, 0.1], dtype=torch.float64)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return lamina.Mesh(corners, torch.tensor([t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))]))


@cache
def cut(kind: str) -> CutSurface:
    """A sphere of flat faces, and a thin box: several sheets to a cell, creases, slivers."""
    found = lamina.Domain(mesh(kind), 0.25 if kind == "sphere" else 0.12, order=2).scheme.cut
    assert found.conductivity is None
    return found


SHAPES = pytest.mark.parametrize("kind", ["sphere", "box"])


def corner_positions(cut: CutSurface) -> torch.Tensor:
    """Where the corners (e, 8, 3) of the elements are."""
    return cut.lattice.position(cut.elements.cell[: cut.elements.active, None] + OCTANTS)


def corner_values(cut: CutSurface, gradient: torch.Tensor) -> torch.Tensor:
    """The linear function gradient . x at the corners (e, 8) of the elements."""
    return corner_positions(cut) @ gradient


def element_stiffness(cut: CutSurface, diffusivity=None) -> torch.Tensor:
    return element_matrices(cut, diffusivity)[0]


def energy(E, u, v=None):
    return float(torch.einsum("ei,eij,ej->", u, E, u if v is None else v))


def test_children_inherit_the_functions_of_their_parent():
    """At the same point in space, seen from the coarse cell and from the child that holds it."""
    T = child_interpolation(torch.float64, torch.device("cpu"))
    local = random(20, 3)
    for octant in range(8):
        coarse = Q1.values((local + OCTANTS[octant]) / 2)
        torch.testing.assert_close(Q1.values(local) @ T[octant], coarse)


# Stiffness


@SHAPES
@pytest.mark.parametrize("a", ["one", "number", "tensor"])
def test_stiffness_is_symmetric_and_does_not_see_constants(kind, a):
    c = cut(kind)
    q = len(c.local)
    factor = random(q, 3, 3)
    diffusivity = {"one": None, "number": 1 + random(q), "tensor": factor @ factor.transpose(1, 2)}[a]
    K = element_stiffness(c, diffusivity)
    scale = float(K.abs().max())
    torch.testing.assert_close(K, K.transpose(1, 2), rtol=0, atol=1e-14 * scale)
    assert float(K.sum(2).abs().max()) <= 1e-13 * scale
    assert float(torch.linalg.eigvalsh(K).min()) >= -1e-13 * scale


@SHAPES
def test_the_energy_of_a_linear_function_is_that_of_its_gradient_on_the_triangles(kind):
    """sum over triangles of area |P g|^2, once what stabilises is taken off."""
    c, m = cut(kind), mesh(kind)
    K = element_stiffness(c) - stabilisation(c) - sliver_stiffness(c)
    torch.testing.assert_close(K, surface_stiffness(c), rtol=0, atol=1e-14)
    area = triangle_areas(m.points[m.faces])
    for g in (*torch.eye(3, dtype=torch.float64), random(3)):
        normal_part = m.face_normals @ g
        expected = float((area * (g @ g - normal_part**2)).sum())
        assert energy(K, corner_values(c, g)) == pytest.approx(expected, rel=1e-11)


def element_energies(E, u):
    return torch.einsum("ei,eij,ej->e", u, E, u)


@SHAPES
def test_stabilisation_is_the_energy_along_the_normal_in_whole_cells(kind):
    """For u = g . x it is (rho/dx) dx^3 (n.g)^2 in each cell, whatever g, with rho in the range it is given."""
    c = cut(kind)
    S = stabilisation(c)
    along = torch.einsum("eid,ed->ei", corner_positions(c), c.normal)
    rho = element_energies(S, along) / c.spacing**2
    assert float(rho.min()) >= STABILISATION_Q1.at_turn * (1 - 1e-9)
    assert float(rho.max()) <= STABILISATION_Q1.flat * (1 + 1e-9)
    for g in (*torch.eye(3, dtype=torch.float64), random(3)):
        expected = rho * c.spacing**2 * (c.normal @ g) ** 2
        torch.testing.assert_close(element_energies(S, corner_values(c, g)), expected, rtol=1e-9, atol=1e-15)


def test_stabilisation_is_strongest_on_a_flat_plate_and_weaker_at_creases():
    flat = lamina.Mesh([[0.0, 0, 0], [1, 0.1, 0], [0, 1, 0.3]], [[0, 1, 2]])
    c = lamina.Domain(flat, 0.2, order=2).scheme.cut
    along = torch.einsum("eid,ed->ei", corner_positions(c), c.normal)
    rho = element_energies(stabilisation(c), along) / c.spacing**2
    torch.testing.assert_close(rho, torch.full_like(rho, STABILISATION_Q1.flat))
    c = cut("box")
    along = torch.einsum("eid,ed->ei", corner_positions(c), c.normal)
    rho = element_energies(stabilisation(c), along) / c.spacing**2
    assert float(rho[c.flatness < 0.5].max()) < 0.2 * STABILISATION_Q1.flat


@SHAPES
def test_a_diffusivity_of_three_is_three_times_the_stiffness_as_number_or_tensor(kind):
    c = cut(kind)
    q = len(c.local)
    K = element_stiffness(c)
    number = element_stiffness(c, torch.full((q,), 3.0, dtype=torch.float64))
    tensor = element_stiffness(c, 3 * torch.eye(3, dtype=torch.float64).expand(q, 3, 3))
    scale = float(K.abs().max())
    torch.testing.assert_close(number, 3 * K, rtol=0, atol=1e-13 * scale)
    torch.testing.assert_close(tensor, 3 * K, rtol=0, atol=1e-13 * scale)


def test_a_tensor_acts_on_the_tangential_part_of_the_gradient():
    """(P g) . D (P g) summed over the triangles; what D does along the normal is of no account."""
    c, m = cut("box"), mesh("box")
    factor = random(3, 3)
    D = factor @ factor.T
    g = random(3, seed=1)
    n = c.quadrature.normals
    everywhere = D.expand(len(n), 3, 3)
    across = torch.einsum("qa,qb->qab", n, n)
    rest = (n @ D)[:, :, None] * n[:, None] + n[:, :, None] * (n @ D)[:, None]
    tangential = everywhere - rest + torch.einsum("qa,ab,qb->q", n, D, n)[:, None, None] * across
    area = triangle_areas(m.points[m.faces])
    P_g = g - (m.face_normals @ g)[:, None] * m.face_normals
    expected = float((area * torch.einsum("fa,ab,fb->f", P_g, D, P_g)).sum())
    # What stabilises is taken off with the mean diffusivity (tr D - n.D n)/2 of each cell, by differences.
    u = corner_values(c, g)
    difference = element_stiffness(c, everywhere) - element_stiffness(c, tangential)
    assert float(difference.abs().max()) <= 1e-13
    mean = (torch.trace(D) - torch.einsum("qa,ab,qb->q", n, D, n)) / 2
    weight = torch.zeros(2, c.elements.active, dtype=torch.float64)
    weight.index_add_(1, c.element, torch.stack([c.quadrature.weights * mean, c.quadrature.weights]))
    held = (weight[0] / weight[1])[:, None, None] * (stabilisation(c) + sliver_stiffness(c))
    assert energy(element_stiffness(c, everywhere) - held, u) == pytest.approx(expected, rel=1e-11)


def test_conductivity_multiplies_the_surface_part_alone():
    c = cut("sphere")
    halved = dataclasses.replace(c, conductivity=torch.full_like(c.quadrature.weights, 0.5))
    torch.testing.assert_close(element_stiffness(c) - element_stiffness(halved), 0.5 * surface_stiffness(c))


# Mass


@SHAPES
def test_the_mass_has_the_row_sums_of_the_consistent_one_and_its_total_is_the_area(kind):
    c, m = cut(kind), mesh(kind)
    whole, corrected = consistent_mass(c), element_matrices(c)[1]
    assert not torch.allclose(whole, corrected, rtol=1e-3, atol=0)
    torch.testing.assert_close(corrected.sum(2), whole.sum(2), rtol=0, atol=1e-15)
    area = float(triangle_areas(m.points[m.faces]).sum())
    assert float(whole.sum()) == pytest.approx(area, rel=1e-12)
    assert float(corrected.sum()) == pytest.approx(area, rel=1e-12)


@SHAPES
def test_the_mass_is_symmetric_positive_and_independent_of_the_diffusivity(kind):
    """An indefinite one has modes that heat makes grow, and eigenvalues that are not there."""
    c = cut(kind)
    M = element_matrices(c)[1]
    assert torch.equal(element_matrices(c, 1 + random(len(c.local)))[1], M)
    scale = float(M.abs().max())
    torch.testing.assert_close(M, M.transpose(1, 2), rtol=0, atol=1e-15 * scale)
    assert float(torch.linalg.eigvalsh(M).min()) >= -1e-14 * scale


@pytest.mark.parametrize("spacing", [0.3, 0.2])
def test_the_mass_of_a_curved_surface_is_positive(spacing):
    """Curved pieces and absorbed slivers reach out of their cells, where corner functions are negative."""
    scheme = lamina.Domain(lamina.Sphere(level=2), spacing, order=2).scheme
    assert float(scheme.cut.local.min()) < -1e-3
    spectrum = torch.linalg.eigvalsh(scheme.M.to_dense())
    assert float(spectrum[0]) >= -1e-14 * float(spectrum[-1])
    assert float(scheme.M.to_dense().diagonal().min()) > 0


@SHAPES
def test_the_consistent_mass_of_linear_functions_is_that_of_linear_finite_elements(kind):
    """Both integrate products of linear functions over the triangles exactly."""
    c, m = cut(kind), mesh(kind)
    M = mass_matrix(m.points, m.faces)
    g, h = random(3), random(3, seed=1)
    expected = (m.points @ g).numpy() @ M @ (m.points @ h).numpy()
    found = energy(consistent_mass(c), corner_values(c, g), corner_values(c, h))
    assert found == pytest.approx(expected, rel=1e-11)


# Assembly


def dense(unknown, count, E):
    A = torch.zeros(count, count, dtype=E.dtype)
    for nodes, block in zip(unknown, E, strict=True):
        A[nodes[:, None], nodes[None]] += block
    return A


def assert_assembles(e: CutElements):
    E, G = random(e.active, 8, 8) - 0.5, random(e.active, 8, 8, seed=1)
    pattern, values = assemble(e.unknown, e.unknowns, [E, G])
    for matrix, v in zip((E, G), values, strict=True):
        expected = dense(e.unknown, e.unknowns, matrix)
        torch.testing.assert_close(pattern.matrix(v).to_dense(), expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(v[pattern.diagonal], expected.diagonal(), rtol=0, atol=1e-14)
    # No place is listed twice, none is missing: one entry for each pair of unknowns with a common element.
    pairs = (e.unknown[:, :, None] * e.unknowns + e.unknown[:, None, :]).reshape(-1)
    assert len(pattern.column) == len(torch.unique(pairs))


@SHAPES
def test_assembly_is_the_sum_over_elements(kind):
    assert_assembles(cut(kind).elements)


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_copies_of_a_node_that_compete_for_a_place_all_get_one(copies):
    """`copies` sheets of one cell run into a single sheet of the next, and into one of their own before it."""
    cells = [[0, 0, 0]] * copies + [[1, 0, 0], [-1, 0, 0]]
    glue = [(i, copies, 0) for i in range(copies)] + [(copies + 1, 0, 0)]
    a, b, axis = (torch.tensor(column) for column in zip(*glue, strict=True))
    e = CutElements(torch.tensor(cells), (a, b, axis), len(cells))
    assert e.unknowns == 4 * copies + 12
    assert_assembles(e)


@pytest.mark.parametrize("seed", range(5))
def test_assembly_of_sheets_glued_at_random(seed):
    generator = torch.Generator().manual_seed(seed)
    cell = torch.randint(-1, 2, (60, 3), generator=generator)
    step = cell[None] - cell[:, None]
    a, b = ((step.abs().sum(2) == 1) & (step.sum(2) == 1)).nonzero().unbind(1)
    kept = torch.rand(len(a), generator=generator) < 0.3
    a, b = a[kept], b[kept]
    e = CutElements(cell, (a, b, step[a, b].argmax(1)), len(cell))
    assert_assembles(e)


def test_assembly_in_single_precision():
    e = cut("box").elements
    E = random(e.active, 8, 8).float()
    pattern, (values,) = assemble(e.unknown, e.unknowns, [E])
    assert values.dtype == torch.float32
    torch.testing.assert_close(pattern.matrix(values).to_dense(), dense(e.unknown, e.unknowns, E))
