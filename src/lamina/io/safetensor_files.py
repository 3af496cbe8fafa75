"""Tensors in safetensors files, with metadata.

safetensors is imported where a file is read or written: building and applying networks needs torch alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lamina.errors import InputError

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
