"""Extension operators by name.

An extension carries a surface field into the band, constant along normals. Both classical ones interpolate
at closest points and so share one sparse form (`interpolation.py`); they differ in whose closest points:
"closest-point" asks the surface itself, "jet" a polynomial fit to its oriented samples. "attention" is the network of
the CVPR 2026 paper (`attention.py`), which sees oriented samples and the band's nodes only.
"""

from __future__ import annotations

from lamina.errors import InputError
from lamina.surfaces.base import Surface

EXTENSIONS = ("closest-point", "jet", "attention")


def geometry_for(surface: Surface, extension: str) -> tuple[Surface, str]:
    """The surface whose closest points the extension uses, and the extension's name ("auto" resolved)."""
    from lamina.surfaces.point_cloud import PointCloud

    if extension not in ("auto", *EXTENSIONS):
        raise InputError(f"Unknown extension {extension!r}; known: auto, {', '.join(EXTENSIONS)}.")
    sampled = isinstance(surface, PointCloud)
    if extension == "attention":
        return surface, extension
    if extension == "auto":
        extension = "jet" if sampled else "closest-point"
    if extension == "closest-point":
        if sampled:
            raise InputError('A point cloud has no closest-point map of its own; use extension="jet".')
        return surface, extension
    if sampled:
        return surface, extension
    return PointCloud(surface.points, surface.normals, name=surface.name), extension
