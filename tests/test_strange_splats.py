"""Damaged and hostile splat files: Gaussians or one sentence, in bounded memory and time, without running anything."""

import gzip
import io
import json
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from lamina.errors import InputError
from lamina.io.formats import READERS, FormatError
from lamina.io.splat_files import SPLAT_READERS, SplatData, sniff
from lamina.surfaces.base import Surface
from lamina.surfaces.files import load
from test_splat_files import compressed, gaussians, inria, ply, sog, splat, spz

COUNT = 40
GIVEN = gaussians(count=COUNT)
FILES = {
    "inria.ply": inria(*GIVEN, rest=9),
    "discs.ply": inria(*GIVEN, axes=2),
    "packed.ply": compressed(*GIVEN, True),
    "a.splat": splat(*GIVEN),
    "two.spz": spz(*GIVEN, version=2, degree=2),
    "three.spz": spz(*GIVEN, version=3, degree=1),
    "a.sog": sog(*GIVEN),
}
SLACK = 64 * 2**20  # bytes above an honest load, shared by all hostile ones


def is_sound(found: SplatData) -> None:
    """Arrays of one length and of the right shapes; rotations of length 1, or not finite as they were stored."""
    n = len(found)
    assert found.centres.shape == found.scales.shape == found.colours.shape == (n, 3)
    assert found.rotations.shape == (n, 4)
    assert found.opacities.shape == (n,)
    length = np.linalg.norm(found.rotations.astype(np.float64), axis=1)
    assert not bool((np.abs(length[np.isfinite(length)] - 1) > 1e-3).any())


def read_or_refused(path, name) -> bool:
    """Whether the file was read by the reader of its kind. plyfile refuses with errors of its own."""
    kind = name.rpartition(".")[2]
    data = path.read_bytes()
    sniff(data[:65536], len(data))
    try:
        with np.errstate(all="ignore"):
            found = SPLAT_READERS[kind](path) if kind in SPLAT_READERS else READERS[kind](path).splats
    except Exception as error:
        if not isinstance(error, FormatError):
            assert kind == "ply"
            with pytest.raises(InputError):
                load(path)
        return False
    if found is not None:  # a damaged header may make plain points of Gaussians
        is_sound(found)
    return True


@pytest.mark.parametrize("name", FILES)
def test_honest_files_are_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    assert read_or_refused(path, name)


def regions(data: bytes, name: str) -> list[tuple[int, int]]:
    """Spans of a file's parts: header, each column or member, directory."""
    marks = {0, len(data), min(32, len(data))}
    for magic in (b"end_header\n", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"RIFF", b"VP8L", b"element"):
        marks |= {m.start() for m in re.finditer(re.escape(magic), data)}
    if name.endswith("spz"):
        marks |= {10, len(data) - 8}  # of gzip: header, and check sum with length
    ordered = sorted(marks)
    return list(pairwise(ordered))


@pytest.mark.parametrize("name", FILES)
def test_files_cut_in_any_region_are_refused(tmp_path, name):
    """A shorter file has lost Gaussians: only a .splat, which says nothing of its length, can be cut between them."""
    whole, path = FILES[name], tmp_path / name
    for start, end in regions(whole, name):
        for length in {start, start + 1, (start + end) // 2, end - 1}:
            path.write_bytes(whole[:length])
            read = read_or_refused(path, name)
            assert not read or (name == "a.splat" and length % 32 == 0)


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_in_any_region(tmp_path, name, data):
    whole = bytearray(FILES[name])
    spans = regions(FILES[name], name)
    for _ in range(data.draw(st.integers(1, 4))):
        start, end = data.draw(st.sampled_from(spans))
        whole[data.draw(st.integers(start, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / name
    path.write_bytes(bytes(whole))
    read_or_refused(path, name)


@pytest.mark.parametrize("name", ["two.spz", "three.spz"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_below_the_compression(tmp_path, name, data):
    """Streams that inflate well and have a good check sum, but hold other bytes."""
    inner = bytearray(gzip.decompress(FILES[name]))
    for _ in range(data.draw(st.integers(1, 4))):
        inner[data.draw(st.integers(0, 15) | st.integers(0, len(inner) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / name
    path.write_bytes(gzip.compress(bytes(inner[: data.draw(st.just(len(inner)) | st.integers(0, len(inner)))])))
    read_or_refused(path, name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_descriptions_with_anything_in_their_fields(tmp_path, data):
    """meta.json of a SOG with one of its entries, at any depth, replaced by any other value."""
    with zipfile.ZipFile(io.BytesIO(FILES["a.sog"])) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(members["meta.json"])
    section = data.draw(st.sampled_from([meta, *(v for v in meta.values() if isinstance(v, dict))]))
    section[data.draw(st.sampled_from(sorted(section)))] = data.draw(JSON)
    members["meta.json"] = json.dumps(meta).encode()
    path = tmp_path / "a.sog"
    path.write_bytes(zipped(members))
    read_or_refused(path, "a.sog")


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


# Values that are no numbers


def strange(centres=None, scales=None, q=None):
    """The Gaussians with the first few replaced."""
    found = [v.copy() for v in GIVEN]
    for place, value in ((0, centres), (1, scales), (2, q)):
        if value is not None:
            found[place][: len(value)] = value
    return found


STRANGE = [[np.nan] * 3, [np.inf] * 3, [-np.inf, 0, 0], [1e38] * 3]


@pytest.mark.parametrize(("write", "kind"), [(inria, "ply"), (splat, "splat")])
def test_centres_and_scales_that_are_no_numbers_are_read_and_later_left_out(tmp_path, write, kind):
    path = tmp_path / f"a.{kind}"
    given = strange(centres=STRANGE, scales=np.abs(STRANGE[::-1]))
    given[3] = np.full(COUNT, 0.01)
    path.write_bytes(write(*given))
    found = SPLAT_READERS[kind](path) if kind in SPLAT_READERS else READERS[kind](path).splats
    assert found is not None
    assert len(found) == COUNT
    assert np.isfinite(found.centres[4:]).all()
    with pytest.raises(InputError, match=r"0 Gaussians are left of 40 \(4 not finite, 36 faint\)"):
        load(path)


@pytest.mark.parametrize("name", ["inria.ply", "a.splat"])
def test_quaternions_of_no_length_are_no_rotation(tmp_path, name):
    path = tmp_path / name
    centres, scales, _, opacity, dc = GIVEN
    write = inria if name.endswith("ply") else splat
    path.write_bytes(write(centres, scales, np.zeros((COUNT, 4)), opacity, dc))
    found = READERS["ply"](path).splats if name.endswith("ply") else SPLAT_READERS["splat"](path)
    assert found is not None
    np.testing.assert_array_equal(found.rotations, np.tile([1, 0, 0, 0], (COUNT, 1)))


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_quaternions_of_any_length_are_made_unit(tmp_path, length):
    """The squares of these are zero, or infinite, in single precision."""
    centres, scales, q, opacity, dc = GIVEN
    path = tmp_path / "a.ply"
    path.write_bytes(inria(centres, scales, length * q, opacity, dc))
    found = READERS["ply"](path).splats
    assert found is not None
    np.testing.assert_allclose(found.rotations, q, atol=1e-6)


def test_quaternions_whose_three_parts_are_too_long_are_made_unit(tmp_path):
    """Bytes that stand for |(x, y, z)| > 1 leave nothing for the fourth part."""
    inner = bytearray(gzip.decompress(FILES["two.spz"]))
    turn = 16 + COUNT * (9 + 1 + 3 + 3)
    inner[turn : turn + 3 * COUNT] = b"\xff" * (3 * COUNT)
    path = tmp_path / "a.spz"
    path.write_bytes(gzip.compress(bytes(inner)))
    found = SPLAT_READERS["spz"](path)
    np.testing.assert_allclose(found.rotations, np.tile([0, *[3**-0.5] * 3], (COUNT, 1)), atol=1e-6)


# Hostile files


MANY = 10**9
LARGE = 123_456_789  # bytes, a number whose own bytes occur nowhere else in an archive


def header(version=3, count=COUNT, degree=0, fraction=12) -> bytes:
    return b"NGSP" + struct.pack("<LL", version, count) + bytes([degree, fraction, 0, 0])


def gzip_of_zeros(start: bytes, megabytes: int) -> bytes:
    stream = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    parts = [stream.compress(start), *(stream.compress(bytes(2**20)) for _ in range(megabytes)), stream.flush()]
    return b"".join(parts)


def with_member(name: str, content: bytes, method: int = zipfile.ZIP_STORED, said: int | None = None) -> bytes:
    """The SOG with another member of that name; with `said` its size is a lie, everywhere it is written."""
    with zipfile.ZipFile(io.BytesIO(FILES["a.sog"])) as archive:
        members = {n: archive.read(n) for n in archive.namelist()} | {name: content}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for n, data in members.items():
            archive.writestr(n, data, method if n == name else zipfile.ZIP_STORED)
    size = struct.pack("<L", len(content))
    return out.getvalue() if said is None else out.getvalue().replace(size, struct.pack("<L", said))


def chunk(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack("<L", len(content)) + content + bytes(len(content) % 2)


def large_webp(animated: bool) -> bytes:
    """16383 x 16383 pixels in some ninety bytes: as one image without its data, or as frames of one pixel."""
    side = 16382
    if not animated:
        image = chunk(b"VP8L", b"\x2f" + struct.pack("<L", side | side << 14) + bytes(20))
        return chunk(b"RIFF", b"WEBP" + image)
    one = io.BytesIO()
    Image.new("RGBA", (1, 1)).save(one, "WEBP", lossless=True)
    pixel = one.getvalue()[12:]
    side24 = struct.pack("<L", side)[:3]
    canvas = chunk(b"VP8X", bytes([0x12, 0, 0, 0]) + side24 * 2) + chunk(b"ANIM", bytes(6))
    return chunk(b"RIFF", b"WEBP" + canvas + chunk(b"ANMF", bytes(12) + b"\x64\0\0\0" + pixel))


def large_png() -> bytes:
    """A PNG of zeros, 20000 x 20000 pixels."""

    def part(tag: bytes, content: bytes) -> bytes:
        return struct.pack(">L", len(content)) + tag + content + struct.pack(">L", zlib.crc32(tag + content))

    head = part(b"IHDR", struct.pack(">LLBBBBB", 20000, 20000, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(bytes(2**20))) + part(b"IEND", b"")


def few_chunks() -> bytes:
    """A compressed PLY whose chunks are fewer than its Gaussians need."""
    names = [f"{end}_{axis}" for end in ("min", "max") for axis in "xyz"]
    packed = {f"packed_{name}": ("uint", np.zeros(600)) for name in ("position", "rotation", "scale", "color")}
    return ply({"chunk": {name: ("float", np.zeros(1)) for name in names}, "vertex": packed})


PLY = FILES["inria.ply"]
HOSTILE = {
    "count.ply": (lambda: PLY.replace(b"vertex 40", b"vertex %d" % MANY), "announces at least"),
    "negative.ply": (lambda: PLY.replace(b"vertex 40", b"vertex -40"), "announces -40"),
    "text.ply": (
        lambda: PLY.replace(b"binary_little_endian", b"ascii").replace(b"vertex 40", b"vertex %d" % MANY),
        "announces at least",
    ),
    "packed_count.ply": (
        lambda: FILES["packed.ply"].replace(b"vertex 40", b"vertex %d" % MANY), "announces at least"
    ),
    "chunks.ply": (few_chunks, "1 chunks for 600 Gaussians"),
    "harmonics.ply": (lambda: PLY.replace(b"float f_rest_8", b"list uint float f_rest_8"), "PLY"),
    "odd.splat": (lambda: FILES["a.splat"] + b"\0", "expected 32"),
    "count.spz": (lambda: gzip.compress(header(count=MANY)), "do not fit"),
    "most.spz": (lambda: gzip.compress(header(count=2**32 - 1, degree=4)), "do not fit"),
    "nothing.spz": (lambda: gzip.compress(header(count=0)), "announces 0 Gaussians"),
    "version.spz": (lambda: gzip.compress(header(version=77) + bytes(900)), "version 77"),
    "degree.spz": (lambda: gzip.compress(header(degree=200) + bytes(900)), "degree 200"),
    "fraction.spz": (lambda: gzip.compress(header(fraction=255) + bytes(900)), "255 fractional bits"),
    # 300 MB of zeros, announced as Gaussians or not.
    "zeros.spz": (lambda: gzip_of_zeros(header(count=15_000_000), 300), "15000000 Gaussians, which do not fit"),
    "tail.spz": (lambda: gzip_of_zeros(gzip.decompress(FILES["three.spz"]), 300), "goes on after"),
    "count.sog": (lambda: sog(*GIVEN, replaced={"count": MANY}), "do not fit"),
    "float.sog": (lambda: sog(*GIVEN, replaced={"count": 4e1}), "with a count"),
    "codebook.sog": (
        lambda: sog(*GIVEN, replaced={"sh0": {"codebook": [10**400] * 256, "files": ["sh0.webp"]}}),
        "not a list of 256 numbers",
    ),
    "webp.sog": (lambda: with_member("sh0.webp", large_webp(False)), "'sh0.webp' (is damaged|has 16383)"),
    "frames.sog": (lambda: with_member("sh0.webp", large_webp(True)), "'sh0.webp' (is damaged|has 16383)"),
    "png.sog": (lambda: with_member("sh0.webp", large_png()), "'sh0.webp' (is damaged|has 20000)"),
    "bomb.sog": (lambda: with_member("sh0.webp", bytes(LARGE), zipfile.ZIP_DEFLATED), "100 times its size"),
    "lie.sog": (lambda: with_member("sh0.webp", bytes(LARGE), zipfile.ZIP_DEFLATED, 999), "is damaged"),
    "bzip2.sog": (lambda: with_member("sh0.webp", bytes(LARGE), zipfile.ZIP_BZIP2, 999), "than by deflate"),
    "meta.sog": (lambda: with_member("meta.json", b"[" * 2**20), "not JSON"),
    "list.sog": (lambda: with_member("meta.json", b"[1]"), "not an object"),
    "long.sog": (lambda: with_member("meta.json", b" " * 2**23), "expected at most"),
    "outside.sog": (lambda: sog(*GIVEN, replaced={"quats": {"files": ["/etc/passwd"]}}), "no member"),
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for name, (make, _) in HOSTILE.items():
        (folder / name).write_bytes(make())
    return folder


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_for_what_it_is(hostile, name):
    with pytest.raises(InputError) as caught:
        load(hostile / name)
    assert re.search(HOSTILE[name][1], str(caught.value))
    assert "\n" not in str(caught.value)


def test_hostile_files_take_no_memory_and_no_time(hostile, tmp_path):
    """In a process of their own: memory above that of an honest file is measured, and a second each is plenty."""
    program = f"""
import resource, sys, time
from pathlib import Path
from lamina import load
from lamina.errors import InputError
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def refused(path):
    try:
        load(path)
    except InputError:
        return
    sys.exit(f"{{path}} was opened")
for path in sorted(Path(sys.argv[1]).iterdir()):
    refused(path)
start = peak()
for path in sorted(Path(sys.argv[2]).iterdir()):
    begin = time.perf_counter()
    refused(path)
    if peak() - start > {SLACK}:
        sys.exit(f"{{path.name}} took {{(peak() - start) >> 20}} MiB")
    if time.perf_counter() - begin > 2:
        sys.exit(f"{{path.name}} took {{time.perf_counter() - begin:.1f}} s")
"""
    faint = [*GIVEN[:3], np.full(COUNT, 0.01), GIVEN[4]]
    for name, write in (("a.ply", inria), ("a.splat", splat), ("a.spz", spz), ("a.sog", sog)):
        (tmp_path / name).write_bytes(write(*faint))  # honest, and refused for what it shows
    arguments = [sys.executable, "-c", program, tmp_path, hostile]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("ply", 3 + 3 + 4 + 1 + 3 + 12), ("splat", 3 + 3 + 4 + 1 + 3), ("spz", 3 + 3 + 4 + 1 + 3 + 12)],
)
def test_an_honest_file_costs_about_its_gaussians(tmp_path, name, numbers):
    """No more than the file, the numbers in it as float32, and twice as much while they are computed."""
    import tracemalloc

    many = gaussians(count=60_000)
    data = {"ply": lambda: inria(*many, rest=9), "splat": lambda: splat(*many), "spz": lambda: spz(*many)}[name]()
    path = tmp_path / f"a.{name}"
    path.write_bytes(data)
    tracemalloc.start()
    found = READERS["ply"](path).splats if name == "ply" else SPLAT_READERS[name](path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    assert len(found) == 60_000
    assert peak <= len(data) + 3 * 4 * numbers * 60_000


def shell(count=6000):
    """Flat Gaussians all over a sphere, which are a surface."""
    k = np.arange(count) + 0.5
    z, angle = 1 - 2 * k / count, k * np.pi * (1 + 5**0.5)
    n = np.stack([np.sqrt(1 - z * z) * np.cos(angle), np.sqrt(1 - z * z) * np.sin(angle), z], 1)
    q = np.concatenate([1 + n[:, 2:], -n[:, 1:2], n[:, :1], np.zeros((count, 1))], 1)  # from the z axis to n
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    return n, np.tile([0.03, 0.03, 0.003], (count, 1)), q, np.full(count, 0.9), np.zeros((count, 3))


def test_a_surface_survives_a_few_strange_gaussians(tmp_path):
    """Not finite, without rotation, or far off: left out, with a count, and the sphere is still there."""
    given = shell()
    given[0][:3] = STRANGE[:3]
    given[2][3:6] = 0
    given[0][6] = 1e6
    path = tmp_path / "a.ply"
    path.write_bytes(inria(*given))
    surface = load(path)
    assert isinstance(surface, Surface)
    assert float((surface.points.norm(dim=1) - 1).abs().max()) < 0.03
    assert any("3 not finite" in note for note in surface.notes)
