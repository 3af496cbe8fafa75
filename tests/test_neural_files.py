"""Networks that others wrote are the same functions here, and their surfaces face outwards."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lamina.errors import InputError
from lamina.surfaces.fields import FieldConfig, LatentDecoder, Perceptron, save_field
from lamina.surfaces.files import load
from lamina.surfaces.neural import FieldOptions, open_field

X = 2 * torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
EYE = np.eye(3)
# The octahedron |x| + |y| + |z| = 1/2, whose area is sqrt(3).
OCTAHEDRON = {"W0": np.vstack([EYE, -EYE]), "b0": np.zeros(6), "W1": np.ones((1, 6)), "b1": np.array([-0.5])}
L1 = X.abs().sum(1)


def written(path, arrays):
    np.savez(path, **arrays)
    return path


def values(path, kind, **options):
    return open_field(path, kind, FieldOptions(**options))[0](X)


def is_the_octahedron(surface):
    """Area, and normals along (±1, ±1, ±1)."""
    assert float(surface.areas.sum()) == pytest.approx(math.sqrt(3), rel=0.02)
    outward = (surface.normals * surface.points.sign()).sum(1) / math.sqrt(3)
    assert float(outward.median()) == pytest.approx(1, abs=1e-3)
    return True


# Arrays


def test_arrays_out_by_in_are_a_relu_network_and_say_so(tmp_path):
    surface = load(written(tmp_path / "a.npz", OCTAHEDRON), samples=1000)
    assert is_the_octahedron(surface)
    assert surface.representation == "implicit"
    assert surface.name == "a"
    assert any("does not name its activation: relu" in note for note in surface.notes)
    assert any("[-1, 1]^3 was taken" in note for note in surface.notes)
    facts = surface.facts
    assert facts["network"] == "perceptron 3-6-1"
    assert facts["parameters"] == 31
    assert facts["gradient"]["median"] == pytest.approx(math.sqrt(3))
    assert facts["distance"]


def test_arrays_may_name_activation_omega_and_output(tmp_path):
    words = {"activation": np.array("ELU"), "output": np.array("tanh")}
    path = written(tmp_path / "a.npz", OCTAHEDRON | words)
    h = nn.functional.elu(torch.cat([X, -X], 1)).sum(1) - 0.5
    torch.testing.assert_close(values(path, "npz"), torch.tanh(h))
    siren = written(tmp_path / "b.npz", OCTAHEDRON | {"omega0": np.float32(30)})
    torch.testing.assert_close(values(siren, "npz"), torch.full((50,), -0.5, dtype=torch.float64))  # sines cancel
    torch.testing.assert_close(values(siren, "npz", activation="relu"), L1 - 0.5)
    half = OCTAHEDRON | {"W0": EYE, "b0": np.full(3, 0.1), "W1": np.ones((1, 3)), "omega0": np.array([7.0])}
    torch.testing.assert_close(
        values(written(tmp_path / "c.npz", half), "npz"), torch.sin(7 * (X + 0.1)).sum(1) - 0.5
    )


def test_arrays_in_by_out_with_layers_in_their_names(tmp_path):
    arrays = {
        "0000.dense.A": OCTAHEDRON["W0"].T, "0000.dense.b": OCTAHEDRON["b0"], "0001.relu._": np.zeros(0),
        "0002.dense.A": OCTAHEDRON["W1"].T, "0002.dense.b": OCTAHEDRON["b1"], "0003.squeeze_last._": np.zeros(0),
    }  # fmt: skip
    torch.testing.assert_close(values(written(tmp_path / "a.npz", arrays), "npz"), L1 - 0.5)
    arrays = {key.replace("relu", "elu"): value for key, value in arrays.items()}
    h = nn.functional.elu(torch.cat([X, -X], 1)).sum(1) - 0.5
    torch.testing.assert_close(values(written(tmp_path / "b.npz", arrays), "npz"), h)
    arrays = {"0000.pow2_frequency_encode._": np.zeros(0)} | {"9" + key: value for key, value in arrays.items()}
    with pytest.raises(InputError, match=r"pow2_frequency_encode.*lamina\.Implicit"):
        load(written(tmp_path / "c.npz", arrays))


def test_unnamed_activation_is_the_one_that_makes_a_distance(tmp_path):
    """10 sin(30 x / 300) has a gradient of nearly 1, 10 relu(x / 300) has not."""
    slow = {"W0": EYE / 300, "b0": np.zeros(3), "W1": np.array([[10.0, 0, 0]]), "b1": np.zeros(1)}
    field, _, notes = open_field(written(tmp_path / "a.npz", slow), "npz", FieldOptions())
    assert (field.config.activation, field.config.omega) == ("sin", 30)
    assert any("sin:30, with which |grad| is nearest to 1" in note for note in notes)
    field, _, notes = open_field(tmp_path / "a.npz", "npz", FieldOptions(activation="elu"))
    assert field.config.activation == "elu"
    assert notes == []


@pytest.mark.parametrize("scale", [1.0, math.sqrt(0.5)])
def test_input_that_comes_again_is_scaled_as_a_distance_needs_it(tmp_path, scale):
    """relu(x + 9) passes x on; what follows adds half of it and half of the input, times the scale, to x."""
    second = np.hstack([EYE / 2, EYE / 2])
    arrays = {"W0": EYE, "b0": np.full(3, 9.0), "W1": second, "b1": np.zeros(3)}
    arrays |= {"W2": np.array([[1 / scale, 0, 0]]), "b2": np.array([-4.5]), "activation": np.array("relu")}
    field, _, notes = open_field(written(tmp_path / "a.npz", arrays), "npz", FieldOptions())
    assert field.config.skip_scale == pytest.approx(scale)
    torch.testing.assert_close(field(X), torch.relu(X[:, 0] + 4.5) - 4.5)
    assert len(notes) == (scale != 1)


# State dicts


def network(widths=(3, 8, 8, 1), activation=nn.ReLU, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(a, b), activation()) for a, b in pairwise(widths[:-1])]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1])).double()


@pytest.mark.parametrize("how", ["pt", "legacy", "training", "safetensors"])
def test_state_dict_of_a_perceptron(tmp_path, how):
    # Twelve layers: by name 10 comes before 2.
    net = network((3, *[5] * 11, 1), nn.ELU)
    state, path = net.state_dict(), tmp_path / f"a.{how[:2]}"
    match how:
        case "pt":
            torch.save(state, path)
        case "legacy":
            torch.save(state, path, _use_new_zipfile_serialization=False)
        case "training":
            optimiser = torch.optim.Adam(net.parameters())
            torch.save({"epoch": 3, "model_state_dict": state, "optimizer": optimiser.state_dict()}, path)
        case "safetensors":
            save_file(state, path)
    kind = "safetensors" if how == "safetensors" else "torch"
    torch.testing.assert_close(values(path, kind, activation="elu"), net(X)[:, 0].detach())


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weight_norm_of_either_kind_is_resolved(tmp_path, norm):
    net = network()
    for part in net[:-1]:
        norm(part[0])
    torch.save(net.state_dict(), tmp_path / "a.pth")
    torch.testing.assert_close(values(tmp_path / "a.pth", "torch"), net(X)[:, 0].detach())


def test_skip_and_softplus_from_the_shapes_and_an_option(tmp_path):
    a, b, c = (nn.Linear(*shape).double() for shape in ((3, 8), (11, 8), (8, 1)))
    state = {f"lin{i}.{key}": value for i, part in enumerate((a, b, c)) for key, value in part.state_dict().items()}
    torch.save(state, tmp_path / "a.pth")
    soft = nn.Softplus(beta=100)
    expected = c(soft(b(torch.cat([soft(a(X)), X], 1))))[:, 0].detach()
    torch.testing.assert_close(values(tmp_path / "a.pth", "torch", activation="softplus:100"), expected)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a.weight": torch.zeros(4, 2), "b.weight": torch.zeros(1, 4)}, "do not follow one another"),
        ({"a.weight": torch.zeros(4, 3), "b.weight": torch.zeros(1, 9)}, "do not follow one another"),
        ({"a.weight": torch.zeros(4, 3), "b.weight": torch.zeros(2, 4)}, "do not follow one another"),
        ({"a.weight": torch.zeros(4, 9), "b.weight": torch.zeros(1, 4)}, "6 besides the coordinates; give that latent"),
        ({"a.weight": torch.zeros(4, 3, 3, 3)}, "is no linear layer; any torch module is a surface through Python"),
        ({"a.weight": torch.zeros(4, 3), "n.running_mean": torch.zeros(4)}, "batch norms"),
        ({"a": torch.zeros(3)}, "no linear layers"),
        ({"a.weight": torch.full((4, 3), torch.nan), "b.weight": torch.zeros(1, 4)}, "not finite"),
        ({"epoch": 3}, "holds nothing"),
    ],
)
def test_other_networks_are_refused_with_a_reason(tmp_path, state, message):
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(InputError, match=message):
        load(tmp_path / "a.pt")


def test_whole_modules_and_code_are_refused_unexecuted(tmp_path):
    torch.save(network(), tmp_path / "a.pt")
    with pytest.raises(InputError, match="no part of plain weights; save a state dict"):
        load(tmp_path / "a.pt")
    torch.save({"a": Bomb(str(tmp_path / "fired"))}, tmp_path / "b.pt")
    with pytest.raises(InputError, match="no part of plain weights"):
        load(tmp_path / "b.pt")
    torch.save({"a": Bomb(str(tmp_path / "fired"))}, tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match="no part of plain weights"):
        load(tmp_path / "c.pt")
    assert not (tmp_path / "fired").exists()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


# Families of shapes


class Decoder(nn.Module):
    """DeepSDF's decoder, as its paper draws it: the input again before layer 2."""

    def __init__(self, length, weight_norm):
        super().__init__()
        torch.manual_seed(length)
        self.lin0, self.lin1 = nn.Linear(length + 3, 12), nn.Linear(12, 12 - length - 3)
        self.lin2, self.lin3 = nn.Linear(12, 12), nn.Linear(12, 1)
        self.bn0, self.bn1 = (None, None) if weight_norm else (nn.LayerNorm(12), nn.LayerNorm(9 - length))
        if weight_norm:
            for layer in (self.lin0, self.lin1):
                nn.utils.weight_norm(layer)

    def forward(self, z):
        h = self.lin0(z)
        h = torch.relu(h if self.bn0 is None else self.bn0(h))
        h = self.lin1(h)
        h = torch.relu(h if self.bn1 is None else self.bn1(h))
        h = torch.relu(self.lin2(torch.cat([h, z], 1)))
        return torch.tanh(self.lin3(h))[:, 0]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("weight_norm", [True, False])
def test_facebook_folder(tmp_path, flat, weight_norm):
    net, codes = Decoder(2, weight_norm).double(), torch.randn(4, 2, dtype=torch.float64)
    specs = {"dims": [12, 12, 12], "norm_layers": [0, 1], "latent_in": [2], "weight_norm": weight_norm}
    (tmp_path / "specs.json").write_text(json.dumps({"NetworkSpecs": specs, "CodeLength": 2}))
    names = ("ModelParameters", "LatentCodes")
    weights, latents = (tmp_path / (f"{name}_latest.pth" if flat else f"{name}/latest.pth") for name in names)
    weights.parent.mkdir(exist_ok=True)
    latents.parent.mkdir(exist_ok=True)
    torch.save({"epoch": 1, "model_state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, weights)
    torch.save({"epoch": 1, "latent_codes": {"weight": codes} if flat else codes[:, None]}, latents)
    torch.save(codes[2:3, None], tmp_path / "found.pth")

    def expected(code):
        return net(torch.cat([code.expand(len(X), 2), X], 1)).detach()

    for path in (tmp_path, tmp_path / "specs.json", weights, latents):
        torch.testing.assert_close(values(path, "decoder"), expected(codes[0]))
    torch.testing.assert_close(values(tmp_path, "decoder", latent=3), expected(codes[3]))
    torch.testing.assert_close(values(tmp_path, "decoder", latent="3"), expected(codes[3]))
    torch.testing.assert_close(values(tmp_path, "decoder", latent=[0.5, -1]), expected(torch.tensor([0.5, -1.0])))
    torch.testing.assert_close(values(tmp_path, "decoder", latent="0.5, -1"), expected(torch.tensor([0.5, -1.0])))
    torch.testing.assert_close(values(tmp_path, "decoder", latent=tmp_path / "found.pth"), expected(codes[2]))
    with pytest.raises(InputError, match="no latent code 4; the file has 4"):
        load(tmp_path, latent=4)
    with pytest.raises(InputError, match="has 3 numbers; the network takes 2"):
        load(tmp_path, latent=[1, 2, 3])
    with pytest.raises(InputError, match="expected a number, a code as numbers, or a file"):
        load(tmp_path, latent="somewhere.npy")


def test_minimal_folder(tmp_path):
    torch.manual_seed(0)
    length, width = 4, 16
    net = [nn.utils.weight_norm(nn.Linear(n, width)) for n in (length + 3, *[width] * 5)]
    skip, final = nn.Linear(width, width - length - 3), nn.Linear(width, 1)
    named = [*((f"net.{i}.0", layer) for i, layer in enumerate(net)), ("skip_layer.0", skip), ("final_layer.0", final)]
    state = {f"{name}.{key}": value for name, layer in named for key, value in layer.state_dict().items()}
    torch.save(state, tmp_path / "weights.pt")
    (tmp_path / "settings.yaml").write_text("latent_size: 4\nnum_layers: 8\nskip_connections: true\n")
    codes = np.random.default_rng(0).normal(size=(3, length)).astype(np.float32)
    np.save(tmp_path / "codes.npy", codes)
    z = torch.cat([torch.from_numpy(codes[2]).expand(len(X), length), X.float()], 1)
    h = z
    for i, layer in enumerate(net):
        if i == 3:
            h = torch.cat([torch.relu(skip(h)), z], 1)
        h = torch.relu(layer(h))
    expected = torch.tanh(final(h))[:, 0].double().detach()
    for path in (tmp_path, tmp_path / "weights.pt", tmp_path / "settings.yaml", tmp_path / "codes.npy"):
        torch.testing.assert_close(values(path, "decoder", latent=2), expected, atol=1e-6, rtol=1e-5)
    (tmp_path / "weights.pt").unlink()
    with pytest.raises(InputError, match=r"settings.yaml but no weights.pt"):
        load(tmp_path)


# What values mean


@pytest.mark.parametrize(
    ("sign", "options"),
    [
        (1, {}),
        (-1, {}),
        (-1, {"kind": "logit"}),
        (-1, {"kind": "probability"}),
        (1, {"kind": "logit"}),
        (-1000, {"kind": "probability"}),
    ],
)
def test_inside_is_found_whatever_its_sign(tmp_path, sign, options):
    arrays = OCTAHEDRON | {"W1": sign * OCTAHEDRON["W1"], "b1": sign * OCTAHEDRON["b1"]}
    surface = load(written(tmp_path / "a.npz", arrays), samples=500, **options)
    assert is_the_octahedron(surface)


def test_level_bounds_and_a_larger_shape(tmp_path):
    path = written(tmp_path / "a.npz", OCTAHEDRON)
    larger = load(path, level=0.5, bounds=[[-2] * 3, [2] * 3], samples=500)
    assert float(larger.areas.sum()) == pytest.approx(4 * math.sqrt(3), rel=0.03)
    far = written(tmp_path / "b.npz", OCTAHEDRON | {"b1": np.array([-12.0])})
    found = load(far, samples=500)
    assert float(found.points.abs().sum(1).mean()) == pytest.approx(12, rel=1e-3)
    assert any("[-8, 8]^3, the first with a change of sign" in note for note in found.notes)
    with pytest.raises(InputError, match="positive wherever"):
        load(written(tmp_path / "c.npz", OCTAHEDRON | {"b1": np.array([1.0])}), samples=500)


def test_own_file_brings_its_box_and_kind(tmp_path):
    config = FieldConfig((6,), kind="logit", bounds=((-0.7,) * 3, (0.7,) * 3))
    net = Perceptron(config)
    net.load_state_dict(
        {
            "layers.0.weight": torch.from_numpy(OCTAHEDRON["W0"]),
            "layers.0.bias": torch.zeros(6),
            "layers.1.weight": -torch.ones(1, 6),
            "layers.1.bias": torch.tensor([0.5]),
        }
    )
    surface = load(save_field(tmp_path / "a", net), samples=500)
    assert is_the_octahedron(surface)
    assert surface.notes == []
    assert surface.facts["box"][0] == pytest.approx([-0.7] * 3)
    assert surface.facts["field"] == "logit, surface at 0"


def test_own_family_of_shapes_by_number(tmp_path):
    """The code is the radius: |x| + |y| + |z| = code."""
    net = Perceptron(FieldConfig((7,), latent=1))
    first = torch.zeros(7, 4)
    first[:6, 1:], first[6, 0] = torch.from_numpy(OCTAHEDRON["W0"]), 1
    state = {"layers.0.weight": first, "layers.0.bias": torch.zeros(7)}
    state |= {"layers.1.weight": torch.tensor([[1.0] * 6 + [-1.0]]), "layers.1.bias": torch.zeros(1)}
    net.load_state_dict(state)
    path = save_field(tmp_path / "a.safetensors", LatentDecoder(net, torch.tensor([[0.25], [0.75]]), chosen=1))
    for options, radius in (({}, 0.75), ({"latent": 0}, 0.25), ({"latent": [0.5]}, 0.5)):
        surface = load(path, samples=300, **options)
        assert float(surface.points.abs().sum(1).mean()) == pytest.approx(radius, rel=1e-6)
    with pytest.raises(InputError, match="no latent code 2; the file has 2"):
        load(path, latent=2)


def test_options_are_for_neural_fields_and_checked(tmp_path):
    path = written(tmp_path / "a.npz", OCTAHEDRON)
    points = written(tmp_path / "p.npz", {"points": X.numpy()})
    with pytest.raises(InputError, match="no neural field; leave out activation, level"):
        load(points, activation="relu", level=0.1)
    with pytest.raises(InputError, match="no neural field; leave out latent"):
        load("sphere", latent=0)
    with pytest.raises(InputError, match="Unknown activation 'swish'; known: relu"):
        load(path, activation="swish")
    with pytest.raises(InputError, match="Unknown kind of field 'mesh'"):
        load(path, kind="mesh")
    with pytest.raises(InputError, match="omega goes with the activation sin"):
        load(path, activation="relu", omega=3.0)
    with pytest.raises(InputError, match="leave out the latent code"):
        load(path, latent=0)
    with pytest.raises(InputError, match="Unknown output 'softmax'"):
        load(path, output="softmax")
    with pytest.raises(InputError, match="lower and the upper corner"):
        load(path, bounds=[1, 2])


def test_folder_without_a_decoder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"folder without specs.json or settings.yaml"):
        load(tmp_path)
    (tmp_path / "specs.json").write_text("[]")
    with pytest.raises(InputError, match=r"specs.json is no description"):
        load(tmp_path)
    (tmp_path / "specs.json").write_text("[" * 100000)
    with pytest.raises(InputError, match=r"specs.json is no JSON"):
        load(tmp_path)
    (tmp_path / "specs.json").write_text('{"NetworkSpecs": {}}')
    with pytest.raises(InputError, match="it has no weights"):
        load(tmp_path)


# Files that others made

EXPECTED = {  # activation, and corners of the inside, by marching cubes
    "siren_threeballs.npz": ("sin", [-0.6, -0.45, -0.26, 0.4, 0.7, 0.8]),
    "siren_mug.npz": ("sin", [-0.5, -0.32, -0.33, 0.49, 0.32, 0.36]),
    "mlp_elu_bunny_sdf.npz": ("elu", [-0.74, -0.74, -0.58, 0.75, 0.73, 0.57]),
    "mlp_relu_hammer_occ.npz": ("relu", [-0.82, -0.3, -0.74, 0.81, 0.31, 0.75]),
    "thingi10k_75652_bust_sdf.npz": ("relu", [-0.62, -0.58, -0.43, 0.61, 0.57, 0.89]),
    "thingi10k_723892_gear_sdf.npz": ("relu", [-0.77, -0.77, -0.44, 0.77, 0.77, 0.44]),
    "deepsdf_minimal": ("relu", [-0.39, -0.29, -0.26, 0.21, 0.29, 0.16]),
    "deepsdf_fbformat_roundcross": ("relu", [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]),
}


@pytest.mark.data
@pytest.mark.parametrize("name", EXPECTED)
def test_inside_of_real_networks_is_where_marching_cubes_found_it(data, name):
    activation, corners = EXPECTED[name]
    path = data / "neural" / name
    field, _, _ = open_field(path, "decoder" if path.is_dir() else "npz", FieldOptions())
    assert field.config.activation == activation
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 35)] * 3)
    field.float()
    inside = grid[torch.cat([field(part) for part in grid.split(20000)]) < 0]
    found = [*inside.amin(0).tolist(), *inside.amax(0).tolist()]
    np.testing.assert_allclose(found, corners, atol=0.1)


@pytest.mark.data
@pytest.mark.slow
def test_real_network_says_what_it_is(data, program):
    code, out, _ = program("info", data / "neural/thingi10k_81261_man_sdf.npz", "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["network"] == "perceptron 3-32-32-32-32-32-32-32-32-1"
    assert facts["activation"] == "relu"
    assert facts["parameters"] == 7553
    assert 0.5 < facts["gradient"]["median"] < 1.5
