"""The analytic sphere maps are immersions, and those of the formulas that their authors gave."""

import ast
import json
import operator as op

import numpy as np
import pytest
import torch

from lamina.surfaces.files import BUILT_IN, load
from lamina.surfaces.sphere_maps import SPHERE_MAPS, sphere_map

OPERATORS = {ast.Add: op.add, ast.Sub: op.sub, ast.Mult: op.mul, ast.Pow: op.pow}
FUNCTIONS = {"sin": np.sin, "cos": np.cos, "transpose": np.transpose, "ones_like": np.ones_like}
THEIR_NAMES = {"starfruit": "twisty_starfruit"}


def value_of(node, names):
    """Value of an arithmetic expression with functions of numpy."""
    match node:
        case ast.Constant(value=float() | int() as number):
            return number
        case ast.Name(id=name):
            return names[name]
        case ast.Attribute(value=ast.Name(id="np"), attr="pi"):
            return np.pi
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATORS[type(sign)](value_of(left, names), value_of(right, names))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr=name), args=[argument]):
            return FUNCTIONS[name](value_of(argument, names))
    raise ValueError(ast.dump(node))


@pytest.mark.parametrize("name", SPHERE_MAPS)
def test_map_is_an_immersion_with_outward_normals(name):
    surface = sphere_map(name, level=4)
    s = surface.parameters[: len(surface.points)]
    norms = torch.linalg.vector_norm(surface.normals, dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    # A radius over the sphere is positive, and so is the normal's part along the ray.
    assert (surface.points * s).sum(1).min() > 0
    assert (surface.normals * s).sum(1).min() > 0.005
    volume = (surface.areas * (surface.points * surface.normals).sum(1)).sum() / 3
    assert volume > 0


@pytest.mark.parametrize("name", ["spike", "starfruit"])
def test_maps_with_formulas_of_their_own_agree(name):
    torch.testing.assert_close(load(name).points, sphere_map(name, level=5).points, rtol=0, atol=1e-13)


def test_all_twelve_are_built_in():
    assert len(SPHERE_MAPS) == 12
    assert set(SPHERE_MAPS) <= set(BUILT_IN)
    assert load("smallspike").name == "smallspike"


def test_small_ones_are_scaled():
    for small, large, scale in (("smallflower", "flower", 0.366), ("smalltree", "tree", 0.301)):
        torch.testing.assert_close(sphere_map(small, 2).points, scale * sphere_map(large, 2).points)


@pytest.mark.data
@pytest.mark.parametrize("name", SPHERE_MAPS)
def test_points_are_those_of_the_published_formula(data, name):
    formulas = json.loads((data / "paper/analytic/formulas.json").read_text())["formulas"]
    known = {key.lower(): text for key, text in formulas.items()}
    text = known[THEIR_NAMES.get(name, name)]
    surface = sphere_map(name, level=3)
    P = surface.parameters[: len(surface.points)].numpy()
    names = {"P": P, "U": np.arccos(P[:, 2].clip(-1, 1)), "V": np.arctan2(P[:, 1], P[:, 0])}
    np.testing.assert_allclose(surface.points, value_of(ast.parse(text, mode="eval").body, names), atol=1e-12)
