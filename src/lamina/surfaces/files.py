"""Surfaces from files and by name. What a file holds is decided by its content, not by its extension."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lamina.errors import InputError
from lamina.io.formats import READERS, REGISTERED, Contents, FormatError
from lamina.io.recognise import NETWORK_KINDS, SPLAT_KINDS, kind_in_words, one_line, recognise
from lamina.surfaces.base import Surface

if TYPE_CHECKING:
    from lamina.io.splat_files import SplatData

BUILT_IN = {  # module, factory and its arguments
    "sphere": ("lamina.surfaces.analytic", "Sphere"),
    "torus": ("lamina.surfaces.analytic", "Torus"),
    "ellipsoid": ("lamina.surfaces.analytic", "Ellipsoid"),
    "spike": ("lamina.surfaces.spherical_map", "spike"),
    "starfruit": ("lamina.surfaces.spherical_map", "starfruit"),
}
NAMED_MAPS = (
    "smallspike", "flower", "smallflower", "tree", "smalltree", "bobbly", "smallbobble", "laundryball", "finespiral",
    "spiralegg",
)  # fmt: skip
BUILT_IN |= {"spot": ("lamina.surfaces.models", "model", "spot")}
BUILT_IN |= {key: ("lamina.surfaces.sphere_maps", "sphere_map", key) for key in NAMED_MAPS}


def load(
    path_or_name: str | Path,
    *,
    name: str | None = None,
    activation: str | None = None,
    omega: float | None = None,
    kind: str | None = None,
    level: float | None = None,
    output: str | None = None,
    bounds: Any = None,
    latent: int | str | Path | torch.Tensor | np.ndarray | Sequence[float] | None = None,
    samples: int | None = None,
    viewpoint: Sequence[float] | torch.Tensor | None = None,
) -> Surface:
    """The surface in a file, or the built-in surface of that name, in float64.

    Triangles in a file make a `Mesh`, points a `PointCloud`, Gaussians `Splats`, a spherical neural surface a
    `SphericalMap`, and any other network whose layers are known an `Implicit`. The options `activation` to `samples`
    describe a neural field where its file does not; other surfaces do not take them.

    Parameters
    ----------
    path_or_name : str or Path
        A file, a folder of DeepSDF, or the name of a built-in surface: sphere, torus, ellipsoid, spot, spike,
        starfruit, ...
    name : str, optional
        What reports call the surface, the stem of the file unless given.
    activation : str, optional
        "relu", "elu", "tanh", "softplus:100", "leaky_relu", "gelu", "silu" or "sin".
    omega : float, optional
        The factor in sin(omega (W x + b)).
    kind : str, optional
        "sdf", or "logit" or "probability" of being inside.
    level : float, optional
        The value of the field on the surface.
    output : str, optional
        What follows the last layer: "none", "tanh" or "sigmoid".
    bounds : Tensor or array_like, optional
        Corners (2, 3) of the box that contains the surface.
    latent : int, str, Path, Tensor or sequence of float, optional
        The number of a latent code, the code itself, or a file with one.
    samples : int, optional
        The number of points to spread over the surface.
    viewpoint : Tensor or sequence of float, optional
        From where (3,) the points of a cloud without normals were seen.

    Returns
    -------
    Surface
        The surface.

    Raises
    ------
    InputError
        If there is no such file or name, or if no surface can be read from it.

    Examples
    --------
    >>> import lamina
    >>> lamina.load("torus").name
    'torus'
    """
    from lamina.surfaces.neural import FieldOptions

    options = FieldOptions(activation, omega, kind, level, output, bounds, latent, samples)
    if str(path_or_name) in BUILT_IN:
        _refuse_options(options.named(), viewpoint, str(path_or_name))
        return _built_in(str(path_or_name), name)
    path = Path(path_or_name)
    found = _kind_of(path)
    try:
        return _read(path, found, options, viewpoint, name or path.stem)
    except FormatError as error:
        raise InputError(f"{path} cannot be read as {kind_in_words(found)}: {one_line(str(error))}") from error
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path}: {error}") from error
    except Exception as error:
        # Readers that others wrote raise exceptions of any kind on a damaged file.
        reason = one_line(f"{type(error).__name__}: {error}")
        raise InputError(f"{path} cannot be read as {kind_in_words(found)}: {reason}") from error


def _read(path: Path, kind: str, options: Any, viewpoint: Any, name: str) -> Surface:
    from lamina.surfaces.neural import neural_surface

    if kind in REGISTERED and kind == path.suffix.lower().lstrip("."):
        _refuse_options(options.named(), None, str(path))
        return _from_contents(REGISTERED[kind](path), path, viewpoint, name)
    if (kind in NETWORK_KINDS and not _is_sns(path, kind)) or (kind == "npz" and _is_field(path)):
        _refuse_options([], viewpoint, str(path))
        return neural_surface(path, kind, options, name)
    _refuse_options(options.named(), None, str(path))
    if kind == "safetensors":
        _refuse_options([], viewpoint, str(path))
        return _spherical(path, name)
    contents = _splat_contents(path, kind) if kind in SPLAT_KINDS else READERS[kind](path)
    return _from_contents(contents, path, viewpoint, name)


def _from_contents(contents: Contents, path: Path, viewpoint: Any, name: str) -> Surface:
    if contents.faces is None and contents.splats is None:
        return _cloud(contents, viewpoint, name)
    _refuse_options([], viewpoint, str(path))
    return _mesh(contents, name) if contents.splats is None else _splats(contents.splats, name)


def _splat_contents(path: Path, kind: str) -> Contents:
    from lamina.io.splat_files import SPLAT_READERS

    data = SPLAT_READERS[kind](path)
    return Contents(data.centres, splats=data)


def _refuse_options(named: list[str], viewpoint: Any, what: str) -> None:
    if viewpoint is not None:
        raise InputError(f"{what} is no point cloud; leave out viewpoint.")
    if named:
        raise InputError(f"{what} is no neural field; leave out {', '.join(named)}.")


def _built_in(key: str, name: str | None) -> Surface:
    module, factory, *arguments = BUILT_IN[key]
    surface = getattr(importlib.import_module(module), factory)(*arguments)
    surface.name = name or key
    return surface


def _is_sns(path: Path, kind: str) -> bool:
    from lamina.io.safetensor_files import load_tensors
    from lamina.surfaces.sns import SNS_FORMAT

    return kind == "safetensors" and load_tensors(path, tensors=False)[1].get("format") == SNS_FORMAT


def _spherical(path: Path, name: str) -> Surface:
    from lamina.surfaces.sns import load_sns
    from lamina.surfaces.spherical_map import SphericalMap

    return SphericalMap(load_sns(path).double(), name=name)


def _is_field(path: Path) -> bool:
    from lamina.io.archives import read_npz
    from lamina.surfaces.networks import are_layers

    return are_layers(read_npz(path, lambda name: False)[1])


def _splats(data: SplatData, name: str) -> Surface:
    from lamina.surfaces.splats import Splats

    if len(data.centres) == 0:
        raise FormatError("it holds no Gaussians")
    surface = Splats.from_data(data, name=name)
    surface.notes.extend(note for note in data.notes if note not in surface.notes)
    return surface


def _cloud(contents: Contents, viewpoint: Any, name: str) -> Surface:
    from lamina.surfaces.point_cloud import PointCloud

    points, normals = _numbers(contents.points), contents.normals
    if normals is not None and viewpoint is not None:
        raise FormatError("its points have normals; leave out viewpoint")
    said = {} if viewpoint is None else {"viewpoint": viewpoint}
    surface = PointCloud(points, None if normals is None else _numbers(normals), name=name, **said)
    surface.notes.extend(contents.notes)
    return surface


def _mesh(contents: Contents, name: str) -> Surface:
    from lamina.surfaces.mesh import Mesh

    points = _numbers(contents.points)
    surface = Mesh(points, torch.from_numpy(np.array(contents.faces, dtype=np.int64)), name=name)
    surface.notes.extend(contents.notes)
    return surface


def _numbers(rows: np.ndarray) -> torch.Tensor:
    if len(rows) == 0:
        raise FormatError("it holds no points; expected a mesh or a point cloud")
    return torch.from_numpy(np.array(rows, dtype=np.float64))


def _kind_of(path: Path) -> str:
    """The format of a file; a plain word that names no file is refused with the names of built-in surfaces."""
    try:
        missing = not path.exists()
    except (OSError, ValueError):
        missing = False  # `recognise` says why the path cannot be opened
    if missing and not path.suffix and path.name == str(path):
        names = ", ".join(BUILT_IN)
        raise InputError(f"'{path}' is neither a file nor a built-in surface; built in: {names}.")
    return recognise(path)
