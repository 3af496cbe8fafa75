"""Errors of every representation, order and equation stay what they are, whatever happens to the code's structure."""

import json

import pytest

import golden

FIGURES = json.loads(golden.FILE.read_text())


@pytest.mark.parametrize(("name", "order", "equation"), list(golden.cases()))
def test_the_error_is_the_one_on_record(name, order, equation):
    assert golden.figure(name, order, equation) == pytest.approx(
        FIGURES[f"{name}, order {order}, {equation}"], rel=0.05
    )
