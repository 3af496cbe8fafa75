"""GINO: what its wrapper promises. Whether it solves Poisson problems well is measured in experiments/furniture."""

import sys

import pytest
import torch

import lamina
from lamina import metrics
from lamina.paper.baselines.gino import GINO, GINOConfig, Shape, load_gino, normalised, save_gino, signed_distances
from lamina.paper.baselines.gino_training import Example, train_gino
from lamina.surfaces.icosphere import icosphere

TINY = GINOConfig(
    grid=8, modes=4, channels=8, encoded=4, layers=2, encoder=(16,), decoder=(32, 16), frequencies=3
)  # fmt: skip


def field(x):
    return torch.sin(3 * x).prod(1) + x[:, 0]


@pytest.fixture(scope="module")
def shape():
    """An ellipsoid of 162 points."""
    vertices, faces = icosphere(2)
    return lamina.Mesh(vertices * torch.tensor([1.0, 0.6, 0.4], dtype=torch.float64), faces)


@pytest.fixture
def gino():
    pytest.importorskip("neuralop")
    torch.manual_seed(0)
    return GINO(TINY, scale=0.3).requires_grad_(False)


def test_without_neuraloperator_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "neuralop"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "neuralop", None)
    with pytest.raises(lamina.InputError, match=r"neuraloperator.*pip install 'lamina\[gino\]'"):
        GINO(TINY)


def test_signed_distances_are_those_of_the_turned_shape(shape):
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double())[0]
    turn = turn * torch.linalg.det(turn).sign()
    copy = lamina.Mesh(shape.points @ turn.T, shape.faces)
    config = GINOConfig(grid=12, modes=4)
    turned, direct = signed_distances(shape, config, turn), signed_distances(copy, config)
    torch.testing.assert_close(turned, direct, rtol=0, atol=1e-9)
    radius = (config.nodes() @ turn / torch.tensor([1.0, 0.6, 0.4])).norm(dim=1).view_as(direct)
    assert bool((direct[radius < 0.9] < 0).all())
    assert bool((direct[radius > 1.0] > 0).all())


def test_neighbours_are_all_pairs_within_the_radius(shape):
    config = GINOConfig(grid=9, modes=4, radius=1.6)
    found = Shape.build(shape.points, shape.areas, torch.zeros(9, 9, 9), config)
    distance = torch.cdist(shape.points, config.nodes()) * (config.grid - 1) / (2 * config.half_width)
    point, node = (distance <= config.radius).nonzero(as_tuple=True)
    assert torch.equal(point * 729 + node, (found.point * 729 + found.node).sort().values)
    assert bool((torch.bincount(found.point, minlength=len(shape.points)) > 0).all())


def test_passes_are_those_of_neuraloperator(gino, shape):
    seen = gino.shape_of(shape)
    g, _ = normalised(field(shape.points).float(), seen.weights)
    theirs = gino.network(
        input_geom=seen.points[None],
        latent_queries=gino.nodes.view(1, 8, 8, 8, 3),
        output_queries=seen.points[None],
        x=g[None, :, None],
        latent_features=seen.distance[None, ..., None],
    )[0, :, 0]
    theirs = theirs - (seen.weights * theirs).sum()
    assert float(theirs.std()) > 1e-3  # else there is nothing to compare
    torch.testing.assert_close(gino.normalised_solution(seen, g), theirs, rtol=0, atol=1e-5 * float(theirs.std()))


def test_solutions_have_zero_mean_and_scale_with_f(gino, shape):
    u = gino.poisson(shape, field)
    assert u.dtype == shape.points.dtype
    assert abs(float((shape.areas * u).sum())) < 1e-12 * float(u.abs().max() * shape.areas.sum())
    assert float(u.abs().max()) > 1e-3
    torch.testing.assert_close(gino.poisson(shape, 2 * field(shape.points) + 5), 2 * u, rtol=0, atol=1e-5)
    assert float(gino.poisson(shape, torch.full((len(shape.points),), 3.0)).abs().max()) < 1e-5


def test_permuted_samples_permute_the_answer(gino, shape):
    order = torch.randperm(len(shape.points), generator=torch.Generator().manual_seed(2))
    faces = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))[shape.faces]
    permuted = lamina.Mesh(shape.points[order], faces)
    u = gino.poisson(shape, field)
    assert float(u.std()) > 1e-3
    torch.testing.assert_close(gino.poisson(permuted, field), u[order], rtol=0, atol=1e-5)


def test_training_learns_rotated_copies_and_tells_them_apart(shape):
    pytest.importorskip("neuralop")
    from lamina.paper.baselines.fem import SurfaceFEM

    quarter = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    fem = SurfaceFEM(shape.points, shape.faces, solver="splu")
    examples = []
    for turn in (torch.eye(3, dtype=torch.float64), quarter):
        points = shape.points @ turn.T
        f = field(points)
        u = torch.from_numpy(fem.poisson(f))
        examples.append(Example(points, shape.areas, f, u, signed_distances(shape, TINY, turn)))
    losses = []
    gino = train_gino(
        examples, TINY, steps=150, rate=1e-2, seed=3, report=lambda _, figures: losses.append(figures["loss"])
    )
    assert len(losses) == 3
    for example in examples:
        u = gino.poisson(lamina.Mesh(example.points, shape.faces), example.f)
        assert metrics.errors(u, example.u, remove_mean=True).nrmse < 0.05
    assert losses[-1] < losses[0] / 10


def test_networks_survive_a_file(gino, shape, tmp_path):
    path = save_gino(tmp_path / "gino.safetensors", gino, trained_on="nothing")
    again = load_gino(path)
    assert again.config == gino.config
    assert torch.equal(again.poisson(shape, field), gino.poisson(shape, field))


def test_bad_input_is_refused_in_words(gino, shape, tmp_path):
    with pytest.raises(lamina.InputError, match=r"reaches to 1\.5.*box ends at 1\.1.*scale it"):
        gino.poisson(lamina.Mesh(1.5 * shape.points, shape.faces), field)
    with pytest.raises(lamina.InputError, match="one number for each of 162 points"):
        gino.poisson(shape, torch.zeros(5))
    with pytest.raises(lamina.InputError, match="steps = None, seconds = None"):
        train_gino([], TINY)
    with pytest.raises(lamina.InputError, match="radius >= 1"):
        GINOConfig(radius=0.5)
    with pytest.raises(lamina.InputError, match="modes must lie between 2 and the grid's 8"):
        GINOConfig(grid=8, modes=9)
    from lamina.io.safetensor_files import save_tensors

    other = save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {"format": "something else"})
    with pytest.raises(lamina.InputError, match="is not a file of a GINO; its format is 'something else'"):
        load_gino(other)
    zero = Example(shape.points, shape.areas, shape.points[:, 0], 0 * shape.areas, torch.zeros(8, 8, 8))
    with pytest.raises(lamina.InputError, match="constant or not finite"):
        train_gino([zero], TINY, steps=1)


def test_training_that_diverges_says_so(shape):
    pytest.importorskip("neuralop")
    f = field(shape.points)
    example = Example(shape.points, shape.areas, f, f, torch.full((8, 8, 8), float("nan")))
    with pytest.raises(lamina.SolveError, match="training diverged; lower the rate"):
        train_gino([example], TINY, steps=2)
