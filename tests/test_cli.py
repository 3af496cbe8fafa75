"""The program: one JSON object on stdout, one sentence on stderr, exit statuses 0, 1 and 2, whole files or none."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from plyfile import PlyData

from lamina.io.export import save
from lamina.surfaces.icosphere import icosphere

RHS, EXACT = "-12*x*y*z-3*(x^2-y^2)", "x*y*z+0.5*(x^2-y^2)"
COARSE = ("--spacing", "0.2")


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def run(program):
    return lambda *arguments: Result(*program(*arguments))


def poisson(surface="sphere", *options, rhs="x*y"):
    return ("solve", "poisson", surface, "--rhs", rhs, *COARSE, *options)


def write_obj(path, points, faces):
    rows = [f"v {x} {y} {z}" for x, y, z in points] + [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in faces]
    path.write_text("\n".join(rows) + "\n")
    return path


# What it prints


def test_poisson_report_has_the_fields_of_the_design(run):
    result = run("solve", "poisson", "sphere", "--rhs", RHS, "--exact", EXACT, "--spacing", 0.1, "--order", 3, "--json")
    assert result.status == 0
    assert result.err == ""
    assert result.out.count("\n") == 1
    report = result.json
    assert report["nodes"] > 10_000
    assert report["spacing"] == 0.1
    assert report["order"] == 3
    assert report["extension"] == "closest-point"
    assert report["scheme"] == "trace"
    assert 1 <= report["cycles"] <= 10
    assert report["residual"] <= 1e-8
    assert report["warnings"] == []
    assert set(report["seconds"]) == {"load", "band", "extension", "solve", "total"}
    parts = [report["seconds"][key] for key in ("load", "band", "extension", "solve")]
    assert sum(parts) <= report["seconds"]["total"] * 1.01
    assert 0 < report["nmae"] <= report["nrmse"] <= report["nmaxe"] <= 2e-4


def test_acceptance_commands_for_the_sphere(run):
    """The two commands of the README, with the errors it promises."""
    for options, bound in (
        (("--spacing", 0.05, "--order", 2), 2.2e-4),
        (("--spacing", 0.1), 9e-6),
    ):
        report = run("solve", "poisson", "sphere", "--rhs", RHS, "--exact", EXACT, *options, "--json").json
        assert report["nmae"] <= bound
        assert report["cycles"] <= 10


def test_options_of_version_0_1_go_on_working_with_a_warning_that_says_what_to_write_instead(run):
    """The errors that the README of version 0.1 promised."""
    for options, bound in (
        (("--spacing", 0.05, "--order", 2, "--scheme", "coupled"), 8e-5),
        (("--spacing", 0.075, "--order", 4), 1e-5),
    ):
        report = run("solve", "poisson", "sphere", "--rhs", RHS, "--exact", EXACT, *options, "--json").json
        assert report["scheme"] == "coupled"
        assert report["nmae"] <= bound
        assert report["cycles"] <= 8
        (said,) = (warning for warning in report["warnings"] if "baselines now" in warning)
        assert "lamina.paper.BandDomain" in said


def test_heat_reports_errors_at_every_snapshot(run):
    result = run(
        *("solve", "heat", "sphere", "--initial", "x*y", "--time", 0.1, "--exact", "exp(-6*t)*x*y"),
        *("--spacing", 0.1, "--snapshots", 5, "--json"),
    )
    report = result.json
    over_time = report["errors_over_time"]
    assert [e["time"] for e in over_time] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert max(e["nmae"] for e in over_time) <= 2e-4
    assert report["nmae"] == over_time[-1]["nmae"]
    assert report["steps"] >= 5


def test_errors_are_only_reported_with_an_exact_solution(run):
    assert not {"nmae", "nmaxe", "nrmse"} & set(run(*poisson(), "--json").json)


def test_the_mean_of_each_component_is_left_out_of_the_error(run, tmp_path):
    """Lap x = -2 x on the unit sphere; around (3, 0, 0) the solution x - 3 differs from x by a constant."""
    V, F = icosphere(3)
    W = V + torch.tensor([3.0, 0.0, 0.0])
    path = write_obj(tmp_path / "two.obj", torch.cat([V, W]).tolist(), torch.cat([F, F + len(V)]).tolist())
    rhs = "-2*(x - 1.5*(1 + sign(x - 1.5)))"
    report = run("solve", "poisson", path, "--rhs", rhs, "--exact", "x", "--spacing", 0.15, "--json").json
    assert report["components"] == 2
    assert report["nmae"] < 1e-2


def test_plain_output_is_for_people(run):
    result = run(*poisson())
    assert result.status == 0
    rows = dict(line.split(maxsplit=1) for line in result.out.splitlines() if line[0] != " ")
    assert rows["spacing"] == "0.2"
    assert rows["warnings"] == "none"
    assert result.err == ""


def test_incompatible_right_hand_side_is_a_warning_with_its_mean(run):
    result = run(*poisson(rhs="x*y + 0.7"), "--json")
    assert result.status == 0
    (warning,) = result.json["warnings"]
    assert "mean 0.7;" in warning


@pytest.mark.slow
def test_sampling_is_reproducible_and_seeded(run):
    def nmae(*options):
        arguments = ("solve", "poisson", "sphere", "--rhs", "-6*x*y", "--exact", "x*y", "--spacing", 0.15)
        report = run(*arguments, "--as", "points", "--samples", 1500, *options, "--json").json
        assert report["representation"] == "points"
        # Noise on so smooth a surface is left to wide jets, and the report says so.
        jets = "--noise" in options
        assert (report["reconstruction"], report["extension"]) == (("jets", "jet") if jets else ("fits", "neural"))
        return report["nmae"]

    first = nmae("--seed", 1)
    assert nmae("--seed", 1) == pytest.approx(first, rel=1e-6)
    assert nmae("--seed", 2) != pytest.approx(first, rel=1e-6)
    assert nmae() < 1e-3
    assert nmae("--noise", 0.01) < 3e-2


def test_denoise_smooths_a_noisy_mesh_and_says_so(run, tmp_path):
    V, F = icosphere(3)
    V = V + 0.03 * torch.randn(V.shape, generator=torch.Generator().manual_seed(0), dtype=V.dtype)
    path = write_obj(tmp_path / "noisy.obj", V.tolist(), F.tolist())
    arguments = ("solve", "poisson", path, "--rhs", "-6*x*y", "--exact", "x*y", "--spacing", 0.15, "--json")
    plain, smoothed = run(*arguments).json, run(*arguments, "--denoise").json
    assert smoothed["nrmse"] < plain["nrmse"] / 2
    assert any("Noise of" in warning for warning in smoothed["warnings"])


def test_unnormalised_normals_are_normalised_with_a_note(run, tmp_path):
    points = icosphere(4)[0].numpy()
    np.savez(tmp_path / "cloud.npz", points=points, normals=2.5 * points)
    report = run("solve", "poisson", tmp_path / "cloud.npz", "--rhs", "x*y", "--spacing", 0.2, "--json").json
    assert any("Normals of length 2.5 to 2.5 were normalised." in w for w in report["warnings"])


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [(("--dtype", "float32"), "dtype", "float32"), (("--order", "2"), "order", 2)],
)
def test_options_reach_the_domain(run, options, key, value):
    assert run(*poisson("sphere", *options), "--json").json[key] == value


def test_nodes_instead_of_spacing(run):
    report = run("solve", "poisson", "sphere", "--rhs", "x*y", "--nodes", 5000, "--json").json
    assert report["nodes"] == pytest.approx(5000, rel=0.3)


def test_info_says_what_a_surface_is(run, tmp_path):
    facts = run("info", "torus", "--json").json
    assert facts["representation"] == "analytic"
    assert facts["components"] == 1
    assert facts["area"] == pytest.approx(4 * np.pi**2 * 0.4, rel=0.01)
    assert facts["extent"] == pytest.approx(2.8, rel=0.01)
    assert facts["thinnest"] == pytest.approx(0.8, rel=0.1)
    assert facts["order"] == 3
    assert facts["default_spacing"] == 0.14
    points, faces = icosphere(2)
    path = write_obj(tmp_path / "ball.obj", points.tolist(), [*faces.tolist(), faces[0].tolist()])
    facts = run("info", path, "--json").json
    assert facts["name"] == "ball"
    assert facts["faces"] == 320
    assert facts["notes"] == ["1 duplicate face was ignored."]


def octahedron(folder):
    """|x| + |y| + |z| - 1/2 as a network, in the arrays W0, b0, W1, b1."""
    eye = np.eye(3)
    np.savez(folder / "o.npz", W0=np.vstack([eye, -eye]), b0=np.zeros(6), W1=np.ones((1, 6)), b1=np.array([-0.5]))
    return folder / "o.npz"


@pytest.mark.slow
def test_info_says_what_a_network_was_taken_for(run, tmp_path):
    path = octahedron(tmp_path)
    facts = run("info", path, "--json").json
    assert facts["representation"] == "implicit"
    assert facts["format"] == "arrays W0, b0, W1, ..."
    assert (facts["network"], facts["activation"], facts["parameters"]) == ("perceptron 3-6-1", "relu", 31)
    assert facts["field"] == "distance, surface at 0"
    assert facts["gradient"]["median"] == pytest.approx(3**0.5)
    assert len(facts["notes"]) == 2


def test_what_a_network_is_can_be_said(run, tmp_path):
    path = octahedron(tmp_path)
    options = ("--activation", "relu", "--level", "0.2", "--bounds", "-1,-1,-1,1,1,1", "--field", "sdf")
    text = run("info", path, *options).out
    assert re.search(r"^field +sdf, surface at 0\.2$", text, re.M)
    assert float(re.search(r"^area +(\S+)$", text, re.M)[1]) == pytest.approx(3**0.5 * 1.4**2, rel=0.02)
    assert re.search(r"^gradient +5% 1\.7\d, median 1\.73", text, re.M)
    assert re.search(r"^notes +none$", text, re.M)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bounds", "1,2,3"), "--bounds is '1,2,3'; expected 6 numbers"),
        (("--bounds", "a,b,c,d,e,f"), "expected 6 numbers"),
        (("--activation", "swish"), "Unknown activation 'swish'"),
        (("--field", "mesh"), "Unknown kind of field 'mesh'"),
        (("--omega", "30", "--activation", "relu"), "omega goes with the activation sin"),
        (("--latent", "0"), "leave out the latent code"),
    ],
)
@pytest.mark.parametrize("command", ["solve", "info"])
def test_what_cannot_be_said_of_a_network(run, tmp_path, command, options, message):
    path = octahedron(tmp_path)
    arguments = (*poisson(path), *options) if command == "solve" else ("info", path, *options)
    result = run(*arguments)
    assert result.status == 2
    assert message in result.err
    assert result.err.count("\n") == 1


# What it writes


@pytest.mark.slow
def test_out_holds_a_mesh_a_picture_and_a_report(run, tmp_path):
    folder = tmp_path / "new" / "folder"
    result = run(*poisson("spike", "--out", folder))
    assert result.status == 0
    names = ["solution.ply", "solution.png", "original.ply", "solution.html", "residuals.png", "report.json"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    ply = PlyData.read(str(folder / "solution.ply"))
    assert np.ptp(ply["vertex"]["value"]) > 0
    assert ply["face"].count > 20480
    assert PlyData.read(str(folder / "original.ply"))["face"].count == 20480
    picture = np.asarray(Image.open(folder / "solution.png").convert("RGB"), dtype=int)
    colourful = np.ptp(picture, axis=2) > 40
    assert 0.05 < colourful.mean() < 0.9
    assert len(np.unique(picture[colourful] // 32, axis=0)) > 10
    report = json.loads((folder / "report.json").read_text())
    assert report["files"] == [str(folder / name) for name in names]
    for path in report["files"]:
        assert path in result.out
    assert result.out.endswith(f"\nTo look at it: lamina view {folder}\n")


def test_what_was_written_can_be_solved_on_again(run, tmp_path):
    assert run(*poisson("sphere", "--out", tmp_path)).status == 0
    assert run(*poisson(tmp_path / "solution.ply"), "--json").json["representation"] == "mesh"


def test_a_failed_solve_leaves_nothing(run, tmp_path):
    result = run(*poisson("sphere", "--tolerance", 1e-18, "--out", tmp_path / "out"))
    assert result.status == 1
    assert result.out == ""
    assert result.err.startswith("lamina: The solve stopped at a relative residual of")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_failed_picture_leaves_no_half_written_file(run, tmp_path, monkeypatch):
    def broken(self, file, **options):
        file.write(b"\x89PNG half of a pic")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", broken)
    result = run(*poisson("sphere", "--out", tmp_path))
    assert result.status == 2
    assert "No space left on device" in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["solution.ply"]
    PlyData.read(str(tmp_path / "solution.ply"))


def test_an_older_solution_survives_a_failed_one(run, tmp_path):
    run(*poisson("sphere", "--out", tmp_path))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert run(*poisson("sphere", "--tolerance", 1e-18, "--out", tmp_path)).status == 1
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


# What it refuses


V, F = (t.tolist() for t in icosphere(1))


def meshes(folder):
    """Files that hold no usable surface, by name."""
    (folder / "empty.obj").write_text("")
    (folder / "letter.obj").write_text("Dear Sir or Madam,\nplease find no surface enclosed.\n")
    (folder / "letter.docx").write_bytes(b"\x00\x01\x02 nothing known")
    (folder / "folder.obj").mkdir()
    nan = [[float("nan"), 0, 0], *V[1:]]
    write_obj(folder / "nan.obj", nan, F)
    write_obj(folder / "inf.obj", [[float("inf"), 0, 0], *V[1:]], F)
    write_obj(folder / "outside.obj", V, [*F, [0, 1, 999]])
    write_obj(folder / "flat.obj", [[x, 0, 0] for x, _, _ in V], F)
    write_obj(folder / "few.obj", V[:5], [])
    np.savez(folder / "nofaces.npz", vertices=np.array(V), faces=np.zeros((0, 3), dtype=int))
    sphere = icosphere(2)[0].numpy()
    np.savez(folder / "zero.npz", points=sphere, normals=np.vstack([np.zeros((150, 3)), sphere[150:]]))
    np.savez(folder / "nannormal.npz", points=sphere, normals=np.vstack([np.full((150, 3), np.nan), sphere[150:]]))
    (folder / "short.ply").write_bytes(b"ply\nformat binary_little_endian 1.0\nelement vertex 99\nproperty float x\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.obj", "lamina: there is no file"),
        (
            "nonsense",
            "neither a file nor a built-in surface; built in: sphere, torus, ellipsoid, spike, starfruit",
        ),
        ("empty.obj", "is empty; expected a surface"),
        ("letter.obj", "cannot be read as OBJ"),
        ("letter.docx", "the extension '.docx' and no content that is known"),
        ("folder.obj", "is a folder"),
        ("short.ply", "cannot be read as PLY"),
        ("nan.obj", "1 of 42 vertices have NaN or infinite coordinates"),
        ("inf.obj", "1 of 42 vertices have NaN or infinite coordinates"),
        ("outside.obj", "Face indices run from 0 to 999 but there are 42 vertices"),
        ("flat.obj", "80 faces and no area"),
        ("few.obj", "needs at least 20"),
        ("nofaces.npz", "no faces"),
        ("zero.npz", "150 of 162 normals are zero, NaN or infinite"),
        ("nannormal.npz", "150 of 162 normals are zero, NaN or infinite"),
    ],
)
@pytest.mark.parametrize("command", ["solve", "info"])
def test_bad_surfaces_get_one_sentence_and_status_2(run, tmp_path, command, name, message):
    meshes(tmp_path)
    path = name if name == "nonsense" else tmp_path / name
    arguments = poisson(path, "--out", tmp_path / "out") if command == "solve" else ("info", path)
    result = run(*arguments)
    assert result.status == 2
    assert result.out == ""
    assert message in result.err
    assert result.err.startswith("lamina: ")
    assert result.err.endswith(".\n")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--spacing", "0"), "spacing must be a positive number, got 0.0"),
        (("--spacing", "-0.1"), "spacing must be a positive number"),
        (("--spacing", "nan"), "spacing must be a positive number, got nan"),
        (("--spacing", "3"), "too coarse for a shape 2 long"),
        (("--spacing", "1e-6"), "bytes are free: use a spacing of at least"),
        (("--nodes", "1000"), "Give spacing or nodes, not both"),
        (("--rhs", "sin(q)"), "unknown name 'q' at position 4"),
        (("--rhs", "sine(x)"), "unknown name 'sine' at position 0"),
        (("--rhs", "__import__('os')"), "unexpected character"),
        (("--rhs", "x +"), "expected a number, a name or '('"),
        (("--rhs", ""), "the expression is empty"),
        (("--rhs", "1/(x - x)"), "the right-hand side is not finite at"),
        (("--rhs", "log(x)"), "the right-hand side is not finite at"),
        (("--rhs", "x*t"), "unknown name 't'"),
        (("--exact", "y +* x"), "expected a number, a name or '('"),
        (("--exact", "1/(x - x)"), "not finite"),
        (("--exact", "2"), "exact does not vary"),
        (("--order", "5"), 'order must be 2, 3 or "auto", got 5'),
        (("--scheme", "magic"), "Unknown scheme 'magic'"),
        (("--extension", "magic"), "Unknown extension 'magic'"),
        (("--tolerance", "0"), "tolerance must lie between 0 and 1"),
        (("--screening", "-1"), "screening must be a number >= 0"),
        (("--noise", "0.1"), "--noise goes with --as points"),
        (("--as", "points", "--samples", "5"), "--samples must be at least 20"),
        (("--as", "points", "--noise", "-1"), "--noise must be >= 0"),
        (("--denoise",), "--denoise is for meshes; sphere is a"),
    ],
)
def test_bad_options_get_one_sentence_and_status_2(run, tmp_path, options, message):
    result = run(*poisson("sphere", *options, "--out", tmp_path / "out"))
    assert result.status == 2
    assert result.out == ""
    assert message in result.err
    assert result.err.startswith("lamina: ")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--time", "-1"), "time must be a positive number"),
        (("--time", "0"), "time must be a positive number"),
        (("--time", "nan"), "time must be a positive number"),
        (("--steps", "0"), "steps must be at least 1"),
        (("--snapshots", "0"), "--snapshots must be at least 1"),
        (("--accuracy", "0"), "accuracy must lie between 0 and 1"),
        (("--method", "magic"), "Unknown method 'magic'"),
        (("--initial", "sqrt(x)"), "the initial state is not finite at"),
        (("--initial", "x*t"), "unknown name 't'"),
    ],
)
def test_bad_options_of_heat(run, options, message):
    result = run("solve", "heat", "sphere", "--initial", "x*y", "--time", "0.1", *COARSE, *options)
    assert result.status == 2
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("solve", "poisson", "sphere"),
        ("solve", "poisson", "sphere", "--rhs", "x", "--spacing", "wide"),
        ("solve", "poisson", "sphere", "--rhs", "x", "--device", "abacus"),
        ("solve", "poisson", "sphere", "--rhs", "x", "--frobnicate"),
        ("solve", "magic", "sphere"),
    ],
)
def test_misspelt_commands_exit_with_2(run, arguments):
    result = run(*arguments)
    assert result.status == 2
    assert result.out == ""
    assert result.err


def test_out_that_is_a_file_is_named(run, tmp_path):
    (tmp_path / "taken").write_text("here already")
    result = run(*poisson("sphere", "--out", tmp_path / "taken"))
    assert result.status == 2
    assert "cannot write" in result.err
    assert (tmp_path / "taken").read_text() == "here already"


def test_an_unstable_explicit_run_fails_with_status_1(run):
    unstable = ("--method", "euler", "--steps", 100, "--spacing", 0.15, "--scheme", "coupled")
    result = run("solve", "heat", "sphere", "--initial", "sin(30*x)", "--time", 5, *unstable)
    assert result.status == 1
    assert "unstable" in result.err


def test_it_runs_as_a_program_of_its_own(tmp_path):
    """Also from a mesh file, and with nothing but the report on stdout."""
    points, faces = icosphere(3)
    save(tmp_path / "ball.ply", points, points[:, 0], faces=faces)
    command = [sys.executable, "-m", "lamina", "solve", "poisson", str(tmp_path / "ball.ply")]
    done = subprocess.run(
        [*command, "--rhs", "-6*x*y", "--exact", "x*y", "--spacing", "0.15", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nmae"] < 2e-2
    assert done.stderr == ""
    done = subprocess.run([*command, "--rhs", "banana"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("lamina: unknown name 'banana'")


# What helps a newcomer


def test_version(run):
    result = run("--version")
    assert result.status == 0
    assert re.fullmatch(r"lamina \d+\.\d+\.\S+\n", result.out)


def test_help_groups_the_options_by_purpose(run):
    text = run("solve", "heat", "--help").out
    headings = re.findall(r"^(\w[^\n]*):$", text, re.M)
    assert headings[:4] == ["Arguments", "Equation", "Time", "Conditions"]
    assert headings.index("Grid") < headings.index("Result")
    assert text.index("Grid:") < text.index("--spacing") < text.index("Schemes, and the paper's method:")
    assert "-o, --out" in text


def test_the_help_of_train_is_grouped_too(run):
    headings = re.findall(r"^(\w[^\n]*):$", run("paper", "train", "--help").out, re.M)
    assert headings == ["Result", "Training", "What it learns from", "The network", "Options"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("train", ("--resume", "-o", "missing", "--json")), ("reproduce", ("list", "--json"))],
)
def test_commands_of_version_0_1_work_and_say_what_to_type_instead(program, tmp_path, monkeypatch, name, options):
    monkeypatch.chdir(tmp_path)
    status, out, err = program("paper", name, *options)
    assert f"lamina paper {name}" not in err
    notice = f"lamina: `lamina {name}` is now `lamina paper {name}`, with the same options; the old name works for one "
    assert program(name, *options) == (status, out, notice + "more release.\n" + err)
    monkeypatch.setenv("RANK", "1")  # the second process of torchrun
    assert program(name, *options) == (status, out, err)


@pytest.mark.parametrize(
    "command",
    [
        "solve poisson",
        "solve heat",
        "view",
        "paper train",
        "paper reproduce",
        *(f"fit {k}" for k in ("sns", "siren", "deepsdf")),
    ],
)
def test_where_to_write_is_o_everywhere(run, command):
    assert "-o, --out" in run(*command.split(), "--help").out


def test_heat_without_an_initial_state_spreads_spots_that_can_be_typed_again(run, tmp_path):
    own = run("solve", "heat", "spot", "--steps", 4, "--nodes", 3000, "-o", tmp_path / "a", "--json").json
    assert own["warnings"] == []
    again = run(
        *("solve", "heat", "spot", "--steps", 4, "--nodes", 3000, "--json"),
        *("--initial", own["initial"], "--time", own["time"]),
    ).json
    assert again["max"] == pytest.approx(own["max"], rel=1e-9)
    # On a plane the spots would fall from 1 to a half.
    assert 0.4 < own["max"] < 0.9
    assert -0.9 < own["min"] < -0.4


def test_heat_without_an_initial_state_can_be_played_from_its_first_state_to_its_last(run, tmp_path):
    """A page with the last state alone would show nothing happening."""
    report = run("solve", "heat", "spot", "--nodes", 1000, "--accuracy", 0.01, "-o", tmp_path, "--json").json
    vertex = PlyData.read(str(tmp_path / "solution.ply"))["vertex"]
    ranges = [np.ptp(vertex[f"value_{i}"]) for i in range(24)]
    assert "value_24" not in vertex
    assert all(later < before for before, later in pairwise(ranges))
    assert ranges[-1] < 0.8 * ranges[0]
    assert report["max"] == pytest.approx(vertex["value_23"].max(), abs=0.01)


def test_the_report_has_extremes_mean_integral_fluxes_and_all_of_the_time(run, tmp_path):
    """u = z + c on the upper half of the unit sphere with u = 0 at its rim: c = 0, du/dn = -1."""
    options = ("--clip", "z", "--dirichlet", "rim = 0", "--spacing", 0.1, "--scheme", "trace")
    report = run("solve", "poisson", "sphere", "--rhs", "-2*z", *options, "--out", tmp_path, "--json").json
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["min"] == pytest.approx(0, abs=0.02)
    assert report["max"] == pytest.approx(1, abs=0.02)
    assert report["integral"] == pytest.approx(np.pi, rel=0.01)
    assert report["mean"] == pytest.approx(0.5, rel=0.01)
    assert report["flux"] == {"rim = 0": pytest.approx(-2 * np.pi, rel=0.01)}
    seconds = report["seconds"]
    assert seconds["total"] > sum(seconds[part] for part in ("load", "band", "extension", "solve"))
