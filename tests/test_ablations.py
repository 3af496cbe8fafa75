"""The ablations of the paper: its numbers, the networks that they need, and the small form of every table."""

import json
import math

import numpy as np
import pytest
import torch

from lamina.gallery import sphere_poisson
from lamina.metrics import errors
from lamina.paper.attention_network import NetworkConfig
from lamina.paper.tables import ablation_run
from lamina.paper.tables.ablation_networks import QUICK_PLAN, Control, Variant, reference
from lamina.paper.tables.ablation_numbers import PUBLISHED_ABLATIONS
from lamina.paper.tables.ablations import ATTENTION_LABEL, FULL_PLAN, TABLES, TRAINED_ABLATIONS, all_jobs, base
from lamina.paper.tables.table import Setting
from lamina.surfaces.spherical_map import SphericalMap


def test_every_table_has_the_numbers_of_the_paper():
    assert [table.name for table in TABLES] == [*(a.name for a in TRAINED_ABLATIONS), "ablation_patches"]
    assert set(PUBLISHED_ABLATIONS) == {table.name for table in TABLES}
    counts = {"loss": 6, "features": 5, "k": 11, "query_network": 9, "surface_network": 9, "lambda": 2}
    for name, count in counts.items():
        numbers = PUBLISHED_ABLATIONS[f"ablation_{name}"]
        assert [len(numbers[surface]) for surface in ("sphere", "starfruit")] == [count, count]
    for numbers in PUBLISHED_ABLATIONS.values():
        for nmae, nmaxe in (pair for found in numbers.values() for pair in found.values()):
            assert 1e-2 < nmae < 4e-2
            assert 2 < nmaxe / nmae < 3.1


def test_every_setting_of_the_paper_is_trained_and_no_network_twice():
    for ablation in TRAINED_ABLATIONS:
        labels = set(ablation.cases(FULL_PLAN))
        assert (
            labels
            >= set(PUBLISHED_ABLATIONS[ablation.name]["sphere"])
            == set(PUBLISHED_ABLATIONS[ablation.name]["starfruit"])
        )
    jobs = all_jobs(FULL_PLAN)
    networks = [job for job in jobs if isinstance(job, Variant)]
    assert len(set(jobs)) == len(jobs)
    assert len({job.name for job in jobs}) == len(jobs)
    assert len([job for job in networks if job.seed == 0]) == 37
    assert jobs[0] == base(FULL_PLAN)
    config = NetworkConfig()
    assert (config.k, config.width, config.depth) == (400, 64, 2)
    assert jobs[0].network == NetworkConfig(surface_width=64, surface_depth=2)


def test_bands_are_as_thick_as_patches_of_k_nodes_cover():
    """At least sqrt(3) dx, which the shell needs, at most 4.5 dx, and never beyond the paper's condition."""
    for k in (25, 50, 100, 250, 400, 500):
        radius = base(FULL_PLAN, k=k).radius(FULL_PLAN)
        assert math.sqrt(3) < radius <= min(4.5, (3 * k / (4 * math.pi)) ** (1 / 3))
    assert base(FULL_PLAN, k=25).radius(FULL_PLAN) == 1.81
    assert not Control("shell", 1.81).possible
    assert Control("shell", 4.5).possible


def test_the_reference_solves_the_equation():
    """On the unit sphere the solution is known; f is taken with a mean that must not matter."""
    problem, ball = sphere_poisson(), SphericalMap(lambda s: 1.0 * s, level=0)
    values, mean = reference(ball, lambda x: problem.rhs(x) + 0.5, 3)
    assert values.shape == (642,)
    assert mean == pytest.approx(0.5, abs=1e-6)
    points = SphericalMap(lambda s: 1.0 * s, level=3).points
    assert errors(torch.from_numpy(values), problem.solution(points), remove_mean=True).nmaxe < 1e-4


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_small_form_has_finite_errors_beside_the_paper(table):
    told = []
    rows = table.rows(Setting(quick=True, report=lambda fraction, what: told.append(fraction)))
    methods = [row["method"] for row in rows]
    assert methods.count("paper") == len(PUBLISHED_ABLATIONS[table.name]["sphere"])
    assert {ATTENTION_LABEL, "lamina trace"} <= set(methods)
    assert all(np.isfinite([row["nmae"], row["nmaxe"]]).all() for row in rows)
    if table.name != "ablation_patches":
        assert "untrained network, shell" in methods
        assert all(0 < row["held_out_mse"] < 1 for row in rows if row["method"] == ATTENTION_LABEL)
    assert told
    assert all(0 <= fraction <= 1 for fraction in told)
    json.dumps(rows)


def test_the_small_form_takes_networks_of_different_shapes():
    found = {row["parameters"] for table in TABLES[:-1] for row in table.rows(Setting(quick=True))
             if row["method"] == ATTENTION_LABEL}  # fmt: skip
    assert len(found) >= 5


def test_a_run_writes_what_it_found_and_goes_on_where_it_was(tmp_path, capsys, monkeypatch):
    def run(*options):
        return ablation_run.main(["--quick", "--threads", "1", "--out", str(tmp_path), *options])

    monkeypatch.setattr(ablation_run, "ProcessPoolExecutor", InTurn)
    assert run("--only", "trace") == 0
    first = json.loads((tmp_path / "figures.json").read_text())
    assert list(first["found"]) == ["trace"]
    document = json.loads((tmp_path / "ablation_loss" / "results.json").read_text())
    assert [row["method"] for row in document["rows"]].count("lamina trace") == 1
    assert base(QUICK_PLAN).name in document["missing"]
    # No time: what was there stays, and what is missing is named.
    assert run("--done", str(tmp_path / "figures.json"), "--seconds", "0") == 1
    assert json.loads((tmp_path / "figures.json").read_text())["found"] == first["found"]
    assert base(QUICK_PLAN).name in capsys.readouterr().out.splitlines()[-1]


class InTurn:
    """A pool of processes that is none."""

    def __init__(self, *arguments, **options):
        pass

    def submit(self, work, *arguments):
        from concurrent.futures import Future

        future = Future()
        future.set_result(work(*arguments))
        return future

    def shutdown(self):
        pass
