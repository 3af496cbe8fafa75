"""Meshes that come with lamina."""

from __future__ import annotations

from importlib import resources

from lamina.surfaces.base import Surface


def model(name: str) -> Surface:
    """The mesh of that name: "spot", the cow by Keenan Crane (public domain), with 3,000 vertices."""
    from lamina.surfaces.files import load

    with resources.as_file(resources.files("lamina.surfaces.models") / f"{name}.ply") as path:
        return load(path)
