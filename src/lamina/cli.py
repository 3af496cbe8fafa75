"""The command line: lamina solve, info, train, fit."""

from __future__ import annotations

import json
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.errors import InputError, SolveError

app = typer.Typer(
    help="Partial differential equations on surfaces: meshes, point clouds, implicit functions, built-in shapes.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog='Example: lamina solve poisson sphere --rhs "-6*x*y" --exact "x*y" --spacing 0.05',
)
solve = typer.Typer(help="Solve a PDE on a surface.", no_args_is_help=True)
app.add_typer(solve, name="solve")
fit = typer.Typer(help="Fit a neural representation to a surface.", no_args_is_help=True)
app.add_typer(fit, name="fit")


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Form(StrEnum):
    points = "points"


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


SurfaceArg = Annotated[
    str,
    typer.Argument(help="A file (OBJ, PLY, STL, OFF, GLB, XYZ, NPZ) or sphere, torus, ellipsoid, spike, starfruit."),
]
Exact = Annotated[
    str | None, typer.Option(help="Exact solution in x, y, z (and t for heat); adds errors to the report.")
]
Spacing = Annotated[float | None, typer.Option(help="Grid spacing; by default chosen from the shape.")]
Nodes = Annotated[int | None, typer.Option(help="About how many grid nodes, instead of a spacing.")]
Order = Annotated[int | None, typer.Option(help="Order of accuracy, 2 or 4.")]
Extension = Annotated[str, typer.Option(help="auto, closest-point, jet or attention (the paper's network).")]
Scheme = Annotated[str, typer.Option(help="auto, coupled, trace or shell (the paper's).")]
Weights = Annotated[Path | None, typer.Option(help="With --extension attention: weights other than those shipped.")]
BandRadius = Annotated[
    float | None, typer.Option(help="With --scheme shell: radius of the band; by default 4.5 spacings.")
]
Readout = Annotated[str, typer.Option(help="With --scheme shell: interpolation or rbf.")]
As = Annotated[Form | None, typer.Option("--as", help="Sample the surface first and solve on the samples.")]
Samples = Annotated[int, typer.Option(help="With --as points: how many samples.")]
Noise = Annotated[
    float, typer.Option(help="With --as points: standard deviation of the noise added to each coordinate.")
]
Seed = Annotated[int, typer.Option(help="With --as points: seed of the sampling.")]
DeviceOpt = Annotated[Device, typer.Option(help="Where to compute.")]
DType = Annotated[Precision, typer.Option(help="Precision.")]
Out = Annotated[Path | None, typer.Option(help="Folder for solution.ply, solution.png, report.json.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]


@solve.command("poisson")
def solve_poisson(
    surface: SurfaceArg,
    rhs: Annotated[str, typer.Option(help="Right-hand side f of Laplacian(u) = f, in x, y, z.")],
    exact: Exact = None,
    screening: Annotated[float, typer.Option(help="c in Laplacian(u) - c u = f.")] = 0.0,
    tolerance: Annotated[float | None, typer.Option(help="Relative residual to reach.")] = None,
    spacing: Spacing = None,
    nodes: Nodes = None,
    order: Order = None,
    extension: Extension = "auto",
    scheme: Scheme = "auto",
    weights: Weights = None,
    band_radius: BandRadius = None,
    readout: Readout = "interpolation",
    form: As = None,
    samples: Samples = 10000,
    noise: Noise = 0.0,
    seed: Seed = 0,
    device: DeviceOpt = Device.cpu,
    dtype: DType = Precision.float64,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Solve Laplacian(u) = f; on a closed surface u has zero mean and the mean of f is removed."""
    from lamina.expression import parse
    from lamina.pde.poisson import poisson

    run = _Run("poisson", json_, out)
    f, true = parse(rhs), None if exact is None else parse(exact)
    domain = run.domain(
        surface, form, samples, noise, seed, spacing=spacing, nodes=nodes, order=order, extension=extension,
        scheme=scheme, weights=weights, band_radius=band_radius, readout=readout, device=device.value,
        dtype=dtype.value,
    )  # fmt: skip
    u = poisson(domain, f, screening=screening, tolerance=tolerance, show_progress=run.progress)
    if true is not None:
        run.add_errors(u.values, true(run.true_points), remove_mean=screening == 0)
    run.finish(u, {"rhs": rhs, "exact": exact, "screening": screening})


@solve.command("heat")
def solve_heat(
    surface: SurfaceArg,
    initial: Annotated[str, typer.Option(help="Initial state, in x, y, z.")],
    time_: Annotated[float, typer.Option("--time", help="How long to diffuse.")],
    exact: Exact = None,
    snapshots: Annotated[
        int, typer.Option(help="Keep (and check against --exact) so many equally spaced moments.")
    ] = 1,
    steps: Annotated[int | None, typer.Option(help="Equal steps; by default adaptive.")] = None,
    accuracy: Annotated[float, typer.Option(help="Error of an adaptive step over the range of u.")] = 1e-5,
    method: Annotated[str | None, typer.Option(help="tr-bdf2 or euler (explicit; the shell scheme's).")] = None,
    tolerance: Annotated[float | None, typer.Option(help="Relative residual of each linear solve.")] = None,
    spacing: Spacing = None,
    nodes: Nodes = None,
    order: Order = None,
    extension: Extension = "auto",
    scheme: Scheme = "auto",
    weights: Weights = None,
    band_radius: BandRadius = None,
    readout: Readout = "interpolation",
    form: As = None,
    samples: Samples = 10000,
    noise: Noise = 0.0,
    seed: Seed = 0,
    device: DeviceOpt = Device.cpu,
    dtype: DType = Precision.float64,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Solve du/dt = Laplacian(u) from an initial state."""
    from lamina.expression import parse
    from lamina.pde.heat import heat

    run = _Run("heat", json_, out)
    start, true = parse(initial), None if exact is None else parse(exact, variables=("x", "y", "z", "t"))
    if snapshots < 1:
        raise InputError(f"--snapshots must be at least 1, got {snapshots}.")
    domain = run.domain(
        surface, form, samples, noise, seed, spacing=spacing, nodes=nodes, order=order, extension=extension,
        scheme=scheme, weights=weights, band_radius=band_radius, readout=readout, device=device.value,
        dtype=dtype.value,
    )  # fmt: skip
    moments = [time_ * (i + 1) / snapshots for i in range(snapshots)]
    u = heat(
        domain, start, time_, times=moments, steps=steps, accuracy=accuracy, method=method, tolerance=tolerance,
        show_progress=run.progress,
    )  # fmt: skip
    if true is not None:
        for moment, values in zip(u.times, u.snapshots, strict=True):
            run.add_errors(values, true(run.true_points, t=moment), time=moment)
    run.finish(u, {"initial": initial, "time": time_, "exact": exact, "method": method})


@app.command()
def info(surface: SurfaceArg, json_: Json = False) -> None:
    """Say what a surface is: representation, size, area, parts, thickness, the spacing lamina would use."""
    from lamina.schemes import choose_scheme
    from lamina.sizing import choose_spacing, describe
    from lamina.surfaces.files import load

    shape = load(surface)
    why, scheme, order = choose_scheme(shape, "auto", None, None)
    facts = describe(shape) | {"scheme": scheme, "scheme_reason": why, "order": order}
    facts |= {"default_spacing": choose_spacing(shape, scheme), "notes": shape.notes}
    _print_facts(facts, json_)


@app.command()
def train(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for checkpoint, log and the trained network.")],
    surface: Annotated[str, typer.Option(help="Surface to train on: a fitted SNS, another file, or a name.")] = "spike",
    held_out: Annotated[str, typer.Option(help="Surface to validate on.")] = "starfruit",
    steps: Annotated[int, typer.Option(help="Steps of Adam.")] = 10000,
    batch: Annotated[int, typer.Option(help="Patches a step.")] = 256,
    rate: Annotated[float, typer.Option(help="Largest step size of Adam.")] = 3e-3,
    alpha: Annotated[float, typer.Option(help="Weight of the normal-consistency loss.")] = 1e-2,
    grids: Annotated[int, typer.Option(help="Lattices that patches are taken from.")] = 4,
    samples: Annotated[int, typer.Option(help="Surface samples a patch and step.")] = 256,
    validate_every: Annotated[int, typer.Option(help="Steps between validations and checkpoints.")] = 1000,
    k: Annotated[int, typer.Option(help="Band nodes of a patch.")] = 400,
    width: Annotated[int, typer.Option(help="Width of the networks.")] = 64,
    depth: Annotated[int, typer.Option(help="Linear layers of each network.")] = 2,
    activation: Annotated[str, typer.Option(help="relu, silu, gelu or tanh.")] = "relu",
    features: Annotated[str, typer.Option(help="Any of points,normals,curvatures; none for none.")] = "points,normals",
    strength: Annotated[float, typer.Option(help="First value of lambda.")] = 1.0,
    fixed_strength: Annotated[bool, typer.Option("--fixed-strength", help="Do not train lambda.")] = False,
    spacing: Annotated[float, typer.Option(help="Grid spacing of the training data.")] = 0.05,
    radius: Annotated[float, typer.Option(help="Radius of the band, in spacings.")] = 4.5,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint and settings.")] = False,
    stop_after: Annotated[int | None, typer.Option(help="Stop after this step, to go on later.")] = None,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Train the paper's attention network on patches of a surface; torchrun shares the work among processes."""
    from lamina.learn.checkpoint import load_tensors
    from lamina.learn.network import NetworkConfig
    from lamina.learn.training import RESUME, TrainingConfig
    from lamina.learn.training import train as run
    from lamina.progress import progress
    from lamina.surfaces.files import load

    chosen = () if features == "none" else tuple(f.strip() for f in features.split(","))
    shape = NetworkConfig(k, width, depth, activation, chosen, strength, not fixed_strength, spacing)
    plan = TrainingConfig(
        steps=steps, batch=batch, rate=rate, alpha=alpha, radius=radius, grids=grids, samples=samples,
        validate_every=validate_every, seed=seed,
    )  # fmt: skip
    if resume:
        steps = load_tensors(out / RESUME)[1].get("training", {}).get("steps", steps)
    last: dict[str, Any] = {}
    first = os.environ.get("RANK", "0") == "0"  # one of several processes speaks for all
    with progress("training", False if json_ or not first else None) as update:

        def report(step: int, figures: dict[str, float]) -> None:
            last.update({"step": step, **figures})
            held = f"held-out error {last['held_out_mse']:.3g}" if "held_out_mse" in last else ""
            update(step / steps, f"step {step}  {held}")

        run(
            load(surface), load(held_out), out, None if resume else shape, None if resume else plan,
            device=device.value, resume=resume, stop_after=stop_after, report=report,
        )  # fmt: skip
    if first:
        _print_facts({"out": str(out), **last}, json_)


@fit.command("sns")
def fit_spherical(
    surface: SurfaceArg,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the network, .safetensors.")],
    steps: Annotated[int, typer.Option(help="Steps of Adam.")] = 4000,
    width: Annotated[int, typer.Option(help="Width of the network.")] = 128,
    depth: Annotated[int, typer.Option(help="Hidden layers of the network.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Fit a spherical neural surface, a network from the sphere to space, to a closed surface of genus 0."""
    from lamina.learn.sns import SNSConfig, fit_error, fit_sns, save_sns, sphere_target
    from lamina.progress import progress
    from lamina.surfaces.files import load

    start = time.perf_counter()
    target = sphere_target(load(surface))
    with progress("fitting", False if json_ else None) as update:
        config = SNSConfig(width=width, depth=depth)
        model = fit_sns(target, config, steps=steps, seed=seed, device=device.value, report=update)
    seconds = time.perf_counter() - start
    save_sns(out, model)
    error = fit_error(model.to("cpu"), target)
    facts = {"position_error": error.position, "largest_error": error.worst, "normal_error_degrees": error.normal}
    _print_facts({"out": str(out), "steps": steps, "seconds": seconds, **facts}, json_)


class _Run:
    """One solve from surface to files: what it took, what came out."""

    def __init__(self, problem: str, as_json: bool, out: Path | None):
        self.problem, self.as_json, self.out = problem, as_json, out
        self.progress = False if as_json else None
        self.seconds: dict[str, float] = {}
        self.errors: dict[str, Any] = {}
        self.start = time.perf_counter()

    def domain(
        self,
        name: str,
        form: Form | None,
        samples: int,
        noise: float,
        seed: int,
        *,
        dtype: str,
        extension: Any,
        weights: Path | None,
        **options: Any,
    ):
        import torch

        from lamina.domain import Domain
        from lamina.extension.attention import Attention
        from lamina.surfaces.files import load

        if weights is not None:
            if extension not in ("attention", "auto"):
                raise InputError(f"--weights goes with --extension attention, not with {extension}.")
            extension = Attention(weights)
        surface = load(name)
        original = surface
        if form is not None:
            surface = sampled(surface, samples, noise, seed)
        elif noise:
            raise InputError("--noise goes with --as points, which samples the surface first.")
        self.seconds["load"] = time.perf_counter() - self.start
        domain = Domain(
            surface, extension=extension, dtype=getattr(torch, dtype), show_progress=self.progress, **options
        )
        # The samples are noisy, the exact solution is not: it is taken on the original surface below them.
        points = domain.points
        if form is not None:
            points = original.closest_points(points.to("cpu", torch.float64)).points.to(points)
        self.true_points, self.component = points, domain.component
        self.seconds |= {"band": domain.seconds["geometry"], "extension": domain.seconds["operators"]}
        return domain

    def add_errors(self, values: Any, exact: Any, *, remove_mean: bool = False, time: float | None = None) -> None:
        from lamina.metrics import errors

        component = self.component if remove_mean else None
        found = errors(values, exact, remove_mean=remove_mean, component=component).as_dict()
        self.errors |= found
        if time is not None:
            self.errors.setdefault("errors_over_time", []).append({"time": time, **found})

    def finish(self, u: Any, asked: dict[str, Any]) -> None:
        self.seconds["solve"] = u.seconds
        self.seconds["total"] = time.perf_counter() - self.start
        report = {"problem": self.problem, **asked, **u.report(), "seconds": self.seconds, **self.errors}
        if self.out is not None:
            report["files"] = [str(p) for p in self._write(u, report)]
        _print_facts(report, self.as_json)

    def _write(self, u: Any, report: dict[str, Any]) -> list[Path]:
        from lamina.export import atomic_write

        assert self.out is not None
        title = f"{self.problem} on {u.domain.surface.name}"
        files = [u.save(self.out / "solution.ply"), u.plot(self.out / "solution.png", title=title)]
        path = self.out / "report.json"
        text = json.dumps({**report, "files": [str(p) for p in [*files, path]]}, indent=2)
        atomic_write(path, lambda file: file.write(text.encode()))
        return [*files, path]


def sampled(surface: Any, samples: int, noise: float, seed: int):
    """The surface as a point cloud: random samples by area, with its normals, or noisy and without them."""
    import torch

    from lamina.surfaces.point_cloud import PointCloud

    if samples < 20:
        raise InputError(f"--samples must be at least 20, got {samples}.")
    if noise < 0:
        raise InputError(f"--noise must be >= 0, got {noise:g}.")
    drawn = surface.sample(samples, seed)
    if noise == 0:
        return PointCloud(drawn.points, drawn.normals, name=f"{surface.name} samples")
    generator = torch.Generator().manual_seed(seed + 1)
    shift = noise * torch.randn(drawn.points.shape, generator=generator, dtype=torch.float64)
    return PointCloud(drawn.points + shift.to(drawn.points), name=f"noisy {surface.name} samples")


def _print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
        return
    width = max(len(k) for k in facts)
    for key, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v:.3g}" for k, v in value.items())
        elif isinstance(value, float):
            value = f"{value:.6g}"
        elif isinstance(value, list):
            value = f"\n{' ' * (width + 2)}".join(str(v) for v in value) or "none"
        print(f"{key:<{width}}  {value}")


def main() -> None:
    """Run the program; bad input exits with 2, a failed solve with 1, each with one sentence on stderr."""
    try:
        app()
    except InputError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(2)
    except SolveError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(1)
