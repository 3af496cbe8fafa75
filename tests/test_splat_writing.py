"""Files of splats, opened by decoders that are written here from the published layouts, one Gaussian at a time.

Layouts: INRIA's PLY (Kerbl et al. 2023), compressed PLY and SOG (PlayCanvas), antimatter15/splat, nianticlabs/spz.
The decoders share no code with lamina.
"""

import gzip
import io
import json
import math
import struct
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

import lamina
from lamina.colours import colourise
from lamina.surfaces.splats import Splats

C0 = 0.28209479177387814
FORMS = ["ply", "compressed.ply", "splat", "spz", "sog"]


class Decoded:
    """What a file says of its Gaussians; rotations are w, x, y, z, and f_rest has all coefficients of red first."""

    def __init__(self):
        self.centres, self.scales, self.rotations, self.opacities, self.colours, self.rest = ([] for _ in range(6))
        self.values = []

    def add(self, centre, scale, rotation, opacity, colour, rest=()):
        self.centres.append(centre)
        self.scales.append(scale)
        self.rotations.append(rotation)
        self.opacities.append(opacity)
        self.colours.append(colour)
        self.rest.append(list(rest))


def ply_rows(data):
    """The rows of each element of a binary PLY, as dictionaries."""
    head, _, body = data.partition(b"end_header\n")
    lines = head.decode("ascii").split("\n")
    assert lines[:2] == ["ply", "format binary_little_endian 1.0"]
    codes = {"float": "f", "double": "d", "uint": "I", "int": "i", "uchar": "B"}
    elements = []
    for words in map(str.split, lines[2:]):
        if words[:1] == ["element"]:
            elements.append((words[1], int(words[2]), []))
        elif words[:1] == ["property"]:
            elements[-1][2].append((words[2], codes[words[1]]))
    rows, at = {}, 0
    for element, count, properties in elements:
        form = struct.Struct("<" + "".join(code for _, code in properties))
        names = [name for name, _ in properties]
        rows[element] = [
            dict(zip(names, form.unpack_from(body, at + i * form.size), strict=True)) for i in range(count)
        ]
        at += count * form.size
    assert at == len(body)
    return rows


def with_largest(index, three):
    """Four components of a unit quaternion: the one of that index is the largest and positive."""
    four = list(three)
    four.insert(index, math.sqrt(max(0, 1 - sum(v * v for v in three))))
    return four


def decode_ply(data):
    found = Decoded()
    for row in ply_rows(data)["vertex"]:
        length = math.sqrt(sum(row[f"rot_{i}"] ** 2 for i in range(4)))
        found.add(
            [row[a] for a in "xyz"],
            [math.exp(row[f"scale_{i}"]) for i in range(3)],
            [row[f"rot_{i}"] / length for i in range(4)],
            1 / (1 + math.exp(-row["opacity"])),
            [0.5 + C0 * row[f"f_dc_{i}"] for i in range(3)],
            [row[name] for name in sorted(row, key=lambda n: (len(n), n)) if name.startswith("f_rest_")],
        )
        found.values.append(row["value"])
    return found


def decode_compressed(data):
    rows, found = ply_rows(data), Decoded()
    assert len(rows["chunk"]) == math.ceil(len(rows["vertex"]) / 256)
    for i, row in enumerate(rows["vertex"]):
        chunk = rows["chunk"][i // 256]

        def between(share, name, chunk=chunk):
            return chunk[f"min_{name}"] + share * (chunk[f"max_{name}"] - chunk[f"min_{name}"])

        def parts(word):
            return (word >> 21) / 2047, (word >> 11 & 1023) / 1023, (word & 2047) / 2047

        turn, colour = row["packed_rotation"], row["packed_color"]
        three = [((turn >> shift & 1023) / 1023 - 0.5) * math.sqrt(2) for shift in (20, 10, 0)]
        view = rows["sh"][i] if "sh" in rows else {}
        found.add(
            [between(v, a) for v, a in zip(parts(row["packed_position"]), "xyz", strict=True)],
            [math.exp(between(v, f"scale_{a}")) for v, a in zip(parts(row["packed_scale"]), "xyz", strict=True)],
            with_largest(turn >> 30, three),
            (colour & 255) / 255,
            [between((colour >> shift & 255) / 255, c) for shift, c in ((24, "r"), (16, "g"), (8, "b"))],
            [8 * ((view[f"f_rest_{k}"] + 0.5) / 256 - 0.5) for k in range(len(view))],
        )
    return found


def decode_splat(data):
    found = Decoded()
    for x, y, z, a, b, c, red, green, blue, alpha, *turn in struct.iter_unpack("<6f8B", data):
        four = [(t - 128) / 128 for t in turn]
        length = math.sqrt(sum(v * v for v in four))
        found.add([x, y, z], [a, b, c], [v / length for v in four], alpha / 255, [v / 255 for v in (red, green, blue)])
    return found


def decode_spz(data):
    data, found = gzip.decompress(data), Decoded()
    magic, version, count, degree, fraction, flags, reserved = struct.unpack_from("<IIIBBBB", data)
    assert (magic, version, flags, reserved) == (0x5053474E, 3, 0, 0)
    coefficients = (0, 3, 8, 15)[degree]
    starts = [16]
    for width in (9, 1, 3, 3, 4, 3 * coefficients):
        starts.append(starts[-1] + width * count)
    assert len(data) == starts[-1]
    for i in range(count):
        place, opacity, colour, scale, turn, view = (
            data[start + i * (end - start) // count : start + (i + 1) * (end - start) // count]
            for start, end in pairwise(starts)
        )
        word = int.from_bytes(turn, "little")
        index, xyzw = word >> 30, [0.0] * 4
        for k in (3, 2, 1, 0):  # the last component lies in the lowest bits
            if k != index:
                xyzw[k] = (-1 if word >> 9 & 1 else 1) * (word & 511) / 511 * math.sqrt(0.5)
                word >>= 10
        xyzw[index] = math.sqrt(max(0, 1 - sum(v * v for v in xyzw)))
        found.add(
            [int.from_bytes(place[k : k + 3], "little", signed=True) / 2**fraction for k in (0, 3, 6)],
            [math.exp(s / 16 - 10) for s in scale],
            [xyzw[3], *xyzw[:3]],
            opacity[0] / 255,
            [0.5 + C0 * (c / 255 - 0.5) / 0.15 for c in colour],
            [(view[3 * k + channel] - 128) / 128 for channel in range(3) for k in range(coefficients)],
        )
    return found


def decode_sog(data):
    found = Decoded()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        meta = json.loads(archive.read("meta.json"))
        assert meta["version"] == 2

        def pixels(key, k=0):
            image = Image.open(io.BytesIO(archive.read(meta[key]["files"][k])))
            assert image.format == "WEBP"
            return list(image.convert("RGBA").get_flattened_data())

        images = [pixels("means", 0), pixels("means", 1), pixels("scales"), pixels("quats"), pixels("sh0")]
    least, most = meta["means"]["mins"], meta["means"]["maxs"]
    for low, high, scale, turn, shade in list(zip(*images, strict=True))[: meta["count"]]:
        # sign(x) log(1 + |x|)
        stretched = [least[k] + (most[k] - least[k]) * (high[k] << 8 | low[k]) / 65535 for k in range(3)]
        found.add(
            [math.copysign(math.exp(abs(s)) - 1, s) for s in stretched],
            [math.exp(meta["scales"]["codebook"][k]) for k in scale[:3]],
            with_largest(turn[3] - 252, [(v / 255 - 0.5) * math.sqrt(2) for v in turn[:3]]),
            shade[3] / 255,
            [0.5 + C0 * meta["sh0"]["codebook"][k] for k in shade[:3]],
        )
    return found


DECODERS = dict(zip(FORMS, (decode_ply, decode_compressed, decode_splat, decode_spz, decode_sog), strict=True))

# Half a step of each format, for the ball below, in centres, logarithms of scales, quaternions, opacities, colours and
# f_rest; None: the format does not keep f_rest.
# Three components off by half a step b each move a quaternion by at most 2 sqrt(3) b.
LIMITS = {
    "ply": (1e-6, 1e-5, 1e-6, 1e-6, 1e-6, 1e-6),
    "compressed.ply": (1.1 / 1023, 4 / 1023, 3.5 * 0.7072 / 1023, 0.51 / 255, 0.51 / 255, 1.01 / 64),
    "splat": (1e-6, 1e-6, 1e-2, 0.51 / 255, 0.51 / 255, None),
    "spz": (1e-6, 0.51 / 16, 3.5 * 0.7072 / 1022, 0.51 / 255, 0.51 * C0 / 0.15 / 255, 0.51 / 128),
    "sog": (2.2e-5, 4 / 127 / 2, 3.5 * 0.7072 / 255, 0.51 / 255, 3.6 * C0 / 127 / 2, None),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A sphere of 700 flat Gaussians with colours that depend on the view: an INRIA PLY, and its columns."""
    random = np.random.default_rng(3)
    count = 700
    i = np.arange(count) + 0.5
    z, turn = 1 - 2 * i / count, math.pi * (1 + 5**0.5) * i
    normal = np.column_stack([np.sqrt(1 - z**2) * np.cos(turn), np.sqrt(1 - z**2) * np.sin(turn), z])
    # The rotation that takes the z-axis to the normal, of which the last scale is the length.
    q = np.column_stack([1 + z, -normal[:, 1], normal[:, 0], 0 * z])
    columns = dict(zip("xyz", normal.T, strict=True)) | dict.fromkeys(("nx", "ny", "nz"), 0 * z)
    columns |= {f"f_dc_{k}": random.uniform(-1.7, 1.7, count) for k in range(3)}
    columns |= {f"f_rest_{k}": random.uniform(-0.9, 0.9, count) for k in range(24)}
    columns["opacity"] = random.uniform(1, 4, count)
    columns |= {f"scale_{k}": random.uniform(-2.9, -2.4, count) for k in range(2)}
    columns["scale_2"] = random.uniform(-6, -5, count)
    columns |= {f"rot_{k}": 2 * q[:, k] for k in range(4)}
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    header += [f"property float {name}" for name in columns]
    path = tmp_path_factory.mktemp("splats") / "ball.ply"
    table = np.column_stack(list(columns.values())).astype("<f4")
    path.write_bytes("\n".join([*header, "end_header\n"]).encode() + table.tobytes())
    return path, {name: table[:, k].astype(float) for k, name in enumerate(columns)}


@pytest.fixture(scope="module")
def solved(original):
    surface = lamina.load(original[0])
    assert isinstance(surface, Splats)
    return lamina.heat(lamina.Domain(surface, spacing=0.25, order=2), lambda x: x[:, 2], time=0.01)


def assert_same_gaussians(found, rows, limits):
    """Same centres, scales, rotations and opacities, in the same order."""
    centre, scale, turn, opacity = limits[:4]
    assert np.abs(np.array(found.centres) - np.column_stack([rows[a] for a in "xyz"])).max() < centre
    logs = np.column_stack([rows[f"scale_{k}"] for k in range(3)])
    assert np.abs(np.log(found.scales) - logs).max() < scale
    q = np.column_stack([rows[f"rot_{k}"] for k in range(4)])
    q, other = q / np.linalg.norm(q, axis=1, keepdims=True), np.array(found.rotations)
    assert np.minimum(np.abs(q - other).max(1), np.abs(q + other).max(1)).max() < turn
    assert np.abs(np.array(found.opacities) - 1 / (1 + np.exp(-rows["opacity"]))).max() < opacity


@pytest.mark.parametrize("form", FORMS)
def test_recolour_false_keeps_gaussians_and_their_colours(original, solved, tmp_path, form):
    rows = original[1]
    found = DECODERS[form](solved.save(tmp_path / f"u.{form}", recolour=False).read_bytes())
    assert_same_gaussians(found, rows, LIMITS[form])
    colours = 0.5 + C0 * np.column_stack([rows[f"f_dc_{k}"] for k in range(3)])
    assert np.abs(np.array(found.colours) - colours.clip(0, 1)).max() < LIMITS[form][4]
    rest, most = np.column_stack([rows[f"f_rest_{k}"] for k in range(24)]), LIMITS[form][5]
    if most is None:
        assert not any(found.rest)  # the format has no place for them, or only in a palette
    else:
        assert np.abs(np.array(found.rest) - rest).max() < most


@pytest.mark.parametrize("form", FORMS)
def test_the_field_is_what_the_colours_show(original, solved, tmp_path, form):
    found = DECODERS[form](solved.save(tmp_path / f"u.{form}").read_bytes())
    assert_same_gaussians(found, original[1], LIMITS[form])
    everywhere = solved.domain.surface.everywhere(solved.values)
    assert np.abs(np.array(found.colours) - colourise(everywhere) / 255).max() < LIMITS[form][4] + 0.5 / 255
    assert not np.any(found.rest)  # the same from every side
    if form == "ply":
        np.testing.assert_allclose(found.values, everywhere, atol=1e-6)


@pytest.mark.parametrize("form", ["splat", "spz", "sog", "compressed.ply"])
def test_solve_writes_splats_in_the_format_that_came(original, solved, tmp_path, program, form):
    """A splat file in, a splat file of the same kind out, beside the usual files, with the solution in its colours."""
    came = solved.save(tmp_path / f"came.{form}", recolour=False)
    out = tmp_path / "out"
    command = ("solve", "heat", came, "--initial", "z", "--time", 0.01, "--spacing", 0.25, "--out", out, "--json")
    status, text, errors = program(*command)
    assert status == 0, errors
    written = {path.name for path in out.iterdir()}
    assert {"solution.ply", "solution.png", "solution.html", "report.json", f"solution.{form}"} <= written
    assert str(out / f"solution.{form}") in json.loads(text)["files"]
    found = DECODERS[form]((out / f"solution.{form}").read_bytes())
    assert_same_gaussians(found, original[1], [2 * limit for limit in LIMITS[form][:4]])
    values = np.array(decode_ply((out / "solution.ply").read_bytes()).values)
    assert np.abs(np.array(found.colours) - colourise(values) / 255).max() < LIMITS[form][4] + 0.5 / 255
    assert np.corrcoef(values, np.array(found.centres)[:, 2])[0, 1] > 0.99  # heat has not moved far in that time


def test_solve_on_an_inria_ply_writes_one_file_of_splats(original, tmp_path, program):
    out = tmp_path / "out"
    command = ("solve", "heat", original[0], "--initial", "z", "--time", 0.01, "--spacing", 0.25, "--out", out)
    status, _, errors = program(*command)
    assert status == 0, errors
    assert sorted(path.name for path in out.iterdir() if path.name.startswith("solution")) == [
        "solution.html",
        "solution.ply",
        "solution.png",
    ]
    found = decode_ply((out / "solution.ply").read_bytes())
    assert_same_gaussians(found, original[1], LIMITS["ply"])


def test_a_mesh_is_not_written_as_splats(tmp_path):
    u = lamina.heat(lamina.Domain(lamina.Sphere(), spacing=0.4), lambda x: x[:, 2], time=0.01)
    with pytest.raises(lamina.InputError, match=r"'\.splat' is none of \.ply, \.npz, \.vtu, \.html\."):
        u.save(tmp_path / "u.splat")
    assert not list(tmp_path.iterdir())
