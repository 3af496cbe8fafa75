"""Rims and curves: where surfaces end, are cut off or split; their lengths, tangents and loops, and what they keep."""

import math
from functools import cache

import pytest
import torch

import lamina
from lamina.geometry.triangles import unit
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import InterfaceCurve, InterfaceCurves, LevelCurve, PolylineCurve
from lamina.grid.rim import Rim
from lamina.surfaces.icosphere import icosphere
from schemes import of_scheme

DOWN = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
TILT = torch.nn.functional.normalize(torch.tensor([0.3, -0.2, 0.93], dtype=torch.float64), dim=0)
OFF = 0.07  # of the tilted plane from the centre
FORMS = ["mesh", "sphere", "implicit", "box", "points"]
HEIGHT = 0.3  # of the circle on the sphere
RADIUS = math.sqrt(1 - HEIGHT**2)


def height(x):
    return x[:, 2]


def over_tilt(x):
    return x @ TILT - OFF


def over_circle(x):
    return x[:, 2] - HEIGHT


def unit_sphere(x):
    return (x**2).sum(1) - 1


@cache
def hemisphere(form: str) -> lamina.Surface:
    """The upper half of the unit sphere, in many forms."""
    around = [[-1.2, -1.2, -1.2], [1.2, 1.2, 1.2]]
    if form == "mesh":
        return lamina.clip(lamina.Mesh(*icosphere(4)), height)
    if form == "sphere":
        return lamina.clip(lamina.Sphere(level=4), height)
    if form == "implicit":
        return lamina.clip(lamina.Implicit(unit_sphere, around, samples=3000), height)
    if form == "box":
        return lamina.Implicit(unit_sphere, [[-1.2, -1.2, 0.0], around[1]], samples=3000)
    return lamina.clip(lamina.PointCloud(icosphere(4)[0]), height)


@cache
def domain_of(form: str, spacing: float) -> lamina.Domain:
    return lamina.Domain(hemisphere(form), spacing, order=2)


@cache
def sphere(spacing: float) -> lamina.Domain:
    return lamina.Domain(lamina.Sphere(level=4), spacing, order=2)


def rim_of(domain: lamina.Domain) -> Rim:
    assert domain.rim is not None
    return domain.rim


def length(rim: Rim, which: torch.Tensor | None = None) -> float:
    return float((rim.weights if which is None else rim.weights[which]).sum())


def cut_along(domain: lamina.Domain, *curves: InterfaceCurve) -> CutSurface:
    return domain.cut_along(InterfaceCurves(curves))


def level_curve(cut: CutSurface, number: int = 0) -> tuple[Rim, torch.Tensor]:
    assert cut.rim is not None
    return cut.rim, cut.rim.curve == number


def components(cut: CutSurface) -> int:
    return int(cut.elements.component.max()) + 1


def circle(count: int, turn: float = 1.0) -> torch.Tensor:
    """Points around z = HEIGHT on the sphere; the last is the first after a whole turn."""
    angle = 2 * math.pi * turn * torch.arange(count + 1, dtype=torch.float64) / count
    points = torch.stack([RADIUS * angle.cos(), RADIUS * angle.sin(), torch.full_like(angle, HEIGHT)], 1)
    return torch.cat([points[:-1], points[:1] if turn == 1 else points[-1:]])


def along(line: torch.Tensor) -> PolylineCurve:
    """A polyline on the unit sphere around the origin."""
    return PolylineCurve(line, torch.nn.functional.normalize(line))


def grid_of(around: int, up: int, place) -> lamina.Mesh:
    """place(angle, t) in [0, 2 pi) x [0, 1] as triangles, closed around."""
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(around), torch.arange(up + 1), indexing="ij"))
    V = place(2 * math.pi * i.double() / around, j.double() / up)
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(around), torch.arange(up), indexing="ij"))
    a, b = i * (up + 1) + j, (i + 1) % around * (up + 1) + j
    return lamina.Mesh(V, torch.cat([torch.stack([a, b, b + 1], 1), torch.stack([a, b + 1, a + 1], 1)]))


def plate(count: int) -> lamina.Mesh:
    """The square from -1 to 1, with `count` edges along each side."""
    x, y = torch.meshgrid(*[torch.linspace(-1, 1, count + 1, dtype=torch.float64)] * 2, indexing="ij")
    a = (torch.arange(count)[:, None] * (count + 1) + torch.arange(count)).reshape(-1)
    b, c, d = a + count + 1, a + 1, a + count + 2
    return lamina.Mesh(
        torch.stack([x, y, 0 * x], -1).reshape(-1, 3), torch.cat([torch.stack([a, b, d], 1), torch.stack([a, d, c], 1)])
    )


# Rims


@pytest.mark.parametrize("form", FORMS)
def test_the_rim_of_a_hemisphere_is_a_unit_circle_that_looks_down(form):
    rim = rim_of(domain_of(form, 0.1))
    polygon = form == "mesh"
    assert length(rim) == pytest.approx(2 * math.pi, rel=5e-4 if polygon else 1e-6)
    assert float(rim.points[:, 2].abs().max()) <= 3e-5
    assert float((rim.points[:, :2].norm(dim=1) - 1).abs().max()) <= (2e-3 if polygon else 3e-5)
    torch.testing.assert_close(rim.outward.norm(dim=1), torch.ones_like(rim.weights))
    assert float((rim.outward - DOWN).norm(dim=1).max()) <= (3e-2 if polygon else 2e-3)
    assert float(rim.weights.min()) > 0
    assert bool((rim.curve == -1).all())
    assert bool((rim.loop == 0).all())


@pytest.mark.parametrize("form", FORMS)
def test_half_a_sphere_has_half_its_area(form):
    assert domain_of(form, 0.1).quadrature.area == pytest.approx(2 * math.pi, rel=2e-3 if form == "mesh" else 2e-6)


def saddle_disc(count: int, seed: int, on_rim: bool):
    """Random samples of z = 0.3 (x^2 - y^2) over the unit disc, with normals; on_rim: with a row of them on its rim."""
    g = torch.Generator().manual_seed(seed)
    r, a = torch.rand(count, generator=g).double().sqrt(), 2 * math.pi * torch.rand(count, generator=g).double()
    if on_rim:
        spacing = (math.pi / count) ** 0.5
        rim = torch.arange(0, 2 * math.pi - spacing / 2, spacing).double()
        inside = r < 1 - 0.6 * spacing
        r, a = torch.cat([r[inside], torch.ones_like(rim)]), torch.cat([a[inside], rim])
    x, y = r * a.cos(), r * a.sin()
    points = torch.stack([x, y, 0.3 * (x * x - y * y)], 1)
    return points, unit(torch.stack([-0.6 * x, 0.6 * y, torch.ones_like(x)], 1))


@pytest.mark.parametrize(("on_rim", "spacings"), [(True, 0.03), (False, 0.15)])
@pytest.mark.parametrize("extension", ["jet", "neural"])
def test_a_sampled_surface_ends_where_its_samples_say(extension, on_rim, spacings):
    """The area is right but for a strip along the rim narrower than that many distances between samples."""
    count = 4000
    r = (torch.arange(1000).double() + 0.5) / 1000
    exact = float((2 * math.pi * r * (1 + 0.36 * r**2).sqrt()).mean())  # |grad z|^2 = 0.36 r^2
    cloud = lamina.PointCloud(*saddle_disc(count, 0, on_rim))
    domain = lamina.Domain(cloud, 0.05, order=2, extension=extension, show_progress=False)
    strip = (domain.quadrature.area - exact) / (2 * math.pi)
    assert abs(strip) < spacings * (exact / count) ** 0.5


def test_the_rim_of_one_sheet_does_not_move_that_of_another():
    """Two discs of radii 1 and 0.93 above each other, four spacings apart, with samples on their rims."""
    points, normals = saddle_disc(3000, 0, on_rim=True)
    points[:, 2], normals[:] = 0, torch.tensor([0.0, 0, 1])
    spacing = (math.pi / 3000) ** 0.5
    above = 0.93 * points + torch.tensor([0, 0, 4 * spacing])
    both = lamina.PointCloud(torch.cat([points, above]), torch.cat([normals, normals]))
    radius = torch.where(both.fit.cloud.points[:, 2] > spacing, 0.93, 1.0)
    on_rim = torch.isfinite(both.rims.limit)
    assert int(on_rim.sum()) > 2 * 150
    ends = both.fit.cloud.points[:, :2].norm(dim=1) + both.rims.limit
    assert float((ends - radius)[on_rim].abs().mean()) < 0.05 * spacing


def test_a_closed_surface_has_no_rim():
    assert sphere(0.2).rim is None
    assert lamina.Domain(lamina.Mesh(*icosphere(2)), 0.3).rim is None


@pytest.mark.parametrize("spacing", [0.2, 0.07])
def test_the_rim_of_a_mesh_is_as_long_as_its_open_edges_whatever_the_grid(spacing):
    mesh = hemisphere("mesh")
    corners = mesh.points[mesh.faces]
    edges = (corners.roll(-1, 1) - corners).norm(dim=2)
    rim = rim_of(lamina.Domain(mesh, spacing))
    assert length(rim) == pytest.approx(float(edges[mesh.rim_edges].sum()), rel=1e-12)


def test_the_length_of_a_rim_is_of_second_order_or_better():
    found = []
    for spacing in (0.2, 0.1, 0.05):
        rim = rim_of(lamina.Domain(lamina.clip(lamina.Sphere(level=4), over_tilt), spacing, order=2))
        found.append(abs(length(rim) / (2 * math.pi * math.sqrt(1 - OFF**2)) - 1))
    assert found[2] <= 1e-7
    assert math.log2(found[0] / found[2]) / 2 >= 2


def test_tangents_of_a_tilted_rim_lead_off_the_surface_and_are_of_first_order():
    found = []
    for spacing in (0.1, 0.05):
        rim = rim_of(lamina.Domain(lamina.clip(lamina.Sphere(level=4), over_tilt), spacing, order=2))
        exact = (rim.points @ TILT)[:, None] * rim.points - TILT
        exact = exact / exact.norm(dim=1, keepdim=True)
        away = (rim.outward - exact).norm(dim=1)
        found.append(float((rim.weights * away).sum()) / length(rim))
    assert found[1] <= 3e-4
    assert math.log2(found[0] / found[1]) >= 0.8


def field(x):
    x, y, z = x.unbind(1)
    return x * y * z + z + x + x * y


def gradient(x):
    x, y, z = x.unbind(1)
    return torch.stack([y * z + 1 + y, x * z + x, x * y + 1], 1)


def laplacian(x):
    x, y, z = x.unbind(1)
    return -12 * x * y * z - 2 * z - 2 * x - 6 * x * y


@pytest.mark.parametrize("side", [1, -1])
def test_what_flows_out_through_the_rim_is_the_integral_of_the_laplacian(side):
    """int Lap u = int_rim du/dn on either part of the sphere."""
    domain = lamina.Domain(lamina.clip(lamina.Sphere(level=4), lambda x: side * over_tilt(x)), 0.1, order=2)
    rim = rim_of(domain)
    out = float((rim.weights * (gradient(rim.points) * rim.outward).sum(1)).sum())
    assert domain.quadrature.integral(laplacian) == pytest.approx(out, abs=1e-4)
    assert abs(out) > 0.1


# Loops


def frustum(low: float, high: float) -> lamina.Mesh:
    """Part of a cone around the z axis, from radius `low` at -0.6 to `high` at 0.6."""

    def place(angle, t):
        r = low + (high - low) * t
        return torch.stack([r * angle.cos(), r * angle.sin(), 1.2 * t - 0.6], 1)

    return grid_of(96, 20, place)


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.9), (0.9, 0.4)])
def test_loops_are_numbered_from_the_longest(low, high):
    rim = rim_of(lamina.Domain(frustum(low, high), 0.1))
    slant = (high - low) / math.hypot(high - low, 1.2)
    for loop, radius in enumerate((0.9, 0.4)):
        own = rim.loop == loop
        top = radius == high
        assert length(rim, own) == pytest.approx(2 * math.pi * radius, rel=1e-3)
        assert bool((rim.points[own, 2] > 0).all()) == top
        outward = (rim.outward[own, :2] * rim.points[own, :2]).sum(1) / rim.points[own, :2].norm(dim=1)
        torch.testing.assert_close(outward, torch.full_like(outward, slant if top else -slant), rtol=0, atol=1e-2)
    assert set(rim.loop.tolist()) == {0, 1}


def test_half_a_torus_ends_in_two_circles():
    domain = lamina.Domain(lamina.clip(lamina.Torus(1.0, 0.4), lambda x: x[:, 1]), 0.1, order=2)
    rim = rim_of(domain)
    assert domain.quadrature.area == pytest.approx(2 * math.pi**2 * 0.4, rel=1e-5)
    assert set(rim.loop.tolist()) == {0, 1}
    for loop in (0, 1):
        own = rim.loop == loop
        assert length(rim, own) == pytest.approx(0.8 * math.pi, rel=1e-4)
        assert float(rim.points[own, 0].min()) * float(rim.points[own, 0].max()) > 0
    assert float((rim.outward - torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64)).norm(dim=1).max()) <= 2e-2


def test_a_moebius_strip_has_one_rim():
    """Twice around: the last column of vertices is the first, upside down."""
    around, across = 72, 6
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(around), torch.arange(across + 1), indexing="ij"))
    angle, s = 2 * math.pi * i.double() / around, 0.3 * (2 * j.double() / across - 1)
    r = 0.7 + s * (angle / 2).cos()
    V = torch.stack([r * angle.cos(), r * angle.sin(), s * (angle / 2).sin()], 1)
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(around), torch.arange(across), indexing="ij"))

    def at(i, j):
        return torch.where(i == around, across - j, i * (across + 1) + j)

    a, b, c, d = at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)
    mesh = lamina.Mesh(V, torch.cat([torch.stack([a, b, c], 1), torch.stack([a, c, d], 1)]))
    rim = rim_of(lamina.Domain(mesh, 0.1))
    assert bool((rim.loop == 0).all())
    low = V.reshape(around, across + 1, 3)
    once = torch.cat([low[:, 0], low[:, -1], low[:1, 0]])
    assert length(rim) == pytest.approx(float((once[1:] - once[:-1]).norm(dim=1).sum()), rel=1e-9)


# InterfaceCurves


def downhill(x):
    """The tangent of the sphere that leads straight down, at points of the circle."""
    return torch.stack([x[:, 0] * HEIGHT / RADIUS, x[:, 1] * HEIGHT / RADIUS, torch.full_like(x[:, 0], -RADIUS)], 1)


@pytest.mark.parametrize(("form", "length_rel", "tangent"), [("sphere", 5e-6, 1e-2), ("mesh", 1e-3, 5e-2)])
def test_a_circle_on_the_sphere_has_two_sides_that_look_at_each_other(form, length_rel, tangent):
    domain = sphere(0.1) if form == "sphere" else lamina.Domain(lamina.Mesh(*icosphere(4)), 0.1)
    cut = cut_along(domain, LevelCurve(over_circle))
    rim, own = level_curve(cut)
    assert bool(own.all())
    above = rim.outward[:, 2] < 0
    for side, sign in ((above, 1), (~above, -1)):
        assert length(rim, side) == pytest.approx(2 * math.pi * RADIUS, rel=length_rel)
        assert float((rim.outward[side] - sign * downhill(rim.points[side])).norm(dim=1).max()) <= tangent
    assert components(cut) == 2
    assert bool((rim.loop == -1).all())  # not a rim of the surface itself


def test_the_length_of_a_seam_is_of_second_order():
    found = []
    for spacing in (0.2, 0.05):
        rim, _ = level_curve(cut_along(sphere(spacing), LevelCurve(over_circle)))
        found.append(abs(length(rim) / (4 * math.pi * RADIUS) - 1))
    assert math.log2(found[0] / found[1]) / 2 >= 1.8


def test_elements_on_the_two_sides_of_a_seam_share_no_unknowns():
    cut = cut_along(sphere(0.2), LevelCurve(over_circle))
    # By the middles of the pieces: near the curve chords and the curve differ.
    above = over_circle(cut.quadrature.points.reshape(-1, 3, 3).mean(1)) > 0.01
    below = over_circle(cut.quadrature.points.reshape(-1, 3, 3).mean(1)) < -0.01
    unknowns = [set(cut.elements.unknown[cut.element[::3][side]].reshape(-1).tolist()) for side in (above, below)]
    assert not unknowns[0] & unknowns[1]
    assert all(len(u) > 100 for u in unknowns)


def test_a_closed_polyline_is_the_level_set_that_it_follows():
    domain = sphere(0.1)
    level, line = cut_along(domain, LevelCurve(over_circle)), cut_along(domain, along(circle(300)))
    (a, _), (b, _) = level_curve(level), level_curve(line)
    assert components(line) == components(level) == 2
    assert length(b) == pytest.approx(length(a), rel=2e-5)
    assert float(over_circle(b.points).abs().max()) <= 2e-4
    for sign in (1, -1):
        side = [length(r, sign * r.outward[:, 2] > 0) for r in (a, b)]
        assert side[0] == pytest.approx(side[1], rel=2e-5)
    assert line.elements.unknowns == pytest.approx(level.elements.unknowns, rel=1e-2)


def test_half_a_circle_is_a_slit_that_ends_within_a_cell_of_its_ends():
    for spacing in (0.2, 0.1):
        cut = cut_along(sphere(spacing), along(circle(100, turn=0.5)))
        rim, own = level_curve(cut)
        assert components(cut) == 1
        missing = math.pi * RADIUS - length(rim, own) / 2
        assert abs(missing) <= 2 * spacing
        assert float(rim.points[:, 1].min()) > -spacing


def test_a_polyline_that_runs_back_to_front_is_the_same_seam():
    domain, line = sphere(0.1), circle(100, turn=0.5)
    forth, back = (level_curve(cut_along(domain, along(points)))[0] for points in (line, line.flip(0)))
    assert length(forth) == pytest.approx(length(back), rel=1e-9)


@cache
def whole_sphere(form: str) -> lamina.Domain:
    if form == "mesh":
        surface = lamina.Mesh(*icosphere(3))
    else:
        surface = lamina.Implicit(unit_sphere, [[-1.2, -1.2, -1.2], [1.2, 1.2, 1.2]], samples=2000)
    return lamina.Domain(surface, 0.15, order=2)


@pytest.mark.parametrize("form", ["sphere", "mesh", "implicit"])
@pytest.mark.parametrize("kind", ["level", "slit"])
def test_seams_take_no_area(form, kind):
    domain = sphere(0.1) if form == "sphere" else whole_sphere(form)
    line = domain.geometry.closest_points(circle(60, turn=0.5))
    curve = LevelCurve(over_circle) if kind == "level" else PolylineCurve(line.points, line.normals)
    cut = cut_along(domain, curve)
    assert cut.quadrature.area == pytest.approx(domain.quadrature.area, rel=1e-6)
    assert level_curve(cut)[1].any()


def test_two_circles_that_cross_split_the_sphere_in_four():
    cut = cut_along(sphere(0.1), LevelCurve(lambda x: x[:, 0] - 0.1), LevelCurve(lambda x: x[:, 1] + 0.05))
    assert components(cut) == 4
    assert cut.quadrature.area == pytest.approx(4 * math.pi, rel=1e-6)
    for number, off in enumerate((0.1, 0.05)):
        rim, own = level_curve(cut, number)
        assert length(rim, own) == pytest.approx(4 * math.pi * math.sqrt(1 - off**2), rel=1e-5)


def test_a_curve_that_misses_the_surface_is_no_seam():
    cut = cut_along(sphere(0.2), LevelCurve(lambda x: x[:, 2] - 5))
    assert cut.rim is None
    assert components(cut) == 1


@pytest.mark.parametrize("count", [7, 8])
def test_a_seam_may_run_between_the_vertices_of_a_mesh_or_along_its_edges(count):
    """x = 0 on a square: for 8 edges to a side it is a line of vertices."""
    domain = lamina.Domain(plate(count), 0.1)
    cut = cut_along(domain, LevelCurve(lambda x: x[:, 0]))
    rim, own = level_curve(cut)
    assert bool(torch.isfinite(cut.quadrature.points).all())
    assert components(cut) == 2
    for sign in (1, -1):
        side = own & (sign * rim.outward[:, 0] > 0.5)
        assert length(rim, side) == pytest.approx(2, rel=1e-9)
    assert length(rim, own) == pytest.approx(4, rel=1e-9)


def test_the_tangents_of_a_rim_do_not_depend_on_where_the_lattice_lies():
    """The lattice of the coupled scheme has a plane in that of the cut."""
    domain = lamina.paper.BandDomain(hemisphere("sphere"), 0.1, scheme="coupled")
    rim = rim_of(domain)
    assert length(rim) == pytest.approx(2 * math.pi, rel=1e-6)
    away = (rim.outward - DOWN).norm(dim=1)
    assert float((rim.weights * away).sum()) / length(rim) <= 1e-3


# Clipping


def test_a_clipped_mesh_is_a_mesh_of_what_is_left():
    V, F = icosphere(3)
    whole = lamina.Mesh(V, F)
    part, rest = lamina.clip(whole, over_tilt), lamina.clip(whole, lambda x: -over_tilt(x))
    assert isinstance(part, lamina.Mesh)
    assert float(over_tilt(part.points).min()) >= -1e-12
    assert float(part.areas.sum() + rest.areas.sum()) == pytest.approx(float(whole.areas.sum()), rel=1e-12)
    assert float(part.areas.sum()) == pytest.approx(2 * math.pi * (1 - OFF), rel=1e-2)
    lengths = [length(rim_of(lamina.Domain(m, 0.2))) for m in (part, rest)]
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-9)


def test_clipping_takes_components_away_and_leaves_others_whole():
    V, F = icosphere(2)
    shift = torch.tensor([0.0, 0.0, 2.5], dtype=torch.float64)
    three = lamina.Mesh(torch.cat([V, V + shift, V - shift]), torch.cat([F, F + len(V), F + 2 * len(V)]))
    left = lamina.clip(three, height)
    assert left.component_count == 2
    area = float(lamina.Mesh(V, F).areas.sum())
    assert float(left.areas.sum()) == pytest.approx(1.5 * area, rel=1e-9)


@pytest.mark.parametrize("form", ["sphere", "implicit", "points"])
def test_feet_on_the_rest_are_brought_to_the_rim_and_say_so(form):
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(500, 3, generator=generator, dtype=torch.float64))
    x = x * (1 + 0.1 * torch.randn(500, 1, generator=generator, dtype=torch.float64))
    x = x[x[:, :2].norm(dim=1) > 0.3]
    feet = hemisphere(form).closest_points(x)
    below = x[:, 2] < 0
    on_rim = torch.nn.functional.normalize(x * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    exact = torch.where(below[:, None], on_rim, torch.nn.functional.normalize(x))
    assert float((feet.points - exact).norm(dim=1).max()) <= 5e-4
    assert feet.beyond is not None
    assert torch.equal(feet.beyond, below)


@pytest.mark.parametrize("form", ["sphere", "implicit", "points"])
def test_samples_of_a_clipped_surface_lie_on_what_is_left(form):
    surface = hemisphere(form)
    assert float(surface.points[:, 2].min()) >= -1e-9
    assert float(surface.areas.sum()) == pytest.approx(2 * math.pi, rel=5e-2 if form == "points" else 2e-2)
    assert surface.open
    feet = surface.sample(200 if form == "points" else 2000)
    assert float(feet.points[:, 2].min()) >= 0
    assert float(feet.points[:, 2].mean()) == pytest.approx(0.5, abs=0.06)  # Archimedes: z is uniform


@pytest.mark.parametrize("scheme", ["trace", "coupled"])
def test_a_clipped_surface_in_single_precision(scheme):
    domain = of_scheme(scheme, hemisphere("sphere"), 0.2, dtype=torch.float32)
    rim = rim_of(domain)
    assert rim.points.dtype == torch.float32
    assert length(rim) == pytest.approx(2 * math.pi, rel=1e-4)


@pytest.mark.parametrize("form", ["mesh", "sphere"])
def test_clipping_twice_leaves_a_quarter_with_a_rim_of_two_half_circles(form):
    surface = lamina.clip(hemisphere(form), lambda x: x[:, 0])
    domain = lamina.Domain(surface, 0.1, order=2)
    assert domain.quadrature.area == pytest.approx(math.pi, rel=2e-3 if form == "mesh" else 1e-5)
    rim = rim_of(domain)
    assert bool((rim.points[:, [0, 2]] >= -1e-4).all())
    assert length(rim) == pytest.approx(2 * math.pi, rel=1e-3 if form == "mesh" else 1e-4)
    assert bool((rim.loop == 0).all())


def test_a_seam_on_a_clipped_surface_ends_at_its_rim():
    """x = 0.1 on the hemisphere, over the rim: half a circle, on two sides."""
    cut = cut_along(domain_of("sphere", 0.1), LevelCurve(lambda x: x[:, 0] - 0.1))
    rim, own = level_curve(cut)
    assert components(cut) == 2
    assert length(rim, ~own) == pytest.approx(2 * math.pi, rel=1e-4)
    assert length(rim, own) == pytest.approx(2 * math.pi * math.sqrt(0.99), rel=1e-4)


def test_clipping_nothing_off_leaves_a_closed_surface():
    surface = lamina.clip(lamina.Sphere(level=3), lambda x: x[:, 2] + 5)
    domain = lamina.Domain(surface, 0.3, order=2)
    assert domain.rim is None
    assert domain.quadrature.area == pytest.approx(4 * math.pi, rel=1e-3)


@pytest.mark.parametrize("form", ["mesh", "sphere"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:, 2] - 2, "Nothing is left of the surface: the function to clip by is positive nowhere on it"),
        (
            lambda x: x,
            r"the function to clip by returned \(162, 3\) for 162 points; expected a tensor of shape \(162,\)",
        ),
        (lambda x: 1.0, "the function to clip by returned float for 162 points"),
        (3.0, r"clip needs a function of an \(n, 3\) tensor, got float"),
    ],
)
def test_bad_functions_to_clip_by_are_named(form, function, message):
    surface = lamina.Sphere(level=2) if form == "sphere" else lamina.Mesh(*icosphere(2))
    with pytest.raises(lamina.InputError, match=message):
        lamina.clip(surface, function)
