"""Neural fields compute the formulas of their papers, survive their files, and are negative inside."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lamina.errors import InputError
from lamina.io.safetensor_files import save_tensors
from lamina.surfaces.fields import (
    FIELD_FORMAT,
    FieldConfig,
    LatentDecoder,
    LevelFunction,
    Perceptron,
    field_from,
    load_field,
    save_field,
)

X = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def parts(net):
    return [(layer.weight, layer.bias) for layer in net.layers]


def test_siren_has_its_bias_inside_omega():
    net = Perceptron(FieldConfig((5, 4), "sin", omega=30.0, first_omega=7.0)).double()
    (W0, b0), (W1, b1), (W2, b2) = parts(net)
    h = torch.sin(30 * (torch.sin(7 * (X @ W0.T + b0)) @ W1.T + b1))
    torch.testing.assert_close(net(X), (h @ W2.T + b2)[:, 0])


def test_initial_siren_keeps_the_spread_of_its_activations():
    """Sitzmann et al.: sines of arguments of unit variance, layer after layer, whatever omega."""
    net = Perceptron(FieldConfig((256,) * 5, "sin", omega=30.0)).double()
    h = 2 * torch.rand(500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 1
    for layer in list(net.layers)[:-1]:
        h = torch.sin(30 * layer(h))
        assert 0.4 < h.std() < 0.8


@pytest.mark.parametrize(
    ("activation", "module"),
    [
        ("relu", nn.ReLU()),
        ("elu", nn.ELU()),
        ("tanh", nn.Tanh()),
        ("softplus", nn.Softplus(beta=100)),
        ("leaky_relu", nn.LeakyReLU(0.2)),
        ("gelu", nn.GELU()),
        ("silu", nn.SiLU()),
    ],
)
def test_activations_are_those_of_torch(activation, module):
    net = Perceptron(FieldConfig((6, 5), activation, beta=100.0, slope=0.2)).double()
    a, b, c = net.layers
    expected = nn.Sequential(a, module, b, module, c)(X)
    torch.testing.assert_close(net(X), expected[:, 0])


def test_decoder_sees_code_and_point_again_before_a_skip():
    config = FieldConfig((9, 4, 8), latent=2, skips=(2,), norms=(0,), output=("tanh",))
    net = Perceptron(config).double()
    assert config.inputs == (5, 9, 9, 8)
    codes = torch.tensor([[0.3, -1.0], [2.0, 0.1]], dtype=torch.float64)
    decoder = LatentDecoder(net, codes, chosen=1)
    (W0, b0), (W1, b1), (W2, b2), (W3, b3) = parts(net)
    z = torch.cat([codes[1].expand(len(X), 2), X], 1)
    h = torch.relu(nn.functional.layer_norm(z @ W0.T + b0, (9,)))
    h = torch.relu(h @ W1.T + b1)
    h = torch.relu(torch.cat([h, z], 1) @ W2.T + b2)
    torch.testing.assert_close(decoder(X), torch.tanh(h @ W3.T + b3)[:, 0])
    torch.testing.assert_close(decoder(X), net(X, codes[1].expand(len(X), 2)))
    decoder.choose(0)
    torch.testing.assert_close(decoder(X), net(X, codes[0]))
    with pytest.raises(InputError, match="no latent code 2; the file has 2"):
        decoder.choose(2)


def test_points_in_all_layers_but_those_with_the_whole_input():
    config = FieldConfig((7, 6), latent=1, skips=(1,), points_in_all=True)
    assert config.inputs == (4, 7 + 4, 6 + 3)
    assert Perceptron(config).double()(X, torch.ones(1, dtype=torch.float64)).shape == (len(X),)


def test_gradients_reach_the_latent_code():
    decoder = LatentDecoder(Perceptron(FieldConfig(latent=3)).double(), torch.zeros(1, 3, dtype=torch.float64))
    decoder(X).sum().backward()
    assert decoder.latents.grad is not None
    assert decoder.latents.grad.abs().sum() > 0


def test_sdf_in_other_coordinates_is_a_distance_there():
    local, world = FieldConfig(activation="elu"), FieldConfig(activation="elu", centre=(1.0, 2.0, 3.0), scale=10.0)
    a, b = Perceptron(local).double(), Perceptron(world).double()
    moved = 10 * X + torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(b(moved), 10 * a(X))


def ball(kind, output=()):
    """A field of one sign change: 4 (|x| + |y| + |z|) - 2, or its opposite, before its output activation."""
    net = Perceptron(FieldConfig((6,), kind=kind, output=output)).double()
    sign = 1.0 if kind == "sdf" else -1.0
    eye = torch.eye(3, dtype=torch.float64)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.cat([eye, -eye]))
        net.layers[0].bias.zero_()
        net.layers[1].weight.fill_(4 * sign)
        net.layers[1].bias.fill_(-2 * sign)
    return net


@pytest.mark.parametrize(
    ("kind", "output"),
    [("sdf", ()), ("sdf", ("tanh",)), ("logit", ()), ("probability", ("sigmoid",)), ("sdf", ("tanh", "tanh"))],
)
def test_level_function_is_negative_inside_and_never_saturates(kind, output):
    phi = LevelFunction(ball(kind, output))
    norm = X.abs().sum(1)
    torch.testing.assert_close(phi(X), 4 * norm - 2)
    far = (1e3 * X).requires_grad_()
    (gradient,) = torch.autograd.grad(phi(far).sum(), far)
    assert gradient.norm(dim=1).min() > 1


def test_level_is_a_value_of_the_field():
    net = ball("probability", ("sigmoid",))
    net.config = FieldConfig((6,), kind="probability", output=("sigmoid",), level=0.8)
    phi = LevelFunction(net)
    at = X / X.abs().sum(1, keepdim=True)
    inner = at * (2 - math.log(4)) / 4
    torch.testing.assert_close(phi(inner), torch.zeros(len(X), dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(net(inner), torch.full((len(X),), 0.8, dtype=torch.float64))
    net.config = FieldConfig((6,), kind="probability", output=("sigmoid",), level=1.0)
    with pytest.raises(InputError, match="level 1 is no value of sigmoid"):
        LevelFunction(net)


@pytest.mark.parametrize(
    "config",
    [
        FieldConfig(),
        FieldConfig((32, 16), "sin", omega=30.0, first_omega=20.0, bounds=((-2, -2, -2), (2, 2, 3))),
        FieldConfig((8, 8, 8), "softplus", beta=100.0, skips=(2,), skip_scale=0.5**0.5),
        FieldConfig((9, 4, 8), latent=2, skips=(2,), norms=(0, 1), output=("tanh",), level=0.1),
        FieldConfig((9,), kind="logit", centre=(1, 2, 3), scale=4.0),
    ],
)
def test_field_survives_its_file(tmp_path, config):
    field = Perceptron(config, seed=3)
    if config.latent:
        field = LatentDecoder(field, torch.randn(5, config.latent), chosen=4)
    path = save_field(tmp_path / "a.safetensors", field, note="made by a test")
    again = load_field(path)
    assert type(again) is type(field)
    assert again.config == config
    assert torch.equal(again(X.float()), field(X.float()))


def test_other_files_are_refused(tmp_path):
    save_file({"a": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="holds no neural field but 'other tensors'"):
        load_field(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="there is no file"):
        load_field(tmp_path / "b.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"widths": [10**6, 10**6]},
        {"widths": [10**30]},
        {"widths": [-1]},
        {"widths": "abc"},
        {"widths": [64, 64, 63]},
        {"activation": "eval"},
        {"latent": 10**12},
        {"latent": 1},
        {"skips": [7]},
        {"norms": [0]},
        {"scale": 0},
        {"omega": float("nan")},
        {"bounds": [[0, 0], [1, 1]]},
        {"output": ["exec"]},
        {"kind": "mesh"},
    ],
)
def test_file_that_describes_something_else_than_it_holds_is_refused(tmp_path, change):
    field = Perceptron()
    config = field.config.as_dict() | change
    path = save_tensors(tmp_path / "a.safetensors", field.state_dict(), {"format": FIELD_FORMAT, "config": config})
    with pytest.raises(InputError) as caught:
        load_field(path)
    assert "\n" not in str(caught.value)


def test_metadata_of_any_shape_is_no_crash():
    for config in ({}, {"config": 3}, {"config": {"widths": None}}):
        metadata = {"format": FIELD_FORMAT, **config}
        with pytest.raises(InputError, match="does not fit its own configuration"):
            field_from(Perceptron().state_dict(), metadata, "a file")
