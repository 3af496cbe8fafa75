"""The network of robust fits: a weighted fit that is consistent whatever its weights, and its training."""

import json

import numpy as np
import pytest
import torch

import lamina
from lamina.errors import InputError
from lamina.geometry.triangles import dot, unit
from lamina.io.safetensor_files import save_tensors
from lamina.learn.fit_data import SHAPE_KINDS, CloudSource, damaged_cloud, fit_data, random_rotations
from lamina.learn.fit_training import NETWORK_FILE, TRAINING_LOG, FitTraining, fit_errors, loss_of, train_fits
from lamina.reconstruction.fit_network import FitConfig, FitNetwork, Neighbourhoods
from lamina.reconstruction.weights import load_fit_network, save_fit_network, shipped_fit_network
from lamina.search.neighbours import k_nearest

SMALL = FitConfig(width=8, rounds=2, neighbours=(32,))


def untrained(seed=0):
    torch.manual_seed(seed)
    return FitNetwork(SMALL)


def plane_points(count, seed=0):
    return 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def neighbourhoods(points, normals, rows, k=32):
    return Neighbourhoods.of(points, normals, k_nearest(points, k, points[rows])[0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whatever_the_weights_a_paraboloid_is_found_exactly(seed):
    ab = plane_points(600)
    a, b = ab.unbind(1)
    points = torch.stack([a, b, 0.2 + 0.1 * a - 0.2 * b + 0.3 * a * a + 0.1 * a * b - 0.2 * b * b], 1)
    slopes = torch.stack([0.1 + 0.6 * a + 0.1 * b, -0.2 + 0.1 * a - 0.4 * b], 1)
    up = unit(torch.cat([-slopes, torch.ones(600, 1, dtype=torch.float64)], 1))
    rows = torch.randperm(600, generator=torch.Generator().manual_seed(1))[:40]
    # Frames along the axis of the paraboloid: in others it is no polynomial of degree two.
    near = neighbourhoods(points, torch.tensor([0.0, 0.0, 1.0]).double().expand(600, 3), rows)
    fits = untrained(seed)(Neighbourhoods(near.points, near.normals, near.spacing))
    # Weights of slopes are not zero, and these normals are those of no paraboloid: only heights may agree.
    truth = untrained(seed)(neighbourhoods(points, up, rows))
    away, _ = truth.quadrics.offset(near.points[:, :1])
    assert float(away.detach().abs().max()) < 0.02
    assert fits.share.shape == (40, 32)


def test_the_error_on_a_sphere_falls_with_the_fourth_power_of_the_spacing():
    network, errors = untrained(), []
    for count in (500, 2000, 8000):
        feet = lamina.Sphere().sample(count, 0)
        near = neighbourhoods(feet.points, feet.normals, torch.arange(0, count, 10))
        with torch.no_grad():
            quadrics = network(near).quadrics
        centres = feet.points[::10] + quadrics.centres * near.spacing[:, None]
        errors.append(float((centres.norm(dim=1) - 1).square().mean().sqrt()))
    orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert (orders > 3.5).all(), orders


def test_fits_turn_and_grow_with_the_samples():
    """Up to the ridge of the normal equations, which sees the directions of the frames, and single precision."""
    feet = lamina.load("spike").sample(3000, 0)
    rows = torch.arange(50)
    turn = random_rotations(1, torch.Generator().manual_seed(3))[0]
    network = shipped_fit_network()
    with torch.no_grad():
        plain = neighbourhoods(feet.points, feet.normals, rows, 64)
        turned = neighbourhoods(7 * feet.points @ turn.T + 5, feet.normals @ turn.T, rows, 64)
        one, two = network(plain), network(turned)
    torch.testing.assert_close(two.quadrics.centres, one.quadrics.centres @ turn.T, rtol=0, atol=1e-4)
    torch.testing.assert_close(two.quadrics.frames[:, 2], one.quadrics.frames[:, 2] @ turn.T, rtol=0, atol=1e-4)
    torch.testing.assert_close(two.log_error, one.log_error, rtol=0, atol=1e-2)


def test_neighbours_that_do_not_belong_are_weighted_away():
    """A sheet below the plane that the sample lies on, with normals the other way, and outliers above."""
    top = torch.cat([plane_points(800), torch.zeros(800, 1, dtype=torch.float64)], 1)
    below = torch.cat([plane_points(800, 1), torch.full((800, 1), -0.12, dtype=torch.float64)], 1)
    stray = torch.cat([plane_points(40, 2), 0.05 + 0.2 * plane_points(40, 3)[:, :1].abs()], 1)
    points = torch.cat([top, below, stray])
    up = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    normals = torch.cat([up.expand(800, 3), -up.expand(800, 3), unit(torch.randn(40, 3, dtype=torch.float64))])
    inner = (top[:, :2].abs() < 0.7).all(1).nonzero()[:, 0]
    index = k_nearest(points, 64, points[inner])[0]
    with torch.no_grad():
        fits = shipped_fit_network()(Neighbourhoods.of(points, normals, index))
    mine = index < 800
    assert float(fits.share[mine].mean()) > 5 * float(fits.share[~mine].mean())
    spacing = 2 / 800**0.5
    height = fits.quadrics.centres[:, 2].abs() * spacing
    assert float(height.quantile(0.9)) < 0.2 * spacing
    plain = torch.where(mine, 0.0, -0.12).mean(1).abs()
    assert float(height.median()) < 0.02 * float(plain.median())


@pytest.mark.slow
def test_the_expected_error_is_about_the_true_one():
    source = CloudSource(lamina.starfruit())
    data = fit_data(source, 64, 12, 200, 5)
    network = shipped_fit_network()
    ratios = []
    for cloud in range(len(data)):
        every = torch.arange(200)
        near, clean_points, clean_normals, _ = data.rows(torch.full_like(every, cloud), every)
        with torch.no_grad():
            fits = network(near)
        error = fit_errors(fits, clean_points, clean_normals)
        ratios.append(float(torch.exp(fits.log_error).mean() / error.mean()))
    assert 0.5 < np.median(ratios) < 2, ratios


@pytest.mark.slow
def test_training_clouds_come_in_every_kind_and_repeat_themselves():
    source = CloudSource(lamina.spike())
    assert len(SHAPE_KINDS) == 4
    clouds = [damaged_cloud(source, np.random.default_rng(i), 64) for i in range(8)]
    again = damaged_cloud(source, np.random.default_rng(3), 64)
    assert torch.equal(clouds[3].points, again.points)
    assert torch.equal(clouds[3].normals, again.normals)
    for cloud in clouds:
        assert len(cloud.points) == len(cloud.normals) == len(cloud.clean.points) == len(cloud.outlier) >= 8 * 64
        torch.testing.assert_close(dot(cloud.normals, cloud.normals), torch.ones(len(cloud.normals)).double())
        away = (cloud.points - cloud.clean.points).norm(dim=1)
        assert float(away[~cloud.outlier].quantile(0.99)) < 0.5


@pytest.mark.slow
def test_training_lowers_the_loss_and_leaves_a_network(tmp_path):
    plan = FitTraining(steps=30, batch=128, clouds=3, samples=64, validate_every=15, seed=1)
    network = train_fits(lamina.spike(), lamina.starfruit(), tmp_path, SMALL, plan)
    lines = [json.loads(line) for line in (tmp_path / TRAINING_LOG).read_text().splitlines()]
    assert [line["step"] for line in lines] == [15, 30]
    assert lines[1]["held_out_loss"] < lines[0]["held_out_loss"]
    found = load_fit_network(tmp_path / NETWORK_FILE)
    assert found.config == SMALL
    for name, value in network.state_dict().items():
        assert torch.equal(found.state_dict()[name], value)


def test_gradients_are_finite_on_planes_with_reversed_normals():
    """Exact planes have residuals of zero, and normals exactly reversed a share of zero."""
    points = torch.cat([plane_points(64), torch.zeros(64, 1, dtype=torch.float64)], 1)
    up = torch.tensor([0.4428, -0.2950, -0.8467]).double()
    normals = unit(up[None]).expand(64, 3).clone()
    normals[::3] *= -1.0000001
    network = untrained()
    fits = network(neighbourhoods(points, normals, torch.arange(64), 32))
    error = fit_errors(fits, torch.zeros(64, 1, 3), torch.tensor([0.0, 0.0, 1.0]).expand(64, 1, 3))
    loss = loss_of(fits, error, torch.zeros(64))
    for gradient in torch.autograd.grad(loss, list(network.parameters())):
        assert torch.isfinite(gradient).all()


def test_what_cannot_be_trained_or_read_is_said(tmp_path):
    with pytest.raises(InputError, match="star-shaped maps of the sphere"):
        train_fits(lamina.Sphere(), lamina.starfruit(), tmp_path, SMALL)
    with pytest.raises(InputError, match="steps must be at least 1"):
        FitTraining(steps=0)
    with pytest.raises(InputError, match="rate must be positive"):
        FitTraining(rate=0)
    save_tensors(tmp_path / "other.safetensors", {"a": torch.ones(1)}, {"format": "something else"})
    with pytest.raises(InputError, match="holds no network of fits but 'something else'"):
        load_fit_network(tmp_path / "other.safetensors")
    path = save_fit_network(tmp_path / "net.safetensors", untrained())
    tensors = {name: value for name, value in untrained().state_dict().items() if "verdict" not in name}
    save_tensors(path, tensors, {"format": "lamina fit network 1", "config": SMALL.as_dict()})
    with pytest.raises(InputError, match="does not fit its own configuration"):
        load_fit_network(path)


@pytest.mark.slow
def test_the_program_trains_it(program, tmp_path, monkeypatch):
    monkeypatch.setattr("lamina.learn.fit_training.HELD_OUT_CLOUDS", 2)
    status, out, err = program(
        "paper", "train", "--operator", "neural", "-o", tmp_path, "--steps", 2, "--batch", 16, "--clouds", 2, "--json"
    )  # fmt: skip
    assert status == 0, err
    assert json.loads(out)["step"] == 2
    assert load_fit_network(tmp_path / NETWORK_FILE).config == FitConfig()
