"""What kind of surface something is: traits say it, and a part of a surface has those of the whole."""

import pytest
import torch

import lamina
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.spherical_map import spike

VERTICES, FACES = icosphere(3)
TRAITS = ("smooth", "sampled", "noisy", "sharp", "open", "exact", "faceted")


def sphere(x):
    return x.norm(dim=1) - 0.8


BOX = [[-1, -1, -1], [1, 1, 1]]
SURFACES = {
    "analytic": (lambda: lamina.Sphere(level=3), {"smooth", "exact"}),
    "map": (lambda: spike(level=3), {"smooth", "exact"}),
    "zero set": (lambda: lamina.Implicit(sphere, BOX, samples=500), {"smooth", "exact"}),
    "zero set cut by its box": (
        lambda: lamina.Implicit(sphere, [[-1, -1, 0], [1, 1, 1]], samples=500),
        {"smooth", "exact", "open"},
    ),
    "mesh": (lambda: lamina.Mesh(VERTICES, FACES), {"sharp", "exact", "faceted"}),
    "mesh with a hole": (lambda: lamina.Mesh(VERTICES, FACES[1:]), {"sharp", "exact", "faceted", "open"}),
    "cloud": (lambda: lamina.PointCloud(VERTICES, VERTICES), {"sampled", "noisy"}),
}


@pytest.mark.parametrize("name", SURFACES)
def test_each_representation_has_its_traits(name):
    make, expected = SURFACES[name]
    surface = make()
    assert {trait for trait in TRAITS if getattr(surface, trait)} == expected


@pytest.mark.parametrize("name", SURFACES)
def test_a_part_has_the_traits_of_the_whole_and_ends_somewhere(name):
    make, expected = SURFACES[name]
    part = lamina.clip(make(), lambda x: x[:, 0] + 0.1)
    assert {trait for trait in TRAITS if getattr(part, trait)} == expected | {"open"}


def test_traits_stay_when_a_surface_is_moved():
    for make, expected in SURFACES.values():
        moved = make().to(dtype=torch.float32)
        assert {trait for trait in TRAITS if getattr(moved, trait)} == expected
