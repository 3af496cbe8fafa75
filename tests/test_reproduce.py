"""The tables of the paper: their quick forms, how they are printed, and that a second run prints the same."""

import json
import math
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lamina
from lamina.cli import app
from lamina.errors import InputError
from lamina.paper.tables import ablations
from lamina.paper.tables.gino_rows import gino_rows
from lamina.paper.tables.grids import as_html, grid, markdown, remarks, shown
from lamina.paper.tables.registry import TABLES, run
from lamina.paper.tables.report import orders, page
from lamina.paper.tables.representations import splats_on
from lamina.paper.tables.result_files import write_results
from lamina.paper.tables.samplings import SAMPLINGS, fibonacci, sphere_shape
from lamina.paper.tables.table import Row, Setting, Table, averaged
from lamina.surfaces.icosphere import icosphere

TWICE = ("sphere_poisson", "relative_variation")  # have a test of their own
QUICK = [name for name in TABLES if name not in {*TWICE, *(table.name for table in ablations.TABLES)}]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_quick_form_leaves_results_beside_the_papers_numbers(name, tmp_path):
    told = []
    setting = Setting(quick=True, report=lambda fraction, what: told.append(what))
    rows = run(TABLES[name], setting, tmp_path, f"lamina paper reproduce {name} --quick")
    document = json.loads((tmp_path / name / "results.json").read_text())
    assert document["rows"] == rows
    assert {"date", "command", "machine", "versions", "seeds"} <= set(document)
    methods = {row["method"] for row in rows}
    assert any(m.startswith("lamina attention") for m in methods)
    assert any(m.startswith("lamina trace") for m in methods)
    if name != "convergence":
        assert any(m.startswith("paper") for m in methods)
    figure = TABLES[name].figures[0]
    ours = [row for row in rows if not row["method"].startswith("paper")]
    assert all(row.get(figure) is not None or row["failed"] for row in ours)
    failed = [row for row in ours if "failed" in row]
    assert all("neural" in row["method"] and row["case"].startswith("coarse") for row in failed)
    assert told
    table = (tmp_path / name / "table.md").read_text()
    assert all(f"| {row['method']} |" in table for row in rows if row.get(figure))


@pytest.mark.slow
def test_two_runs_print_the_same_digits_and_the_paper_is_left_far_behind(tmp_path):
    table = TABLES["sphere_poisson"]
    runs = [table.rows(Setting(quick=True)) for _ in range(2)]
    first, second = (markdown(table, without_times(rows)) for rows in runs)
    assert first == second
    assert len(re.findall(r"\de-\d\d", first)) > 30
    found = {(row["method"], row["case"]): row.get("nmae") for row in runs[0]}
    attention = found["lamina attention (the paper's method)", "medium"]
    assert attention > 30 * found["lamina trace", "medium"]
    assert attention > 50 * found["lamina coupled", "medium"]
    # The other table is made of these rows, which it finds where they were written.
    write_results(tmp_path, table, runs[0], {"quick": True, "device": "cpu"})
    varied = run(
        TABLES["relative_variation"], Setting(quick=True), tmp_path, "lamina paper reproduce relative_variation"
    )
    fem = {row["case"]: row["d_nmae"] for row in varied if row["method"] == "FEM"}
    assert fem["medium"] == 0
    assert fem["coarse"] == pytest.approx(100 * (found["FEM", "coarse"] / found["FEM", "medium"] - 1), rel=1e-4)


def without_times(rows: list[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_cells_failures_and_the_best_of_a_case():
    rows: list[Row] = [
        {"method": "paper: Ours", "case": "a", "nrmse": 2e-2},
        {"method": "lamina trace", "case": "a", "nrmse": 1e-3, "reference_change": 5e-4},
        {"method": "lamina trace", "case": "b", "nrmse": 1e-3, "nrmse_spread": 2e-5, "reference_change": 5e-5},
        {"method": "FEM", "case": "b", "failed": "it <broke>"},
    ]
    table = Table("t", "A table", ("nrmse",), lambda setting: rows)
    found = grid("nrmse", rows)
    assert found.best == {("lamina trace", "a")}
    assert found.cells["lamina trace", "b"] == "1.00e-03 ± 2.0e-05"
    text = markdown(table, rows)
    assert "| FEM |  | failed |" in text
    assert remarks(table, rows)[0] == "FEM, b: it <broke>"
    assert len(remarks(table, rows)) == 2
    assert "a: the last refinement" in remarks(table, rows)[1]
    assert "it &lt;broke&gt;" in as_html(table, rows)
    assert shown("d_nmae", -3.2) == "-3 %"


def test_many_cases_go_down():
    rows: list[Row] = [{"method": m, "case": f"k = {k}", "nmae": k / 100} for k in range(9) for m in ("paper", "ours")]
    assert grid("nmae", rows).down == [f"k = {k}" for k in range(9)]
    assert grid("nmae", rows).line("k = 3") == [("3.00e-02", True), ("3.00e-02", False)]


def test_averages_have_spreads_and_count_failures():
    rows: list[Row] = [{"method": "m", "case": "c", "nrmse": v, "seed": i} for i, v in enumerate((1.0, 3.0))]
    rows.append({"method": "m", "case": "c", "failed": "no", "seed": 2})
    (merged,) = averaged(rows, ("nrmse",))
    assert merged["nrmse"] == 2
    assert merged["nrmse_spread"] == pytest.approx(math.sqrt(2))
    assert (merged["runs"], merged["runs_failed"]) == (2, 1)
    assert "seed" not in merged


def test_the_page_holds_tables_pictures_and_fitted_orders(tmp_path):
    rows: list[Row] = [
        {"method": "lamina trace", "case": f"{h:g}", "spacing": h, "nmae": 3 * h**2} for h in (0.2, 0.1, 0.05)
    ]
    (slope,) = (slope for _, _, slope in orders(rows).values())
    assert slope == pytest.approx(2)
    run(Table("convergence", "Convergence", ("nmae",), lambda s: rows), Setting(), tmp_path, "lamina paper reproduce x")
    text = page(tmp_path, TABLES.values())
    assert "lamina paper reproduce x" in text
    assert text.count("data:image/png;base64,") == 1
    assert "Not run: sphere_poisson" in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("name", SAMPLINGS)
def test_samplings_lie_on_the_sphere_and_follow_their_seed(name):
    points = SAMPLINGS[name](200, 1)
    assert np.abs(np.linalg.norm(points, axis=1) - 1).max() < 1e-12
    assert (points == SAMPLINGS[name](200, 1)).all()
    assert (points != SAMPLINGS[name](200, 2)).any()


def test_samplings_differ_as_their_names_say():
    def closest(points):
        distance = torch.cdist(torch.from_numpy(points), torch.from_numpy(points)).fill_diagonal_(9)
        return float(distance.min())

    found = {name: closest(make(300, 0)) for name, make in SAMPLINGS.items()}
    assert found["random"] < found["jittered"] < found["blue noise"] < 1.2 * closest(fibonacci(300))


def test_the_polyhedron_of_a_sampling_is_closed_and_faces_outwards():
    shape = sphere_shape(fibonacci(500), "sphere")
    mesh = lamina.Mesh(shape.V, shape.F)
    assert not mesh.open
    a, b, c = shape.V[shape.F].unbind(1)
    volume = (a * torch.linalg.cross(b, c)).sum(1)
    assert bool((volume > 0).all())
    assert float(volume.sum() / 6) == pytest.approx(4 * math.pi / 3, rel=0.02)


def test_made_splats_show_the_surface_that_they_are_on():
    splats = splats_on(lamina.Mesh(*icosphere(3)), 800, 0)
    assert float((splats.points.norm(dim=1) - 1).abs().mean()) < 0.02


def test_shapes_that_are_missing_are_named(tmp_path):
    with pytest.raises(InputError, match=r"paper/apple.ply is one of the evaluation shapes.*LAMINA_DATA.*--quick"):
        Setting().file("paper/apple.ply")
    with pytest.raises(InputError, match="is not in"):
        Setting(data=tmp_path).file("paper/apple.ply")


def test_rows_of_gino_come_from_its_results(tmp_path):
    assert gino_rows(Setting(folder=tmp_path), "furniture") == []
    (tmp_path / "furniture").mkdir()
    networks = {
        f"{kind}-{w}": {"nrmse": {"A": 0.1 * w, "B": 0.2}, "zero": {"A": 0.3, "B": 0.4}}
        for kind in ("spike", "overfitted")
        for w in (1, 10)
    }
    (tmp_path / "furniture" / "gino.json").write_text(json.dumps({"figures": {"networks": networks}}))
    furniture = gino_rows(Setting(folder=tmp_path), "furniture")
    assert [(row["case"], row["nrmse"]) for row in furniture] == [("A", 0.1), ("B", 0.2)] * 2
    assert [row["case"] for row in gino_rows(Setting(folder=tmp_path), "frequency")] == ["w = 1", "w = 10"] * 2


def test_the_command_lists_tables_refuses_others_and_writes_a_page(tmp_path):
    said = CliRunner().invoke(app, ["paper", "reproduce", "list"])
    assert said.exit_code == 0
    assert all(name in said.stdout for name in TABLES)
    with pytest.raises(InputError, match="There is no table 'spheres'; known: all, sphere_poisson"):
        CliRunner().invoke(app, ["paper", "reproduce", "spheres"], catch_exceptions=False)
    done = CliRunner().invoke(app, ["paper", "reproduce", "inverse", "--quick", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["inverse"].endswith("table.md")
    assert "The strength of a source" in (tmp_path / "index.html").read_text()
