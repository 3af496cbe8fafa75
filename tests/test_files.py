"""A surface survives every file format, whatever the file is called; anything else is refused by name."""

import base64
import json
import os

import numpy as np
import pytest
import torch
import trimesh
from plyfile import PlyData, PlyElement

from lamina.errors import InputError
from lamina.surfaces.files import BUILT_IN, load
from lamina.surfaces.formats import fan

BALL = trimesh.creation.icosphere(subdivisions=2)
V = np.asarray(BALL.vertices)
F = np.asarray(BALL.faces)


def triangle_soup(points, faces):
    """Corner coordinates of all triangles, sorted: the same set means the same surface."""
    corners = np.asarray(points)[np.asarray(faces)].round(5) + 0.0
    rolled = []
    for triangle in corners:
        start = min(range(3), key=lambda i: tuple(triangle[i]))
        rolled.append(np.roll(triangle, -start, axis=0).ravel())
    return np.array(sorted(map(tuple, rolled)))


def assert_is_the_ball(surface):
    assert surface.representation == "mesh"
    assert surface.points.shape == (len(V), 3)
    assert surface.points.dtype == torch.float64
    assert surface.faces.dtype == torch.int64
    np.testing.assert_allclose(triangle_soup(surface.points, surface.faces), triangle_soup(V, F), atol=2e-5)


@pytest.mark.parametrize("kind", ["obj", "ply", "stl", "stl_ascii", "off", "glb", "gltf"])
@pytest.mark.parametrize("misnamed", [False, True])
def test_mesh_comes_back_from_every_format(tmp_path, kind, misnamed):
    extension = kind.removesuffix("_ascii")
    path = tmp_path / ("thing" if misnamed else f"thing.{extension}")
    if kind == "gltf":
        for name, data in trimesh.Scene(BALL).export(file_type="gltf").items():
            (tmp_path / name).write_bytes(data)
        (tmp_path / "model.gltf").rename(path)
    else:
        data = BALL.export(file_type=kind)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    surface = load(path)
    assert surface.name == "thing"
    assert_is_the_ball(surface)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("key", ["vertex_indices", "vertex_index"])
def test_ply_mesh_of_either_spelling(tmp_path, text, key):
    write_ply(tmp_path / "a.ply", V, faces=F, key=key, text=text)
    assert_is_the_ball(load(tmp_path / "a.ply"))


def test_ply_without_faces_is_a_point_cloud_with_its_normals(tmp_path):
    write_ply(tmp_path / "a.ply", V, normals=V)
    cloud = load(tmp_path / "a.ply", name="mine")
    assert cloud.name == "mine"
    assert cloud.representation != "mesh"
    assert cloud.faces is None
    np.testing.assert_allclose(cloud.points, V)
    np.testing.assert_allclose((cloud.normals * torch.from_numpy(V)).sum(1), 1, atol=1e-6)


def test_quads_and_larger_polygons_are_fanned(tmp_path):
    (tmp_path / "a.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nv 0.5 1.5 0\nvt 0 0\nvn 0 0 1\n"
        "# a comment\nf 1/1/1 2/1/1 3/1/1 \\\n 4/1/1\nf -2//1 -3//1 -1//1\n"
    )
    surface = load(tmp_path / "a.obj")
    expected = {(0, 1, 2), (0, 2, 3), (3, 2, 4)}
    assert {tuple(face) for face in surface.faces.tolist()} == expected
    pentagon = np.array([[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(fan(pentagon), [[0, 1, 2], [0, 2, 3], [0, 3, 4]])
    (tmp_path / "b.off").write_text("OFF\n5 1 0\n0 0 0\n1 0 0\n1.5 1 0\n.5 2 0\n-.5 1 0\n5 0 1 2 3 4\n")
    surface = load(tmp_path / "b.off")
    assert surface.faces is not None
    assert surface.areas.sum() == pytest.approx(2.5)


def test_texture_seams_do_not_cut_an_obj_open(tmp_path):
    (tmp_path / "a.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nvt 0 0\nvt 1 0\nvt 1 1\nf 1/1 2/2 3/3\nf 1/2 3/1 4/3\n"
    )
    assert len(load(tmp_path / "a.obj").points) == 4


def test_scene_keeps_the_transforms_of_its_parts(tmp_path):
    scene = trimesh.Scene()
    scene.add_geometry(BALL)
    scene.add_geometry(BALL, transform=trimesh.transformations.translation_matrix([5, 0, 0]))
    (tmp_path / "a.glb").write_bytes(scene.export(file_type="glb"))
    surface = load(tmp_path / "a.glb")
    assert len(surface.points) == 2 * len(V)
    assert surface.bounds[1, 0] == pytest.approx(6, abs=1e-5)
    assert surface.component_count == 2


def gltf(points, corners, mode=4, **node):
    """A scene of one mesh, its data in the JSON itself."""
    rows, index = np.asarray(points), np.asarray(corners, "<u2").tobytes()
    data = rows.tobytes()
    return json.dumps(
        {
            "asset": {"version": "2.0"},
            "buffers": [{"uri": "data:application/octet-stream;base64," + base64.b64encode(data + index).decode()}],
            "bufferViews": [{"buffer": 0}, {"buffer": 0, "byteOffset": len(data)}],
            "accessors": [
                {"bufferView": 0, "componentType": {"f": 5126, "i": 5122}[rows.dtype.kind], "count": len(rows),
                 "type": "VEC3", "normalized": rows.dtype.kind == "i"},
                {"bufferView": 1, "componentType": 5123, "count": len(index) // 2, "type": "SCALAR"},
            ],
            "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1, "mode": mode}]}],
            "nodes": [{"mesh": 0, **node}],
        }
    )  # fmt: skip


SQUARE = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], "<f4")


@pytest.mark.parametrize(("mode", "corners"), [(4, [0, 1, 2, 0, 2, 3]), (5, [0, 1, 3, 2]), (6, [0, 1, 2, 3])])
def test_gltf_triangles_strips_and_fans(tmp_path, mode, corners):
    (tmp_path / "a.gltf").write_text(gltf(SQUARE, corners, mode))
    surface = load(tmp_path / "a.gltf")
    assert float(surface.areas.sum()) == pytest.approx(1)
    np.testing.assert_allclose(surface.normals, np.tile([0, 0, 1.0], (4, 1)), atol=1e-12)


def test_gltf_places_by_scale_then_rotation_then_translation(tmp_path):
    half = 0.5**0.5  # a quarter turn about z
    text = gltf(SQUARE, [0, 1, 2, 0, 2, 3], scale=[2, 1, 1], rotation=[0, 0, half, half], translation=[5, 0, 0])
    (tmp_path / "a.gltf").write_text(text)
    np.testing.assert_allclose(load(tmp_path / "a.gltf").bounds, [[4, 0, 0], [5, 2, 0]], atol=1e-6)
    by_columns = [0, 2, 0, 0, -1, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0, 1]
    (tmp_path / "b.gltf").write_text(gltf(SQUARE, [0, 1, 2, 0, 2, 3], matrix=by_columns))
    np.testing.assert_allclose(load(tmp_path / "b.gltf").bounds, [[4, 0, 0], [5, 2, 0]], atol=1e-6)


def test_gltf_mirrored_and_of_integers(tmp_path):
    (tmp_path / "a.gltf").write_text(gltf(SQUARE, [0, 1, 2, 0, 2, 3], scale=[-1, 1, 1]))
    np.testing.assert_allclose(load(tmp_path / "a.gltf").normals[:, 2], 1)
    (tmp_path / "b.gltf").write_text(gltf((SQUARE * 32767).astype("<i2"), [0, 1, 2, 0, 2, 3]))
    assert float(load(tmp_path / "b.gltf").areas.sum()) == pytest.approx(1)


def test_text_points_tolerate_comments_commas_and_counts(tmp_path):
    rows = "\n".join("{:.6f}, {:.6f}; {:.6f}  # tail".format(*row) for row in V)
    for name, text in {
        "a.xyz": f"# head\n// more\n\n{rows}\n",
        "b.txt": f"{len(V)}\n{rows}",
        "c.csv": f"x,y,z\n{rows}",
    }.items():
        (tmp_path / name).write_text(text)
        cloud = load(tmp_path / name)
        np.testing.assert_allclose(cloud.points, V, atol=1e-5)


def test_six_columns_are_normals_unless_they_are_colours(tmp_path):
    np.savetxt(tmp_path / "a.xyz", np.hstack([V, V]))
    cloud = load(tmp_path / "a.xyz")
    np.testing.assert_allclose(cloud.normals, V, atol=1e-6)
    assert not any("unit normals" in note for note in cloud.notes)
    np.savetxt(tmp_path / "b.xyz", np.hstack([V, np.full_like(V, 200)]))
    assert any("not unit normals" in note for note in load(tmp_path / "b.xyz").notes)


@pytest.mark.parametrize("keys", [("points", "normals"), ("P", "N"), ("xyz", "N")])
def test_npz_points(tmp_path, keys):
    np.savez(tmp_path / "a.npz", **{keys[0]: V, keys[1]: V})
    np.testing.assert_allclose(load(tmp_path / "a.npz").normals, V, atol=1e-6)


def test_npz_mesh(tmp_path):
    np.savez(tmp_path / "a.npz", vertices=V, faces=F)
    assert_is_the_ball(load(tmp_path / "a.npz"))


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_built_in_surfaces_by_name(name):
    surface = load(name)
    assert surface.name == name
    assert len(surface.points) > 1000


def test_binary_stl_that_calls_itself_solid(tmp_path):
    data = bytearray(BALL.export(file_type="stl"))
    data[:5] = b"solid"
    (tmp_path / "a.stl").write_bytes(data)
    assert_is_the_ball(load(tmp_path / "a.stl"))


def test_zeros_in_the_place_of_normals_are_none(tmp_path):
    names = ["x", "y", "z", "nx", "ny", "nz"]
    table = np.zeros(len(V), dtype=[(name, "f4") for name in names])
    for i, name in enumerate("xyz"):
        table[name] = V[:, i]
    PlyData([PlyElement.describe(table, "vertex")]).write(str(tmp_path / "a.ply"))
    assert load(tmp_path / "a.ply").normals.norm(dim=1).min() == pytest.approx(1)


def test_points_without_normals_look_to_where_they_were_seen_from(tmp_path):
    cap = V[V[:, 2] > 0.3]
    np.savez(tmp_path / "a.npz", points=cap)
    for z in (5.0, -5.0):
        normals = load(tmp_path / "a.npz", viewpoint=(0, 0, z)).normals
        assert ((torch.tensor([0, 0, z]) - torch.from_numpy(cap)) * normals).sum(1).min() > 0
    np.savez(tmp_path / "b.npz", points=V, normals=V)
    with pytest.raises(InputError, match="its points have normals; leave out viewpoint"):
        load(tmp_path / "b.npz", viewpoint=(0, 0, 5))
    np.savez(tmp_path / "c.npz", vertices=V, faces=F)
    with pytest.raises(InputError, match="is no point cloud; leave out viewpoint"):
        load(tmp_path / "c.npz", viewpoint=(0, 0, 5))


def test_npy_points(tmp_path):
    np.save(tmp_path / "a.npy", np.hstack([V, V]))
    np.testing.assert_allclose(load(tmp_path / "a.npy").normals, V, atol=1e-6)
    np.save(tmp_path / "b.npy", np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"float64 of shape \(4, 2\); expected points"):
        load(tmp_path / "b.npy")


# What is refused


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.ply", b"", "is empty"),
        ("a.ply", b" \n ", "is empty"),
        (
            "a.ply",
            b"ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nend_header\n1\n2\n3\n",
            "no x, y, z but x",
        ),
        (
            "a.ply",
            b"ply\nformat ascii 1.0\nelement vertex 9\nproperty float x\nend_header\n1\n",
            "read as PLY",
        ),
        ("a.ply", b"this is no ply", "cannot be read as PLY"),
        (
            "a.ply",
            b"ply\nformat ascii 1.0\nelement chunk 0\nproperty float x\nend_header\n",
            "no element 'vertex'",
        ),
        ("a.obj", b"# nothing\n", "no vertices"),
        ("a.obj", b"v 1 2\nv 1 2 3\nf 1 2\n", "line 1 has a vertex with fewer than three"),
        ("a.obj", b"v 0 0 0\nv 1 2 3\nf 1 2\n", "fewer than three corners"),
        ("a.obj", b"v 0 0 zero\n", "read as OBJ"),
        ("a.glb", b"glTF" + b"\0" * 40, "read as GLB"),
        ("a.stl", b"\0" * 83, "read as STL"),
        ("a.stl", b"\0" * 84, "read as STL"),
        ("a.off", b"OFF\nnothing here\n", "read as OFF"),
        ("a.off", b"# nothing at all\n", "read as OFF: it has no vertices"),
        ("a.xyz", b"1 2 3 4\n5 6 7 8\n", "hold 4 numbers; expected x y z"),
        ("a.xyz", b"1 2 3\n1 2\n", "read as XYZ"),
        ("a.xyz", b"1 2 3\n1 2 three\n", "read as XYZ"),
        ("a.npz", b"PK\x03\x04 and nothing", "read as an archive: the archive is damaged"),
        ("a.docx", b"hello world", "extension '.docx'.*lamina reads meshes"),
        ("a", b"\x89PNG\r\n\0\0", "no extension and no content that is known"),
        ("a.step", b"ISO-10303-21;\nHEADER;\n", "extension '.step'"),
    ],
)
def test_bad_files_are_refused_with_their_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_meshes_are_refused(tmp_path):
    for kind in ("ply", "glb", "stl", "off"):
        data = BALL.export(file_type=kind)
        data = data.encode() if isinstance(data, str) else data
        (tmp_path / f"cut.{kind}").write_bytes(data[: 2 * len(data) // 3])
        with pytest.raises(InputError, match=f"cut.{kind}"):
            load(tmp_path / f"cut.{kind}")


def test_missing_files_folders_and_unknown_names(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*missing\.ply"):
        load(tmp_path / "missing.ply")
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"'spere' is neither.*built in: sphere, torus, ellipsoid, spike, starfruit"):
        load("spere")


def test_npz_of_something_else_lists_what_it_holds(tmp_path):
    np.savez(tmp_path / "a.npz", weight=np.zeros(3), bias=np.zeros(1))
    with pytest.raises(InputError, match="holds weight, bias; expected points"):
        load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", points=np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"shape \(4, 2\); expected numbers \(n, 3\)"):
        load(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", vertices=V, faces=F.astype(float))
    with pytest.raises(InputError, match="faces are float64"):
        load(tmp_path / "c.npz")


class Payload:
    """Makes a folder when unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_objects_in_an_npz_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.array([Payload(tmp_path / "harm")], dtype=object))
    with pytest.raises(InputError, match="read as NPZ"):
        load(tmp_path / "a.npz")
    assert not (tmp_path / "harm").exists()


def test_faces_that_point_nowhere_name_the_file(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n")
    with pytest.raises(InputError, match=r"a\.obj"):
        load(tmp_path / "a.obj")


def write_ply(path, points, *, faces=None, normals=None, key="vertex_indices", text=False):
    columns = [("x", "f8"), ("y", "f8"), ("z", "f8")]
    data = [points]
    if normals is not None:
        columns += [("nx", "f8"), ("ny", "f8"), ("nz", "f8")]
        data.append(normals)
    table = np.array([tuple(row) for row in np.hstack(data)], dtype=columns)
    elements = [PlyElement.describe(table, "vertex")]
    if faces is not None:
        rows = np.array([(list(face),) for face in faces], dtype=[(key, "i4", (3,))])
        elements.append(PlyElement.describe(rows, "face"))
    PlyData(elements, text=text).write(str(path))
