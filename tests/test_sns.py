"""Spherical neural surfaces: what is fitted, saved and laid over a sphere is the surface that was given."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from scipy.spatial import KDTree
from torch import Tensor

import lamina
from lamina.errors import InputError
from lamina.fits.curvature import from_level_set
from lamina.geometry.triangles import dot, unit
from lamina.learn.sns import fit_error, fit_from_surface, fit_sns
from lamina.learn.sphere_distortion import SymmetricDirichlet, independent_sets, looks_outwards
from lamina.learn.sphere_target import SphereFaces, sphere_target
from lamina.learn.sphericalise import centred_on_sphere, sphericalise
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.sns import SNSConfig, SphericalNeuralSurface, load_sns, save_sns

AXES = torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64)
CENTRE = torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)
SMALL = SNSConfig(width=64, depth=2, features=32, frequency=2.0)


def ellipsoid(s: Tensor) -> Tensor:
    """The ellipsoid away from the origin, with its meridians twisted so that the map is not linear."""
    angle = 0.8 * s[:, 2]
    x, y = angle.cos() * s[:, 0] - angle.sin() * s[:, 1], angle.sin() * s[:, 0] + angle.cos() * s[:, 1]
    return CENTRE.to(s) + AXES.to(s) * torch.stack([x, y, s[:, 2]], 1)


@pytest.fixture(scope="module")
def model() -> SphericalNeuralSurface:
    return fit_sns(ellipsoid, SMALL, steps=1000, batch=512)


def bumpy_mesh(level: int = 4) -> tuple[Tensor, Tensor]:
    """A bent ellipsoid with bumps: not star-shaped, so that the flow has work to do."""
    s, faces = icosphere(level)
    x, y, z = (s * (1 + 0.08 * torch.sin(7 * s[:, :1]) * torch.cos(6 * s[:, 1:2]))).unbind(1)
    angle = 1.3 * x
    radius = 1.5 + 0.7 * y
    return torch.stack([radius * angle.sin(), radius * angle.cos(), 0.5 * z], 1), faces


# The network


def test_the_fit_is_close_in_position_and_normal(model):
    error = fit_error(model, ellipsoid)
    assert error.position < 1e-3
    assert error.worst < 5e-3
    assert error.normal < 0.5


def test_curvatures_of_the_fit_are_those_of_the_ellipsoid(model):
    """Slopes are off by 0.2 degrees = 0.004, in waves of up to about 12 in 2 pi, over a size of 0.6: 0.08 in all."""
    features = lamina.SphericalMap(model.double(), level=4).features()
    model.float()
    x = features.points - CENTRE
    truth = from_level_set(x, x / AXES**2, torch.diag(AXES**-2).expand(len(x), 3, 3))
    difference = (features.curvatures - truth.curvatures).abs()
    assert difference.square().mean().sqrt() < 0.1
    apart = truth.curvatures.diff(dim=1)[:, 0].abs() > 0.5
    turn = torch.linalg.cross(features.frames[:, 1], truth.frames[:, 1]).norm(dim=1)[apart]
    assert turn.square().mean().sqrt() < math.radians(5)


def test_closest_points_are_the_nearest_of_dense_samples(model):
    surface = lamina.SphericalMap(model, level=4)
    offset = 0.2 * torch.linspace(-1, 1, len(surface.points))[:, None]
    x = surface.points + offset * surface.normals
    foot = surface.closest_points(x)
    dense = model(icosphere(7)[0].float())
    brute = torch.from_numpy(KDTree(dense.double().numpy()).query(x.double().numpy())[0])
    distance = (x - foot.points).norm(dim=1).double()
    spacing = math.sqrt(4 * math.pi / len(dense))
    assert (distance - brute).max() < 2e-6  # nothing is nearer, up to single precision
    assert (brute**2 - distance**2).max() < 2 * spacing**2  # and the samples are nearly as near
    assert not foot.points.requires_grad


def test_a_seed_gives_the_same_weights_again_and_another_others():
    one, same, other = (fit_sns(ellipsoid, SMALL, steps=20, batch=64, pool=256, seed=s).state_dict() for s in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["last.weight"], other["last.weight"])


def test_fits_are_covariant_under_similarities():
    def larger(s: Tensor) -> Tensor:
        return 100 * ellipsoid(s) - 7

    one, other = (fit_sns(f, SMALL, steps=50, batch=64, pool=256, dtype=torch.float64) for f in (ellipsoid, larger))
    s, _ = icosphere(2)
    assert (100 * one(s) - 7 - other(s)).abs().max() < 0.01


@pytest.mark.parametrize("activation", ["silu", "softplus", "sin", "tanh"])
def test_two_derivatives_are_those_of_differences(activation):
    network = SphericalNeuralSurface(SNSConfig(16, 2, 8, 2.0, activation), seed=1).double()
    with torch.no_grad():
        network.last.weight.mul_(100)
    surface = lamina.SphericalMap(network, level=2)
    features, step = surface.features(), 1e-4
    for i, tangent in enumerate(features.directions.unbind(1)):
        ahead, behind = (surface.closest_points(features.points + h * tangent) for h in (step, -step))
        turn = (ahead.normals - behind.normals) / (2 * step)
        error = (turn - features.curvatures[:, i : i + 1] * tangent).norm(dim=1)
        assert error.median() < 1e-3


def test_progress_is_reported():
    seen = []
    fit_sns(ellipsoid, SMALL, steps=101, batch=16, pool=64, report=lambda done, text: seen.append((done, text)))
    assert [done for done, _ in seen] == pytest.approx([0, 50 / 101, 100 / 101])
    assert "position error" in seen[-1][1]


# Files


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_files_give_back_every_bit(tmp_path, dtype):
    network = fit_sns(ellipsoid, SMALL, steps=3, batch=16, pool=64, dtype=dtype)
    save_sns(tmp_path / "a.safetensors", network)
    again = load_sns(tmp_path / "a.safetensors")
    assert again.config == SMALL
    assert again.centre.dtype == dtype
    state = network.state_dict()
    assert list(state) == list(again.state_dict())
    assert all(torch.equal(state[key], value) for key, value in again.state_dict().items())


def test_a_saved_fit_is_loaded_as_a_surface_whatever_it_is_called(tmp_path, model):
    save_sns(tmp_path / "thing", model)
    surface = lamina.load(tmp_path / "thing")
    assert isinstance(surface, lamina.SphericalMap)
    assert (surface.name, surface.points.dtype) == ("thing", torch.float64)
    assert (surface.points - ellipsoid(surface.parameters)).norm(dim=1).max() < 5e-3


def test_other_files_are_refused(tmp_path):
    save_file({"centre": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="holds centre but no linear layers"):
        lamina.load(tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("nothing of the kind")
    with pytest.raises(InputError, match="no safetensors file"):
        load_sns(tmp_path / "text.safetensors")
    with pytest.raises(InputError, match="there is no file"):
        load_sns(tmp_path / "missing.safetensors")


# Meshes


def test_a_mesh_laid_over_the_sphere_has_no_triangle_turned_over():
    vertices, faces = bumpy_mesh(3)
    outwards = torch.linalg.det((vertices - vertices.mean(0))[faces])
    assert outwards.min() < 0 < outwards.max()  # seen from its middle the shape itself has folds
    for orientation in (faces, faces.flip(1)):
        s = sphericalise(vertices, orientation)
        assert (s.norm(dim=1) - 1).abs().max() < 1e-12
        assert looks_outwards(*s[faces].unbind(1)).min() > 0
    assert SymmetricDirichlet(vertices, faces).of_map(s) < 1.5


def test_the_energy_is_one_for_similarities_more_for_others_and_infinite_for_folds():
    s, faces = icosphere(4)
    # A polyhedron is smaller than its sphere.
    assert SymmetricDirichlet(5 * s + 1, faces).of_map(s) == pytest.approx(1, abs=2e-3)
    energy = SymmetricDirichlet(s * torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64), faces)
    assert energy.of_map(s) > 1.1
    folded = s.clone()
    folded[100] = -s[100]
    assert energy.of_map(folded) == math.inf


def test_vertices_that_move_together_share_no_edge():
    _, faces = icosphere(2)
    sets = independent_sets(faces, 162)
    assert torch.equal(torch.cat(sets).sort().values, torch.arange(162))
    for members in sets:
        assert int(torch.isin(faces, members).sum(1).max()) == 1


def test_the_sphere_stays_where_it_is():
    s, faces = icosphere(3)
    found = sphericalise(5 * s + 1, faces)
    assert dot(found, s).min() > 0.999


def test_a_moebius_map_balances_the_areas():
    s, faces = icosphere(3)
    areas = lamina.Mesh(s * (1 + 0.5 * s[:, :1]), faces).areas.numpy()  # those of an egg
    found = torch.from_numpy(centred_on_sphere(s.numpy(), areas))
    assert (torch.from_numpy(areas / areas.sum()) @ found).norm() < 1e-8
    assert looks_outwards(*found[faces].unbind(1)).min() > 0


@pytest.mark.slow
def test_a_mesh_is_fitted_where_it_is():
    vertices, faces = bumpy_mesh(3)
    mesh = lamina.Mesh(vertices, faces)
    network, facts = fit_from_surface(mesh, steps=400, batch=512, pool=2**13)
    assert facts["steps"] == 400
    assert facts["position_rms"] < 0.01
    assert facts["normal_rms_degrees"] < 6
    feet = lamina.SphericalMap(network, level=4).closest_points(vertices.float())
    assert (feet.points - vertices).norm(dim=1).square().mean().sqrt() < 0.01
    assert dot(feet.normals, mesh.normals.float()).min() > 0.8


def test_the_target_of_a_mesh_passes_through_its_vertices():
    vertices, faces = bumpy_mesh(3)
    target = sphere_target(lamina.Mesh(vertices, faces))
    s = sphericalise(vertices, faces)
    assert (target(s) - vertices).abs().max() < 1e-12
    drawn = target.draw(1000, torch.Generator().manual_seed(0))
    assert drawn.shape == (1000, 3)
    assert (drawn.norm(dim=1) - 1).abs().max() < 1e-12


def test_every_place_on_the_sphere_is_in_a_triangle():
    """Weights give back the place up to its length, whether triangles are alike or not."""
    s, faces = icosphere(3)
    uneven = unit(s * torch.tensor([1.0, 1.0, 20.0], dtype=torch.float64))
    places = unit(torch.randn(5000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    for vertices in (s, uneven):
        face, weight = SphereFaces(vertices[faces])(places)
        assert weight.min() >= 0
        found = torch.einsum("ni,nic->nc", weight, vertices[faces[face]])
        assert (unit(found) - places).abs().max() < 1e-8


def test_triangle_soup_of_a_closed_mesh_is_closed():
    vertices, faces = bumpy_mesh(2)
    soup = lamina.Mesh(vertices[faces].reshape(-1, 3), torch.arange(faces.numel()).reshape(-1, 3))
    s = unit(torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    y = sphere_target(soup)(s)
    assert (soup.closest_points(y).points - y).abs().max() < 1e-12


def test_surfaces_that_are_no_spheres_are_refused_in_words():
    torus = lamina.Torus()
    with pytest.raises(InputError, match="genus 1"):
        fit_from_surface(lamina.Mesh(torus.points, torus.faces))
    vertices, faces = bumpy_mesh(2)
    with pytest.raises(InputError, match="holes"):
        fit_from_surface(lamina.Mesh(vertices, faces[1:]))
    with pytest.raises(InputError, match="has 2"):
        fit_from_surface(lamina.Mesh(torch.cat([vertices, vertices + 9]), torch.cat([faces, faces + len(vertices)])))
    with pytest.raises(InputError, match="SphericalMap or a closed Mesh; got Torus"):
        fit_from_surface(torus)
    cigar = icosphere(3)[0] * torch.tensor([1.0, 0.02, 0.02], dtype=torch.float64)
    bent = torch.stack([(4 * cigar[:, 0]).sin(), (4 * cigar[:, 0]).cos() + cigar[:, 1], cigar[:, 2]], 1)
    with pytest.raises(InputError, match="triangles turn over"):
        sphericalise(bent, icosphere(3)[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "at least 1"),
        ({"frequency": -1.0}, "positive"),
        ({"activation": "relu"}, "Unknown activation"),
    ],
)
def test_bad_configurations_are_refused_in_words(options, message):
    with pytest.raises(InputError, match=message):
        SNSConfig(**options)


def test_bad_targets_are_refused_in_words():
    with pytest.raises(InputError, match="finite points"):
        fit_sns(lambda s: s[:, 0], SMALL, steps=1)
    with pytest.raises(InputError, match="at least 1"):
        fit_sns(ellipsoid, SMALL, steps=0)


@pytest.mark.gpu
def test_the_gpu_fits_as_the_cpu_does():
    cpu, gpu = (
        fit_sns(ellipsoid, SMALL, steps=20, batch=64, pool=256, dtype=torch.float64, device=d) for d in ("cpu", "cuda")
    )
    s, _ = icosphere(2)
    assert (cpu(s) - gpu(s.cuda()).cpu()).abs().max() < 1e-6


def test_the_fitted_spike_has_the_normals_and_curvatures_of_the_analytic_one():
    """The network that the shipped weights were trained on, at the same unit vectors as the formula."""
    file = Path(__file__).parent.parent / "experiments" / "train_attention" / "spike_sns.safetensors"
    fitted, exact = lamina.load(file).features(), lamina.spike().features()
    assert float((fitted.points - exact.points).norm(dim=1).max()) < 1e-3
    turn = torch.rad2deg(torch.acos((fitted.normals * exact.normals).sum(1).clamp(-1, 1)))
    assert float(turn.square().mean().sqrt()) < 0.3
    error, size = fitted.curvatures - exact.curvatures, exact.curvatures
    assert float(error.square().mean().sqrt() / size.square().mean().sqrt()) < 0.03
    clear = exact.curvatures[:, 0] - exact.curvatures[:, 1] > 1  # elsewhere directions are badly determined
    along = (fitted.frames[clear, 1] * exact.frames[clear, 1]).sum(1).abs().clamp(max=1)
    assert clear.double().mean() > 0.9
    assert float(torch.rad2deg(torch.acos(along)).median()) < 0.5
