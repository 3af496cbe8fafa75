"""The ablations of the paper's supplementary material: one part of the learned operator is changed at a time.

Every network is trained afresh, by a shortened run of `lamina paper train` on the Spike with the same seeds and patches for
all, and Poisson's equation is solved with it by the paper's shell scheme on the unit sphere and on the Star Fruit. A
network that several tables share is trained once. Beside it stand the exact extension in the same scheme, which says
what is left to gain by a better network, the network before its training, which says what was gained by it, and the
trace scheme, which has no network.

Networks that differ in nothing but the seed are the yardstick: differences smaller than theirs mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band
from lamina.paper.attention import Attention, cover_band, sampled_band
from lamina.paper.attention_network import FEATURES, AttentionNetwork, NetworkConfig
from lamina.paper.tables.ablation_networks import QUICK, Control, Plan, Variant, measure, problem, solved
from lamina.paper.tables.ablation_numbers import PAPER
from lamina.paper.tables.base import Row, Setting, Table
from lamina.surfaces.point_cloud import PointCloud

Job = Variant | Control
Lookup = Callable[[Job], Row | None]  # the figures of a job; None where they are missing
FIGURES = ("nmae", "nmaxe", "held_out_mse", "eps", "seconds")
TRACE, UNTRAINED = Control("trace"), Control("untrained")
OURS, EXACT = "lamina attention (the paper's method)", "exact extension, shell"
ALPHAS = {"alpha = 0": 0.0, "alpha = 1e-4": 1e-4, "alpha = 1e-3": 1e-3, "alpha = 1e-2": 1e-2, "alpha = 1e-1": 0.1,
          "alpha = 1": 1.0}  # fmt: skip
WITHOUT = {"all features": (), "without normals": ("normals",), "without curvatures": ("curvatures",),
           "without points": ("points",), "points only": ("normals", "curvatures")}  # fmt: skip
K = (400, 25, 50, *range(100, 400, 50), 450, 500)
SIZES = {f"{depth} x {width}": (depth, width) for depth in (2, 3, 4) for width in (32, 64, 128)}
SEEDS = (1, 2)  # of further runs of the base network
PATCHES, QUICK_PATCHES = (600, 650, 1250), (60,)
PATCH_RADIUS = 4.0  # eps / dx, the paper's: wider bands need more patches than 600


@dataclass(frozen=True)
class Ablation:
    """A table with trained networks. cases: settings by their labels; quick: the labels of the small form."""

    name: str
    title: str
    cases: Callable[[Plan], dict[str, Variant]]
    quick: tuple[str, ...]

    def chosen(self, plan: Plan) -> dict[str, Variant]:
        cases = self.cases(plan)
        return {label: cases[label] for label in (self.quick if plan == QUICK else cases)}

    def jobs(self, plan: Plan) -> Iterator[Job]:
        """All that is to be measured, the networks first; some may come twice."""
        variants = self.chosen(plan).values()
        yield from variants
        yield from (TRACE, UNTRAINED)
        yield from (c for v in variants if (c := Control("shell", v.radius(plan))).possible)

    def rows(self, plan: Plan, lookup: Lookup) -> list[Row]:
        """Rows "paper", "lamina attention" and the exact extension for each setting; the other controls once a surface.

        The exact extension depends on eps alone: where all settings have the same, it has one row.
        """
        cases = self.chosen(plan)
        exact = {label: Control("shell", v.radius(plan)) for label, v in cases.items()}
        one = len(set(exact.values())) == 1
        rows: list[Row] = []
        for surface in plan.surfaces:
            numbers = PAPER[self.name][surface]
            for label in dict.fromkeys([*numbers, *cases]):
                case = f"{surface}, {label}"
                if label in numbers:
                    rows.append(_paper(case, numbers[label]))
                if label in cases:
                    rows += _row(OURS, case, surface, lookup(cases[label]))
                    if not one and exact[label].possible:
                        rows += _row(EXACT, case, surface, lookup(exact[label]))
            if one:
                control = next(iter(exact.values()))
                rows += _row(EXACT, surface, surface, lookup(control) if control.possible else None)
            rows += _row("untrained network, shell", surface, surface, lookup(UNTRAINED))
            rows += _row("lamina trace", surface, surface, lookup(TRACE))
        return rows


def _paper(case: str, numbers: tuple[float, float]) -> Row:
    return {"method": "paper", "case": case, "nmae": numbers[0], "nmaxe": numbers[1]}


def _row(method: str, case: str, surface: str, found: Row | None) -> list[Row]:
    """The row of a job on a surface; none where the job is missing."""
    if found is None:
        return []
    shared = {key: found[key] for key in ("held_out_mse", "held_out_nc", "lambda", "eps", "train_seconds", "parameters")
              if key in found}  # fmt: skip
    return [{"method": method, "case": case, **found[surface], **shared}]


# The settings


def base(plan: Plan, alpha: float = 1e-2, seed: int = 0, **changed: Any) -> Variant:
    """The paper's network with something changed."""
    shape: Row = {"k": plan.k, "width": plan.width, "surface_width": plan.width, "surface_depth": 2, **changed}
    return Variant(NetworkConfig(spacing=plan.spacing, **shape), alpha, seed)


def losses(plan: Plan) -> dict[str, Variant]:
    seeds = {f"alpha = 1e-2, seed {seed}": base(plan, seed=seed) for seed in SEEDS}
    return {label: base(plan, alpha) for label, alpha in ALPHAS.items()} | seeds


def features(plan: Plan) -> dict[str, Variant]:
    return {
        label: base(plan, features=tuple(f for f in FEATURES if f not in left_out))
        for label, left_out in WITHOUT.items()
    }


def sizes_of_patches(plan: Plan) -> dict[str, Variant]:
    if plan == QUICK:
        return {f"k = {k}": base(plan, k=k) for k in (40, plan.k)}
    return {f"k = {k}": base(plan, k=k) for k in sorted(K)}


def query_networks(plan: Plan) -> dict[str, Variant]:
    return {label: base(plan, depth=depth, width=width) for label, (depth, width) in SIZES.items()}


def surface_networks(plan: Plan) -> dict[str, Variant]:
    return {label: base(plan, surface_depth=depth, surface_width=width) for label, (depth, width) in SIZES.items()}


def strengths(plan: Plan) -> dict[str, Variant]:
    return {"lambda learned": base(plan), "lambda = 1": base(plan, strength=1.0, learn_strength=False)}


TRAINED = (
    Ablation("ablation_loss", "Weight alpha of the normal-consistency loss", losses, ("alpha = 0", "alpha = 1e-2")),
    Ablation("ablation_features", "Features of the surface samples", features, ("points only", "without curvatures")),
    Ablation("ablation_lambda", "The learnable parameter lambda", strengths, ("lambda learned", "lambda = 1")),
    Ablation("ablation_query_network", "Query and local-band networks, layers x width", query_networks, ("3 x 32",)),
    Ablation("ablation_surface_network", "Surface network, layers x width", surface_networks, ("3 x 32",)),
    Ablation("ablation_k", "Nodes k of a patch", sizes_of_patches, ("k = 40", "k = 60")),
)


def all_jobs(plan: Plan) -> list[Job]:
    """What all tables need, each once: the base network first, whole tables one after the other, other seeds last."""
    jobs = [base(plan), *(job for ablation in TRAINED for job in ablation.jobs(plan))]
    return sorted(dict.fromkeys(jobs), key=lambda job: isinstance(job, Variant) and job.seed > 0)


# Tables


def plan_of(setting: Setting) -> Plan:
    return QUICK if setting.quick else FULL


FULL = Plan()
_measured = cache(measure)  # every network is trained once a process


def _table(ablation: Ablation) -> Table:
    def rows(setting: Setting) -> list[Row]:
        plan, done = plan_of(setting), 0
        total = len(set(ablation.jobs(plan)))

        def lookup(job: Job) -> Row:
            nonlocal done
            setting.report(min(1.0, done / total), job.name)
            done += 1
            return _measured(job, plan, setting.device)

        return ablation.rows(plan, lookup)

    return Table(ablation.name, ablation.title, FIGURES, rows, trains=True)


def patch_rows(setting: Setting, network: AttentionNetwork | None = None) -> list[Row]:
    """Poisson on the sphere with the network that lamina ships, unless another is given, and more and more patches."""
    plan, name = plan_of(setting), "sphere"
    network = Attention(network).network()
    numbers = PAPER["ablation_patches"][name]
    rows = [_paper(f"{name}, {label}", numbers[label]) for label in numbers]
    asked = QUICK_PATCHES if setting.quick else PATCHES
    for i, wanted in enumerate(asked):
        setting.report(i / len(asked), f"{wanted} patches")
        options = Attention(network, least_patches=wanted)
        radius = PATCH_RADIUS * plan.spacing
        figures = solved(name, plan, setting.device, plan.level, scheme="shell", extension=options, band_radius=radius)
        count = patch_count(plan, radius, options, network.config.k)
        case = f"{name}, {wanted} patches"
        rows.append({"method": OURS, "case": case, **figures, "eps": PATCH_RADIUS, "patches": count})
    return [*rows, *_row("lamina trace", name, name, _measured(TRACE, plan, setting.device))]


def patch_count(plan: Plan, radius: float, options: Attention, k: int) -> int:
    """How many patches the band of the sphere gets."""
    points = problem("sphere", plan.level)[0]
    cloud = PointCloud(points, points)
    lattice = Lattice(cloud.bounds.mean(0), plan.spacing)
    band, samples = sampled_band(cloud, Band.build(cloud, lattice, radius), radius)
    with torch.no_grad():
        patches = cover_band(band, radius, samples, k, options.patch_spacing, options.margin, options.least_patches)
    return len(patches)


TABLES = (
    *map(_table, TRAINED),
    Table("ablation_patches", "Number of patches", ("nmae", "nmaxe", "patches", "seconds"), patch_rows),
)
