"""Training the attention network: data, losses, and runs that can be interrupted, repeated and shared."""

import json
import os
import subprocess
import sys
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch

import lamina
from lamina.errors import InputError
from lamina.io.safetensor_files import load_tensors
from lamina.learn.fit_data import random_rotations
from lamina.paper.attention_loss import extension_weights, losses
from lamina.paper.attention_network import AttentionNetwork, NetworkConfig
from lamina.paper.attention_training import (
    CHECKPOINT_FILE,
    LOG_FILE,
    NETWORK_FILE,
    Trainer,
    TrainingConfig,
    train,
    validation_error,
)
from lamina.paper.attention_training_data import Batch, draw, fixed_batch, monomials, patch_data
from lamina.paper.attention_weights import load_network, save_network

SHAPE = NetworkConfig(k=60, width=8, spacing=0.25)
RADIUS = 2.0  # over the spacing
PLAN = TrainingConfig(
    steps=12, batch=6, rate=5e-3, warm_up=4, radius=RADIUS, grids=1, samples=8, validate_every=4, seed=3
)
FIGURES = {"step", "mse", "nc", "strength", "held_out_mse", "held_out_nc", "seconds"}


@cache
def surfaces():
    return lamina.Ellipsoid(level=3), lamina.Sphere(level=3)


@cache
def data(features=("points", "normals"), grids=1, seed=0):
    shape = NetworkConfig(k=SHAPE.k, width=SHAPE.width, spacing=SHAPE.spacing, features=features)
    return patch_data(surfaces()[0], shape, radius=RADIUS * shape.spacing, grids=grids, seed=seed)


def run(folder, plan=PLAN, shape=SHAPE, **options):
    return train(*surfaces(), folder, shape, plan, **options)


def log_of(folder):
    return [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]


def bits(path):
    """Everything in a file but the order of its metadata."""
    tensors, notes = load_tensors(path)
    return {key: (value.dtype, value.shape, value.numpy().tobytes()) for key, value in tensors.items()}, notes


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# Data


def test_monomials_are_the_56_of_degree_up_to_five():
    x = torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64)
    values = monomials(x)
    assert values.shape == (1, 56)
    # Products of powers of primes: each value says which monomial it is.
    expected = {2**i * 3**j * 5**k for i in range(6) for j in range(6) for k in range(6) if i + j + k <= 5}
    assert set(values[0].tolist()) == expected
    assert monomials(x.expand(4, 7, 3), 2).shape == (4, 7, 10)


def test_random_rotations_are_rotations_without_a_favourite_direction():
    R = random_rotations(4000, generator())
    torch.testing.assert_close(R @ R.transpose(1, 2), torch.eye(3).double().expand_as(R), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(4000, dtype=torch.float64))
    # Uniform: entries have mean 0 and mean square 1/3, the trace has mean 0 and mean square 1.
    assert float(R.mean(0).abs().max()) < 0.04
    assert float((R.square().mean(0) - 1 / 3).abs().max()) < 0.03
    trace = R.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(float(trace.mean())) < 0.07
    assert float(trace.square().mean()) == pytest.approx(1, abs=0.1)


def test_patches_hold_nodes_with_their_closest_points():
    d = data()
    foot = surfaces()[0].closest_points(d.nodes.reshape(-1, 3).double())
    np.testing.assert_allclose(d.feet.reshape(-1, 3), foot.points, atol=1e-6)
    assert float((d.nodes - d.feet).norm(dim=2).max()) <= RADIUS * SHAPE.spacing * (1 + 1e-6)
    # Frames are isometries, and normals point along what separates a node from its foot.
    between = torch.cdist(d.nodes, d.nodes)
    torch.testing.assert_close(torch.cdist(d.local_nodes, d.local_nodes), between, rtol=0, atol=2e-3)
    torch.testing.assert_close(d.local_normals.norm(dim=2), torch.ones(d.nodes.shape[:2]))
    assert torch.equal(d.first, torch.cumsum(d.count, 0) - d.count)
    assert int(d.count.sum()) == len(d.features)


def test_more_grids_are_more_patches_and_other_seeds_other_ones():
    one, two, other = data(), data(grids=2), data(seed=1)
    assert len(two) > 1.5 * len(one)
    assert torch.equal(two.nodes[: len(one)], one.nodes)
    assert not torch.allclose(other.nodes[0], one.nodes[0])
    assert torch.equal(two.first, torch.cumsum(two.count, 0) - two.count)


@pytest.mark.parametrize("features", [("points", "normals"), ("normals", "curvatures")])
def test_drawing_keeps_the_geometry(features):
    """Rotations in space and about the normal: distances, heights and angles are those of the patch."""
    d = data(features)
    which = torch.tensor([0, 5, 5, len(d) - 1, 2, 9, 11, 7])
    b = draw(d, which, 30, generator(1))
    torch.testing.assert_close((b.nodes - b.feet).norm(dim=2), (d.nodes - d.feet)[which].norm(dim=2))
    torch.testing.assert_close(
        torch.cdist(b.nodes, b.feet), torch.cdist(d.nodes[which], d.feet[which]), rtol=0, atol=2e-3
    )
    torch.testing.assert_close(b.nodes.norm(dim=2), d.nodes[which].norm(dim=2))
    # In the frames the normal, the first coordinate, stays; the others turn, as one, in half of the draws.
    for turned, still in ((b.local_nodes, d.local_nodes[which]), (b.local_normals, d.local_normals[which])):
        torch.testing.assert_close(turned[..., 0], still[..., 0])
        torch.testing.assert_close(turned.norm(dim=2), still.norm(dim=2))
    torch.testing.assert_close(
        (b.local_nodes * b.local_normals).sum(2),
        (d.local_nodes * d.local_normals)[which].sum(2),
        rtol=0,
        atol=1e-6,
    )
    spun = (b.local_nodes - d.local_nodes[which]).abs().amax((1, 2)) > 1e-4
    assert 0 < int(spun.sum()) < len(which)
    assert not torch.allclose(b.nodes[1], b.nodes[2])  # the same patch twice, turned differently


@pytest.mark.parametrize("features", [("points", "normals"), ("normals", "curvatures")])
def test_drawn_samples_belong_to_their_patch(features):
    """Turned back by the spin of its nodes, every drawn feature is one of the patch's."""
    d = data(features)
    which = torch.tensor([0, 5, len(d) - 1, 2, 9])
    b = draw(d, which, 30, generator(1))
    for i, p in enumerate(which.tolist()):
        # The spin, from the nodes: local_nodes = still @ spin.
        spin = torch.linalg.lstsq(d.local_nodes[p].double(), b.local_nodes[i].double()).solution
        torch.testing.assert_close(spin @ spin.T, torch.eye(3).double(), rtol=0, atol=1e-5)
        mine = d.features[d.first[p] : d.first[p] + d.count[p]].double()
        vectors = mine[:, : 3 * (mine.shape[1] // 3)].reshape(len(mine), -1, 3) @ spin
        turned = torch.cat([vectors.reshape(len(mine), -1), mine[:, vectors[0].numel() :]], 1)
        assert float(torch.cdist(b.features[i].double(), turned).amin(1).max()) < 1e-5


def test_whole_patches_are_as_they_are():
    d = data()
    b = fixed_batch(d, torch.tensor([4, 1]), int(d.count[4]))
    assert torch.equal(b.nodes, d.nodes[[4, 1]])
    assert torch.equal(b.features[0], d.features[d.first[4] : d.first[4] + d.count[4]])


# Losses


def smooth_batch(activation="tanh"):
    torch.manual_seed(0)
    network = AttentionNetwork(NetworkConfig(k=SHAPE.k, width=12, spacing=SHAPE.spacing, activation=activation))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # far from uniform weights
    b = draw(data(), torch.arange(5), 16, generator())
    return network.double(), Batch(*(getattr(b, name).double() for name in b.__dataclass_fields__))


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_slopes_are_derivatives_of_the_extension_along_the_normal(activation):
    """Of the weights at q + t n against central differences in t: the nodes stay where they are."""
    network, b = smooth_batch(activation)
    t = 1e-4
    patch = torch.arange(5).repeat_interleave(16)
    ahead, behind = (
        network(b.local_nodes, b.local_nodes + s * b.local_normals, b.features.reshape(80, -1), patch) for s in (t, -t)
    )
    weights, slopes = extension_weights(network, b, True)
    expected = ((ahead - behind) / (2 * t)).detach()
    torch.testing.assert_close(slopes, expected, rtol=0, atol=1e-7)
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(weights, (ahead + behind) / 2, rtol=0, atol=1e-6)
    mse, nc = losses(network, b)
    torch.testing.assert_close(nc, (expected @ monomials(b.nodes)).abs().mean(), rtol=1e-5, atol=0)
    torch.testing.assert_close(mse, (weights @ monomials(b.nodes) - monomials(b.feet)).square().mean())


def test_losses_have_the_gradients_of_finite_differences():
    """With respect to a parameter of each network and the strength; |.| in L_NC has a kink where nothing is."""
    network, b = smooth_batch()
    mse, nc = losses(network, b)
    parameters = dict(network.named_parameters())
    gradients = torch.autograd.grad(mse + 0.1 * nc, list(parameters.values()))
    for (_, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        place = int(gradient.abs().argmax())
        step, found = 1e-6, []
        with torch.no_grad():
            for s in (step, -2 * step, step):
                parameter.reshape(-1)[place] += s
                found.append(sum(a * c for a, c in zip(losses(network, b), (1.0, 0.1), strict=True)))
        expected = float(found[0] - found[1]) / (2 * step)
        assert float(gradient.reshape(-1)[place]) == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_normal_consistency_can_be_left_out():
    network, b = smooth_batch()
    with_it, without = losses(network, b), losses(network, b, False)
    torch.testing.assert_close(without[0], with_it[0])
    assert float(without[1]) == 0
    assert float(with_it[1].detach()) > 0


def test_uniform_weights_extend_by_the_mean():
    """All parameters zero: no slope, and the error is that of the mean over the patch."""
    network, b = smooth_batch()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    mse, nc = losses(network, b)
    mean = monomials(b.nodes).mean(1, keepdim=True)
    torch.testing.assert_close(mse, (mean - monomials(b.feet)).square().mean())
    assert float(nc.detach()) == 0


# Steps


def test_loss_falls_to_a_fifth_in_150_steps():
    plan = TrainingConfig(steps=150, batch=16, rate=1e-2, warm_up=10, radius=RADIUS, samples=16, seed=1)
    trainer = Trainer.fresh(NetworkConfig(k=60, width=16, spacing=0.25), plan, "cpu")
    before = validation_error(trainer.network, data(seed=7), 32)
    found = [trainer.advance(data(grids=2)) for _ in range(150)]
    first, last = (sum(float(m) for m, _ in part) for part in (found[:10], found[-10:]))
    assert last < first / 5
    after = validation_error(trainer.network, data(seed=7), 32)  # on another lattice
    assert after[0] < before[0] / 5


def test_rate_rises_and_falls_to_nothing():
    trainer = Trainer.fresh(SHAPE, TrainingConfig(steps=100, rate=1.0, warm_up=10), "cpu")
    rates = []
    for trainer.step in range(100):
        rates.append(trainer._rate())
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) <= 1
    assert 9 <= rates.index(max(rates)) <= 10
    assert rates[-1] < 1e-3
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_validation_error_is_the_mean_over_patches():
    """However they are cut into batches: some twice, and patch by patch."""
    network, d = AttentionNetwork(SHAPE), data()
    mse = [float(losses(network, fixed_batch(d, torch.tensor([i]), 16))[0].detach()) for i in range(len(d))]
    assert len(d) > 32
    assert validation_error(network, d, 16)[0] == pytest.approx(np.mean(mse), rel=1e-5)


@pytest.mark.parametrize("features", [("points",), ("normals", "curvatures")])
@pytest.mark.parametrize("learn_strength", [True, False])
def test_every_kind_of_network_trains(features, learn_strength):
    shape = NetworkConfig(k=60, width=8, spacing=0.25, features=features, learn_strength=learn_strength)
    trainer = Trainer.fresh(shape, PLAN, "cpu")
    start = {key: value.clone() for key, value in trainer.network.state_dict().items()}
    trainer.advance(data(features))
    for key, value in trainer.network.state_dict().items():
        assert torch.equal(value, start[key]) is (key == "strength" and not learn_strength)


@pytest.mark.parametrize("learn_strength", [True, False])
@pytest.mark.parametrize("features", [(), ("curvatures",)])
def test_a_network_that_sees_no_vectors_trains(features, learn_strength):
    shape = NetworkConfig(k=60, width=8, spacing=0.25, features=features, learn_strength=learn_strength)
    trainer = Trainer.fresh(shape, PLAN, "cpu")
    start = trainer.network.band_net[0].weight.detach().clone()
    trainer.advance(data(features))
    assert not torch.equal(trainer.network.band_net[0].weight, start)


def test_the_seed_reaches_the_numbers_drawn_in_a_step():
    """The same start and the same data: what differs is which patches a step takes."""
    ends = []
    for seed in (1, 2):
        trainer = Trainer.fresh(SHAPE, TrainingConfig(batch=6, samples=8, seed=seed, warm_up=1), "cpu")
        torch.manual_seed(0)
        trainer.network.load_state_dict(AttentionNetwork(SHAPE).state_dict())
        trainer.advance(data())
        ends.append(trainer.network.band_net[0].weight.detach().clone())
    assert not torch.equal(*ends)


def test_bad_plans_are_refused():
    for name in ("steps", "batch", "grids", "validation_grids", "samples", "validate_every"):
        with pytest.raises(InputError, match=f"{name} must be at least 1"):
            TrainingConfig(**{name: 0})
    for options in ({"rate": 0.0}, {"radius": 0.0}, {"alpha": -1.0}):
        with pytest.raises(InputError, match="positive"):
            TrainingConfig(**options)


# Runs


def test_a_run_leaves_checkpoint_log_and_network(tmp_path):
    seen = []
    network = run(tmp_path / "new", report=lambda step, figures: seen.append((step, set(figures))))
    folder = tmp_path / "new"
    assert sorted(p.name for p in folder.iterdir()) == sorted([NETWORK_FILE, LOG_FILE, CHECKPOINT_FILE])
    lines = log_of(folder)
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert all(set(line) == FIGURES for line in lines)
    assert all(np.isfinite(list(line.values())).all() for line in lines)
    assert [step for step, _ in seen] == list(range(1, 13))
    assert [step for step, names in seen if names] == [4, 8, 12]
    assert seen[3][1] == FIGURES - {"step"}
    saved = load_network(folder / NETWORK_FILE)
    assert saved.config == SHAPE
    for key, value in network.state_dict().items():
        assert torch.equal(saved.state_dict()[key], value)
    held = patch_data(surfaces()[1], SHAPE, radius=RADIUS * SHAPE.spacing, grids=1, seed=PLAN.seed)
    error = validation_error(network, held, PLAN.samples)
    assert (lines[-1]["held_out_mse"], lines[-1]["held_out_nc"]) == pytest.approx(error, rel=1e-6)
    assert lines[-1]["strength"] == pytest.approx(float(network.strength.detach()))
    notes = load_tensors(folder / NETWORK_FILE)[1]
    assert (notes["surface"], notes["held_out"], notes["training"]["steps"]) == ("ellipsoid", "sphere", 12)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    for name in ("a", "b"):
        run(tmp_path / name)
    other = run(tmp_path / "c", TrainingConfig(**{**vars(PLAN), "seed": 4}))
    same = load_network(tmp_path / "b" / NETWORK_FILE)
    assert bits(tmp_path / "a" / NETWORK_FILE) == bits(tmp_path / "b" / NETWORK_FILE)
    assert not torch.allclose(same.band_net[0].weight, other.band_net[0].weight)


@pytest.mark.parametrize("stop", [4, 6])
@pytest.mark.parametrize("learn_strength", [True, False])
def test_a_run_that_is_resumed_ends_in_the_same_bits(tmp_path, stop, learn_strength):
    """Whether it stopped at a validation or between two."""
    shape = NetworkConfig(k=60, width=8, spacing=0.25, learn_strength=learn_strength)
    run(tmp_path / "fixed_batch", shape=shape)
    halted = tmp_path / "halted"
    run(halted, shape=shape, stop_after=stop)
    assert not (halted / NETWORK_FILE).exists()
    assert load_tensors(halted / CHECKPOINT_FILE)[1]["step"] == stop
    train(*surfaces(), halted, resume=True)
    for name in (NETWORK_FILE, CHECKPOINT_FILE):
        assert bits(halted / name) == bits(tmp_path / "fixed_batch" / name)
    expected = {line.pop("seconds") and line["step"]: line for line in log_of(tmp_path / "fixed_batch")}
    lines = log_of(halted)
    assert [line["step"] for line in lines] == sorted({4, 8, 12, stop})
    for line in lines:
        if line["step"] in expected:
            assert {key: line[key] for key in line if key != "seconds"} == expected[line["step"]]


def test_the_same_network_makes_the_same_file(tmp_path):
    network = AttentionNetwork(SHAPE)
    files = {save_network(tmp_path / "net", network, a=1, b=2, c=3, d=4).read_bytes() for _ in range(20)}
    assert len(files) == 1


def test_a_resumed_run_needs_its_checkpoint_and_takes_no_configuration(tmp_path):
    with pytest.raises(InputError, match=CHECKPOINT_FILE):
        train(*surfaces(), tmp_path, resume=True)
    with pytest.raises(InputError, match="has the configuration of its checkpoint"):
        train(*surfaces(), tmp_path, SHAPE, PLAN, resume=True)


def test_a_network_is_no_checkpoint_to_resume_from(tmp_path):
    folder = tmp_path / "run"
    run(folder)
    (folder / NETWORK_FILE).replace(folder / CHECKPOINT_FILE)
    with pytest.raises(InputError, match=CHECKPOINT_FILE):
        train(*surfaces(), folder, resume=True)


def test_a_new_run_starts_a_new_log(tmp_path):
    for _ in range(2):
        run(tmp_path)
        assert len(log_of(tmp_path)) == 3


# The program

TINY = (
    "--surface", "ellipsoid", "--held-out", "sphere", "--steps", "6", "--batch", "5", "--grids", "1", "--samples", "8",
    "--validate-every", "3", "--k", "60", "--width", "8", "--spacing", "0.25", "--radius", "2",
)  # fmt: skip


def test_training_on_the_command_line(program, tmp_path):
    status, out, err = program("paper", "train", "-o", tmp_path / "a", *TINY, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["out"] == str(tmp_path / "a")
    assert set(report) == FIGURES | {"out"}
    assert report["step"] == 6
    network = load_network(tmp_path / "a" / NETWORK_FILE)
    assert (network.config.k, network.config.width, network.config.spacing) == (60, 8, 0.25)
    assert load_tensors(tmp_path / "a" / NETWORK_FILE)[1]["training"]["batch"] == 5
    assert [line["step"] for line in log_of(tmp_path / "a")] == [3, 6]

    status, out, _ = program("paper", "train", "-o", tmp_path / "b", *TINY, "--stop-after", 3, "--json")
    assert (status, json.loads(out)["step"]) == (0, 3)
    assert not (tmp_path / "b" / NETWORK_FILE).exists()
    status, out, _ = program(
        "paper", "train", "-o", tmp_path / "b", "--surface", "ellipsoid", "--held-out", "sphere", "--resume"
    )
    assert status == 0
    assert "held_out_mse" in out
    assert bits(tmp_path / "b" / NETWORK_FILE) == bits(tmp_path / "a" / NETWORK_FILE)


def test_options_of_the_network_on_the_command_line(program, tmp_path):
    options = ("--features", "curvatures,points", "--fixed-strength", "--strength", "0.5", "--activation", "silu")
    status, _, _ = program("paper", "train", "-o", tmp_path, *TINY, *options, "--depth", 3, "--json")
    assert status == 0
    config = load_network(tmp_path / NETWORK_FILE).config
    assert config == NetworkConfig(60, 8, 3, "silu", ("points", "curvatures"), 0.5, False, 0.25)


def test_no_features_on_the_command_line(program, tmp_path):
    status, _, _ = program("paper", "train", "-o", tmp_path, *TINY, "--features", "none", "--json")
    assert status == 0
    assert load_network(tmp_path / NETWORK_FILE).config.features == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--features", "colour"), "colour"),
        (("--activation", "sine"), "sine"),
        (("--steps", "0"), "steps must be at least 1"),
        (("--k", "1"), "k must be at least 2"),
        (("--rate", "-1"), "rate"),
        (("--spacing", "-0.1"), "spacing"),
        (("--surface", "potato"), "potato"),
        (("--resume",), CHECKPOINT_FILE),
        (("--radius", "9"), "in no patch of 60 nodes"),
        (("--steps", "many"), "valid integer"),
    ],
)
def test_bad_options_end_with_status_two_and_a_sentence(program, tmp_path, options, words):
    status, out, err = program("paper", "train", "-o", tmp_path / "out", *TINY, *options)
    assert (status, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_two_processes_train_the_network_of_one(tmp_path):
    """An odd batch, shared unequally; each process draws for all, so only sums are rounded differently."""
    arguments = ("paper", "train", *TINY, "--json", "-o")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "lamina")
    done = subprocess.run(
        [*launcher, *arguments, str(tmp_path / "two")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    plan = TrainingConfig(steps=6, batch=5, radius=2.0, grids=1, samples=8, validate_every=3)
    train(lamina.load("ellipsoid"), lamina.load("sphere"), tmp_path / "one", SHAPE, plan)
    one, two = (load_network(tmp_path / name / NETWORK_FILE) for name in ("one", "two"))
    for key, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    assert [line["step"] for line in log_of(tmp_path / "two")] == [3, 6]
    for a, b in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two"), strict=True):
        for key in FIGURES - {"seconds"}:
            assert b[key] == pytest.approx(a[key], rel=1e-3)


def test_a_resumed_run_stays_on_its_surfaces(program, tmp_path):
    status, _, _ = program(
        "paper", "train", "-o", tmp_path, *TINY, "--surface", "sphere", "--stop-after", "2", "--json"
    )
    assert status == 0
    status, _, _ = program("paper", "train", "-o", tmp_path, "--resume", "--json")
    assert status == 0
    assert load_tensors(tmp_path / "attention.safetensors")[1]["surface"] == "sphere"
    status, _, err = program("paper", "train", "-o", tmp_path, "--resume", "--surface", "torus", "--json")
    assert status == 2
    assert "sphere" in err


def test_what_cannot_be_written_or_used_is_said_before_training(program, tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    assert program("paper", "train", "-o", taken, *TINY)[0] == 2
    assert program("paper", "train", "-o", tmp_path, *TINY, "--stop-after", "0")[0] == 2
    assert program("paper", "train", "-o", tmp_path, *TINY, "--spacing", "5")[0] == 2
    if not torch.cuda.is_available():
        assert program("paper", "train", "-o", tmp_path, *TINY, "--device", "cuda")[0] == 2
