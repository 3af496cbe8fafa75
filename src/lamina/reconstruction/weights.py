"""Weights of the network behind robust fits: in files, and those that come with lamina."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from lamina.errors import InputError
from lamina.io.safetensor_files import load_tensors, save_tensors
from lamina.reconstruction.fit_network import FitConfig, FitNetwork

SHIPPED_WEIGHTS = "neural.safetensors"
FIT_NETWORK_FORMAT = "lamina fit network 1"


def save_fit_network(path: str | Path, network: FitNetwork, **notes: Any) -> Path:
    """Write the network of robust fits with its configuration and notes."""
    facts = {"format": FIT_NETWORK_FORMAT, "config": network.config.as_dict(), **notes}
    return save_tensors(path, network.state_dict(), facts)


def load_fit_network(path: str | Path) -> FitNetwork:
    """The network of robust fits in a file."""
    tensors, metadata = load_tensors(path)
    if metadata.get("format") != FIT_NETWORK_FORMAT:
        raise InputError(f"{path} holds no network of fits but {metadata.get('format', 'something unnamed')!r}.")
    try:
        config = metadata["config"]
        network = FitNetwork(FitConfig(**{**config, "neighbours": tuple(config["neighbours"])}))
        network.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit its own configuration: {error}.") from error
    return network


@cache
def shipped_fit_network() -> FitNetwork:
    """The network of robust fits that comes with lamina, trained on the Spike by `lamina paper train`."""
    with resources.as_file(resources.files("lamina.reconstruction") / SHIPPED_WEIGHTS) as path:
        return load_fit_network(path).requires_grad_(False)
