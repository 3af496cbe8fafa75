"""What is written is what is read back, and a file that could not be finished does not exist."""

import base64
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
import trimesh
from plyfile import PlyData

from lamina.colours import colourise
from lamina.errors import InputError
from lamina.io.export import atomic_write, save, save_splats
from lamina.io.formats import READERS
from lamina.io.splat_files import SH_0, SplatData

BALL = trimesh.creation.icosphere(subdivisions=2)
POINTS = np.asarray(BALL.vertices)
FACES = np.asarray(BALL.faces)
VALUES = np.sin(3 * POINTS[:, 0]) + POINTS[:, 1] / 3
SNAPSHOTS = np.stack([VALUES, VALUES**2, -VALUES], 1)


def columns(element, *names):
    return np.stack([element[name] for name in names], 1)


def test_ply_round_trip_is_exact(tmp_path):
    path = save(tmp_path / "a.ply", POINTS, VALUES, faces=FACES, normals=POINTS, metadata={"spacing": 0.1})
    ply = PlyData.read(str(path))
    vertex = ply["vertex"]
    np.testing.assert_array_equal(columns(vertex, "x", "y", "z"), POINTS)
    np.testing.assert_array_equal(columns(vertex, "nx", "ny", "nz"), POINTS)
    np.testing.assert_array_equal(vertex["value"], VALUES)
    np.testing.assert_array_equal(columns(vertex, "red", "green", "blue"), colourise(VALUES))
    np.testing.assert_array_equal(np.vstack(ply["face"]["vertex_indices"]), FACES)
    assert any('"spacing": 0.1' in comment for comment in ply.comments)


def test_ply_is_a_mesh_for_other_programs(tmp_path):
    mesh = trimesh.load(save(tmp_path / "a.ply", POINTS, VALUES, faces=FACES), process=False)
    assert isinstance(mesh, trimesh.Trimesh)
    assert mesh.is_watertight
    np.testing.assert_array_equal(mesh.visual.vertex_colors[:, :3], colourise(VALUES))


def test_ply_of_points_has_no_faces(tmp_path):
    ply = PlyData.read(str(save(tmp_path / "a.ply", POINTS, VALUES)))
    assert [element.name for element in ply.elements] == ["vertex"]


def test_snapshots_are_numbered_and_coloured_by_the_last(tmp_path):
    path = save(tmp_path / "a.ply", POINTS, SNAPSHOTS, metadata={"times": [0, 0.5, 1]})
    ply = PlyData.read(str(path))
    np.testing.assert_array_equal(columns(ply["vertex"], "value_0", "value_1", "value_2"), SNAPSHOTS)
    np.testing.assert_array_equal(ply["vertex"]["red"], colourise(SNAPSHOTS[:, -1])[:, 0])
    assert "times 0 0.5 1" in ply.comments


def test_npz_round_trip(tmp_path):
    metadata = {"times": [0.0, 0.5, 1.0], "scheme": "trace"}
    path = save(tmp_path / "a.npz", POINTS, SNAPSHOTS, faces=FACES, normals=POINTS, metadata=metadata)
    with np.load(path, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["points"], POINTS)
        np.testing.assert_array_equal(archive["values"], SNAPSHOTS)
        np.testing.assert_array_equal(archive["faces"], FACES)
        np.testing.assert_array_equal(archive["normals"], POINTS)
        np.testing.assert_array_equal(archive["times"], [0, 0.5, 1])
        assert json.loads(str(archive["metadata"])) == {"scheme": "trace"}


def test_npz_has_the_areas_that_make_integrals(tmp_path):
    areas = np.full(len(POINTS), 4 * np.pi / len(POINTS))
    with np.load(save(tmp_path / "a.npz", POINTS, VALUES, areas=areas), allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["areas"], areas)
    with pytest.raises(InputError, match=r"areas of shape \(3,\)"):
        save(tmp_path / "b.npz", POINTS, VALUES, areas=areas[:3])


def splats(axes):
    random = np.random.default_rng(0)
    n = len(POINTS)
    turn = random.normal(size=(n, 4))
    scales = random.uniform(0.01, 0.1, (n, 3)) * [1, 1, axes == 3]
    arrays = POINTS, scales, turn / np.linalg.norm(turn, axis=1)[:, None], random.uniform(0, 1, n)
    harmonics = random.normal(size=(n, 12)).astype(np.float32)
    colours = np.clip(0.5 + SH_0 * harmonics[:, :3], 0, 1)
    return SplatData(*(a.astype(np.float32) for a in (*arrays, colours)), harmonics=harmonics)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("recolour", [True, False])
def test_splats_come_back_with_the_field_and_its_colours_or_their_own(tmp_path, axes, recolour):
    given = splats(axes)
    path = save_splats(tmp_path / "a.ply", given, SNAPSHOTS, recolour=recolour, metadata={"times": [0, 1, 2]})
    found = READERS["ply"](path).splats
    assert found is not None
    np.testing.assert_array_equal(found.centres, given.centres)
    np.testing.assert_allclose(found.scales, given.scales, rtol=1e-5)
    np.testing.assert_allclose(found.rotations, given.rotations, atol=1e-6)
    np.testing.assert_allclose(found.opacities, given.opacities, atol=1e-6)
    vertex = PlyData.read(str(path))["vertex"]
    np.testing.assert_array_equal(columns(vertex, "value_0", "value_1", "value_2"), SNAPSHOTS.astype(np.float32))
    if recolour:
        np.testing.assert_allclose(255 * found.colours, colourise(SNAPSHOTS[:, -1]), atol=1e-3)
        assert found.harmonics is not None
        assert found.harmonics.shape[1] == 3  # nothing that depends on the view
    else:
        np.testing.assert_array_equal(found.harmonics, given.harmonics)


def decode(element):
    """The numbers of a base64 DataArray, by the VTK file format's rules."""
    raw = base64.b64decode(element.text)
    size = int(np.frombuffer(raw[:8], "<u8")[0])
    assert len(raw) == 8 + size
    kind = {"Float64": "<f8", "Int64": "<i8", "UInt8": "u1"}[element.get("type")]
    array = np.frombuffer(raw[8:], kind)
    return array.reshape(-1, 3) if element.get("NumberOfComponents") == "3" else array


@pytest.mark.parametrize("faces", [FACES, None])
def test_vtu_arrays_decode(tmp_path, faces):
    metadata = {"times": [0.0, 0.5, 1.0], "note": "a -- <b> & \u00e9"}
    path = save(tmp_path / "a.vtu", POINTS, SNAPSHOTS, faces=faces, normals=POINTS, metadata=metadata)
    root = ET.parse(path).getroot()
    piece = root.find("UnstructuredGrid/Piece")
    assert piece is not None
    arrays = {element.get("Name"): decode(element) for element in root.iter("DataArray")}
    cells = FACES if faces is not None else np.arange(len(POINTS))[:, None]
    assert int(piece.get("NumberOfPoints", 0)) == len(POINTS)
    assert int(piece.get("NumberOfCells", 0)) == len(cells)
    np.testing.assert_array_equal(arrays["Points"], POINTS)
    np.testing.assert_array_equal(arrays["normals"], POINTS)
    np.testing.assert_array_equal(arrays["connectivity"], cells.reshape(-1))
    np.testing.assert_array_equal(arrays["offsets"], np.arange(1, len(cells) + 1) * cells.shape[1])
    np.testing.assert_array_equal(arrays["types"], np.full(len(cells), 5 if faces is not None else 1))
    np.testing.assert_array_equal(arrays["value_1"], SNAPSHOTS[:, 1])
    np.testing.assert_array_equal(arrays["times"], [0, 0.5, 1])


@pytest.mark.parametrize("extension", [".ply", ".npz", ".vtu"])
def test_tensors_are_taken_as_they_come(tmp_path, extension):
    points = torch.from_numpy(POINTS).float().requires_grad_()
    path = save(tmp_path / f"a{extension}", points, points[:, 0], faces=torch.from_numpy(FACES))
    assert path.stat().st_size > 1000


def test_missing_folders_are_made_and_nothing_else_is_left(tmp_path):
    path = save(tmp_path / "deep" / "er" / "a.ply", POINTS, VALUES)
    assert [p.name for p in path.parent.iterdir()] == ["a.ply"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path, error):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half of")
        raise error("stop")

    with pytest.raises(error):
        atomic_write(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    atomic_write(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"


def test_places_that_cannot_be_written_are_input_errors(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        save(tmp_path / "file" / "a.ply", POINTS, VALUES)
    (tmp_path / "folder.ply").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        save(tmp_path / "folder.ply", POINTS, VALUES)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.ply"]


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"extension '\.xyz' is none of \.ply, \.npz, \.vtu"):
        save(tmp_path / "a.xyz", POINTS, VALUES)
    with pytest.raises(InputError, match=r"values of shape \(3,\): expected"):
        save(tmp_path / "a.ply", POINTS, VALUES[:3])
    with pytest.raises(InputError, match="faces of shape"):
        save(tmp_path / "a.ply", POINTS, VALUES, faces=FACES[:, :2])
    assert not list(tmp_path.iterdir())
