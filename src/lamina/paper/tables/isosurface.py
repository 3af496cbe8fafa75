"""The zero set of a neural field as triangles by marching cubes, independent of lamina's own geometry."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation
from torch import Tensor

from lamina.errors import InputError
from lamina.surfaces.base import Surface
from lamina.surfaces.implicit import Implicit

COARSE_CELLS = 64  # Cells along a side of the grid on which sign changes are sought before the fine grid is filled.


def mean_over_zero_set(surface: Surface, u: Callable[[Tensor], Tensor], cells: int = 256) -> float:
    """Mean by area of u over the zero set of a field. u is a function of points and linear in space."""
    assert isinstance(surface, Implicit)
    V, F = marching_cubes(surface, cells)
    return mean_over_triangles(torch.from_numpy(on_zero_set(V, surface, cells)[F]), u)


def mean_over_triangles(corners: Tensor, u: Callable[[Tensor], Tensor]) -> float:
    """Mean by area over triangles (m, 3, 3) of a function of points: exact where it is linear in space."""
    a, b, c = corners.unbind(1)
    area = torch.linalg.cross(b - a, c - a).norm(dim=1)
    return float((area * u((a + b + c) / 3)).sum() / area.sum())


def marching_cubes(surface: Implicit, cells: int, everywhere: bool = False) -> tuple[NDArray, NDArray]:
    """Vertices (n, 3) and triangles (m, 3) of the field on cells^3 cubes of its box.

    The field is evaluated at all nodes, or only near sign changes on 64^3 cells (Lorensen and Cline 1987; the code is
    that of scikit-image).
    """
    if not find_spec("skimage"):
        raise InputError("Marching cubes needs the package scikit-image; pip install scikit-image.")
    from skimage.measure import marching_cubes as extract  # pyright: ignore[reportMissingImports]

    phi = _single(surface)
    low, high = surface.box.numpy()
    values = np.ones((cells + 1,) * 3, np.float32)
    if everywhere:
        nodes = np.indices(values.shape).reshape(3, -1).T
        values = _values(phi, nodes, cells, low, high).reshape(values.shape)
    else:
        coarse = _values(phi, np.indices((COARSE_CELLS + 1,) * 3).reshape(3, -1).T, COARSE_CELLS, low, high)
        inside = coarse.reshape((COARSE_CELLS + 1,) * 3) < 0
        corners = np.stack(
            [
                inside[i : i + COARSE_CELLS, j : j + COARSE_CELLS, k : k + COARSE_CELLS]
                for i, j, k in np.ndindex(2, 2, 2)
            ]
        )
        near = binary_dilation(corners.any(0) & ~corners.all(0), np.ones((3, 3, 3)))
        fine = cells // COARSE_CELLS
        values = np.where(np.kron(inside[:-1, :-1, :-1], np.ones((fine,) * 3, bool)), np.float32(-1), np.float32(1))
        values = np.pad(values, ((0, 1),) * 3, mode="edge")
        wanted = np.zeros(values.shape, bool)
        for i, j, k in np.ndindex(fine + 1, fine + 1, fine + 1):
            a, b, c = (np.argwhere(near) * fine + (i, j, k)).T
            wanted[a, b, c] = True
        values[wanted] = _values(phi, np.argwhere(wanted), cells, low, high)
    V, F, _, _ = extract(values, 0.0)
    return low + (high - low) * V / cells, F.astype(np.int64)


def on_zero_set(V: NDArray, surface: Implicit, cells: int) -> NDArray:
    """Vertices V (n, 3) of marching cubes, moved along their grid edges to the zeros of phi by bisection.

    Marching cubes assumes that phi is linear along an edge. Some networks are flat near their zeros and steep beyond.
    For them the vertices are off by a third of a cell, however small the cells, and the area is too large.
    """
    low, high = surface.box
    place = (torch.from_numpy(V) - low) / (high - low) * cells
    axis = (place - place.round()).abs().argmax(1, keepdim=True)
    ends = [place.scatter(1, axis, place.gather(1, axis).floor() + k) / cells * (high - low) + low for k in (0, 1)]

    def negative(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([surface.phi(part).reshape(-1) < 0 for part in x.split(2**12)])

    below = negative(ends[0])
    crossed = below != negative(ends[1])
    for _ in range(20):
        middle = 0.5 * (ends[0] + ends[1])
        same = (negative(middle) == below)[:, None]
        ends = [torch.where(same, middle, ends[0]), torch.where(same, ends[1], middle)]
    moved = torch.where(crossed[:, None], 0.5 * (ends[0] + ends[1]), torch.from_numpy(V))
    return moved.numpy()


def _single(surface: Implicit) -> torch.nn.Module:
    moved = surface.to(dtype=torch.float32)
    assert isinstance(moved, Implicit)
    assert isinstance(moved.phi, torch.nn.Module)
    return moved.phi


def _values(phi: torch.nn.Module, nodes: NDArray, cells: int, low: NDArray, high: NDArray) -> NDArray:
    def at(rows: NDArray) -> Tensor:
        return phi(torch.from_numpy((low + (high - low) * rows / cells).astype(np.float32))).reshape(-1)

    with torch.no_grad():
        return torch.cat([at(rows) for rows in np.array_split(nodes, max(1, len(nodes) // 2**13))]).numpy()
