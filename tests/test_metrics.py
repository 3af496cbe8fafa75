"""Normalised errors are what their formulas say, and refuse what has no meaning."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import InputError
from lamina.metrics import Errors, errors

EXACT = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64)


def test_by_hand() -> None:
    e = errors(EXACT + torch.tensor([0.4, -0.4, 0.0, 0.8]), EXACT)
    assert e.nmae == pytest.approx(0.4 / 4)
    assert e.nmaxe == pytest.approx(0.8 / 4)
    assert e.nrmse == pytest.approx(np.sqrt((0.16 + 0.16 + 0.64) / 4) / 4)
    assert e.as_dict() == {"nmae": e.nmae, "nmaxe": e.nmaxe, "nrmse": e.nrmse}


def test_zero_for_the_exact_field() -> None:
    assert errors(EXACT, EXACT) == Errors(0.0, 0.0, 0.0)


def test_arrays_lists_and_float32_are_the_same_field() -> None:
    values = EXACT + 0.25
    expected = errors(values, EXACT)
    assert errors(values.numpy(), EXACT.tolist()) == expected
    assert errors(values.float(), EXACT.float()) == expected


def test_a_constant_is_an_error_unless_the_mean_is_removed() -> None:
    assert errors(EXACT + 3, EXACT).nmae == pytest.approx(0.75)
    assert errors(EXACT + 3, EXACT, remove_mean=True).nmaxe < 1e-15


def test_means_are_removed_component_by_component() -> None:
    exact = torch.cat([EXACT, EXACT + 10])
    label = torch.tensor([7, 7, 7, 7, -2, -2, -2, -2])
    shift = torch.where(label == 7, 3.0, -5.0)
    assert errors(exact + shift, exact, remove_mean=True).nmae > 0.2
    off = exact.clone()
    off[0] += 0.4
    one = errors(off + shift, exact, remove_mean=True, component=label)
    # The range is that of one component, 4: the distance between the two is arbitrary.
    assert one.nmaxe == pytest.approx((0.4 - 0.1) / 4)


@given(st.floats(1e-3, 1e3), st.floats(-1e3, 1e3), st.integers(0, 1000))
def test_units_do_not_matter(scale: float, shift: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    u, v = generator.normal(size=(2, 50))
    a, b = errors(u, v), errors(scale * u + shift, scale * v + shift)
    assert a.as_dict() == pytest.approx(b.as_dict(), rel=1e-6)
    assert a.nmae <= a.nrmse <= a.nmaxe


@pytest.mark.parametrize(
    ("values", "exact", "options", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], {}, "same points"),
        ([1.0, np.nan], [1.0, 2.0], {}, "not finite"),
        ([1.0, 2.0], [1.0, np.inf], {}, "not finite"),
        ([[1.0, 2.0]], [[1.0, 2.0]], {}, "shape"),
        ([], [], {}, "shape"),
        ([1.0, 2.0], [3.0, 3.0], {}, "does not vary"),
        ([1.0, 2.0, 3.0], [0.1, 0.1, 0.1], {"remove_mean": True}, "does not vary"),
        ([1.0, 2.0], [1.0, 2.0], {"remove_mean": True, "component": np.zeros(3, int)}, "component"),
        ([1.0, 2.0], [1.0, 2.0], {"remove_mean": True, "component": np.zeros(2)}, "component"),
    ],
)
def test_bad_input_is_named(values: list, exact: list, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        errors(np.array(values), np.array(exact), **options)
