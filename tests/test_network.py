"""The paper's attention network: its formula, its laws, and its files."""

from importlib import resources
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from lamina.errors import InputError
from lamina.io.safetensor_files import load_tensors, save_tensors
from lamina.paper.attention_network import ACTIVATIONS, FEATURE_WIDTHS, AttentionNetwork, NetworkConfig, from_authors
from lamina.paper.attention_weights import SHIPPED_ATTENTION, load_network, save_network, shipped_network

SUBSETS = [names for size in range(4) for names in combinations(FEATURE_WIDTHS, size)]
# Errors of other kinds than InputError so far: strict, so that whoever mends them takes the mark away.
COUNTS = (5, 0, 1, 9)  # samples of each patch in `patches`


def network(seed=0, **options):
    torch.manual_seed(seed)
    return AttentionNetwork(NetworkConfig(**{"k": 7, "width": 5, **options}))


def patches(config, queries=3, counts=COUNTS, seed=1):
    """Nodes (p, k, 3), queries (p, q, 3), features (s, f) and the patch of each sample, at random."""
    generator = torch.Generator().manual_seed(seed)
    p = len(counts)
    return (
        torch.randn(p, config.k, 3, generator=generator),
        torch.randn(p, queries, 3, generator=generator),
        torch.randn(sum(counts), config.feature_width, generator=generator),
        torch.repeat_interleave(torch.arange(p), torch.tensor(counts)),
    )


def authors_state(width=6, k=11, seed=3):
    """Random parameters under the names, and of the shapes, of the authors' checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    state = {"lambda_scale": torch.tensor(2.5)}
    for name, (a, b, c) in {
        "query_net": (3, width, width),
        "key_net": (3, width, width),
        "surface_feat_net": (6, width, k),
    }.items():
        shapes = {"0.weight": (b, a), "0.bias": (b,), "2.weight": (c, b), "2.bias": (c,)}
        state |= {f"{name}.{key}": torch.randn(*shape, generator=generator) for key, shape in shapes.items()}
    return state


# The formula


def test_default_network_has_as_many_parameters_as_the_authors():
    assert sum(p.numel() for p in AttentionNetwork().parameters()) == 35_281


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_weights_are_the_softmax_of_the_formula(activation):
    """A plain loop over patches, queries and samples: softmax_j(<U_j, V> - lambda mean_i sigmoid(Phi3(s_i))_j)."""
    net = network(activation=activation, strength=1.7)
    nodes, queries, features, patch = patches(net.config)
    bend = {"relu": lambda v: np.maximum(v, 0), "tanh": np.tanh}[activation]
    tensors = {key: value.double().numpy() for key, value in net.state_dict().items()}

    def phi(name, x):
        hidden = bend(tensors[f"{name}.0.weight"] @ x + tensors[f"{name}.0.bias"])
        return tensors[f"{name}.2.weight"] @ hidden + tensors[f"{name}.2.bias"]

    expected = np.empty((len(COUNTS), queries.shape[1], net.config.k))
    for i in range(len(COUNTS)):
        mine = features[patch == i].double().numpy()
        W = np.mean([1 / (1 + np.exp(-phi("surface_net", s))) for s in mine], 0) if len(mine) else 0.5
        for q, query in enumerate(queries[i].double().numpy()):
            V = phi("query_net", query)
            logits = np.array([phi("band_net", b) @ V for b in nodes[i].double().numpy()]) - 1.7 * W
            expected[i, q] = np.exp(logits) / np.exp(logits).sum()
    found = net(nodes, queries, features, patch).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)


def test_samples_may_be_listed_in_any_order():
    net = network()
    nodes, queries, features, patch = patches(net.config)
    order = torch.randperm(len(patch), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(nodes, queries, features[order], patch[order]), net(nodes, queries, features, patch))


def test_nodes_are_told_apart_by_their_rank():
    """Without W a permutation of the nodes permutes the weights; W belongs to the places, so with it it does not."""
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    for strength, equivariant in ((0.0, True), (3.0, False)):
        net = network(strength=strength)
        nodes, queries, features, patch = patches(net.config)
        moved = net(nodes[:, order], queries, features, patch)
        unmoved = net(nodes, queries, features, patch)[..., order]
        assert torch.allclose(moved, unmoved, rtol=1e-5) is equivariant


def test_a_higher_rank_score_lowers_the_weight():
    net = network(strength=4.0)
    nodes, queries, features, patch = patches(net.config)
    before = net(nodes, queries, features, patch)
    with torch.no_grad():
        net.surface_net[-1].bias[2] += 1
    assert (net(nodes, queries, features, patch)[..., 2] < before[..., 2])[[0, 2, 3]].all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.floats(0.01, 30), names=st.sampled_from(SUBSETS))
def test_rows_are_convex_combinations_whatever_the_weights(seed, size, names):
    net = network(seed, features=names)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(size)
    weights = net(*patches(net.config, seed=seed))
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: "+".join(names) or "none")
def test_equal_counts_pool_to_the_same_scores(names):
    net = network(features=names, strength=-0.8)
    _, _, features, patch = patches(net.config, counts=(6, 6, 6))
    together = net.pooled_scores(features.reshape(3, 6, net.config.feature_width))
    torch.testing.assert_close(net.rank_scores(features, patch, 3), together)
    assert together.shape == (3, net.config.k)
    assert bool((together != 0).all()) is bool(names)


def test_features_are_ordered_vectors_first():
    assert NetworkConfig(features=("curvatures", "normals", "points")).features == ("points", "normals", "curvatures")
    assert [NetworkConfig(features=names).feature_width for names in SUBSETS] == [0, 3, 3, 2, 6, 5, 5, 8]


def test_without_features_there_is_no_third_network_and_samples_do_not_count():
    net = network(features=())
    assert not hasattr(net, "surface_net")
    nodes, queries, features, patch = patches(net.config)
    torch.testing.assert_close(net(nodes, queries, features, patch), net(nodes, queries, features[:0], patch[:0]))


def test_a_fixed_strength_is_kept_but_not_trained():
    for learn in (True, False):
        net = network(strength=1.25, learn_strength=learn)
        net(*patches(net.config)).square().sum().backward()
        assert ("strength" in dict(net.named_parameters())) is learn
        assert float(net.strength.detach()) == 1.25
        assert "strength" in net.state_dict()
        assert (net.strength.grad is not None) is learn
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_depth_counts_linear_layers(activation):
    net = network(depth=3, activation=activation)
    linear = [m for m in net.surface_net if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(6, 5), (5, 5), (5, 7)]
    assert sum(isinstance(m, ACTIVATIONS[activation]) for m in net.surface_net) == 2


def test_the_surface_network_has_a_width_and_depth_of_its_own():
    net = network(surface_width=9, surface_depth=3)
    shapes = [[(m.in_features, m.out_features) for m in part if isinstance(m, torch.nn.Linear)] for part in (
        net.band_net, net.query_net, net.surface_net,
    )]  # fmt: skip
    assert shapes == [[(3, 5), (5, 5)], [(3, 5), (5, 5)], [(6, 9), (9, 9), (9, 7)]]
    # The others alone: Phi3 stays as it is.
    other = network(width=8, depth=3, surface_width=5, surface_depth=2)
    assert {k: v.shape for k, v in other.surface_net.state_dict().items()} == {
        k: v.shape for k, v in network().surface_net.state_dict().items()
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"surface_width": 0}, "surface_width"),
        ({"surface_depth": -1}, "surface_depth"),
        ({"activation": "sine"}, "'sine'.*relu"),
        ({"features": ("points", "colour")}, "'colour'.*normals"),
        ({"k": 1}, "k must be at least 2"),
        ({"width": 0}, "width"),
        ({"depth": 0}, "depth"),
        ({"spacing": 0.0}, "spacing"),
    ],
)
def test_bad_configuration_is_refused_in_words(options, words):
    with pytest.raises(InputError, match=words):
        NetworkConfig(**options)


# The authors' checkpoint


def test_authors_parameters_load_under_our_names():
    state = authors_state()
    net = from_authors(state, spacing=0.07)
    assert (net.config.k, net.config.width, net.config.spacing) == (11, 6, 0.07)
    mine = net.state_dict()
    assert len(mine) == len(state)
    torch.testing.assert_close(mine["strength"], state["lambda_scale"])
    for theirs, ours in {"key_net": "band_net", "query_net": "query_net", "surface_feat_net": "surface_net"}.items():
        for rest in ("0.weight", "0.bias", "2.weight", "2.bias"):
            assert torch.equal(mine[f"{ours}.{rest}"], state[f"{theirs}.{rest}"])


def test_authors_files_load_from_either_format(tmp_path):
    state = authors_state()
    torch.save(state, tmp_path / "a.pth")
    np.savez(tmp_path / "a.npz", **{key: value.numpy() for key, value in state.items()})
    expected = from_authors(state).state_dict()
    for name in ("a.pth", "a.npz"):
        found = load_network(tmp_path / name).state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_foreign_parameter_is_named():
    with pytest.raises(InputError, match=r"'value_net\.0\.bias'.*key_net"):
        from_authors({**authors_state(), "value_net.0.bias": torch.zeros(3)})


@pytest.mark.data
def test_published_checkpoint_loads_from_both_files_and_agrees(data):
    folder = data / "paper/authors_demo"
    one, other = (load_network(folder / f"SurfNO_pretrained_weights.{kind}") for kind in ("pth", "npz"))
    assert one.config == other.config == NetworkConfig()
    assert sum(p.numel() for p in one.parameters()) == 35_281
    assert float(one.strength.detach()) == pytest.approx(2.489, abs=1e-3)
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])


# Files


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"depth": 3, "activation": "gelu", "features": ("curvatures",), "spacing": 0.1},
        {"features": (), "learn_strength": False, "strength": 0.3},
        {"surface_width": 3, "surface_depth": 4},
    ],
    ids=["default", "another", "no features", "another surface network"],
)
def test_a_saved_network_comes_back_to_the_bit(tmp_path, options):
    net = network(**options)
    path = save_network(tmp_path / "deep/in/net.safetensors", net, surface="spike")
    back = load_network(path)
    assert back.config == net.config
    assert back.state_dict().keys() == net.state_dict().keys()
    for key, value in net.state_dict().items():
        assert torch.equal(back.state_dict()[key], value)
    assert [p.name for p in path.parent.iterdir()] == ["net.safetensors"]


def test_a_file_from_before_the_surface_network_had_settings_loads(tmp_path):
    net = network(depth=3)
    old = {key: value for key, value in net.config.as_dict().items() if not key.startswith("surface_")}
    notes = {"format": "lamina attention network 1", "config": old}
    back = load_network(save_tensors(tmp_path / "old.safetensors", net.state_dict(), notes))
    assert back.config == net.config
    assert "surface_width" not in load_tensors(resources.files("lamina.paper") / SHIPPED_ATTENTION)[1]["config"]
    assert shipped_network().config == NetworkConfig()


def test_broken_and_foreign_files_are_refused(tmp_path):
    good = save_network(tmp_path / "good.safetensors", network())
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(good.read_bytes()[:-40])
    text = tmp_path / "text.safetensors"
    text.write_text("weights, honestly")
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign, {"format": "pt"})
    plain = tmp_path / "plain.safetensors"
    save_file({"weight": torch.zeros(3)}, plain)
    other = save_tensors(tmp_path / "other.safetensors", {"weight": torch.zeros(3)}, {"format": "another thing"})
    for path in (cut, text, foreign, plain, other, tmp_path / "none.safetensors"):
        with pytest.raises(InputError, match=path.name):
            load_network(path)


def test_tensors_that_do_not_fit_the_configuration_are_refused(tmp_path):
    net = network()
    state, notes = net.state_dict(), {"format": "lamina attention network 1", "config": net.config.as_dict()}
    wrong_shape = {**state, "band_net.0.bias": torch.zeros(99)}
    missing = {key: value for key, value in state.items() if key != "strength"}
    for tensors in (wrong_shape, missing):
        with pytest.raises(InputError, match="does not fit its own configuration"):
            load_network(save_tensors(tmp_path / "net.safetensors", tensors, notes))


@pytest.mark.parametrize("kind", ["pth", "npz"])
def test_broken_checkpoints_of_the_authors_are_refused(tmp_path, kind):
    path = tmp_path / f"broken.{kind}"
    path.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(InputError, match=path.name):
        load_network(path)
    with pytest.raises(InputError, match="no file"):
        load_network(tmp_path / f"none.{kind}")


def test_an_incomplete_checkpoint_of_the_authors_is_refused():
    state = authors_state()
    short = {key: value for key, value in state.items() if key != "surface_feat_net.2.bias"}
    wrong = {**state, "key_net.2.weight": torch.zeros(2, 2)}
    for bad in (short, wrong, {}):
        with pytest.raises(InputError):
            from_authors(bad)


def test_a_checkpoint_that_is_no_state_dict_is_refused(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    with pytest.raises(InputError, match=r"list\.pth"):
        load_network(tmp_path / "list.pth")


def test_a_configuration_of_another_version_is_refused(tmp_path):
    net = network()
    for config in ({**net.config.as_dict(), "heads": 8}, None):
        notes = {"format": "lamina attention network 1"} | ({} if config is None else {"config": config})
        with pytest.raises(InputError, match=r"net\.safetensors"):
            load_network(save_tensors(tmp_path / "net.safetensors", net.state_dict(), notes))
