"""Extension operators by name.

An extension carries a surface field into the band, constant along normals. Three of them interpolate at closest points
and so share one sparse form (`interpolation.py`), exact on polynomials; they differ in whose closest points:
"closest-point" asks the surface itself, "jet" a polynomial fit to its oriented samples, "neural", lamina's learned
operator, robust fits whose weights a network chooses (`neural.py`). "attention" is the network of the CVPR 2026 paper
(`attention.py`), which sees oriented samples and the band's nodes only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamina.errors import InputError
from lamina.surfaces.base import Surface

if TYPE_CHECKING:
    from lamina.surfaces.point_cloud import PointCloud

FEWEST_LEARNED = 500  # points of a cloud below which the learned operator is not the default
EXTENSIONS = ("closest-point", "jet", "neural", "attention")


def geometry_for(surface: Surface, extension: str) -> tuple[Surface, str]:
    """The surface whose closest points the extension uses, and the extension's name ("auto" resolved)."""
    from lamina.surfaces.point_cloud import PointCloud
    from lamina.surfaces.splats import Splats

    if extension not in ("auto", *EXTENSIONS):
        raise InputError(f"Unknown extension {extension!r}; known: auto, {', '.join(EXTENSIONS)}.")
    sampled = isinstance(surface, PointCloud)
    if extension == "auto":
        extension = _best(surface) if sampled else "closest-point"
    if extension == "attention":
        return surface, extension
    if extension == "closest-point":
        if sampled:
            raise InputError('A point cloud has no closest-point map of its own; use extension="neural" or "jet".')
        return surface, extension
    if not sampled:
        surface = PointCloud(surface.positions, surface.normals, name=surface.name)
    if extension == "jet":
        return surface, extension
    if isinstance(surface, Splats):
        cloud = (surface.live_fit if surface.tracked else surface.fit).cloud
        surface = PointCloud(cloud.points, cloud.normals, name=surface.name)
    assert isinstance(surface, PointCloud)
    return _learned(surface), extension


def _learned(cloud: PointCloud) -> Surface:
    from lamina.reconstruction.neural_cloud import NeuralCloud, wide_jets_are_better
    from lamina.reconstruction.triangulated_cloud import triangulated
    from lamina.reconstruction.weights import shipped_fit_network

    if isinstance(cloud, NeuralCloud):
        return cloud
    found = NeuralCloud(cloud, shipped_fit_network())
    return cloud if wide_jets_are_better(cloud, found) else triangulated(cloud, found) or found


def _best(cloud: PointCloud) -> str:
    """The best measured for a cloud (docs/neural.md): splats are fitted as wide as their footprints already."""
    from lamina.surfaces.splats import Splats

    return "jet" if isinstance(cloud, Splats) or len(cloud.points) < FEWEST_LEARNED else "neural"
