"""The device and the precision to compute in, and whether GPU kernels are used."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lamina.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def in_own_precision(function: F) -> F:
    """The function without torch.autocast, so that it computes in the precision of its tensors.

    Sparse products do not exist in the lower precision of autocast, and no solve converges in it.
    """

    @wraps(function)
    def precise(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return cast(F, precise)


def available(device: torch.device | str) -> torch.device:
    """The device with its number. Raises InputError if there is no such device or torch does not see it."""
    if isinstance(device, torch.dtype):
        raise InputError(f"the device is {device}, which is a precision: give it as dtype={device}.")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f'there is no device "{device}"; use "cpu" or "cuda".') from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError('device "cuda" was asked for but torch sees no CUDA device; use device="cpu".')
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def by_kernel(*tensors: Tensor) -> bool:
    """Whether a Triton kernel computes with these tensors, instead of the torch code that does the same.

    It does on CUDA if Triton works and nothing is differentiated or transformed.
    """
    live = torch.is_grad_enabled()
    return (
        all(v.is_cuda and v.device == tensors[0].device and not (live and v.requires_grad) for v in tensors)
        and all(v.dtype in (torch.float32, torch.float64) for v in tensors)
        and _kernels_run()
        and torch._C._functorch.maybe_current_level() is None  # pyright: ignore[reportAttributeAccessIssue]
    )


@cache
def _kernels_run() -> bool:
    """Whether Triton works here. It needs a C compiler and a GPU that it knows."""
    try:
        from lamina.triton_check_kernel import runs

        return runs()
    except Exception as reason:  # of many kinds, some of them Triton's own; the torch code replaces the kernels
        warnings.warn(f"Triton's kernels do not run here, and point clouds take longer: {reason}", stacklevel=2)
        return False
