"""Annotations of tensors are checked while tests run: a shape that contradicts them is an error that names it."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lamina.shapes import CHECKED, Float, Int, shaped
from lamina.surfaces.base import ClosestPoints


@shaped
@dataclass(frozen=True)
class Rows:
    points: Float[Tensor, "n 3"]
    number: Int[Tensor, " n"] | None = None


@shaped
def column(values: Float[Tensor, "n k"], i: int) -> Float[Tensor, " n"]:
    return values[:, i] if i >= 0 else values[0]


def test_shapes_are_checked_under_pytest():
    assert CHECKED


def test_one_letter_is_one_number():
    Rows(torch.zeros(4, 3), torch.arange(4))
    Rows(torch.zeros(4, 3))
    with pytest.raises(TypeError, match=r"number of Rows is torch.int64 of shape \(5,\)"):
        Rows(torch.zeros(4, 3), torch.arange(5))
    with pytest.raises(TypeError, match="points of Rows"):
        Rows(torch.zeros(4, 3, dtype=torch.int64))


def test_results_are_checked_with_the_arguments():
    assert column(torch.ones(4, 2), 1).shape == (4,)
    with pytest.raises(TypeError, match="return of column"):
        column(torch.ones(4, 2), -1)


def test_the_core_has_shapes():
    with pytest.raises(TypeError, match="normals of ClosestPoints"):
        ClosestPoints(torch.zeros(4, 3), torch.zeros(5, 3), torch.zeros(4, dtype=torch.int64))
