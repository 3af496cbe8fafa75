"""Weights of the attention network: files, and the network that lamina ships."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.io.archives import read_npz
from lamina.io.formats import FormatError
from lamina.io.safetensor_files import load_tensors, save_tensors
from lamina.io.torch_files import read_checkpoint
from lamina.paper.attention_network import AttentionNetwork, NetworkConfig, from_authors

SHIPPED_ATTENTION = "attention.safetensors"
ATTENTION_FORMAT = "lamina attention network 1"


def save_network(path: str | Path, network: AttentionNetwork, **notes: Any) -> Path:
    """Write a network with its configuration, and notes on its origin."""
    return save_tensors(
        path, network.state_dict(), {"format": ATTENTION_FORMAT, "config": network.config.as_dict(), **notes}
    )


def load_network(path: str | Path) -> AttentionNetwork:
    """The network in a file: lamina's safetensors, or a checkpoint of the authors (.pth, .npz)."""
    path = Path(path)
    if path.suffix in (".pth", ".pt", ".npz"):
        return from_authors(_plain_state(path))
    tensors, metadata = load_tensors(path)
    return network_from(tensors, metadata, path)


def network_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], path: str | Path) -> AttentionNetwork:
    if metadata.get("format") != ATTENTION_FORMAT:
        raise InputError(
            f"{path} is not a file of an attention network; its format is {metadata.get('format', 'unknown')!r}."
        )
    try:
        network = AttentionNetwork(NetworkConfig(**metadata["config"]))
        network.load_state_dict({key: tensors[key] for key in network.state_dict()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit its own configuration: {error}.") from error
    return network


def shipped_network() -> AttentionNetwork:
    """The network that lamina ships, trained on the Spike by `lamina paper train`."""
    with resources.as_file(resources.files("lamina.paper") / SHIPPED_ATTENTION) as path:
        return load_network(path).requires_grad_(False)


def _plain_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no file {path}; give a file with the weights of an attention network.")
    try:
        if path.suffix == ".npz":
            return {key: torch.from_numpy(value.copy()) for key, value in read_npz(path)[0].items()}
        state = read_checkpoint(path)
    except (FormatError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a checkpoint: {error}.") from error
    if not isinstance(state, dict):
        raise InputError(f"{path} holds a {type(state).__name__}; expected the state dict of the authors' network.")
    return state
