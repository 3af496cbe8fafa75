"""Where to compute."""

from __future__ import annotations

import torch

from lamina.errors import InputError


def available(device: torch.device | str) -> torch.device:
    """The device, if it is there. Raises InputError for a GPU that torch does not see."""
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError('device "cuda" was asked for but torch sees no CUDA device; use device="cpu".')
    return device
