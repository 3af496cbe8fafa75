"""Networks in files: safetensors with the configuration in the metadata.

safetensors is imported where a file is read or written: building and applying networks needs torch alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.learn.fit_network import FitConfig, FitNetwork
from lamina.learn.network import AttentionNetwork, NetworkConfig, from_authors

SHIPPED, SHIPPED_FITS = "attention.safetensors", "neural.safetensors"
FORMAT, FITS = "lamina attention network 1", "lamina fit network 1"
KEY = "lamina"  # of the metadata


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Path:
    """Write tensors and metadata (values as JSON); whole or not at all."""
    from safetensors.torch import save

    path = Path(path)
    data = save(
        {key: value.detach().cpu().contiguous() for key, value in tensors.items()},
        metadata={KEY: json.dumps(metadata)},  # one entry: safetensors writes several in random order
    )
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path


def load_tensors(path: str | Path, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (none unless wanted) and metadata of a file that save_tensors wrote; InputError when it is not one."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; expected weights in safetensors format.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(KEY, "{}"))
            names = file.keys() if tensors else ()
            found = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, RecursionError, OSError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(f"{path} is no safetensors file of lamina's: {reason}.") from error
    return found, metadata if isinstance(metadata, dict) else {}


def save_network(path: str | Path, network: AttentionNetwork, **notes: Any) -> Path:
    """Write a network with its configuration, and notes that say where it came from."""
    return save_tensors(path, network.state_dict(), {"format": FORMAT, "config": network.config.as_dict(), **notes})


def load_network(path: str | Path) -> AttentionNetwork:
    """The network in a file: lamina's safetensors, or a checkpoint of the authors (.pth, .npz)."""
    path = Path(path)
    if path.suffix in (".pth", ".pt", ".npz"):
        return from_authors(_plain_state(path))
    tensors, metadata = load_tensors(path)
    return network_from(tensors, metadata, path)


def network_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], path: str | Path) -> AttentionNetwork:
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} holds no attention network but {metadata.get('format', 'something unnamed')!r}.")
    try:
        network = AttentionNetwork(NetworkConfig(**metadata["config"]))
        network.load_state_dict({key: tensors[key] for key in network.state_dict()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit its own configuration: {error}.") from error
    return network


def save_fit_network(path: str | Path, network: FitNetwork, **notes: Any) -> Path:
    """Write the network of the learned operator with its configuration and notes."""
    return save_tensors(path, network.state_dict(), {"format": FITS, "config": network.config.as_dict(), **notes})


def load_fit_network(path: str | Path) -> FitNetwork:
    """The network of the learned operator in a file."""
    tensors, metadata = load_tensors(path)
    if metadata.get("format") != FITS:
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
    """The network of the learned operator that comes with lamina, trained on the Spike by `lamina train`."""
    with resources.as_file(resources.files("lamina.learn") / SHIPPED_FITS) as path:
        return load_fit_network(path).requires_grad_(False)


def shipped_network() -> AttentionNetwork:
    """The network that comes with lamina, trained on the Spike by `lamina train`."""
    with resources.as_file(resources.files("lamina.learn") / SHIPPED) as path:
        return load_network(path).requires_grad_(False)


def _plain_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no file {path}; expected the weights of an attention network.")
    from lamina.surfaces.archives import read_npz
    from lamina.surfaces.formats import FormatError
    from lamina.surfaces.torch_files import read_checkpoint

    try:
        if path.suffix == ".npz":
            return {key: torch.from_numpy(value.copy()) for key, value in read_npz(path)[0].items()}
        state = read_checkpoint(path)
    except (FormatError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a checkpoint: {error}.") from error
    if not isinstance(state, dict):
        raise InputError(f"{path} holds a {type(state).__name__}; expected the state dict of the authors' network.")
    return state
