"""The learned extension: one sparse matrix of convex combinations, and the shell scheme on it."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree

import lamina
from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures
from lamina.gallery import sphere_poisson
from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import dot, unit
from lamina.grid.band import Band
from lamina.metrics import errors
from lamina.paper import attention
from lamina.paper.attention import Attention, assemble, band_near_samples, blend_weights, cover_band
from lamina.paper.attention_network import AttentionNetwork, NetworkConfig
from lamina.paper.attention_training import Trainer, TrainingConfig
from lamina.paper.attention_training_data import patch_data
from lamina.paper.attention_weights import load_network, save_network
from lamina.paper.patches import OUTER_HEIGHT_SHARE, cover, localise
from lamina.paper.shell import Shell
from lamina.surfaces.base import ClosestPoints, NearNodes
from lamina.surfaces.icosphere import icosphere

PROBLEM = sphere_poisson()
SPHERE = lamina.Sphere(level=4)
SPACING, WIDTH, K = 0.15, 2.0, 60  # WIDTH: eps / dx; patches of 60 nodes reach 2.4
TURN = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)  # by 90 degrees about z
KERNEL = pytest.mark.parametrize(("kernel", "temperature"), [("gaussian", 0.02), ("exponential", 0.0423)])


@cache
def trained():
    """Two seconds on the sphere: a crude network, but one that knows where the surface is."""
    config = NetworkConfig(k=K, width=16, spacing=SPACING)
    data = patch_data(SPHERE, config, radius=WIDTH * SPACING, grids=2, seed=0)
    trainer = Trainer.fresh(config, TrainingConfig(steps=300, batch=16, samples=32, warm_up=10, alpha=0.0), "cpu")
    for _ in range(300):
        trainer.advance(data)
    return trainer.network.requires_grad_(False)


def domain(surface=SPHERE, spacing=SPACING, extension=None, width=WIDTH, **options):
    return lamina.Domain(
        surface, spacing, extension=extension or Attention(trained()), band_radius=width * spacing, **options
    )


class Example:
    """A coarse ellipsoid, a random network of another spacing, and everything that `assemble` is given."""

    def __init__(self, spacing=0.25, scale=0.8):
        torch.manual_seed(0)
        self.network = AttentionNetwork(NetworkConfig(k=K, width=8, spacing=scale * spacing, strength=3.0))
        for parameter in self.network.requires_grad_(False).parameters():
            parameter.mul_(2)  # far from uniform weights
        surface = lamina.Ellipsoid(level=4)
        origin = torch.tensor([0.013, -0.021, 0.007], dtype=torch.float64)
        band = Band.build(surface, Lattice(origin, spacing), WIDTH * spacing)
        self.scale = scale
        self.band, samples = band_near_samples(surface, band, WIDTH * spacing)
        self.surface = samples.features
        self.positions = self.band.lattice.position(self.band.ijk)
        self.patches = cover_band(self.band, WIDTH * spacing, samples, K, 0.27, 0.5)

    def blend(self, kernel="gaussian", temperature=0.02):
        return blend_weights(self.patches, len(self.positions), kernel, temperature, self.scale)

    def matrix(self, tolerance=0.0, blend=None, positions=None, surface=None, ijk=None):
        return assemble(
            self.network,
            self.patches,
            self.positions if positions is None else positions,
            surface or self.surface,
            self.blend() if blend is None else blend,
            self.band.ijk if ijk is None else ijk,
            self.scale,
            tolerance,
        ).matrix


@cache
def example():
    return Example()


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def correlation(a, b):
    return float(torch.corrcoef(torch.stack([a.double(), torch.as_tensor(b).double()]))[0, 1])


def wave(x):
    return torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]) + x[:, 2]


# The matrix


@KERNEL
def test_matrix_is_the_blend_of_the_patches(kernel, temperature):
    """Patch by patch and node by node, dense and in double precision."""
    e = example()
    network = AttentionNetwork(e.network.config).double()
    network.load_state_dict({key: value.double() for key, value in e.network.state_dict().items()})
    n = len(e.positions)
    above, below = torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, 1, dtype=torch.float64)
    for i in range(len(e.patches)):
        local = localise(e.patches.take(i, i + 1), e.positions, e.surface, e.scale)
        features = torch.cat([local.points, local.normals], 1)
        weights = network(local.nodes, local.nodes, features, local.patch)[0].detach()
        nodes = e.patches.nodes[i]
        d = e.scale * (e.positions[nodes] - e.surface.points[e.patches.centres[i]]).norm(dim=1, keepdim=True)
        w = torch.exp(-(d if kernel == "exponential" else d * d) / temperature)
        above[nodes[:, None], nodes] += w * weights
        below[nodes] += w
    expected = above / below
    found = e.matrix(blend=e.blend(kernel, temperature)).to_dense().double()
    assert float((found - expected).abs().max()) < 1e-5
    assert float(expected.max()) > 0.1  # the error is small beside the entries
    # Blending matters: the mean over the patches is another matrix.
    times = torch.bincount(e.patches.nodes.reshape(-1)).double()
    uniform = (1 / times)[e.patches.nodes]
    assert float((e.matrix(blend=uniform).to_dense().double() - expected).abs().max()) > 1e-2


@pytest.mark.parametrize("tolerance", [0.0, 1e-5, 1e-3])
def test_rows_are_convex_combinations_and_constants_stay(tolerance):
    E = example().matrix(tolerance)
    assert (E.values() > 0).all()
    one = torch.ones(len(E))
    torch.testing.assert_close(E @ one, one, rtol=0, atol=2e-6)
    u = random(len(E)).float()
    assert float((E @ u).max()) < float(u.max())
    assert float((E @ u).min()) > float(u.min())


def test_matrix_is_csr_with_short_indices_in_order():
    E = example().matrix(1e-5)
    assert E.layout == torch.sparse_csr
    assert E.dtype == torch.float32
    crow, column = E.crow_indices(), E.col_indices()
    assert crow.dtype == column.dtype == torch.int32
    row = torch.repeat_interleave(torch.arange(len(E)), crow.diff())
    assert ((row.diff() > 0) | (column.diff() > 0)).all()
    torch.sparse_csr_tensor(crow, column, E.values(), size=E.shape, check_invariants=True)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-3, 4e-3])
def test_dropping_weights_changes_the_field_by_their_mass_times_its_range(tolerance):
    """With d the mass that a row loses, the rest is scaled by 1 / (1 - d), so that

        (E' u - E u)_i = d (mean of u over what is kept - mean over what is dropped),

    both with the weights of E: at most d times the range of u over the row; and d < tolerance times the entries lost.
    """
    whole, E = (example().matrix(t).to_dense().double() for t in (0.0, tolerance))
    lost = whole * (whole < tolerance)
    mass = lost.sum(1)
    u = random(len(E))
    inside = torch.where(whole > 0, u, torch.nan)
    low, high = inside.nan_to_num(torch.inf).amin(1), inside.nan_to_num(-torch.inf).amax(1)
    change = ((E - whole) @ u).abs()
    assert (change <= mass * (high - low) + 1e-6).all()
    assert (mass <= tolerance * (lost > 0).sum(1)).all()
    kept_mean = ((whole - lost) @ u) / (1 - mass)
    torch.testing.assert_close((E - whole) @ u, mass * kept_mean - lost @ u, rtol=0, atol=1e-5)
    assert float(change.max()) > tolerance  # something was dropped
    assert (E[lost > 0] == 0).all()


@pytest.mark.parametrize(("side", "entries"), [(1, 2**24), (4, 2**11), (7, 2**15), (1000, 2**24)])
def test_the_blocks_of_the_assembly_leave_no_trace(monkeypatch, side, entries):
    expected = example().matrix(1e-4)
    monkeypatch.setitem(attention.BLOCK_SIDE, "cpu", side)
    monkeypatch.setitem(attention.MAX_DENSE_ENTRIES, "cpu", entries)
    found = example().matrix(1e-4)
    # An entry as large as the tolerance may fall on either side of it.
    torch.testing.assert_close(found.to_dense(), expected.to_dense(), rtol=1e-4, atol=1.1e-4)
    assert int((found.to_dense() - expected.to_dense()).abs().gt(1e-6).sum()) < 1e-3 * len(expected.values())


@KERNEL
def test_blending_weights_sum_to_one_over_the_patches_of_a_node(kernel, temperature):
    e = example()
    for T in (temperature, 1e-9, 1e9):
        blend = e.blend(kernel, T)
        total = torch.zeros(len(e.positions), dtype=torch.float64).index_add_(
            0, e.patches.nodes.reshape(-1), blend.reshape(-1)
        )
        torch.testing.assert_close(total, torch.ones_like(total))
    times = torch.bincount(e.patches.nodes.reshape(-1))
    torch.testing.assert_close(blend, (1 / times.double())[e.patches.nodes])  # T -> infinity: the mean
    # T -> 0: the nearest patch alone.
    blend, d = e.blend(kernel, 1e-9), e.patches.distances
    least = torch.full((len(e.positions),), torch.inf, dtype=torch.float64)
    least.scatter_reduce_(0, e.patches.nodes.reshape(-1), d.reshape(-1), "amin")
    assert ((blend > 0.5) <= (d <= least[e.patches.nodes] + 1e-9)).all()


def test_lengths_are_those_of_the_training_grid():
    """All lengths times s and the scale over s: the same matrix. Blending, too, then has the same T."""
    e = example()
    s = 3.7
    surface = SurfaceFeatures(s * e.surface.points, e.surface.frames, e.surface.curvatures / s)
    blend = blend_weights(e.patches, len(e.positions), "gaussian", 0.02, e.scale)
    found = assemble(e.network, e.patches, s * e.positions, surface, blend, e.band.ijk, e.scale / s, 0.0).matrix
    torch.testing.assert_close(found.to_dense(), e.matrix(blend=blend).to_dense(), rtol=1e-3, atol=1e-5)


def test_matrix_turns_with_the_surface_and_its_patches():
    """Patches kept, all else turned: a quarter turn maps the lattice to itself, and E sees no difference."""
    e = example()
    origin = e.band.lattice.origin
    surface = SurfaceFeatures(
        (e.surface.points - origin) @ TURN.T + origin, e.surface.frames @ TURN.T, e.surface.curvatures
    )
    ijk = e.band.ijk.double() @ TURN.T
    found = e.matrix(positions=e.band.lattice.position(ijk), surface=surface, ijk=ijk.to(torch.int32))
    torch.testing.assert_close(found.to_dense(), e.matrix().to_dense(), rtol=1e-3, atol=1e-5)
    still = e.matrix(positions=e.band.lattice.position(ijk), ijk=ijk.to(torch.int32))  # the surface left behind
    assert float((still.to_dense() - found.to_dense()).abs().max()) > 1e-2


def test_a_row_keeps_something_whatever_the_tolerance():
    network = AttentionNetwork(NetworkConfig(k=200, width=4, spacing=SPACING))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()  # uniform weights, 1 / 200
    E = domain(extension=Attention(network, tolerance=9e-3)).scheme.E
    assert E.values().isfinite().all()
    torch.testing.assert_close(E @ torch.ones(len(E)).double(), torch.ones(len(E)).double())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "cubic"}, "'cubic'.*gaussian"),
        ({"temperature": 0.0}, "temperature"),
        ({"patch_spacing": -1.0}, "patch_spacing"),
        ({"patch_spacing": 0.5, "margin": 0.5}, "margin must be larger"),
        ({"least_patches": -1}, "least_patches"),
        ({"tolerance": -1e-9}, "tolerance"),
        ({"tolerance": 0.01}, "tolerance"),
    ],
)
def test_bad_settings_are_refused_in_words(options, words):
    with pytest.raises(InputError, match=words):
        Attention(**options)


# The band


def sphere_band(level, spacing=0.1, radius=0.4):
    surface = lamina.Sphere(level=level)
    return surface, Band.build(surface, Lattice(torch.zeros(3, dtype=torch.float64), spacing), radius)


@pytest.mark.parametrize("level", [4, 5])
def test_dense_samples_are_kept_and_lose_nodes_at_the_rim_only(level):
    """A sample lies within h of every foot; by Pythagoras what is lost is higher than sqrt(eps^2 - h^2), nearly."""
    surface, band = sphere_band(level)
    h = 1.3 * (4 * np.pi / len(surface.points)) ** 0.5  # more than an edge
    kept, samples = band_near_samples(surface, band, 0.4)
    assert torch.equal(samples.features.points, surface.points)
    assert torch.equal(samples.component, surface.component)
    distance = KDTree(surface.points.numpy()).query(band.lattice.position(band.ijk).numpy())[0]
    lost = torch.from_numpy(distance > 0.4)
    assert torch.equal(kept.key, band.key[~lost])
    assert torch.equal(kept.feet.points, band.feet.points[~lost])
    height = (band.lattice.position(band.ijk).norm(dim=1) - 1).abs()
    assert (height[lost] > 0.4 - h * h).all()
    assert 0 < int(lost.sum()) < 0.05 * len(band)


def test_samples_dense_beside_the_radius_lose_no_node():
    surface, band = sphere_band(6, spacing=0.2, radius=0.45)
    inner = band.take((band.lattice.position(band.ijk).norm(dim=1) - 1).abs() < 0.449)
    assert len(band_near_samples(surface, inner, 0.45)[0]) == len(inner) > 1000


@pytest.mark.parametrize("level", [1, 3])
def test_where_samples_are_sparse_the_feet_of_nodes_take_their_place(level):
    """On the sphere, with its normals and curvatures, and one to a cell or so: nothing but the rim is lost."""
    surface, band = sphere_band(level)
    kept, samples = band_near_samples(surface, band, 0.4)
    found = samples.features
    torch.testing.assert_close(found.points.norm(dim=1), torch.ones(len(found), dtype=torch.float64))
    assert 0.5 < len(found) * band.spacing**2 / (4 * np.pi) < 2
    assert float((found.normals - found.points).abs().max()) < 0.01
    assert float((found.curvatures - 1).abs().max()) < 0.1
    height = (band.lattice.position(band.ijk).norm(dim=1) - 1).abs()
    assert bool(torch.isin(band.key[height < 0.39], kept.key).all())


def test_where_closest_points_jump_the_feet_of_lost_nodes_are_samples():
    """Feet of the nodes nearest to half of the sphere lie on its other side: no sample would be left there."""
    surface, band = sphere_band(1)
    at = band.lattice.position(band.ijk)
    height = (at - band.feet.points).norm(dim=1)
    jumps = (height < 0.06) & (band.feet.points[:, 0] > 0)
    points = torch.where(jumps[:, None], -band.feet.points, band.feet.points)
    kept, samples = band_near_samples(surface, replace(band, feet=replace(band.feet, points=points)), 0.2)
    near = band.key[(height <= 3**0.5 * band.spacing) & ~jumps]
    assert bool(torch.isin(near, kept.key).all())
    away = torch.cdist(kept.lattice.position(kept.ijk)[torch.isin(kept.key, near)], samples.features.points).amin(1)
    assert float(away.max()) <= 0.2


# The scheme


def test_poisson_on_the_sphere_has_the_right_shape():
    d = domain()
    assert (d.extension, d.scheme.name, d.scheme.ambient) == ("attention", "shell", True)
    u = lamina.poisson(d, PROBLEM.rhs)
    exact = PROBLEM.solution(d.points)
    assert correlation(u.values, exact) > 0.99
    assert errors(u.values, exact, remove_mean=True).nmae < 0.06
    assert abs(float(d.mean(u.values))) < 1e-12


def test_a_surface_with_few_samples_is_solved_on_as_well():
    few = domain(lamina.Sphere(level=1))
    u = lamina.poisson(few, PROBLEM.rhs)
    assert len(few.points) == 42
    assert correlation(u(SPHERE.points), PROBLEM.solution(SPHERE.points)) > 0.99


def test_the_extension_is_what_the_solve_starts_from():
    """L u = E f on the band, but for the mean."""
    d = domain()
    u = lamina.poisson(d, PROBLEM.rhs, tolerance=1e-10).unknowns[0]
    right = d.scheme.E @ PROBLEM.rhs(d.lattice.position(d.scheme.band.ijk))
    torch.testing.assert_close(d.scheme.apply(u), right - right.mean(), rtol=0, atol=1e-7)


def test_another_spacing_is_scaled_to_that_of_the_training():
    """Everything twice as large: the same band, the same matrix, a solution four times as large."""
    large = lamina.Sphere(radius=2.0, level=4)
    one, two = domain(), domain(large, 2 * SPACING)
    assert one.unknowns == two.unknowns
    torch.testing.assert_close(two.scheme.E.to_dense(), one.scheme.E.to_dense(), rtol=1e-3, atol=2e-5)
    u, v = lamina.poisson(one, wave), lamina.poisson(two, lambda x: wave(x / 2))
    torch.testing.assert_close(v.values, 4 * u.values, rtol=0, atol=1e-3 * float(v.values.abs().max()))


def test_each_component_has_zero_mean_and_its_own_solution():
    V, F = icosphere(4)
    shift = torch.tensor([2.15, 0.0, 0.0], dtype=torch.float64)
    both = domain(lamina.Mesh(torch.cat([V, V + shift]), torch.cat([F, F + len(V)])))

    def f(x):
        return wave(x) + 5.0 * (x[:, 0] > 1.075)

    u = lamina.poisson(both, f)
    assert both.component_count == 2
    assert float(both.mean(u.values).abs().max()) < 1e-12 * float(u.values.abs().max()) + 1e-14
    # The first sphere does not feel the second, though their bands overlap: its lattice alone is another.
    alone = lamina.poisson(domain(lamina.Mesh(V, F)), f)
    assert correlation(u.values[: len(V)], alone.values) > 0.995


def test_single_precision_gives_nearly_the_same():
    """Nodes equally far from a centre, of which there are many here, may change ranks, and so weights."""
    double, single = domain(), domain(dtype=torch.float32)
    assert single.scheme.E.dtype == torch.float32
    u, v = lamina.poisson(double, PROBLEM.rhs).values, lamina.poisson(single, PROBLEM.rhs).values
    assert v.dtype == torch.float32
    assert float((u - v).abs().max()) < 1e-2 * float(u.abs().max())


def test_a_quarter_turn_changes_the_solution_little():
    """The lattice maps to itself, but the flood starts elsewhere and t1, t2 may come out reversed: patches and their
    views differ, and so does the solution, as far as the network is not yet sure of itself."""
    V, F = icosphere(4)
    V = V * V.new_tensor([1.0, 0.8, 0.6])
    still = lamina.poisson(domain(lamina.Mesh(V, F)), wave).values
    turned_domain = domain(lamina.Mesh(V @ TURN.T, F))
    turned = lamina.poisson(turned_domain, lambda x: wave(x @ TURN)).values
    size = float(still.max() - still.min())
    assert float((turned - still).abs().max()) < 0.02 * size
    other = lamina.poisson(turned_domain, wave).values
    assert float((other - still).abs().max()) > 0.3 * size


def test_heat_takes_explicit_steps_and_no_others():
    d = domain()
    u = lamina.heat(d, PROBLEM.solution, time=0.01)
    assert u.steps >= 0.01 / (0.1 * SPACING**2)
    exact = PROBLEM.solution(d.points)
    assert correlation(u.values, exact) > 0.95
    assert float(u.values.norm()) < float(exact.norm())
    same = lamina.heat(d, PROBLEM.solution, time=0.01, method="euler")
    assert torch.equal(u.values, same.values)
    with pytest.raises(InputError, match="Unknown method 'tr-bdf2'; known for this domain: euler"):
        lamina.heat(d, PROBLEM.solution, time=0.01, method="tr-bdf2")


def test_heat_keeps_constants_and_bounds():
    """E and I + dt L are both convex combinations for dt = 0.1 dx^2: no new extremes."""
    d = domain()
    torch.testing.assert_close(
        lamina.heat(d, 2.5, time=0.01).values, torch.full_like(d.points[:, 0], 2.5), rtol=0, atol=1e-5
    )
    u0 = wave(d.lattice.position(d.scheme.band.ijk))
    u = lamina.heat(d, wave, time=0.02).unknowns[0]
    assert float(u.max()) <= float(u0.max())
    assert float(u.min()) >= float(u0.min())


def test_the_coupled_scheme_takes_the_learned_extension():
    """A u = E (L u + gamma u) - gamma u, solved to its tolerance; E is a diffusion, so u comes out too small."""
    domain = lamina.paper.BandDomain(SPHERE, SPACING, extension=Attention(trained()), scheme="coupled")
    assert (domain.scheme.name, domain.extension, domain.order) == ("coupled", "attention", 2)
    scheme = domain.scheme
    v = torch.sin(torch.arange(scheme.unknowns, dtype=torch.float64))
    gamma = 2 / SPACING**2
    by_hand = scheme.E @ (gamma * v - scheme.K @ v) - gamma * v
    torch.testing.assert_close(scheme.apply(v), by_hand)
    u = lamina.poisson(domain, lambda x: -6 * x[:, 0] * x[:, 1])
    exact = domain.points[:, 0] * domain.points[:, 1]
    assert u.residual <= 1e-8
    assert float(torch.corrcoef(torch.stack([u.values, exact]))[0, 1]) > 0.95
    assert 0.05 < float((u.values @ exact) / (exact @ exact)) < 0.95
    shifted = scheme.solve(v, 3.0, tolerance=1e-8).solution
    torch.testing.assert_close(scheme.apply(shifted) - 3.0 * shifted, v, atol=1e-6, rtol=1e-6)


def test_the_learned_extension_has_order_two_at_most():
    with pytest.raises(InputError, match="order 2"):
        lamina.paper.BandDomain(SPHERE, SPACING, extension=Attention(trained()), scheme="coupled", order=4)


@pytest.mark.parametrize("options", [{"band_radius": 0.3}, {"readout": "rbf"}])
def test_options_of_the_shell_scheme_are_refused_by_the_coupled_one(options):
    with pytest.raises(InputError, match='are options of scheme="shell"; this is coupled'):
        lamina.paper.BandDomain(SPHERE, SPACING, scheme="coupled", **options)


def test_order_four_and_a_band_without_stencils_are_refused():
    with pytest.raises(InputError, match="order 2"):
        domain(order=4)
    with pytest.raises(InputError, match=r"band_radius 0\.15 is too small"):
        domain(width=1.0)


def test_a_band_that_patches_cannot_cover_is_refused():
    with pytest.raises(InputError, match=r"\d+ of \d+ band nodes are in no patch of 60 nodes"):
        domain(width=4.0)


# The program


def test_weights_from_a_file_on_the_command_line(program, tmp_path):
    path = save_network(tmp_path / "net.safetensors", trained())
    options = ("--spacing", SPACING, "--band-radius", WIDTH * SPACING, "--exact", PROBLEM.solution_expression)
    solve = ("solve", "poisson", "sphere", "--rhs", PROBLEM.rhs_expression, *options, "--weights", path, "--json")
    for more in ((), ("--extension", "attention"), ("--scheme", "shell", "--readout", "rbf")):
        status, out, _ = program(*solve, *more)
        assert status == 0
        report = json.loads(out)
        assert (report["extension"], report["scheme"]) == ("attention", "shell")
        assert report["nmae"] < 0.06


def test_weights_with_another_extension_are_an_error_on_the_command_line(program, tmp_path):
    path = save_network(tmp_path / "net.safetensors", trained())
    solve = ("solve", "poisson", "sphere", "--rhs", "x", "--spacing", SPACING)
    for extension in ("closest-point", "jet"):
        status, out, err = program(*solve, "--weights", path, "--extension", extension)
        assert (status, out) == (2, "")
        assert "--weights goes with --extension attention" in err
    status, _, err = program(*solve, "--weights", tmp_path / "none.safetensors")
    assert status == 2
    assert "none.safetensors" in err


# The authors' own result


@pytest.mark.slow
@pytest.mark.data
def test_published_checkpoint_gives_the_published_extension(data):
    """f = sin 10x sin 10y sin 10z on Apple, from the authors' samples, grid and weights, against the fields that they
    published at every fourth node. Their grid came from a range in half precision: origin and spacing are multiples of
    1 / 1024, and the band is what lies within 0.2 of the samples.

    The extension agrees to 4 % (correlation 0.999); the solution does not as well: 0.87 on the band and on the surface,
    its amplitude 0.74 of theirs. Why is not known. The 4 % are a small part of it: with their extension, interpolated
    from every fourth node, it is 0.91. So the bounds on u below hold what was found, not an agreement.
    """
    folder = data / "paper/authors_demo"
    theirs = np.load(folder / "apple_poisson_omega10.npz")
    raw = torch.from_numpy(np.load(folder / "Apple_surface_feature.npy").astype(np.float64))
    points, n, t1 = raw[:, :3], unit(raw[:, 3:6]), raw[:, 6:9]
    t1 = unit(t1 - dot(t1, n)[:, None] * n)
    frames = torch.stack([n, t1, torch.linalg.cross(n, t1)], 1)
    surface = SurfaceFeatures(points, frames, torch.zeros_like(points[:, :2]))
    lattice = Lattice(torch.round((points.amin(0) - 0.2) * 1024) / 1024, 51 / 1024)
    tree = KDTree(points.numpy())

    class NearSamples(lamina.Sphere):
        """The nodes near the samples, which take the place of closest points."""

        def nodes_near(self, lattice, radius):
            size = ((points.amax(0) + radius - lattice.origin) / lattice.spacing).long() + 1
            ijk = torch.cartesian_prod(*(torch.arange(int(m)) for m in size))
            distance, nearest = map(torch.from_numpy, tree.query(lattice.position(ijk).numpy()))
            near = distance <= radius
            nearest = nearest[near]
            return NearNodes(ijk[near], ClosestPoints(points[nearest], n[nearest], torch.zeros_like(nearest)))

    band = Band.build(NearSamples(level=1), lattice, 0.2)
    positions = lattice.position(band.ijk)
    assert len(band) == 33_732
    np.testing.assert_allclose(positions[::4], theirs["band_points_every4"], atol=6e-5)
    component = torch.zeros(len(points), dtype=torch.int64)
    rim = (positions - band.feet.points).norm(dim=1) > OUTER_HEIGHT_SHARE * 0.2
    patches = cover(
        surface, component, positions, band.ijk, band.component, rim, k=400, spacing=0.27, margin=0.5
    )  # fmt: skip
    blend = blend_weights(patches, len(band), "exponential", 0.0423, 1.0)
    network = load_network(folder / "SurfNO_pretrained_weights.pth").requires_grad_(False)
    E = assemble(network, patches, positions, surface, blend, band.ijk, 1.0, 1e-5).matrix.double()
    f = torch.sin(10 * positions).prod(1)
    f = f - f.mean()
    assert correlation(f[::4], theirs["f_raw_band_every4"]) > 0.99999
    extended = (E @ f)[::4]
    assert correlation(extended, theirs["f_extended_band_every4"]) > 0.99
    assert float(extended.std()) == pytest.approx(float(theirs["f_extended_band_every4"].std()), rel=0.02)
    scheme = Shell(band, E, True, 1, readout="rbf")
    u = scheme.solve(E @ f, 0.0, tolerance=1e-8).solution
    assert correlation(u[::4], theirs["u_band_every4"]) > 0.85
    at_points = scheme.readout(ClosestPoints(points, n, component)) @ u
    assert correlation(at_points, theirs["u_surface"]) > 0.85


def test_a_component_smaller_than_a_cell_gets_samples_and_patches():
    """A cube and a tetrahedron that no node comes within half a spacing of."""
    corners = torch.tensor([[i, j, k] for i in (0, 2) for j in (0, 2) for k in (0, 2)], dtype=torch.float64)
    square = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    cube = torch.tensor([t for a, b, c, d in square for t in ([a, b, c], [a, c, d])])
    tip = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    small = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    place = torch.tensor([3.1, 1.1, 1.1], dtype=torch.float64)
    mesh = lamina.Mesh(torch.cat([corners, place + 0.02 * tip]), torch.cat([cube, 8 + small]))
    domain = lamina.paper.BandDomain(mesh, SPACING, extension=Attention(trained()))
    one = torch.ones(domain.unknowns, dtype=torch.float64)
    torch.testing.assert_close(domain.scheme.E @ one, one)
    assert torch.isfinite(lamina.poisson(domain, lambda x: x[:, 0]).values).all()


def test_a_function_that_only_the_surface_knows_is_refused_with_the_way_out():
    domain = lamina.paper.BandDomain(SPHERE, SPACING, extension=Attention(trained()))
    with pytest.raises(InputError, match=r"band around the surface.*values at domain\.points"):
        lamina.poisson(domain, lambda x: torch.acos(x[:, 2]))
    u = lamina.poisson(domain, torch.acos(domain.points[:, 2].clamp(-1, 1)))
    assert torch.isfinite(u.values).all()


def test_problems_without_an_extension_do_not_drop_it_silently():
    domain = lamina.paper.BandDomain(SPHERE, SPACING, extension=Attention(trained()))
    for solve in (lambda: lamina.eigenmodes(domain, 3), lambda: lamina.poisson(domain, 1.0, diffusivity=2.0)):
        with pytest.raises(InputError, match="needs functions on cut cells"):
            solve()


def test_far_from_the_origin_the_operator_is_the_same():
    shift = torch.tensor([1e6, -2e6, 5e5], dtype=torch.float64)
    near = lamina.paper.BandDomain(lamina.Mesh(SPHERE.points, SPHERE.faces), SPACING, extension=Attention(trained()))
    far = lamina.paper.BandDomain(
        lamina.Mesh(SPHERE.points + shift, SPHERE.faces), SPACING, extension=Attention(trained())
    )
    u, v = (lamina.poisson(d, lambda x, s=s: (x - s)[:, 0]).values for d, s in ((near, 0 * shift), (far, shift)))
    assert float((u - v).abs().max() / u.abs().max()) < 0.02
