"""Every splat format gives the Gaussians that went into it; damaged files give one sentence."""

import contextlib
import gzip
import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from plyfile import PlyData

from lamina.colours import colourise
from lamina.errors import InputError
from lamina.io.export import save_splats
from lamina.io.formats import READERS, FormatError
from lamina.io.splat_files import SH_0, SPLAT_READERS, SPLAT_RECORD, SplatData, read_splat, read_spz, sniff

COUNT = 300


def gaussians(seed=0, count=COUNT):
    """Centres, scales, unit quaternions, opacities and f_dc of random Gaussians."""
    random = np.random.default_rng(seed)
    q = random.normal(size=(count, 4))
    return (
        random.normal(size=(count, 3)),
        np.exp(random.uniform(-6, -2, (count, 3))),
        q / np.linalg.norm(q, axis=1, keepdims=True),
        random.uniform(0.1, 0.9, count),
        random.uniform(-1.7, 1.7, (count, 3)),
    )


def ply(elements):
    """A binary PLY of elements {name: {property: (type, values)}}."""
    kinds = {"float": "<f4", "uint": "<u4", "uchar": "u1"}
    header, body = ["ply", "format binary_little_endian 1.0"], b""
    for element, columns in elements.items():
        rows = np.empty(
            len(next(iter(columns.values()))[1]), dtype=[(name, kinds[kind]) for name, (kind, _) in columns.items()]
        )
        for name, (_, values) in columns.items():
            rows[name] = values
        header.append(f"element {element} {len(rows)}")
        header += [f"property {kind} {name}" for name, (kind, _) in columns.items()]
        body += rows.tobytes()
    return "\n".join([*header, "end_header\n"]).encode() + body


def inria(centres, scales, q, opacity, dc, rest=0, axes=3):
    columns = dict(zip("xyz", centres.T, strict=True)) | {f"n{a}": np.zeros(len(q)) for a in "xyz"}
    columns |= {f"f_dc_{i}": dc[:, i] for i in range(3)} | {f"f_rest_{i}": np.full(len(q), i) for i in range(rest)}
    columns |= {"opacity": np.log(opacity / (1 - opacity))}
    columns |= {f"scale_{i}": np.log(scales[:, i]) for i in range(axes)}
    columns |= {f"rot_{i}": 3 * q[:, i] for i in range(4)}  # optimisers do not normalise
    return ply({"vertex": {name: ("float", values) for name, values in columns.items()}})


def pack(values, widths):
    """Numbers (n, fields) in 0..1 as one integer each, first field in the highest bits."""
    packed = np.zeros(len(values), dtype=np.uint32)
    for column, width in zip(values.T, widths, strict=True):
        packed = (packed << np.uint32(width)) | np.rint(column * (2**width - 1)).astype(np.uint32)
    return packed


def largest(q):
    """Index of the largest component of quaternions, and the three others of q with that one positive."""
    index = np.abs(q).argmax(1)
    rows = np.arange(len(q))
    q = q * np.sign(q[rows, index])[:, None]
    return index, np.stack([np.delete(row, i) for row, i in zip(q, index, strict=True)])


def compressed(centres, scales, q, opacity, dc, harmonics):
    chunks = [slice(i, i + 256) for i in range(0, len(q), 256)]
    colour = np.clip(0.5 + SH_0 * dc, 0, 1)
    chunk, packed = {}, {}
    for prefix, axes, values, widths, name in (
        ("", "xyz", centres, (11, 10, 11), "position"),
        ("scale_", "xyz", np.log(scales), (11, 10, 11), "scale"),
        ("", "rgb", colour, (8, 8, 8), "color"),
    ):
        low = np.stack([values[c].min(0) for c in chunks])
        high = np.stack([values[c].max(0) for c in chunks])
        chunk |= {f"min_{prefix}{axis}": ("float", low[:, i]) for i, axis in enumerate(axes)}
        chunk |= {f"max_{prefix}{axis}": ("float", high[:, i]) for i, axis in enumerate(axes)}
        which = np.arange(len(q)) // 256
        share = (values - low[which]) / (high - low)[which]
        if name == "color":
            share, widths = np.column_stack([share, opacity]), (8, 8, 8, 8)
        packed[f"packed_{name}"] = ("uint", pack(share, widths))
    index, three = largest(q)
    packed["packed_rotation"] = ("uint", pack(three / 2**0.5 + 0.5, (10, 10, 10)) | (index.astype(np.uint32) << 30))
    elements = {"chunk": chunk, "vertex": packed}
    if harmonics:
        elements["sh"] = {f"f_rest_{i}": ("uchar", np.zeros(len(q))) for i in range(9)}
    return ply(elements)


def splat(centres, scales, q, opacity, dc):
    records = np.zeros(len(q), SPLAT_RECORD)
    records["centre"], records["scale"] = centres, scales
    records["colour"] = np.rint(255 * np.column_stack([np.clip(0.5 + SH_0 * dc, 0, 1), opacity]))
    records["rotation"] = np.clip(np.rint(128 * q + 128), 0, 255)
    return records.tobytes()


def spz(centres, scales, q, opacity, dc, version=3, degree=1, count=None):
    head = b"NGSP" + np.array([version, count or len(q)], "<u4").tobytes() + bytes([degree, 12, 0, 0])
    fixed = np.rint(centres * 4096).astype(np.int64) & 0xFFFFFF
    place = np.stack([fixed & 255, fixed >> 8 & 255, fixed >> 16], -1).astype(np.uint8).tobytes()
    if version == 1:
        place = centres.astype("<f2").tobytes()
    bytes_ = [np.rint(255 * opacity), np.rint((dc * 0.15 + 0.5) * 255), np.rint((np.log(scales) + 10) * 16)]
    xyzw = np.roll(q, -1, axis=1)
    if version == 3:
        index, three = largest(xyzw)
        size = np.rint(np.abs(three) * 2**0.5 * 511).astype(np.uint32) | ((three < 0).astype(np.uint32) << 9)
        packed = size[:, 0] << 20 | size[:, 1] << 10 | size[:, 2] | index.astype(np.uint32) << 30
        turn = packed.astype("<u4").tobytes()
    else:
        turn = np.rint(xyzw[:, :3] * np.sign(xyzw[:, 3:]) * 127.5 + 127.5).astype(np.uint8).tobytes()
    middle = b"".join(np.clip(part, 0, 255).astype(np.uint8).tobytes() for part in bytes_)
    return gzip.compress(head + place + middle + turn + bytes(len(q) * (0, 9, 24, 45)[degree]))


def sog(centres, scales, q, opacity, dc, change=None, replaced=None):
    side = int(np.ceil(len(q) ** 0.5))
    stretched = np.sign(centres) * np.log1p(np.abs(centres))
    low, high = stretched.min(0), stretched.max(0)
    place = np.rint((stretched - low) / (high - low) * 65535).astype(np.int64)
    books = {"scales": np.linspace(-6, -2, 256), "sh0": np.linspace(-1.7, 1.7, 256)}

    def nearest(book, values):
        return np.abs(values[..., None] - book).argmin(-1)

    index, three = largest(q)
    tables = {
        "means_l": place & 255,
        "means_u": place >> 8,
        "scales": nearest(books["scales"], np.log(scales)),
        "quats": np.column_stack([np.rint((three / 2**0.5 + 0.5) * 255), 252 + index]),
        "sh0": np.column_stack([nearest(books["sh0"], dc), np.rint(255 * opacity)]),
    }
    meta = {
        "version": 2,
        "count": len(q),
        "means": {"mins": low.tolist(), "maxs": high.tolist(), "files": ["means_l.webp", "means_u.webp"]},
        "scales": {"codebook": books["scales"].tolist(), "files": ["scales.webp"]},
        "quats": {"files": ["quats.webp"]},
        "sh0": {"codebook": books["sh0"].tolist(), "files": ["sh0.webp"]},
    } | (replaced or {})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, table in tables.items():
            pixels = np.full((side * side, 4), 255, np.uint8)
            pixels[: len(q), : table.shape[1]] = table
            image = io.BytesIO()
            Image.fromarray(pixels.reshape(side, side, 4)).save(image, "WEBP", lossless=True, exact=True)
            archive.writestr(f"{name}.webp", image.getvalue() if change is None else change(name, image.getvalue()))
        archive.writestr("meta.json", json.dumps(meta))
    return out.getvalue()


def read(tmp_path, data, kind) -> SplatData:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    if kind != "ply":
        assert sniff(data[:65536], len(data)) == kind
        return SPLAT_READERS[kind](path)
    splats = READERS["ply"](path).splats
    assert splats is not None
    return splats


@pytest.mark.parametrize(
    ("write", "kind", "centre", "scale", "turn", "shade"),
    [
        (inria, "ply", 1e-6, 1e-6, 1e-3, 1e-6),
        (lambda *g: inria(*g, rest=45), "ply", 1e-6, 1e-6, 1e-3, 1e-6),
        (lambda *g: compressed(*g, False), "ply", 5e-3, 5e-3, 5e-3, 6e-3),
        (lambda *g: compressed(*g, True), "ply", 5e-3, 5e-3, 5e-3, 6e-3),
        (splat, "splat", 1e-6, 1e-6, 2e-2, 3e-3),
        (lambda *g: spz(*g, version=1), "spz", 2e-3, 4e-2, 0.13, 8e-3),
        (lambda *g: spz(*g, version=2, degree=0), "spz", 2e-4, 4e-2, 0.13, 8e-3),
        (spz, "spz", 2e-4, 4e-2, 5e-3, 8e-3),
        (sog, "sog", 5e-4, 9e-3, 2e-2, 5e-3),
    ],
)
def test_gaussians_come_back_to_the_precision_of_the_format(tmp_path, write, kind, centre, scale, turn, shade):
    centres, scales, q, opacity, dc = gaussians()
    found = read(tmp_path, write(centres, scales, q, opacity, dc), kind)
    assert np.abs(found.centres - centres).max() < centre
    assert np.abs(np.log(found.scales / scales)).max() < scale
    angle = np.arccos(np.abs((found.rotations * q).sum(1)).clip(max=1))  # half of that between the two
    assert angle.max() < turn
    assert np.abs(found.opacities - opacity).max() < 4e-3
    assert np.abs(found.colours - np.clip(0.5 + SH_0 * dc, 0, 1)).max() < shade
    np.testing.assert_allclose(np.linalg.norm(found.rotations, axis=1), 1, rtol=1e-6)
    assert {a.dtype for a in (found.centres, found.scales, found.rotations, found.opacities)} == {np.dtype("f4")}


def test_discs_of_two_scales_are_flat(tmp_path):
    found = read(tmp_path, inria(*gaussians(), axes=2), "ply")
    assert not found.scales[:, 2].any()
    assert found.scales[:, :2].all()


def test_harmonics_are_kept_in_their_numerical_order(tmp_path):
    found = read(tmp_path, inria(*gaussians(), rest=45), "ply")
    assert found.harmonics is not None
    np.testing.assert_array_equal(found.harmonics[0, 3:], np.arange(45))


@pytest.mark.data
@pytest.mark.parametrize(
    ("kind", "centre", "turn"), [("compressed.ply", 0.2, 1e-2), ("sog", 0.05, 2e-2), ("spz", 1e-6, 9)]
)
def test_a_file_of_others_is_the_same_in_every_format(data, kind, centre, turn):
    """Positions on a lattice of spacing 25. The rotations of the PLY are not those of the SPZ it was made from."""
    folder = data / "splats"
    one = READERS["ply"](folder / "tiny_sh1_sample.ply").splats
    path = folder / f"tiny_sh1_sample.{kind}"
    other = READERS["ply"](path).splats if kind.endswith("ply") else SPLAT_READERS[kind](path)
    assert one is not None
    assert other is not None
    assert len(one) == len(other) == 1566
    match = np.linalg.norm(one.centres[:, None] - other.centres[None], axis=2).argmin(1)
    other = SplatData(*(getattr(other, k)[match] for k in ("centres", "scales", "rotations", "opacities", "colours")))
    seen = one.opacities > 0.01  # images drop the colour of what is transparent
    assert np.abs(one.centres - other.centres).max() < centre
    assert np.abs(np.log(one.scales / other.scales)).max() < 2e-3
    assert np.abs(one.opacities - other.opacities).max() < 4e-3
    assert np.abs(one.colours - other.colours)[seen].max() < 2e-2
    assert np.arccos(np.abs((one.rotations * other.rotations).sum(1)).clip(max=1)).max() < turn


# Writing


def made(rest=9, seed=0, count=COUNT):
    """Gaussians with f_rest of random numbers in -1..1."""
    centres, scales, q, opacity, dc = (a.astype(np.float32) for a in gaussians(seed, count))
    random = np.random.default_rng(seed + 1)
    harmonics = np.column_stack([dc, random.uniform(-1, 1, (count, rest))]).astype(np.float32)
    return SplatData(centres, scales, q, opacity, np.clip(0.5 + SH_0 * dc, 0, 1), harmonics)


def open_splats(path):
    found = SPLAT_READERS[path.suffix[1:]](path) if path.suffix != ".ply" else READERS["ply"](path).splats
    assert found is not None
    return found


def apart(one, other):
    """Largest differences of centres, logarithms of scales, half angles of rotations, opacities and colours."""
    assert len(one) == len(other)
    half_angle = np.arccos(np.abs((one.rotations * other.rotations).sum(1)).clip(max=1))
    return (
        np.abs(one.centres - other.centres).max(),
        np.abs(np.log(one.scales / other.scales)).max(),
        half_angle.max(),
        np.abs(one.opacities - other.opacities).max(),
        np.abs(one.colours - other.colours).max(),
    )


# What the bits of each format leave of centres, logarithms of scales, half angles, opacities and colours.
EXACT = 1e-5
FORMATS = {
    "ply": (EXACT, EXACT, 1e-3, EXACT, EXACT),
    "compressed.ply": (5e-3, 4e-3, 2.5e-3, 2e-3, 3e-3),
    "splat": (EXACT, EXACT, 1e-2, 2e-3, 2e-3),
    "spz": (2e-6, 0.032, 3e-3, 2e-3, 4e-3),
    "sog": (2e-4, 0.018, 1e-2, 2e-3, 6e-3),
}


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_is_read_again_to_the_precision_of_the_format(tmp_path, form):
    given = made()
    path = save_splats(tmp_path / f"a.{form}", given, np.zeros(COUNT), recolour=False)
    found = open_splats(path)
    assert found.form == form
    for error, most in zip(apart(found, given), FORMATS[form], strict=True):
        assert error < most


@pytest.mark.parametrize("form", FORMATS)
def test_writing_again_what_was_read_changes_nothing_more(tmp_path, form):
    once = open_splats(save_splats(tmp_path / f"a.{form}", made(), np.zeros(COUNT), recolour=False))
    twice = open_splats(save_splats(tmp_path / f"b.{form}", once, np.zeros(COUNT), recolour=False))
    centre, scale, turn, opacity, colour = apart(once, twice)
    assert max(centre, scale, opacity, colour) < EXACT
    assert turn < 5e-3  # quaternions of bytes are normalised when they are read


@pytest.mark.parametrize("form", FORMATS)
def test_the_field_is_in_the_colours_of_every_format(tmp_path, form):
    values = np.linspace(0, 1, COUNT)
    found = open_splats(save_splats(tmp_path / f"a.{form}", made(), values))
    np.testing.assert_allclose(255 * found.colours, colourise(values), atol=2)
    assert found.harmonics is None or found.harmonics.shape[1] == 3  # nothing that depends on the view


@pytest.mark.parametrize(("form", "most"), [("ply", 0), ("compressed.ply", 1 / 64), ("spz", 1 / 128)])
@pytest.mark.parametrize("rest", [0, 9, 24, 45])
def test_colours_that_depend_on_the_view_are_kept(tmp_path, form, most, rest):
    given = made(rest)
    found = open_splats(save_splats(tmp_path / f"a.{form}", given, np.zeros(COUNT), recolour=False))
    assert found.harmonics is not None
    assert found.harmonics.shape == (COUNT, 3 + rest)
    assert np.abs(found.harmonics[:, 3:] - given.harmonics[:, 3:]).max(initial=0) <= most * 1.001
    assert not found.notes


def test_further_properties_of_a_ply_are_kept(tmp_path):
    given = made()
    label, weight = np.arange(COUNT, dtype=np.int32), np.linspace(0, 1, COUNT)
    normals = {name: np.full(COUNT, i, np.float32) for i, name in enumerate(("nx", "ny", "nz"))}
    given = replace(given, extra={"label": label, "weight": weight, **normals})
    first = save_splats(tmp_path / "a.ply", given, np.ones(COUNT))
    found = open_splats(save_splats(tmp_path / "b.ply", open_splats(first), np.zeros(COUNT)))
    assert set(found.extra) == {"label", "weight", "nx", "ny", "nz"}
    np.testing.assert_array_equal(found.extra["label"], label)
    assert found.extra["label"].dtype == np.int32
    np.testing.assert_array_equal(found.extra["weight"], weight)
    np.testing.assert_array_equal(found.extra["nz"], 2)
    np.testing.assert_array_equal(PlyData.read(str(tmp_path / "b.ply"))["vertex"]["value"], 0)


@pytest.mark.parametrize("form", ["compressed.ply", "splat", "spz", "sog"])
def test_gaussians_that_are_not_finite_are_written_invisible(tmp_path, form):
    given = made()
    centres, scales = given.centres.copy(), given.scales.copy()
    centres[7], scales[8, 1], scales[:, 2] = np.nan, np.inf, 0
    path = save_splats(tmp_path / f"a.{form}", replace(given, centres=centres, scales=scales), np.zeros(COUNT))
    found = open_splats(path)
    assert np.isfinite(found.centres).all()
    np.testing.assert_array_equal(found.opacities[7:9], 0)
    sound = np.setdiff1d(np.arange(COUNT), [7, 8])
    assert np.abs(found.centres - centres)[sound].max() < 5e-3
    assert found.scales[:, 2].max() < 1e-4
    assert np.abs(np.log(found.scales[sound, :2] / scales[sound, :2])).max() < 0.05


def test_coordinates_of_every_size_go_into_spz(tmp_path):
    given = made()
    for size in (1e-3, 1, 1e3, 1e6):
        path = save_splats(tmp_path / "a.spz", replace(given, centres=size * given.centres), np.zeros(COUNT))
        assert np.abs(open_splats(path).centres - size * given.centres).max() < max(1e-6 * size, 2e-7)
    with pytest.raises(InputError, match=r"does not fit \.spz, which holds at most 8388607; save as \.ply"):
        save_splats(tmp_path / "b.spz", replace(given, centres=1e8 * given.centres), np.zeros(COUNT))
    assert not (tmp_path / "b.spz").exists()


def test_a_format_of_others_is_refused_with_those_that_can_be_written(tmp_path):
    with pytest.raises(InputError, match=r"'\.ksplat' is none of \.ply, \.compressed\.ply, \.splat, \.spz, \.sog\."):
        save_splats(tmp_path / "a.ksplat", made(), np.zeros(COUNT))


@pytest.mark.data
@pytest.mark.parametrize("form", ["ply", "compressed.ply", "spz", "sog"])
def test_a_file_of_others_is_written_as_it_was(data, tmp_path, form):
    """Quantised once, numbers stay where they are; only quaternions of bytes may move by a step.

    The places in .sog move by less than half a step of their logarithm, 1e-4 of the largest, because the bounds of
    other programs may be wider than the centres.
    """
    original = open_splats(data / "splats" / f"tiny_sh1_sample.{form}")
    again = open_splats(save_splats(tmp_path / f"a.{form}", original, np.zeros(len(original)), recolour=False))
    centre, scale, turn, opacity, colour = apart(again, original)
    assert centre < (1e-4 if form == "sog" else 1e-6) * np.abs(original.centres).max()
    assert max(scale, opacity, colour) < EXACT
    assert turn < 5e-3
    if original.harmonics is not None:
        np.testing.assert_allclose(again.harmonics, original.harmonics, atol=EXACT)


@pytest.mark.data
def test_a_splat_file_of_others_is_written_byte_by_byte_but_for_its_rotations(data, tmp_path):
    path = data / "splats" / "nerfsynthetic_chair_op02.splat"
    original = read_splat(path)
    again = save_splats(tmp_path / "a.splat", original, np.zeros(len(original)), recolour=False)
    one, other = (np.fromfile(p, SPLAT_RECORD) for p in (path, again))
    for name in ("centre", "scale", "colour"):
        np.testing.assert_array_equal(one[name], other[name])
    assert np.abs(one["rotation"].astype(int) - other["rotation"]).max() <= 1


# Damage


MADE = {
    "ply": inria(*gaussians(count=40)),
    "packed": compressed(*gaussians(count=40), True),
    "splat": splat(*gaussians(count=40)),
    "spz": spz(*gaussians(count=40)),
    "sog": sog(*gaussians(count=40)),
}


@pytest.mark.parametrize("kind", MADE)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_and_cut_files_are_read_or_refused_in_words(tmp_path, kind, data):
    made = bytearray(MADE[kind])
    for _ in range(data.draw(st.integers(0, 3))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    made = made[: data.draw(st.integers(1, len(made)))]
    path = tmp_path / "a"
    path.write_bytes(bytes(made))
    sniff(bytes(made), len(made))
    reader = SPLAT_READERS.get(kind, READERS["ply"])
    # plyfile refuses with errors of its own, which load() puts into words.
    with contextlib.suppress(FormatError if kind in SPLAT_READERS else Exception):
        found = reader(path)
        assert len(found.centres if isinstance(found, SplatData) else found.points) <= 40


def test_counts_that_a_file_cannot_hold_are_refused_before_memory_is_taken(tmp_path):
    given = gaussians(count=40)
    path = tmp_path / "a"
    path.write_bytes(inria(*given).replace(b"vertex 40", b"vertex 4000000000"))
    with pytest.raises(FormatError, match=r"announces at least \d+ bytes and has"):
        READERS["ply"](path)
    path.write_bytes(spz(*given, count=4_000_000_000))
    with pytest.raises(FormatError, match="announces 4000000000 Gaussians, which do not fit"):
        read_spz(path)
    path.write_bytes(spz(*given, count=400))
    with pytest.raises(FormatError, match="ends too early"):
        read_spz(path)
    path.write_bytes(sog(*given, replaced={"count": 10**12}))
    with pytest.raises(FormatError, match="do not fit"):
        SPLAT_READERS["sog"](path)
    path.write_bytes(splat(*given)[:-5])
    with pytest.raises(FormatError, match="expected 32 for every Gaussian"):
        read_splat(path)


def test_an_image_larger_than_its_gaussians_is_refused_undecoded(tmp_path):
    huge = io.BytesIO()
    Image.new("RGBA", (4000, 4000)).save(huge, "WEBP", lossless=True)
    path = tmp_path / "a.sog"
    path.write_bytes(sog(*gaussians(count=40), change=lambda name, data: huge.getvalue() if name == "sh0" else data))
    with pytest.raises(FormatError, match="4000 x 4000 pixels for 40 Gaussians"):
        SPLAT_READERS["sog"](path)


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        ({"version": 1}, "version 1"),
        ({"means": {"mins": [0, 0], "files": ["means_l.webp", "means_u.webp"]}}, "means.mins is not"),
        ({"scales": {"codebook": [float("nan")] * 256, "files": ["scales.webp"]}}, "scales.codebook is not"),
        ({"quats": {"files": ["../../etc/passwd"]}}, "no member"),
        ({"sh0": 3}, "no sh0"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(tmp_path, replaced, words):
    path = tmp_path / "a.sog"
    path.write_bytes(sog(*gaussians(count=40), replaced=replaced))
    with pytest.raises(FormatError, match=words):
        SPLAT_READERS["sog"](path)


def test_other_files_are_not_taken_for_splats():
    random = np.random.default_rng(0)
    assert sniff(random.bytes(3200), 3200) is None
    assert sniff(gzip.compress(b"text"), 24) is None
    assert sniff(b"PK\x03\x04" + random.bytes(100), 104) is None
