"""Networks of the tensors that files of others hold: arrays or state dicts are put in order as layers of a perceptron.

Three layouts are known. Arrays W0, b0, W1, ... (out x in), optionally with `activation`, `omega0` and `output`. Arrays
`0000.dense.A` (in x out), `0001.relu._` and so on (Sharp and Jacobson 2022, "Spelunking the deep"). State dicts of
torch, whose linear layers are taken in order, after weight norm has been applied (Salimans and Kingma 2016). What a
file does not say, above all the activation, is assumed by lamina.surfaces.neural, and a note says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina.io.formats import FormatError
from lamina.surfaces.fields import FIELD_ACTIVATIONS, OUTPUTS, Field, FieldConfig, LatentDecoder, Perceptron

LAYER_ARRAY = re.compile(r"(\d+)\.(\w+)\.(\w+)")  # number, kind and part: 0000.dense.A
USE_PYTHON = "any torch module is a surface through Python: lamina.Implicit(module, bounds)"


@dataclass(frozen=True)
class Layers:
    """Linear layers in order, and what else the file says. None stands for what the file does not say."""

    weights: list[Tensor]  # (out, in) each
    biases: list[Tensor]  # (out,) each
    layout: str  # what lamina recognised the file as, in words
    activation: str | None = None
    omega: float | None = None
    output: tuple[str, ...] | None = None
    norms: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # weight and bias of LayerNorms
    codes: Tensor | None = None  # (k, L) latent codes that came with them
    config_entries: dict[str, Any] = field(default_factory=dict)  # entries of FieldConfig that the file states


def are_layers(names: list[str]) -> bool:
    """Whether arrays of these names are the layers of a perceptron."""
    return "W0" in names or any(LAYER_ARRAY.fullmatch(name) for name in names)


def layers_of_arrays(arrays: Mapping[str, np.ndarray]) -> Layers:
    """The layers in arrays by name, of which `are_layers` is true."""
    if "W0" in arrays:
        return _layers_of_numbered(arrays)
    return _layers_of_named(arrays)


def _layers_of_numbered(arrays: Mapping[str, np.ndarray]) -> Layers:
    count = sum(bool(re.fullmatch(r"W\d+", name)) for name in arrays)
    missing = [name for i in range(count) for name in (f"W{i}", f"b{i}") if name not in arrays]
    if missing:
        raise FormatError(f"it has {count} arrays W0, W1, ... but no {missing[0]}")
    omega = next((_number(arrays[key], key) for key in ("omega0", "omega", "w0") if key in arrays), None)
    return Layers(
        [_tensor(arrays[f"W{i}"], f"W{i}") for i in range(count)],
        [_tensor(arrays[f"b{i}"], f"b{i}").reshape(-1) for i in range(count)],
        "arrays W0, b0, W1, ...",
        activation=_word(arrays, "activation") or (None if omega is None else "sin"),
        omega=omega,
        output=None if "output" not in arrays else tuple(w for w in (_word(arrays, "output") or "").split() if w),
    )


def _layers_of_named(arrays: Mapping[str, np.ndarray]) -> Layers:
    """From arrays 0000.dense.A, 0000.dense.b, 0001.relu._, ..."""
    found = sorted((int(m[1]), m[2], m[3], m[0]) for m in map(LAYER_ARRAY.fullmatch, arrays) if m)
    kinds = [kind for _, kind in sorted({(index, kind) for index, kind, _, _ in found})]
    if kinds and kinds[-1] == "squeeze_last":
        kinds = kinds[:-1]
    output: tuple[str, ...] = ()
    while kinds and kinds[-1] in OUTPUTS:
        output = (kinds.pop(), *output)
    hidden = set(kinds[1::2])
    regular = kinds[::2] == ["dense"] * (len(kinds) // 2 + 1) and len(hidden) <= 1 and len(kinds) % 2 == 1
    if not regular or not hidden <= set(FIELD_ACTIVATIONS):
        odd = next((k for k in kinds if k != "dense" and k not in FIELD_ACTIVATIONS), "an order of its own")
        raise FormatError(f"its layers have {odd[:40]!r}; expected dense layers and one activation; {USE_PYTHON}")
    parts = {(index, part): _tensor(arrays[key], key) for index, kind, part, key in found if kind == "dense"}
    order = sorted({index for index, _ in parts})
    if any((index, part) not in parts for index in order for part in "Ab"):
        raise FormatError("its dense layers lack an array A or b")
    return Layers(
        [parts[index, "A"].T for index in order],
        [parts[index, "b"].reshape(-1) for index in order],
        "arrays 0000.dense.A, 0001...",
        activation=hidden.pop() if hidden else "relu",
        output=output,
    )


def layers_of_state(state: Mapping[str, Tensor]) -> Layers:
    """The linear layers of a state dict: in the order of the file, or else by the numbers in their names."""
    state = without_weight_norm(state)
    wide = next((name for name, value in state.items() if name.endswith("weight") and value.ndim > 2), None)
    if wide is not None:
        raise FormatError(f"its {wide[:60]!r} is no linear layer; {USE_PYTHON}")
    if any("running_mean" in name for name in state):
        raise FormatError(f"it has batch norms, which are not read; {USE_PYTHON}")
    names = [name for name, value in state.items() if name.endswith("weight") and value.ndim == 2]
    if not names:
        raise FormatError(f"it holds {', '.join(list(state)[:4])[:80] or 'nothing'} but no linear layers")
    for order in (names, sorted(names, key=_with_numbers)):
        weights = [state[name].detach() for name in order]
        if _follow_each_other(weights):
            break
    else:
        shapes = ", ".join(f"{tuple(state[name].shape)}" for name in names[:4])
        raise FormatError(f"its layers {shapes}, ... do not follow one another to a single value; {USE_PYTHON}")
    biases = [state.get(name.removesuffix("weight") + "bias") for name in order]
    biases = [w.new_zeros(len(w)) if b is None else b.detach() for w, b in zip(weights, biases, strict=True)]
    return Layers(weights, biases, f"state dict {order[0][:40]}, ...")


def without_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with weight norm applied: w = g v / |v|, rows of v (out, in) by the entries of g (out, 1)."""
    pairs = (("weight_g", "weight_v"), ("parametrizations.weight.original0", "parametrizations.weight.original1"))
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        for g, v in pairs:
            if name.endswith(v) and name.removesuffix(v) + g in state:
                length = state[name.removesuffix(v) + g]
                if value.ndim != 2 or length.numel() != len(value):
                    raise FormatError(f"its weight norm {name[:60]!r} has the shape {tuple(value.shape)}")
                out[name.removesuffix(v) + "weight"] = value * (length.reshape(-1, 1) / value.norm(dim=1, keepdim=True))
                break
            if name.endswith(g):
                break
        else:
            out[name] = value
    return out


def _follow_each_other(weights: list[Tensor]) -> bool:
    """Whether each layer takes the outputs of the layer before it, alone or together with the input of the first."""
    first = weights[0].shape[1]
    steps = (b.shape[1] - a.shape[0] in (0, 3, first) for a, b in pairwise(weights))
    return len(weights) > 1 and first >= 3 and weights[-1].shape[0] == 1 and all(steps)


def field_of_layers(layers: Layers, given: Mapping[str, Any]) -> Field:
    """The field of some layers; given: what the user says of it, as entries of FieldConfig, and `latent`."""
    weights, biases = layers.weights, layers.biases
    if not _follow_each_other(weights) or any(b.shape != w.shape[:1] for w, b in zip(weights, biases, strict=True)):
        shapes = ", ".join(str(tuple(w.shape)) for w in weights[:4])
        raise FormatError(f"its layers {shapes}, ... do not follow one another from coordinates to a single value")
    if not all(bool(torch.isfinite(t).all()) for t in (*weights, *biases)):
        raise FormatError("it has weights that are not finite numbers")
    latent = weights[0].shape[1] - 3
    extra = [b.shape[1] - a.shape[0] for a, b in pairwise(weights)]
    skips = tuple(i for i, more in enumerate(extra, 1) if more == latent + 3)
    rest = {more for more in extra if more != latent + 3}
    if rest not in (set(), {0}, {3}):
        raise FormatError(f"some of its layers see the coordinates again and others do not; {USE_PYTHON}")
    config = FieldConfig(
        widths=tuple(len(w) for w in weights[:-1]), latent=latent, skips=skips, points_in_all=rest == {3},
        norms=tuple(layers.norms), activation=layers.activation or "relu",
        omega=1.0 if layers.omega is None else layers.omega, output=layers.output or (), **layers.config_entries,
    )  # fmt: skip
    config = replace(config, **{key: value for key, value in given.items() if key != "latent"})
    net = Perceptron(config).double()
    state = {f"layers.{i}.weight": w for i, w in enumerate(weights)}
    state |= {f"layers.{i}.bias": b for i, b in enumerate(biases)}
    for i, (w, b) in layers.norms.items():
        state |= {f"norms.{i}.weight": w, f"norms.{i}.bias": b}
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise FormatError("its layers and norms do not fit each other") from error
    if latent == 0:
        if given.get("latent") is not None:
            raise FormatError("it takes the coordinates alone; leave out the latent code")
        return net.requires_grad_(False).eval()
    return with_code(net, layers.codes, given.get("latent")).requires_grad_(False).eval()


def with_code(net: Perceptron, codes: Tensor | None, latent: int | Tensor | None) -> LatentDecoder:
    """The net with one of its codes (k, L), chosen by its number, or with a code that is given itself."""
    length = net.config.latent
    if isinstance(latent, Tensor):
        if latent.shape[-1:] != (length,):
            raise FormatError(f"the latent code has {latent.numel()} numbers; the network takes {length}")
        return LatentDecoder(net, latent.double().reshape(-1, length), 0)
    if codes is None:
        raise FormatError(
            f"its first layer takes {length + 3} numbers, {length} besides the coordinates; give that latent code, or, "
            f"if they encode the coordinates: {USE_PYTHON}"
        )
    return LatentDecoder(net, codes.double(), latent or 0)


def _with_numbers(name: str) -> list[tuple[int, str]]:
    """A key that sorts net.10 behind net.9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _tensor(array: np.ndarray, name: str) -> Tensor:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise FormatError(f"its array {name[:40]!r} holds {array.dtype}; expected numbers")
    return torch.from_numpy(array.astype(np.float64))


def _number(array: np.ndarray, name: str) -> float:
    if array.size != 1 or array.dtype.kind not in "fiu" or not math.isfinite(float(array.reshape(-1)[0])):
        raise FormatError(f"its {name} is {array.dtype} of shape {array.shape}; expected one number")
    return float(array.reshape(-1)[0])


def _word(arrays: Mapping[str, np.ndarray], name: str) -> str | None:
    if name not in arrays:
        return None
    array = arrays[name]
    if array.size != 1 or array.dtype.kind not in "US":
        raise FormatError(f"its {name} is {array.dtype} of shape {array.shape}; expected one word")
    word = array.reshape(-1)[0]
    return (word.decode("ascii", "replace") if isinstance(word, bytes) else str(word)).lower()
