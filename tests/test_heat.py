"""Heat flow: accurate at all times, of second order in the step, stable for any, mean-preserving."""

import math
from itertools import pairwise

import pytest
import torch

import lamina
from lamina.gallery import sphere_heat
from lamina.metrics import errors
from lamina.surfaces.icosphere import icosphere
from schemes import of_scheme

HEAT = sphere_heat()


@pytest.fixture(scope="module")
def domain():
    return lamina.paper.BandDomain(HEAT.surface(level=4), 0.12, scheme="coupled", order=4)


@pytest.fixture(scope="module")
def mesh_domain():
    return lamina.Domain(lamina.Mesh(*icosphere(3)), 0.15, order=2)


def rough(points):
    """One random sign a sample: as far from smooth as values at the points can be."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(points), generator=generator, dtype=torch.float64).sign()


def range_of(values):
    return float(values.max() - values.min())


# Accuracy


@pytest.mark.slow
def test_error_on_the_sphere_at_ten_times():
    domain = lamina.Domain(HEAT.surface(), 0.05)
    times = [0.01 * (i + 1) for i in range(10)]
    u = lamina.heat(domain, HEAT.initial, 0.1, times=times)
    assert u.times == pytest.approx(times)
    for time, values in zip(u.times, u.snapshots, strict=True):
        assert errors(values, HEAT.solution(domain.points, time)).nmae <= 1e-4
    last_only = lamina.heat(domain, HEAT.initial, 0.1)
    assert errors(last_only.values, HEAT.solution(domain.points, 0.1)).nmae <= 1e-4


def test_equal_steps_are_second_order(domain):
    """Differences between n and 2n steps on one grid: the error in space drops out."""
    u = [lamina.heat(domain, HEAT.initial, 0.4, steps=n).values for n in (8, 16, 32)]
    coarse, fine = (float((a - b).abs().max()) for a, b in pairwise(u))
    assert math.log2(coarse / fine) == pytest.approx(2, abs=0.2)


@pytest.mark.slow
def test_adaptive_steps_meet_the_accuracy_asked_for(domain):
    fine = lamina.heat(domain, HEAT.initial, 0.2, accuracy=1e-6).values
    loose, tight = (lamina.heat(domain, HEAT.initial, 0.2, accuracy=a) for a in (1e-2, 1e-4))
    assert tight.steps > loose.steps
    for u, accuracy in ((loose, 1e-2), (tight, 1e-4)):
        assert float((u.values - fine).abs().max()) <= accuracy * u.steps
    assert float((tight.values - fine).abs().max()) < 0.2 * float((loose.values - fine).abs().max())


@pytest.mark.slow
def test_explicit_euler_is_first_order_and_agrees():
    """On a finer grid: every explicit step interpolates once more, and on a coarse one that is what one sees."""
    domain = lamina.paper.BandDomain(HEAT.surface(level=4), 0.03, scheme="coupled", order=4)
    u = [lamina.heat(domain, HEAT.initial, 0.02, method="euler", steps=n) for n in (139, 278, 556)]
    assert [v.steps for v in u] == [139, 278, 556]
    coarse, fine = (float((a.values - b.values).abs().max()) for a, b in pairwise(u))
    assert math.log2(coarse / fine) == pytest.approx(1, abs=0.05)
    assert errors(u[-1].values, lamina.heat(domain, HEAT.initial, 0.02).values).nmae < 2e-4


def test_explicit_euler_takes_the_steps_of_the_paper(domain):
    u = lamina.heat(domain, HEAT.initial, 0.05, method="euler")
    assert u.steps == math.ceil(0.05 / (0.1 * 0.12**2))
    assert errors(u.values, HEAT.solution(domain.points, 0.05)).nmae < 1e-3


def test_meshes_decay_at_the_rate_of_their_harmonics(mesh_domain):
    u = lamina.heat(mesh_domain, HEAT.initial, 0.1)
    assert errors(u.values, HEAT.solution(mesh_domain.points, 0.1)).nmae < 5e-3


# Stability


@pytest.mark.parametrize("steps", [1, 2])
def test_a_rough_state_is_damped_by_one_enormous_step(domain, steps):
    """L-stability: the trapezium rule alone would keep the amplitude and flip its sign."""
    state = rough(domain.points)
    assert range_of(lamina.heat(domain, state, 100.0, steps=steps).values) < 0.02 * range_of(state)


def test_a_rough_state_only_ever_becomes_smoother(domain):
    u = lamina.heat(domain, rough(domain.points), 0.1, accuracy=1e-3, times=[1e-3, 1e-2, 0.1])
    ranges = [range_of(v) for v in u.snapshots]
    assert ranges == sorted(ranges, reverse=True)
    assert ranges[-1] < 0.25 * 2


def test_explicit_steps_that_are_too_long_are_refused_rather_than_returned(domain):
    with pytest.raises(lamina.SolveError, match="unstable"):
        lamina.heat(domain, rough(domain.points), 1.0, method="euler", steps=60)


# Laws


def test_mean_is_preserved(domain):
    def state(x):
        return 1 + x[:, 2] + HEAT.initial(x) + x[:, 0] ** 3

    u = lamina.heat(domain, state, 0.5, times=[0.1, 0.5])
    for values in u.snapshots:
        assert float(domain.mean(values)) == pytest.approx(1, abs=1e-5)


def test_galerkin_conserves_the_integral_to_the_accuracy_of_the_solver(mesh_domain):
    u = lamina.heat(mesh_domain, lambda x: 1 + x[:, 2] + HEAT.initial(x), 0.5, times=[0.1, 0.5])
    mass = mesh_domain.scheme.mass
    area = float(mass(torch.ones(mesh_domain.unknowns, dtype=torch.float64)).sum())
    for unknowns in u.unknowns:
        assert float(mass(unknowns).sum()) / area == pytest.approx(1, abs=1e-7)


def test_constants_stay_and_everything_else_tends_to_the_mean(domain):
    torch.testing.assert_close(lamina.heat(domain, 2.5, 1.0).values, torch.full_like(domain.points[:, 0], 2.5))
    late = lamina.heat(domain, lambda x: 3 + x[:, 0] * x[:, 2], 5.0, accuracy=1e-4).values
    assert float((late - 3).abs().max()) < 1e-3


@pytest.mark.slow
def test_flow_for_two_times_is_the_flow_for_their_sum(domain):
    half = lamina.heat(domain, HEAT.initial, 0.1, accuracy=1e-5)
    again = lamina.heat(domain, half.values, 0.1, accuracy=1e-5)
    whole = lamina.heat(domain, HEAT.initial, 0.2, accuracy=1e-5)
    assert errors(again.values, whole.values).nmae < 1e-3


def test_snapshots_are_at_the_asked_times_in_order(domain):
    u = lamina.heat(domain, HEAT.initial, 0.2, times=[0.15, 0.05, 0.15])
    assert u.times == pytest.approx([0.05, 0.15, 0.2])
    assert u.snapshots.shape == (3, len(domain.points))
    torch.testing.assert_close(u.values, u.snapshots[-1])
    for time, values in zip(u.times, u.snapshots, strict=True):
        assert errors(values, HEAT.solution(domain.points, time)).nmae < 2e-4


def test_single_precision(domain):
    single = lamina.paper.BandDomain(HEAT.surface(level=4), 0.12, scheme="coupled", order=4, dtype=torch.float32)
    u, v = (lamina.heat(d, HEAT.initial, 0.1, accuracy=1e-4).values for d in (domain, single))
    assert v.dtype == torch.float32
    assert errors(v, u).nmae < 1e-3


# Bad input


@pytest.mark.parametrize(
    ("time", "options", "message"),
    [
        (0.0, {}, "time must be a positive number, got 0.0"),
        (-1.0, {}, "time must be a positive number"),
        (math.inf, {}, "time must be a positive number"),
        (1.0, {"times": [2.0]}, "times must lie between 0 and 1"),
        (1.0, {"times": [-0.5]}, "times must lie between 0 and 1"),
        (1.0, {"steps": 0}, "steps must be at least 1, got 0"),
        (1.0, {"accuracy": 0.0}, "accuracy must lie between 0 and 1"),
        (1.0, {"method": "leapfrog"}, "Unknown method 'leapfrog'; known for this domain: tr-bdf2, euler"),
    ],
)
def test_bad_options_are_named(domain, time, options, message):
    with pytest.raises(lamina.InputError, match=message):
        lamina.heat(domain, HEAT.initial, time, **options)


def test_an_initial_state_that_is_not_finite_is_refused(domain):
    with pytest.raises(lamina.InputError, match="the initial state is not finite at"):
        lamina.heat(domain, lambda x: torch.log(x[:, 0]), 0.1)


# Values in, and several channels


@pytest.mark.parametrize("scheme", ["trace", "coupled"])
def test_values_at_vertices_are_taken_to_the_grid_by_a_map_that_is_made_once(scheme, monkeypatch):
    mesh = lamina.Mesh(*icosphere(4))
    domain = of_scheme(scheme, mesh, 0.1)
    searched = []
    search = lamina.Mesh.closest_points
    monkeypatch.setattr(lamina.Mesh, "closest_points", lambda self, x: searched.append(len(x)) or search(self, x))
    values = domain.points[:, 0]
    first, again = (lamina.heat(domain, values, 0.1).values for _ in range(2))
    assert len(searched) <= 1
    torch.testing.assert_close(first, again, rtol=0, atol=1e-12)
    # A linear function is the same function from its values at the corners of flat faces.
    torch.testing.assert_close(first, lamina.heat(domain, lambda x: x[:, 0], 0.1).values, rtol=0, atol=1e-10)


@pytest.mark.parametrize("scheme", ["trace", "coupled", "shell"])
def test_channels_diffuse_side_by_side_however_different_their_sizes(scheme):
    domain = of_scheme(scheme, lamina.Sphere(level=3), 0.2)
    x, y, z = domain.points.T
    channels = torch.stack([x, 1e-6 * y * z, torch.ones_like(x)], 1)
    u = lamina.heat(domain, channels, 0.1)
    assert u.values.shape == (len(x), 3)
    for i, values in enumerate(channels.T):
        alone = lamina.heat(domain, values, 0.1).values
        torch.testing.assert_close(u.values[:, i], alone, rtol=0, atol=1e-4 * float(values.abs().max()))
        torch.testing.assert_close(u.channel(i).values, u.values[:, i])
    with pytest.raises(lamina.InputError, match="3 channels; take one"):
        _ = u.drawn
