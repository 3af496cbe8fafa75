"""What every ablation measures: a variant of the paper's network is trained, and Poisson's equation solved with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.errors import InputError, SolveError
from lamina.gallery import sphere_poisson
from lamina.metrics import errors
from lamina.paper import Attention, BandDomain
from lamina.paper.attention_network import FEATURE_WIDTHS, AttentionNetwork, NetworkConfig
from lamina.paper.attention_training import Trainer, TrainingConfig, validation_error
from lamina.paper.attention_training_data import PatchData, patch_data
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.patches import coverage_radius, safe_radius
from lamina.paper.shell import MIN_CUBIC_RADIUS
from lamina.paper.tables.table import Row
from lamina.pde.poisson import poisson
from lamina.surfaces.analytic import Sphere
from lamina.surfaces.base import Surface
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.point_cloud import PointCloud
from lamina.surfaces.spherical_map import SphericalMap, spike, starfruit

Report = Callable[[float, str], None]
# A reference has settled if its last refinement changes it by less than this, over its range (NMAE). It is a tenth of
# the smallest error that is measured against it, 5.4e-4.
MAX_REFERENCE_CHANGE = 5e-5
MAX_REFERENCE_LEVEL = 8  # Finest icosphere of the reference, with 655,362 vertices.
# Band radius in spacings below which surfaces are sampled one level finer. Every node of a band must be near a sample,
# and in thin bands the usual samples are too far apart.
THIN_BAND_RADIUS = 1.9


@dataclass(frozen=True)
class Plan:
    """What all networks of the ablations share. level: of the icospheres whose images are the surface samples."""

    spacing: float = 0.05
    radius: float = 4.5  # of the band, in spacings, unless k is too small for it
    level: int = 5
    k: int = 400
    width: int = 64
    surfaces: tuple[str, ...] = ("sphere", "starfruit")
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=1500, batch=64, warm_up=150, validate_every=1500)
    )


QUICK_PLAN = Plan(
    spacing=0.25,
    radius=2.0,
    level=3,
    k=60,
    width=16,
    surfaces=("sphere",),
    training=TrainingConfig(steps=20, batch=8, warm_up=4, grids=1, samples=16, validate_every=20),
)


@dataclass(frozen=True)
class Variant:
    """A network to train: its configuration, the weight alpha of the normal-consistency loss, the seed."""

    network: NetworkConfig
    alpha: float = 1e-2
    seed: int = 0

    @property
    def name(self) -> str:
        n = self.network
        sizes = f"{n.depth} x {n.width}, surface {n.surface_depth or n.depth} x {n.surface_width or n.width}"
        strength = "learned" if n.learn_strength else f"{n.strength:g}"
        return (
            f"k = {n.k}, {sizes}, {'+'.join(n.features)}, alpha = {self.alpha:g}, lambda {strength}, seed {self.seed}"
        )

    def radius(self, plan: Plan) -> float:
        """eps / dx: that of the plan, or less if patches of k nodes cover less; never below sqrt(3).

        Patches of k = 25 nodes always cover only 1.63. There, eps / dx is what the paper's condition allows:
        eps <= dx (3k / 4 pi)^(1/3) = 1.81 dx.
        """
        k = self.network.k
        sure = safe_radius(k)
        return min(plan.radius, sure if sure > math.sqrt(3) else math.floor(100 * coverage_radius(k, 1.0)) / 100)


@dataclass(frozen=True)
class Control:
    """The same problems without a trained network.

    scheme: "trace"; "shell" with the exact extension and this eps / dx, where closest points come from jets fitted to
    the samples; or "untrained", the shell with the base network before its first step.
    """

    scheme: str
    radius: float | None = None

    @property
    def name(self) -> str:
        return self.scheme if self.radius is None else f"{self.scheme}, exact extension, eps = {self.radius:g} dx"

    @property
    def possible(self) -> bool:
        return self.radius is None or self.radius >= MIN_CUBIC_RADIUS


def measure(job: Variant | Control, plan: Plan, device: str, report: Report = lambda fraction, what: None) -> Row:
    """Figures of a job, {"name": ..., "sphere": {nmae, ...}, "starfruit": ...}, and those of its training.

    A surface whose solve failed has "failed" instead of figures. Raises whatever `report` raises.
    """
    found: Row = {"name": job.name}
    level, options = plan.level, {}
    if isinstance(job, Variant):
        network, figures = trained(job, plan, device, report)
        found |= {"eps": job.radius(plan), "parameters": sum(p.numel() for p in network.parameters()), **figures}
        level += found["eps"] < THIN_BAND_RADIUS
        options = _shell(Attention(network.requires_grad_(False)), found["eps"], plan)
    elif job.scheme == "untrained":
        shape = NetworkConfig(k=plan.k, width=plan.width, spacing=plan.spacing)
        network = Trainer.fresh(shape, plan.training, device).network
        options = _shell(Attention(network.requires_grad_(False)), plan.radius, plan)
        found["eps"] = plan.radius
    elif job.radius is None:
        options = {"order": 2, "extension": "jet"}
    else:
        options = _shell("jet", job.radius, plan)
        found["eps"] = job.radius
    for name in plan.surfaces:
        report(1.0, f"{job.name}: {name}")
        found[name] = solved(name, plan, device, level, **options)
    return found


def _shell(extension: Attention | str, radius: float, plan: Plan) -> Row:
    return {"scheme": "shell", "extension": extension, "band_radius": radius * plan.spacing}


def trained(job: Variant, plan: Plan, device: str, report: Report) -> tuple[AttentionNetwork, Row]:
    """The network of a variant after its training on the Spike, and its losses on the held-out Star Fruit."""
    config = replace(plan.training, alpha=job.alpha, seed=job.seed, radius=job.radius(plan))
    data, held = training_patches(job.network.k, job.seed, config.radius, plan, device)
    data, held = (_with_features(d, job.network.features) for d in (data, held))
    trainer = Trainer.fresh(job.network, config, device)
    start = time.perf_counter()
    mse, nc = torch.zeros(()), torch.zeros(())
    for step in range(config.steps):
        report(step / config.steps, job.name)
        mse, nc = trainer.advance(data)
    figures: Row = {"mse": float(mse), "nc": float(nc), "train_seconds": round(time.perf_counter() - start, 2)}
    held_mse, held_nc = validation_error(trainer.network, held, config.samples)
    figures |= {"held_out_mse": held_mse, "held_out_nc": held_nc, "lambda": float(trainer.network.strength.detach())}
    return trainer.network, figures


@lru_cache(maxsize=2)
def training_patches(k: int, seed: int, radius: float, plan: Plan, device: str) -> tuple[PatchData, PatchData]:
    """Patches of the Spike and of the Star Fruit with all features; a network takes those that it uses."""
    shape = NetworkConfig(k=k, spacing=plan.spacing, features=tuple(FEATURE_WIDTHS))
    grids = (plan.training.grids, plan.training.validation_grids)
    level = plan.level + (radius < THIN_BAND_RADIUS)
    parts = [
        patch_data(surface, shape, radius=radius * plan.spacing, grids=count, seed=seed).to(device)
        for surface, count in zip((spike(level), starfruit(level)), grids, strict=True)
    ]
    return parts[0], parts[1]


def _with_features(data: PatchData, names: tuple[str, ...]) -> PatchData:
    widths = list(FEATURE_WIDTHS.values())
    columns = dict(zip(FEATURE_WIDTHS, data.features.split(widths, 1), strict=True))
    return replace(data, features=torch.cat([columns[name] for name in names], 1))


# Problems


def solved(name: str, plan: Plan, device: str, level: int, **options: Any) -> Row:
    """Errors of Poisson's equation on a surface given by samples with normals, or why the solve failed.

    Lap u = f with the f of `gallery.sphere_poisson` on both surfaces; on the Star Fruit its mean is taken off.
    """
    points, exact, shift = problem(name, plan.level)
    cloud = _cloud(name, level, device)
    start = time.perf_counter()
    try:
        made = BandDomain if "scheme" in options else Domain
        domain = made(cloud, plan.spacing, device=device, show_progress=False, **options)
        u = poisson(domain, lambda x: sphere_poisson().rhs(x) - shift).values[: len(points)].cpu()
        seconds = time.perf_counter() - start
        found = errors(u, exact, remove_mean=True)
    except (InputError, SolveError) as error:
        return {"failed": str(error)}
    return {**found.as_dict(), "nodes": domain.unknowns, "samples": len(cloud.points), "seconds": round(seconds, 2)}


@cache
def problem(name: str, level: int) -> tuple[Tensor, Tensor, float]:
    """Points (n, 3) of an icosphere of that level on the surface, u there (n,), and the mean of f.

    The samples of every finer level begin with these points.
    """
    f = sphere_poisson()
    points = _surface(name, level).points
    if name == "sphere":
        return points, f.solution(points), 0.0
    values, mean = reference(starfruit(0), f.rhs, level)
    return points, torch.from_numpy(values), mean


def reference(surface: SphericalMap, f: Callable[[Tensor], Tensor], level: int) -> tuple[np.ndarray, float]:
    """Lap u = f - mean f by finite elements at the vertices (n,) of the surface's icosphere of a level; mean f.

    The meshes are images of finer and finer icospheres, u_i on level i, extrapolated as u_i + (u_i - u_(i-1)) / 3,
    until the mean change of that at the vertices of level - 1 is below MAX_REFERENCE_CHANGE, in units of the range.
    """
    V, u, extrapolated, change = icosphere(level)[0], None, None, math.inf
    coarse, mean = len(icosphere(level - 1)[0]), 0.0
    for finer in range(level - 1, MAX_REFERENCE_LEVEL + 1):
        V, F = icosphere(finer)
        V = surface.fn(V).numpy()
        fem = SurfaceFEM(V, F.numpy())
        g = f(torch.from_numpy(V)).numpy()
        mean, before, u = float(fem.mean(g)[0]), u, fem.poisson(g)
        if before is None:
            continue
        now = u[: len(before)] + (u[: len(before)] - before) / 3
        if extrapolated is not None:
            change = errors(extrapolated[:coarse], now[:coarse], remove_mean=True).nmae
        extrapolated = now
        if change < MAX_REFERENCE_CHANGE:
            return extrapolated[: len(icosphere(level)[0])], mean
    raise SolveError(f"The reference on {surface.name} still changes by {change:.1e} at level {MAX_REFERENCE_LEVEL}.")


def _surface(name: str, level: int) -> Surface:
    return Sphere(level=level) if name == "sphere" else starfruit(level)


@lru_cache(maxsize=4)
def _cloud(name: str, level: int, device: str) -> Surface:
    """The samples of a surface with their normals, and nothing else."""
    surface = _surface(name, level)
    return PointCloud(surface.points, surface.normals, name=f"{name} samples").to(device, torch.float64)
