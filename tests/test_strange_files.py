"""Damaged and hostile files: a surface or one sentence, no memory that the file does not account for, no code run."""

import json
import pickle
import re
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import trimesh
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as safetensors_bytes
from torch import nn

from lamina.errors import InputError
from lamina.io.formats import FormatError
from lamina.surfaces.base import Surface
from lamina.surfaces.files import load
from lamina.surfaces.neural import FieldOptions, open_field

BALL = trimesh.creation.icosphere(subdivisions=1)
BOX = trimesh.creation.box()
SLACK = 96 * 2**20  # bytes above an honest load, shared by all hostile ones


def honest(folder):
    """One small file of every kind, by name."""
    V, F = np.asarray(BALL.vertices), np.asarray(BALL.faces)
    for kind in ("ply", "stl", "off", "obj", "glb"):
        data = BALL.export(file_type=kind)
        (folder / f"mesh.{kind}").write_bytes(data.encode() if isinstance(data, str) else data)
    (folder / "text.ply").write_bytes(BALL.export(file_type="ply", encoding="ascii"))
    (folder / "text.stl").write_text(BALL.export(file_type="stl_ascii"))
    (folder / "mesh.gltf").write_text(json.dumps(gltf(V, F)))
    np.savetxt(folder / "points.xyz", np.hstack([V, V]))
    np.save(folder / "points.npy", V)
    np.savez(folder / "points.npz", points=V, normals=V)
    np.savez_compressed(folder / "packed.npz", vertices=V, faces=F)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    arrays = {f"{'Wb'[key.endswith('bias')]}{i // 2}": v.numpy() for i, (key, v) in enumerate(net.state_dict().items())}
    np.savez(folder / "field.npz", **arrays)
    torch.save(net.state_dict(), folder / "field.pt")
    torch.save({"epoch": 1, "state_dict": net.state_dict()}, folder / "old.pth", _use_new_zipfile_serialization=False)
    (folder / "field.safetensors").write_bytes(safetensors_bytes(net.state_dict()))
    return sorted(folder.iterdir())


def gltf(V, F, **changes):
    import base64

    points, corners = V.astype("<f4").tobytes(), F.astype("<u2").tobytes()
    scene = {
        "asset": {"version": "2.0"},
        "buffers": [{"uri": "data:;base64," + base64.b64encode(points + corners).decode()}],
        "bufferViews": [{"buffer": 0, "byteOffset": 0}, {"buffer": 0, "byteOffset": len(points)}],
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "count": len(V), "type": "VEC3"},
            {"bufferView": 1, "componentType": 5123, "count": F.size, "type": "SCALAR"},
        ],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "nodes": [{"mesh": 0}],
    }
    return scene | changes


NAMES = [
    "mesh.ply", "mesh.stl", "mesh.off", "mesh.obj", "mesh.glb", "text.ply", "text.stl", "mesh.gltf", "points.xyz",
    "points.npy", "points.npz", "packed.npz", "field.npz", "field.pt", "old.pth", "field.safetensors",
]  # fmt: skip
KINDS = {"field.npz": "npz", "field.pt": "torch", "old.pth": "torch", "field.safetensors": "safetensors"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("honest")
    assert sorted(path.name for path in honest(folder)) == sorted(NAMES)
    return folder


def opens_or_is_refused(path, name):
    """Whether the file was read. Networks are opened without looking for their surface, which takes longer."""
    try:
        found = open_field(path, KINDS[name], FieldOptions())[0] if name in KINDS else load(path)
    except (InputError, FormatError) as error:
        found = str(error)
    assert isinstance(found, (Surface, nn.Module)) or "\n" not in found
    return not isinstance(found, str)


@pytest.mark.parametrize("name", NAMES)
def test_honest_files_open(corpus, name):
    assert opens_or_is_refused(corpus / name, name)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_file_is_a_surface_or_a_sentence(corpus, tmp_path, name, data):
    whole = (corpus / name).read_bytes()
    length = data.draw(st.integers(0, len(whole) - 1) | st.integers(max(0, len(whole) - 64), len(whole) - 1))
    path = tmp_path / name
    path.write_bytes(whole[:length])
    opens_or_is_refused(path, name)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_are_a_surface_or_a_sentence(corpus, tmp_path, name, data):
    whole = bytearray((corpus / name).read_bytes())
    near = st.integers(0, min(400, len(whole) - 1))  # headers
    far = st.integers(max(0, len(whole) - 400), len(whole) - 1)  # directories of archives
    place = st.integers(0, len(whole) - 1) | near | far
    for where, bit in data.draw(st.lists(st.tuples(place, st.integers(0, 7)), min_size=1, max_size=6)):
        whole[where] ^= 1 << bit
    path = tmp_path / name
    path.write_bytes(bytes(whole))
    opens_or_is_refused(path, name)


MAGIC = [b"", b"ply\n", b"glTF", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x02", b"OFF\n", b"\x1f\x8b"]


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300), start=st.sampled_from(MAGIC))
def test_noise_is_refused(tmp_path_factory, data, start):
    path = tmp_path_factory.mktemp("noise") / "a"
    path.write_bytes(start + data)
    opens_or_is_refused(path, "a")


# Hostile files. Each is written with an expectation of what the refusal says.


def npy(shape, data=b"", descr="'<f8'"):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def archive(path, method=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/"), content)


def zero_npz(path):
    archive(path, zipfile.ZIP_DEFLATED, **{"points.npy": npy_of_zeros(400)})


def npy_of_zeros(megabytes):
    return npy((megabytes * 2**17,), bytes(megabytes * 2**20))


def overlapping(path):
    """A zip whose directory names one member ten thousand times."""
    archive(path, zipfile.ZIP_DEFLATED, **{"points.npy": npy_of_zeros(1)})
    data = path.read_bytes()
    start = data.index(b"PK\x01\x02")
    end = data.index(b"PK\x05\x06")
    entries = data[start:end] * 10000
    tail = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 10000, 10000, len(entries), start, 0)
    path.write_bytes(data[:start] + entries + tail)


def checkpoint(path, change, **options):
    torch.save({"a.weight": torch.zeros(8, 3), "b.weight": torch.zeros(1, 8)}, path, **options)
    if options:
        path.write_bytes(change(path.read_bytes()))
        return
    with zipfile.ZipFile(path) as file:
        members = {name.replace("/", "__"): file.read(name) for name in file.namelist()}
    members = {name: change(data) if name.endswith("data.pkl") else data for name, data in members.items()}
    archive(path, **members)


def claim(data):
    """The storage of 24 numbers (BININT1) said to be of two thousand million (BININT)."""
    assert b"K\x18" in data
    return data.replace(b"K\x18", b"J\xff\xff\xff\x7f")


def compressed_checkpoint(path):
    torch.save({"a.weight": torch.zeros(4000, 3), "b.weight": torch.zeros(1, 4000)}, path)
    with zipfile.ZipFile(path) as file:
        members = {name.replace("/", "__"): file.read(name) for name in file.namelist()}
    archive(path, zipfile.ZIP_DEFLATED, **members)


class Huge:
    def __reduce__(self):
        return bytearray, (2**40,)


def laughs(path):
    """Lists of lists: 10^12 tensors, if each were visited as often as it is named."""
    item = [torch.zeros(1)]
    for _ in range(12):
        item = [item] * 10
    torch.save(item, path)


def glb(scene, binary=b""):
    text = json.dumps(scene).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<LL", len(text), 0x4E4F534A) + text + struct.pack("<LL", len(binary), 0x004E4942) + binary
    return b"glTF" + struct.pack("<LL", 2, 12 + len(chunks)) + chunks


def changed_gltf(path, **changes):
    V, F = np.asarray(BOX.vertices), np.asarray(BOX.faces)
    path.write_text(json.dumps(gltf(V, F, **changes)))


def placed_often(path):
    V, F = np.asarray(BALL.vertices), np.asarray(BALL.faces)
    V, F = np.tile(V, (100, 1)), np.tile(F, (100, 1))
    path.write_text(json.dumps(gltf(V, F, nodes=[{"mesh": 0}] * 20000)))


PLY = "ply\nformat {}\nelement vertex {}\nproperty float x\nproperty float y\nproperty float z\n{}end_header\n"
MANY = 10**12
BINARY = "binary_little_endian 1.0"
CORNERS = "property list uint int vertex_indices\n"
ROWS = {"componentType": 5126, "count": MANY, "type": "VEC3"}


HOSTILE = {
    "binary.ply": (lambda p: p.write_text(PLY.format(BINARY, MANY, "")), "announces at least"),
    "text.ply": (lambda p: p.write_text(PLY.format("ascii 1.0", MANY, "")), "announces at least"),
    "faces.ply": (
        lambda p: p.write_text(PLY.format(BINARY, 0, f"element face {MANY}\n{CORNERS}")),
        "announces at least",
    ),
    "bare.ply": (lambda p: p.write_text(PLY.format(BINARY, 0, f"element nothing {MANY}\n")), ""),
    "list.ply": (
        lambda p: p.write_bytes(PLY.format(BINARY, 0, f"element face 1\n{CORNERS}").encode() + b"\xff\xff\xff\x7f"),
        "PLY",
    ),
    "count.stl": (lambda p: p.write_bytes(bytes(80) + b"\xff" * 4 + bytes(50)), "do not fit its 134 bytes"),
    "count.off": (lambda p: p.write_text(f"OFF\n{MANY} {MANY} 0\n0 0 0\n"), "ends before them"),
    "negative.off": (lambda p: p.write_text("OFF\n-3 -1 0\n0 0 0\n1 0 0\n0 1 0\n"), "announces -3 vertices"),
    "index.obj": (lambda p: p.write_text(f"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 {10**30}\n"), "OBJ"),
    "zeros.npz": (zero_npz, "unpacks to more than 100 times its size"),
    "overlapping.npz": (overlapping, "lists more members|overlap|unpacks"),
    "shape.npz": (
        lambda p: archive(p, **{"points.npy": npy((MANY, 3))}),
        "announces the shape",
    ),
    "negative.npy": (lambda p: p.write_bytes(npy((-1, 3))), "announces the shape"),
    "code.npy": (lambda p: p.write_bytes(npy((), descr="__import__('os').getcwd()")), "damaged header"),
    "objects.npy": (lambda p: p.write_bytes(npy((1,), pickle.dumps(1), "'|O'")), "Python objects"),
    "claim.pt": (lambda p: checkpoint(p, claim), "announces 8589934588 bytes"),
    "legacy.pt": (lambda p: checkpoint(p, claim, _use_new_zipfile_serialization=False), "more numbers than the file"),
    "compressed.pt": (compressed_checkpoint, "compressed members"),
    "huge.pt": (lambda p: torch.save({"a": Huge()}, p), "'__builtin__ bytearray', no part of plain weights"),
    "pickle.pt": (lambda p: p.write_bytes(pickle.dumps({"a": Huge()}, 2)), "no part of plain weights|no checkpoint"),
    "modern.pt": (lambda p: p.write_bytes(pickle.dumps({"a": Huge()}, 4)), "pickle of protocol 4"),
    "laughs.pt": (laughs, "no linear layers"),
    "length.safetensors": (lambda p: p.write_bytes(struct.pack("<Q", 2**60) + b'{"a":1}'), "safetensors"),
    "shape.safetensors": (
        lambda p: p.write_bytes(
            struct.pack("<Q", 68) + b'{"a":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,4]}}' + bytes(4)
        ),
        "safetensors",
    ),
    "accessor.gltf": (
        lambda p: changed_gltf(p, accessors=[{"bufferView": 0, **ROWS}] * 2), "do not fit their buffer"
    ),
    "nothing.gltf": (lambda p: changed_gltf(p, accessors=[ROWS] * 2), "sparse"),
    "cycle.gltf": (
        lambda p: changed_gltf(p, nodes=[{"children": [1]}, {"children": [0]}], scenes=[{"nodes": [0]}]), "placed twice"
    ),
    "doubling.gltf": (
        lambda p: changed_gltf(p, nodes=[*({"children": [i + 1] * 2} for i in range(60)), {"mesh": 0}]), "placed twice"
    ),
    "copies.gltf": (placed_often, "copies of more than 100 times"),
    "outside.gltf": (lambda p: changed_gltf(p, buffers=[{"uri": "../../../../etc/passwd"}]), "outside its folder"),
    "deep.gltf": (lambda p: p.write_text('{"asset":' + "[" * 200000), "JSON is damaged"),
    "deep.glb": (lambda p: p.write_bytes(glb({"asset": {}, "nodes": 3})), "nodes are no list"),
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for name, (write, _) in HOSTILE.items():
        write(folder / name)
    return folder


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_for_what_it_is(hostile, name):
    with pytest.raises(InputError) as caught:
        load(hostile / name)
    assert re.search(HOSTILE[name][1], str(caught.value))
    assert "\n" not in str(caught.value)


def test_hostile_files_take_no_memory(hostile):
    """In a process of their own, whose largest memory is measured, and which cannot have much more."""
    program = f"""
import resource, sys
from pathlib import Path
from lamina import load
from lamina.errors import InputError
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
load(sys.argv[1])
start = peak()
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + {16 * SLACK}, held + {16 * SLACK}))
for path in sorted(Path(sys.argv[2]).iterdir()):
    try:
        load(path)
    except InputError:
        if peak() - start > {SLACK}:
            sys.exit(f"{{path.name}} took {{(peak() - start) >> 20}} MiB")
        continue
    sys.exit(f"{{path.name}} was opened")
"""
    BALL.export(hostile.parent / "ball.ply")
    arguments = [sys.executable, "-c", program, hostile.parent / "ball.ply", hostile]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_checkpoint_may_hold_what_training_keeps(tmp_path):
    """Refusals are for strangers' tricks, not for optimisers, steps and shared tensors."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    state = {"model": net.state_dict(), "optimizer": optimiser.state_dict(), "step": 7, "tags": ["a", None, 0.5]}
    state["again"] = state["model"]
    torch.save(state, tmp_path / "a.pt")
    field, _, _ = open_field(tmp_path / "a.pt", "torch", FieldOptions())
    x = torch.randn(9, 3)
    torch.testing.assert_close(field(x.double()).float(), net(x)[:, 0].detach())


def test_an_honest_large_file_costs_about_its_size(tmp_path):
    """20 MB of points: reading takes no more than a few copies of them."""
    points = np.random.default_rng(0).normal(size=(800_000, 3))
    np.savez(tmp_path / "a.npz", points=points)
    from lamina.io.archives import read_npz

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arrays, _ = read_npz(tmp_path / "a.npz")
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    np.testing.assert_array_equal(arrays["points"], points)
    assert grown < 2 * points.nbytes
    assert Path(tmp_path / "a.npz").stat().st_size > points.nbytes
