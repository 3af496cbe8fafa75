"""Heat to its steady state on six representations. The exact steady state is the mean of the initial state.

u0 is the coordinate along the longest side of the bounding box, scaled to a range of 1. Its mean is independent of
lamina's quadrature: for networks it comes from marching cubes on a fine grid, with vertices moved onto the zero set;
for a spherical neural surface from an icosphere of 655,362 vertices mapped by the network; for points and splats from
the mesh that they were made of; for a mesh from its triangles. Errors are RMS over the samples, by area.

Of the paper's shapes in these representations only the points of the hat and the mesh are public. Other shapes replace
the rest: a spherical neural surface of the Armadillo cannot be fitted here, because its limbs flip triangles on the
sphere. The splats are made here, flat Gaussians on Spot with noise and floaters, because real splats have no known
surface.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lamina.errors import InputError, SolveError
from lamina.metrics import errors
from lamina.paper.baselines.compare import heat
from lamina.paper.tables import published_numbers
from lamina.paper.tables.isosurface import mean_over_triangles, mean_over_zero_set
from lamina.paper.tables.method_rows import METHOD_LABELS
from lamina.paper.tables.table import Row, Setting, Table
from lamina.surfaces.base import Surface
from lamina.surfaces.files import load
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.point_cloud import PointCloud
from lamina.surfaces.splats import Splats

Field = Callable[[Tensor], Tensor]
SPACINGS_PER_SIDE = 34  # spacings along the longest side: a spacing of 0.05 at the extent of the paper's shapes, 1.7


def rows(setting: Setting) -> list[Row]:
    made: list[Row] = [
        {"method": published_numbers.OURS, "case": case, "nrmse": value, "shape": shape}
        for case, (shape, value) in published_numbers.REPRESENTATIONS.items()
    ]
    for case, make in (QUICK_REPRESENTATIONS if setting.quick else REPRESENTATION_CASES).items():
        setting.report(0.0, f"{case}: surface")
        surface, mean_of, shape = make(setting)
        initial, size = _coordinate(surface)
        mean = mean_of(initial)
        for method in ("attention", "trace") if setting.quick else _methods(surface):
            row: Row = {"method": METHOD_LABELS.get(method, method), "case": case, "shape": shape}
            setting.report(0.0, f"{case}: {row['method']}")
            spacing = size / (10 if setting.quick else SPACINGS_PER_SIDE) if method != "auto" or setting.quick else None
            # The paper's operator diffuses nine times too fast and takes small steps, so that a short time suffices.
            time = (0.2 if method == "attention" else 1000.0) * size**2
            steps = None if method == "attention" else 40
            try:
                answer = heat(surface, initial, time, method, steps=steps, spacing=spacing, device=setting.device)
            except (InputError, SolveError) as error:
                made.append(row | {"failed": str(error)})
                continue
            made.append(row | _errors(answer.values, mean, surface) | answer.cost)
    return made


def _methods(surface: Surface) -> tuple[str, ...]:
    return ("attention", "neural" if isinstance(surface, PointCloud) else "closest-point", "trace", "auto")


def _errors(values: Tensor, mean: float, surface: Surface) -> Row:
    share = (surface.areas / surface.areas.sum()).cpu()
    whole = errors(values, torch.full_like(values, mean), extent=1.0).as_dict()
    return whole | {"nrmse": float((share * (values - mean).square()).sum().sqrt()), "mean": mean}


def _coordinate(surface: Surface) -> tuple[Field, float]:
    low, high = surface.bounds
    axis = int((high - low).argmax())
    size = float((high - low)[axis])
    middle = float((high + low)[axis]) / 2
    return lambda p: (p[:, axis] - middle) / size, size


SurfaceWithMean = tuple[Surface, Callable[[Field], float], str]


def neural_sdf(setting: Setting) -> SurfaceWithMean:
    surface = load(setting.file("neural/deepsdf_minimal"), latent=1)
    return surface, lambda u: mean_over_zero_set(surface, u), "DeepSDF camera"


def overfitted_sdf(setting: Setting) -> SurfaceWithMean:
    surface = load(setting.file("neural/thingi10k_75652_bust_sdf.npz"))
    return surface, lambda u: mean_over_zero_set(surface, u), "bust"


def spherical(setting: Setting) -> SurfaceWithMean:
    from lamina.learn.sns import fit_from_surface
    from lamina.surfaces.spherical_map import SphericalMap

    network, _ = fit_from_surface(load(setting.file("meshes/maxplanck_sns10606.ply")), report=setting.report)
    network = network.double()
    return SphericalMap(network), lambda u: _mean_of_map(network, u), "Max Planck"


def splats(setting: Setting) -> SurfaceWithMean:
    mesh = load(setting.file("meshes/spot.ply"))
    return splats_on(mesh, 20_000, 0), lambda u: mean_over_mesh(mesh, u), "Spot"


def splats_on(mesh: Surface, count: int, seed: int) -> Splats:
    """Flat Gaussians on a surface, with 1 % of faint floaters anywhere in the box.

    They are as wide as their distance, a tenth as thick, and a tenth of it off the surface.
    """
    generator = torch.Generator().manual_seed(seed)
    feet = mesh.sample(count, seed)
    low, high = mesh.bounds
    width = math.sqrt(float(mesh.areas.sum()) / count)
    noise = 0.1 * width * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    few = count // 100
    floaters = low + (high - low) * torch.rand(few, 3, generator=generator, dtype=torch.float64)
    centres = torch.cat([feet.points + noise * feet.normals, floaters])
    normals = torch.cat([feet.normals, torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64).expand(few, 3)])
    scales = torch.tensor([width, width, 0.1 * width], dtype=torch.float64).expand(count + few, 3)
    opacity = torch.cat([torch.full((count,), 0.9), torch.full((few,), 0.02)]).double()
    return Splats(centres, scales.contiguous(), _turning_z_to(normals), opacity)


def _turning_z_to(n: Tensor) -> Tensor:
    """Unit quaternions (n, 4), w first, that rotate the z axis to n (n, 3)."""
    w, (x, y, z) = 1 + n[:, 2], (-n[:, 1], n[:, 0], torch.zeros_like(n[:, 0]))
    q = torch.stack([w, x, y, z], 1)
    q = torch.where((w < 1e-9)[:, None], q.new_tensor([0.0, 1.0, 0.0, 0.0]), q)
    return q / q.norm(dim=1, keepdim=True)


def points(setting: Setting) -> SurfaceWithMean:
    mesh = load(setting.file("paper/hat_pointcloud.ply"))
    return PointCloud(mesh.points), lambda u: mean_over_mesh(mesh, u), "Hat, no normals"


def mesh(setting: Setting) -> SurfaceWithMean:
    surface = load(setting.file("paper/holey_human.ply"))
    return surface, lambda u: mean_over_mesh(surface, u), "Holey Human"


def _mean_of_map(network: Callable[[Tensor], Tensor], u: Field) -> float:
    V, F = icosphere(8)
    with torch.no_grad():
        at = torch.cat([network(v) for v in V.split(2**16)])
    return mean_over_mesh(Mesh(at, F), u)


def mean_over_mesh(mesh: Surface, u: Field) -> float:
    """Mean of a function that is linear in space."""
    assert mesh.faces is not None
    return mean_over_triangles(mesh.points[mesh.faces], u)


def _quick_mesh(setting: Setting) -> SurfaceWithMean:
    V, F = icosphere(3)
    surface = Mesh(V * V.new_tensor([1.0, 0.8, 0.6]) + V[:, :1] * 0.3, F)
    return surface, lambda u: mean_over_mesh(surface, u), "ellipsoid"


def _quick_splats(setting: Setting) -> SurfaceWithMean:
    surface, mean, shape = _quick_mesh(setting)
    return splats_on(surface, 1500, 0), mean, shape


REPRESENTATION_CASES = {
    "neural SDF": neural_sdf, "overfitted SDF": overfitted_sdf, "spherical neural surface": spherical,
    "Gaussian splats": splats, "point cloud": points, "mesh": mesh,
}  # fmt: skip
QUICK_REPRESENTATIONS = {"Gaussian splats": _quick_splats, "mesh": _quick_mesh}
TABLES = (Table("representations", "Six representations, heat to its steady state", ("nrmse", "seconds"), rows,
                needs_data=True),)  # fmt: skip
