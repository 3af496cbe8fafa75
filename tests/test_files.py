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
    (tmp_path / "b.off").write_text("OFF\n5 1 0\n0 0 0\n1 0 0\n1.5 1 0\n.5 2 0\n-.5 1 0\n5 0 1 2 3 4\n")
    surface = load(tmp_path / "b.off")
    assert surface.faces is not None
    assert surface.areas.sum() == pytest.approx(2.5)


def read_both(path):
    """The surface in a file, and what trimesh makes of the same file."""
    surface, other = load(path), trimesh.load(path, process=False)
    assert isinstance(other, trimesh.Trimesh)
    return surface, other


def assert_same_triangles(surface, mesh):
    np.testing.assert_allclose(
        triangle_soup(surface.points, surface.faces), triangle_soup(mesh.vertices, mesh.faces), atol=1e-5
    )


def obj_lines(faces=F):
    return [f"v {x:.9f} {y:.9f} {z:.9f}" for x, y, z in V] + [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in faces]


def test_obj_with_faces_of_one_and_two_corners_is_read_as_trimesh_reads_it(tmp_path):
    lines = obj_lines()
    lines[200:200], lines[400:400] = ["f 1 2", "f 3/1 4/1"], ["f 7"]
    (tmp_path / "a.obj").write_text("\n".join(lines))
    surface, other = read_both(tmp_path / "a.obj")
    assert_same_triangles(surface, other)
    assert surface.notes == [f"3 of {len(F) + 3} faces have fewer than three corners and were left out."]


def test_lines_and_points_beside_the_faces_of_an_obj_are_left_out(tmp_path):
    (tmp_path / "a.obj").write_text("\n".join([*obj_lines(), "l 1 2 3 4", "l 5/1 6/2", "p 8"]))
    surface, other = read_both(tmp_path / "a.obj")
    assert_same_triangles(surface, other)
    assert surface.notes == ["2 lines and 1 point beside the faces have no area and were left out."]


def test_a_clean_obj_has_no_notes(tmp_path):
    (tmp_path / "a.obj").write_text("\n".join(obj_lines()))
    assert load(tmp_path / "a.obj").notes == []


def test_faces_of_two_corners_in_off_and_ply(tmp_path):
    rows = [f"3 {a} {b} {c}" for a, b, c in F]
    rows[50:50] = ["2 0 1", "1 3", "2 4 5"]
    places = [f"{x:.9f} {y:.9f} {z:.9f}" for x, y, z in V]
    (tmp_path / "a.off").write_text("\n".join(["OFF", f"{len(V)} {len(rows)} 0", *places, *rows]))
    header = f"ply\nformat ascii 1.0\nelement vertex {len(V)}\nproperty float x\nproperty float y\nproperty float z\n"
    header += f"element face {len(rows)}\nproperty list uchar int vertex_indices\nend_header"
    (tmp_path / "a.ply").write_text("\n".join([header, *places, *rows, ""]))
    for name in ("a.off", "a.ply"):
        surface, other = read_both(tmp_path / name)
        assert_same_triangles(surface, other)
        assert surface.notes == [f"3 of {len(F) + 3} faces have fewer than three corners and were left out."]


def test_an_off_face_that_names_fewer_corners_than_it_announces_is_refused(tmp_path):
    (tmp_path / "a.off").write_text("OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2\n")
    with pytest.raises(InputError, match="a face announces 3 corners and names 2"):
        load(tmp_path / "a.off")


def test_lines_and_points_beside_the_triangles_of_a_gltf_are_left_out(tmp_path):
    scene = json.loads(gltf(SQUARE, [0, 1, 2, 0, 2, 3]))
    triangles = scene["meshes"][0]["primitives"][0]
    scene["meshes"][0]["primitives"] += [triangles | {"mode": mode} for mode in (0, 1, 3)]
    (tmp_path / "a.gltf").write_text(json.dumps(scene))
    surface = load(tmp_path / "a.gltf")
    assert float(surface.areas.sum()) == pytest.approx(1)
    assert surface.notes == ["2 lines and 1 point beside the faces have no area and were left out."]


def test_a_file_of_lines_alone_is_refused_and_bare_vertices_are_points(tmp_path):
    places = [line for line in obj_lines() if line.startswith("v")]
    (tmp_path / "lines.obj").write_text("\n".join([*places, "l 1 2 3", "l 4 5"]))
    with pytest.raises(InputError, match="it holds 2 lines and no faces; expected a mesh, or points without lines"):
        load(tmp_path / "lines.obj")
    (tmp_path / "faces.obj").write_text("\n".join([*places, "f 1 2", "f 4 5"]))
    with pytest.raises(InputError, match="all of its 2 faces have fewer than three corners"):
        load(tmp_path / "faces.obj")
    (tmp_path / "lines.gltf").write_text(gltf(SQUARE, [0, 1, 2, 3], mode=3))
    with pytest.raises(InputError, match="no triangles but 1 primitives of lines and 0 of points"):
        load(tmp_path / "lines.gltf")
    header = f"ply\nformat ascii 1.0\nelement vertex {len(V)}\nproperty float x\nproperty float y\nproperty float z\n"
    header += "element edge 1\nproperty int vertex1\nproperty int vertex2\nend_header"
    (tmp_path / "lines.ply").write_text("\n".join([header, *(place[2:] for place in places), "0 1", ""]))
    with pytest.raises(InputError, match="it holds 1 line and no faces"):
        load(tmp_path / "lines.ply")
    for name, more in (("bare.obj", []), ("points.obj", ["p 1 2 3"])):
        (tmp_path / name).write_text("\n".join(places + more))
        cloud = load(tmp_path / name)
        assert cloud.representation != "mesh"
        assert len(cloud.points) == len(V)


@pytest.mark.parametrize(
    "faces",
    [
        "f 1/2/3 2/2/3 3/2/3\nf 1//1 3//1 4//1",
        "f 1/1 2/1 3/1\nf -5 -3 -2",
        "f 1 2 \\\n3\nf 1 3 \\   \n  4",
        "f 1 2 3 # a comment\nf 1 3 4# another",
        "# C:\\folder\\\nf 1 2 3\nf 1 3 4",
        "s off\ng part\nusemtl red\nf\t1 2 3\r\nf 1 3 4\r",
        "f 1 2 3\nf 1 2 3\nf 3 1 2\nf 1 3 4\nf 1 1 2",
        "f 1 2 3 4",
        "f 1 2 3 3\nf 1 3 4 1",
    ],
)
def test_every_way_to_write_the_faces_of_an_obj(tmp_path, faces):
    places = "v 0 0 0\nv 1 0 0 1\nv 1 1 0 .5 .5 .5\nv 0 1 0 # corner\nv 2 2 0\nvt 0 0\nvt 1 1\n"
    places += "vn 0 0 1\nvn 0 1 0\nvn 1 0 0\n"
    (tmp_path / "a.obj").write_text("\ufeff" + places + faces)
    surface = load(tmp_path / "a.obj")
    assert {tuple(sorted(face)) for face in surface.faces.tolist()} == {(0, 1, 2), (0, 2, 3)}
    np.testing.assert_allclose(surface.normals[:4], np.tile([0, 0, 1.0], (4, 1)))


def stl_facets(polygons):
    """A text STL of facets with the given corners, each (c, 3)."""
    rows = ["solid ball"]
    for corners in polygons:
        places = [f"vertex {x:.9f} {y:.9f} {z:.9f}" for x, y, z in corners]
        rows += ["facet normal 0 0 0", "outer loop", *places, "endloop", "endfacet"]
    return "\n".join([*rows, "endsolid ball", ""])


def test_facets_of_a_text_stl_have_any_number_of_corners(tmp_path):
    """trimesh reads corners three by three, which shifts all facets behind an odd one: compared is the clean file."""
    square = 2 + np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    ball = list(V[F])
    (tmp_path / "a.stl").write_text(stl_facets([*ball[:20], V[:2], *ball[20:], square, V[:1]]))
    (tmp_path / "clean.stl").write_text(stl_facets([*ball, square[:3], square[[0, 2, 3]]]))
    surface = load(tmp_path / "a.stl")
    assert_same_triangles(surface, trimesh.load(tmp_path / "clean.stl", process=False))
    assert surface.notes == [f"2 of {len(F) + 3} faces have fewer than three corners and were left out."]


def test_a_text_stl_that_breaks_off_is_refused(tmp_path):
    text = stl_facets(V[F])
    for broken in (text[: text.rindex("endfacet")], text.replace("vertex", "vertex 0", 1)):
        (tmp_path / "a.stl").write_text(broken)
        with pytest.raises(InputError, match=f"its {3 * len(F)} vertices are not three numbers each in facets"):
            load(tmp_path / "a.stl")


def written(kind, points, faces, path):
    """The path of a text file with the points and the faces, lists of corners."""
    places, count = [f"{x:.9f} {y:.9f} {z:.9f}" for x, y, z in points], len(faces)
    rows = [f"{len(face)} {' '.join(map(str, face))}" for face in faces]
    header = f"ply\nformat ascii 1.0\nelement vertex {len(places)}\n"
    header += "".join(f"property double {axis}\n" for axis in "xyz")
    header += f"element face {count}\nproperty list uchar int vertex_indices\nend_header"
    lines = {
        "obj": [*(f"v {p}" for p in places), *("f " + " ".join(str(i + 1) for i in face) for face in faces)],
        "off": ["OFF", f"{len(places)} {count} 0", *places, *rows],
        "ply": [header, *places, *rows, ""],
        "stl": [stl_facets([points[list(face)] for face in faces])],
    }[kind]
    (path / f"a.{kind}").write_text("\n".join(lines))
    return path / f"a.{kind}"


@pytest.mark.parametrize("kind", ["obj", "off", "ply", "stl"])
def test_duplicate_and_flat_faces_are_left_out_with_their_number(tmp_path, kind):
    """The rest is what trimesh has after it has dropped the same faces."""
    faces = [*F.tolist(), *F[:5].tolist(), F[7][::-1].tolist(), [0, 0, 1]]
    path = written(kind, V, faces, tmp_path)
    other = trimesh.load(path)
    assert len(other.faces) == len(F) + 7
    other.update_faces(other.unique_faces() & other.nondegenerate_faces())
    surface = load(path)
    assert_same_triangles(surface, other)
    assert "6 duplicate faces were ignored." in surface.notes
    assert "1 face has no area and was ignored." in surface.notes


@pytest.mark.parametrize("kind", ["obj", "off", "ply"])
def test_faces_with_vertices_of_their_own_are_joined_and_the_vertices_keep_their_rows(tmp_path, kind):
    """trimesh merges the vertices; lamina joins the faces as well, but gives a value for every row of the file."""
    soup = V[F].reshape(-1, 3)
    path = written(kind, soup, np.arange(len(soup)).reshape(-1, 3).tolist(), tmp_path)
    surface, other = load(path), trimesh.load(path)
    assert_same_triangles(surface, other)
    assert other.is_watertight
    assert not surface.rim_edges.any()
    assert int(surface.component.max()) == 0
    np.testing.assert_allclose(surface.points, soup, atol=1e-8)
    repeated = len(soup) - len(other.vertices)
    assert surface.notes[0].startswith(f"{repeated} of {len(soup)} vertices repeat the place of another")


def turned(polygon, seed):
    """Corners (c, 2) in a plane of space that is not aligned with the axes (c, 3)."""
    frame = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return np.column_stack([polygon, np.zeros(len(polygon))]) @ frame.T + [1, 2, 3]


def star(tips, inner, start):
    angle = np.pi * np.arange(2 * tips) / tips
    radius = np.where(np.arange(2 * tips) % 2, inner, 1)
    return np.roll(np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]), start, axis=0)


# A thick spiral, a comb whose edges have corners in their middle, and a frame with a bridge to its hole.
ARM = np.linspace(0.5, 12, 40)
SPIRAL = np.concatenate([(ARM + s)[:, None] * np.column_stack([np.cos(ARM), np.sin(ARM)]) for s in (0, 1)])
SPIRAL[40:] = SPIRAL[40:][::-1]
COMB = np.array([(0, 0), (1, 0), (2, 0), (4, 0), (4, 2), (3, 2), (3, 1), (2, 1), (1, 1), (1, 2), (0, 2), (0, 1)], float)
FRAME = np.array([(0, 0), (3, 0), (3, 3), (0, 3), (0, 0), (1, 1), (1, 2), (2, 2), (2, 1), (1, 1)], float)
CONCAVE = [star(5, 0.3, 0), star(5, 0.3, 1), star(2, 0.2, 1), star(40, 0.9, 1), SPIRAL, COMB, COMB[::-1], FRAME]


@pytest.mark.parametrize("index", range(len(CONCAVE)))
@pytest.mark.parametrize("kind", ["obj", "off", "ply"])
def test_concave_polygons_are_covered_once(tmp_path, kind, index):
    """The triangles look all one way and have the area of the polygon, so that none lies outside it or on another."""
    polygon = CONCAVE[index]
    x, y = polygon.T
    area = 0.5 * abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum()))
    count = len(polygon)
    rows = [" ".join(f"{v:.17g}" for v in row) for row in turned(polygon, index)]
    corners = " ".join(map(str, range(count)))
    header = f"ply\nformat ascii 1.0\nelement vertex {count}\nproperty double x\nproperty double y\nproperty double z\n"
    header += "element face 1\nproperty list uchar int vertex_indices\nend_header"
    text = {
        "obj": "\n".join([*(f"v {row}" for row in rows), "f " + " ".join(str(i + 1) for i in range(count))]),
        "off": "\n".join(["OFF", f"{count} 1 0", *rows, f"{count} {corners}"]),
        "ply": "\n".join([header, *rows, f"{count} {corners}", ""]),
    }[kind]
    path = tmp_path / f"a.{kind}"
    path.write_text(text)
    surface = load(path)
    assert len(surface.faces) == count - 2
    a, b, c = surface.points[surface.faces].unbind(1)
    normals = torch.linalg.cross(b - a, c - a)
    assert (normals @ normals.sum(0)).min() > 0
    assert float(surface.areas.sum()) == pytest.approx(area)
    assert not any("crossing" in note for note in surface.notes)


def test_a_polygon_that_crosses_itself_is_noted(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 3 0 0\nv 0 2 0\nv 2 2 0\nf 1 2 3 4\n")
    surface = load(tmp_path / "a.obj")
    assert len(surface.faces) == 2
    assert surface.notes[-1].startswith("1 face with crossing edges")


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
