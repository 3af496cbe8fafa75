"""The ablations of the paper's supplementary material: one part of the learned operator is changed at a time.

Every network is trained from scratch, by a shortened run of `lamina paper train` on the Spike, with the same seeds and
patches for all. With it Poisson's equation is solved by the paper's shell scheme on the unit sphere and on the Star
Fruit. A network that several tables share is trained once. There are three controls: the exact extension in the same
scheme shows what a better network could gain, the untrained network shows what training gains, and the trace scheme has
no network.

Networks that differ only in the seed are the yardstick: smaller differences than theirs mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band
from lamina.paper.attention import Attention, band_near_samples, cover_band
from lamina.paper.attention_network import FEATURE_WIDTHS, AttentionNetwork, NetworkConfig
from lamina.paper.tables.ablation_networks import QUICK_PLAN, Control, Plan, Variant, measure, problem, solved
from lamina.paper.tables.ablation_numbers import PUBLISHED_ABLATIONS
from lamina.paper.tables.table import Row, Setting, Table
from lamina.surfaces.point_cloud import PointCloud

Job = Variant | Control
Lookup = Callable[[Job], Row | None]  # the figures of a job; None where they are missing
ABLATION_FIGURES = ("nmae", "nmaxe", "held_out_mse", "eps", "seconds")
TRACE_CONTROL = Control("trace")
UNTRAINED_CONTROL = Control("untrained")
ATTENTION_LABEL = "lamina attention (the paper's method)"
EXACT_LABEL = "exact extension, shell"
LOSS_WEIGHTS = {"alpha = 0": 0.0, "alpha = 1e-4": 1e-4, "alpha = 1e-3": 1e-3, "alpha = 1e-2": 1e-2, "alpha = 1e-1": 0.1,
          "alpha = 1": 1.0}  # fmt: skip
LEFT_OUT_FEATURES = {"all features": (), "without normals": ("normals",), "without curvatures": ("curvatures",),
           "without points": ("points",), "points only": ("normals", "curvatures")}  # fmt: skip
PATCH_SIZES = (400, 25, 50, *range(100, 400, 50), 450, 500)
NETWORK_SIZES = {f"{depth} x {width}": (depth, width) for depth in (2, 3, 4) for width in (32, 64, 128)}
FURTHER_SEEDS = (1, 2)  # seeds of further runs of the base network
PATCH_COUNTS = (600, 650, 1250)
QUICK_PATCH_COUNTS = (60,)
PATCH_TABLE_RADIUS = 4.0  # eps / dx of the paper in this table: wider bands need more than 600 patches


@dataclass(frozen=True)
class Ablation:
    """A table with trained networks. cases: settings by label; quick: the labels of the small form."""

    name: str
    title: str
    cases: Callable[[Plan], dict[str, Variant]]
    quick: tuple[str, ...]

    def chosen(self, plan: Plan) -> dict[str, Variant]:
        cases = self.cases(plan)
        return {label: cases[label] for label in (self.quick if plan == QUICK_PLAN else cases)}

    def jobs(self, plan: Plan) -> Iterator[Job]:
        """All jobs, networks first; some may occur twice."""
        variants = self.chosen(plan).values()
        yield from variants
        yield from (TRACE_CONTROL, UNTRAINED_CONTROL)
        yield from (c for v in variants if (c := Control("shell", v.radius(plan))).possible)

    def rows(self, plan: Plan, lookup: Lookup) -> list[Row]:
        """Rows "paper", "lamina attention" and the exact extension for each setting; one row of each other control.

        The exact extension depends on eps alone: if all settings have the same eps, it has one row.
        """
        cases = self.chosen(plan)
        exact = {label: Control("shell", v.radius(plan)) for label, v in cases.items()}
        one = len(set(exact.values())) == 1
        rows: list[Row] = []
        for surface in plan.surfaces:
            numbers = PUBLISHED_ABLATIONS[self.name][surface]
            for label in dict.fromkeys([*numbers, *cases]):
                case = f"{surface}, {label}"
                if label in numbers:
                    rows.append(_paper(case, numbers[label]))
                if label in cases:
                    rows += _row(ATTENTION_LABEL, case, surface, lookup(cases[label]))
                    if not one and exact[label].possible:
                        rows += _row(EXACT_LABEL, case, surface, lookup(exact[label]))
            if one:
                control = next(iter(exact.values()))
                rows += _row(EXACT_LABEL, surface, surface, lookup(control) if control.possible else None)
            rows += _row("untrained network, shell", surface, surface, lookup(UNTRAINED_CONTROL))
            rows += _row("lamina trace", surface, surface, lookup(TRACE_CONTROL))
        return rows


def _paper(case: str, numbers: tuple[float, float]) -> Row:
    return {"method": "paper", "case": case, "nmae": numbers[0], "nmaxe": numbers[1]}


def _row(method: str, case: str, surface: str, found: Row | None) -> list[Row]:
    """The row of a job on a surface; empty if the job is missing."""
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
    seeds = {f"alpha = 1e-2, seed {seed}": base(plan, seed=seed) for seed in FURTHER_SEEDS}
    return {label: base(plan, alpha) for label, alpha in LOSS_WEIGHTS.items()} | seeds


def features(plan: Plan) -> dict[str, Variant]:
    return {
        label: base(plan, features=tuple(f for f in FEATURE_WIDTHS if f not in left_out))
        for label, left_out in LEFT_OUT_FEATURES.items()
    }


def sizes_of_patches(plan: Plan) -> dict[str, Variant]:
    if plan == QUICK_PLAN:
        return {f"k = {k}": base(plan, k=k) for k in (40, plan.k)}
    return {f"k = {k}": base(plan, k=k) for k in sorted(PATCH_SIZES)}


def query_networks(plan: Plan) -> dict[str, Variant]:
    return {label: base(plan, depth=depth, width=width) for label, (depth, width) in NETWORK_SIZES.items()}


def surface_networks(plan: Plan) -> dict[str, Variant]:
    return {
        label: base(plan, surface_depth=depth, surface_width=width) for label, (depth, width) in NETWORK_SIZES.items()
    }


def strengths(plan: Plan) -> dict[str, Variant]:
    return {"lambda learned": base(plan), "lambda = 1": base(plan, strength=1.0, learn_strength=False)}


TRAINED_ABLATIONS = (
    Ablation("ablation_loss", "Weight alpha of the normal-consistency loss", losses, ("alpha = 0", "alpha = 1e-2")),
    Ablation("ablation_features", "Features of the surface samples", features, ("points only", "without curvatures")),
    Ablation("ablation_lambda", "The learnable parameter lambda", strengths, ("lambda learned", "lambda = 1")),
    Ablation("ablation_query_network", "Query and local-band networks, layers x width", query_networks, ("3 x 32",)),
    Ablation("ablation_surface_network", "Surface network, layers x width", surface_networks, ("3 x 32",)),
    Ablation("ablation_k", "Nodes k of a patch", sizes_of_patches, ("k = 40", "k = 60")),
)


def all_jobs(plan: Plan) -> list[Job]:
    """All jobs, each once: the base network first, then table after table, other seeds last."""
    jobs = [base(plan), *(job for ablation in TRAINED_ABLATIONS for job in ablation.jobs(plan))]
    return sorted(dict.fromkeys(jobs), key=lambda job: isinstance(job, Variant) and job.seed > 0)


# Tables


def plan_of(setting: Setting) -> Plan:
    return QUICK_PLAN if setting.quick else FULL_PLAN


FULL_PLAN = Plan()
_measured = cache(measure)  # every network is trained once in a process


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

    return Table(ablation.name, ablation.title, ABLATION_FIGURES, rows, trains=True)


def patch_rows(setting: Setting, network: AttentionNetwork | None = None) -> list[Row]:
    """Poisson on the sphere with more and more patches; by default with the network that lamina ships."""
    plan, name = plan_of(setting), "sphere"
    network = Attention(network).network()
    numbers = PUBLISHED_ABLATIONS["ablation_patches"][name]
    rows = [_paper(f"{name}, {label}", numbers[label]) for label in numbers]
    counts = QUICK_PATCH_COUNTS if setting.quick else PATCH_COUNTS
    for i, wanted in enumerate(counts):
        setting.report(i / len(counts), f"{wanted} patches")
        options = Attention(network, least_patches=wanted)
        radius = PATCH_TABLE_RADIUS * plan.spacing
        figures = solved(name, plan, setting.device, plan.level, scheme="shell", extension=options, band_radius=radius)
        count = patch_count(plan, radius, options, network.config.k)
        case = f"{name}, {wanted} patches"
        rows.append({"method": ATTENTION_LABEL, "case": case, **figures, "eps": PATCH_TABLE_RADIUS, "patches": count})
    return [*rows, *_row("lamina trace", name, name, _measured(TRACE_CONTROL, plan, setting.device))]


def patch_count(plan: Plan, radius: float, options: Attention, k: int) -> int:
    """Number of patches on the band of the sphere."""
    points = problem("sphere", plan.level)[0]
    cloud = PointCloud(points, points)
    lattice = Lattice(cloud.bounds.mean(0), plan.spacing)
    band, samples = band_near_samples(cloud, Band.build(cloud, lattice, radius), radius)
    with torch.no_grad():
        patches = cover_band(band, radius, samples, k, options.patch_spacing, options.margin, options.least_patches)
    return len(patches)


TABLES = (
    *map(_table, TRAINED_ABLATIONS),
    Table("ablation_patches", "Number of patches", ("nmae", "nmaxe", "patches", "seconds"), patch_rows),
)
