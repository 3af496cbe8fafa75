"""Boundary conditions on the command line."""

import json

import numpy as np
import pytest


def solved(program, *arguments):
    status, out, err = program("solve", *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


def refused(program, *arguments):
    status, out, err = program("solve", *arguments)
    assert (status, out) == (2, "")
    return err


def test_the_rim_of_a_clipped_surface_is_held(program):
    report = solved(
        program, "poisson", "sphere", "--clip", "z", "--rhs", "-2*z", "--dirichlet", "rim = 0", "--exact", "z",
        "--spacing", 0.15,
    )  # fmt: skip
    assert report["nmae"] < 2e-3
    assert report["dirichlet"] == ["rim = 0"]
    assert report["clip"] == "z"


def test_a_formula_is_the_curve_where_it_vanishes(program):
    report = solved(
        program, "poisson", "sphere", "--rhs", "-2*z", "--dirichlet", "z - 0.2 = 0.2", "--exact", "z", "--spacing", 0.2
    )  # fmt: skip
    assert report["nmae"] < 3e-3
    assert report["scheme"] == "trace"


def test_comparisons_hold_parts_of_a_closed_surface_and_of_a_rim(program):
    caps = ("--dirichlet", "z > 0.5 = z", "--dirichlet", "z <= -0.5 and x < 2 = z")
    report = solved(program, "poisson", "sphere", "--rhs", "-2*z", "--spacing", 0.2, *caps, "--exact", "z")
    assert report["nmae"] < 3e-3
    held = ("--clip", "z", "--dirichlet", "x >= 0 = x", "--neumann", "x < 0 = 0", "--exact", "x")
    assert solved(program, "poisson", "sphere", "--rhs", "-2*x", "--spacing", 0.15, *held)["nmae"] < 3e-3


def test_places_and_values_know_or_not_and_where(program):
    """Lap z = -2 z: both caps by one condition, with a value for each."""
    caps = ("--dirichlet", "z > 0.5 or not z > -0.5 = where(z > 0, abs(z), -abs(z))")
    report = solved(program, "poisson", "sphere", "--rhs", "-2*z", "--spacing", 0.2, *caps, "--exact", "z")
    assert report["nmae"] < 3e-3


def test_robin_has_its_coefficient_last(program):
    report = solved(
        program, "poisson", "sphere", "--clip", "z", "--rhs", "-6*x*y", "--robin", "rim 0 = 2.5*x*y, 2.5", "--exact",
        "x*y", "--spacing", 0.15,
    )  # fmt: skip
    assert report["nmae"] < 2e-3


def test_values_may_depend_on_time(program):
    report = solved(
        program, "heat", "sphere", "--clip", "z", "--initial", "x*y", "--time", 0.2, "--dirichlet",
        "rim = exp(-6*t)*x*y", "--exact", "exp(-6*t)*x*y", "--spacing", 0.15,
    )  # fmt: skip
    assert report["nmae"] < 5e-3


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".txt"])
def test_a_polyline_comes_from_a_file(program, tmp_path, suffix):
    angle = np.linspace(0, 2 * np.pi, 81)
    points = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
    points[-1] = points[0]
    path = tmp_path / f"line{suffix}"
    if suffix == ".npy":
        np.save(path, points)
    else:
        np.savetxt(path, points, delimiter="," if suffix == ".csv" else " ")
    report = solved(
        program, "poisson", "sphere", "--rhs", "-2*z", "--dirichlet", f"{path} = 0", "--exact", "z", "--spacing", 0.2
    )  # fmt: skip
    assert report["nmae"] < 4e-3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--dirichlet", "rim"), 'expected "WHERE = VALUE"'),
        (("--dirichlet", "rim = "), 'expected "WHERE = VALUE"'),
        (("--neumann", "1 = 2 = 3"), "--neumann is '1 = 2 = 3'"),
        (("--robin", "rim = 1"), 'expected "WHERE = VALUE, C"'),
        (("--dirichlet", "rim = 0"), "the surface is closed: it has none"),
        (("--dirichlet", "top = 0"), "holds on 'top'; expected \"rim\""),
        (("--dirichlet", "z > 2 = 0"), "holds nowhere"),
        (("--dirichlet", "x < y < z = 0"), "expected one comparison"),
        (("--dirichlet", "nowhere.npy = 0"), "there is no such file"),
        (("--dirichlet", "z = w"), "w"),
        (("--clip", "z - 5"), "Nothing is left of the surface"),
    ],
)
def test_what_cannot_be_is_said(program, options, sentence):
    assert sentence in refused(program, "poisson", "sphere", "--rhs", "z", "--spacing", 0.3, *options)
