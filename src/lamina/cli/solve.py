"""`lamina solve` and `lamina info`."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.cli.conditions import ClipOpt, DirichletOpt, NeumannOpt, RobinOpt, conditions
from lamina.cli.options import (
    EQUATION_PANEL,
    RESULT_PANEL,
    TIME_PANEL,
    Activation,
    As,
    BandRadius,
    Bounds,
    Denoise,
    Device,
    DeviceOpt,
    DType,
    Exact,
    Extension,
    FieldKind,
    GroupedCommand,
    Json,
    Latent,
    Level,
    Nodes,
    Noise,
    Omega,
    Order,
    Out,
    Precision,
    Readout,
    ReconstructionOpt,
    SampleForm,
    Samples,
    Scheme,
    Seed,
    Spacing,
    SurfaceArg,
    Viewpoint,
    Weights,
    as_order,
    print_facts,
    print_next_command,
    reading_options,
)
from lamina.cli.spots import initial_spots
from lamina.errors import InputError

PLAYED_STATES = 24  # States of an animation or of a page that plays, where --frames does not say how many.
MIN_CLI_SAMPLES = 20  # Fewer samples are refused: they do not show what the surface is.

solve = typer.Typer(help="Solve a PDE on a surface.", no_args_is_help=True)


@solve.command("poisson", cls=GroupedCommand)
def solve_poisson(
    surface: SurfaceArg,
    rhs: Annotated[
        str, typer.Option(help="Right-hand side f of Laplacian(u) = f, in x, y, z.", rich_help_panel=EQUATION_PANEL)
    ],
    screening: Annotated[
        float, typer.Option(help="c in Laplacian(u) - c u = f.", rich_help_panel=EQUATION_PANEL)
    ] = 0.0,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative residual to reach.", rich_help_panel=EQUATION_PANEL)
    ] = None,
    dirichlet: DirichletOpt = None,
    neumann: NeumannOpt = None,
    robin: RobinOpt = None,
    clip: ClipOpt = None,
    spacing: Spacing = None,
    nodes: Nodes = None,
    order: Order = None,
    reconstruction: ReconstructionOpt = "auto",
    extension: Extension = "auto",
    scheme: Scheme = None,
    weights: Weights = None,
    band_radius: BandRadius = None,
    readout: Readout = None,
    form: As = None,
    samples: Samples = 10000,
    noise: Noise = 0.0,
    seed: Seed = 0,
    denoise: Denoise = False,
    activation: Activation = None,
    omega: Omega = None,
    field: FieldKind = None,
    level: Level = None,
    bounds: Bounds = None,
    latent: Latent = None,
    viewpoint: Viewpoint = None,
    device: DeviceOpt = Device.cpu,
    dtype: DType = Precision.float64,
    exact: Exact = None,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Solve Laplacian(u) = f. On a closed surface the mean of f is removed and u has zero mean."""
    run = _Run("poisson", json_, out)

    from lamina.expression import parse
    from lamina.pde.poisson import poisson

    f, true = parse(rhs), None if exact is None else parse(exact)
    reading = reading_options(activation, omega, field, level, bounds, latent, viewpoint)
    domain = run.domain(
        surface, form, samples, noise, seed, reading=reading, denoise=denoise, clip=clip, spacing=spacing, nodes=nodes,
        order=as_order(order), reconstruction=reconstruction, extension=extension, weights=weights,
        device=device.value, dtype=dtype.value,
        baseline={"scheme": scheme, "band_radius": band_radius, "readout": readout},
    )  # fmt: skip
    given = conditions(dirichlet, neumann, robin)
    run.conditions = [*(dirichlet or ()), *(neumann or ()), *(robin or ())]
    u = poisson(domain, f, given, screening=screening, tolerance=tolerance, show_progress=run.progress)
    if true is not None:
        run.add_errors(u, u.values, true, remove_mean=screening == 0 and not (dirichlet or robin))
    options = {"dirichlet": dirichlet, "neumann": neumann, "robin": robin, "clip": clip}
    run.finish(u, {"rhs": rhs, "exact": exact, "screening": screening, **_without_none(options)})


@solve.command("heat", cls=GroupedCommand)
def solve_heat(
    surface: SurfaceArg,
    initial: Annotated[
        str | None,
        typer.Option(
            help="Initial state, in x, y, z; by default hot and cold spots that suit the shape.",
            rich_help_panel=EQUATION_PANEL,
        ),
    ] = None,
    time_: Annotated[
        float | None,
        typer.Option(
            "--time",
            help="How long to diffuse; by default until the default spots have fallen to half.",
            rich_help_panel=TIME_PANEL,
        ),
    ] = None,
    snapshots: Annotated[
        int,
        typer.Option(
            help="Number of equally spaced times at which u is kept and compared with --exact.",
            rich_help_panel=TIME_PANEL,
        ),
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option(help="Number of equal steps; by default steps are adaptive.", rich_help_panel=TIME_PANEL),
    ] = None,
    accuracy: Annotated[
        float, typer.Option(help="Largest error of an adaptive step, over the range of u.", rich_help_panel=TIME_PANEL)
    ] = 1e-5,
    frames: Annotated[
        int | None,
        typer.Option(
            help="Number of equally spaced states to play, from the first to the last; 24 with --out and without "
            "--initial.",
            rich_help_panel=TIME_PANEL,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="tr-bdf2, or euler (explicit steps, for --scheme shell).", rich_help_panel=TIME_PANEL),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative residual of each linear solve.", rich_help_panel=TIME_PANEL)
    ] = None,
    dirichlet: DirichletOpt = None,
    neumann: NeumannOpt = None,
    robin: RobinOpt = None,
    clip: ClipOpt = None,
    spacing: Spacing = None,
    nodes: Nodes = None,
    order: Order = None,
    reconstruction: ReconstructionOpt = "auto",
    extension: Extension = "auto",
    scheme: Scheme = None,
    weights: Weights = None,
    band_radius: BandRadius = None,
    readout: Readout = None,
    form: As = None,
    samples: Samples = 10000,
    noise: Noise = 0.0,
    seed: Seed = 0,
    denoise: Denoise = False,
    activation: Activation = None,
    omega: Omega = None,
    field: FieldKind = None,
    level: Level = None,
    bounds: Bounds = None,
    latent: Latent = None,
    viewpoint: Viewpoint = None,
    device: DeviceOpt = Device.cpu,
    dtype: DType = Precision.float64,
    exact: Exact = None,
    out: Out = None,
    gif: Annotated[
        bool,
        typer.Option("--gif", help="With --out: also write an animation, solution.gif.", rich_help_panel=RESULT_PANEL),
    ] = False,
    mp4: Annotated[
        bool,
        typer.Option("--mp4", help="With --out: also write solution.mp4; needs ffmpeg.", rich_help_panel=RESULT_PANEL),
    ] = False,
    json_: Json = False,
) -> None:
    """Solve du/dt = Laplacian(u) from an initial state."""
    run = _Run("heat", json_, out)

    from lamina.expression import parse
    from lamina.pde.heat import heat

    if initial is not None:
        parse(initial)  # a bad formula is refused before anything is built
    true = None if exact is None else parse(exact, variables=("x", "y", "z", "t"))
    if snapshots < 1:
        raise InputError(f"--snapshots must be at least 1, got {snapshots}.")
    if (gif or mp4) and out is None:
        raise InputError("--gif and --mp4 need --out, the folder to write to.")
    # The default spots are there to be watched: the page of their solution plays from the first state to the last.
    plays = out is not None and initial is None and exact is None and snapshots == 1 and steps is None
    if (gif or mp4 or plays) and frames is None:
        frames = PLAYED_STATES
    reading = reading_options(activation, omega, field, level, bounds, latent, viewpoint)
    domain = run.domain(
        surface, form, samples, noise, seed, reading=reading, denoise=denoise, clip=clip, spacing=spacing, nodes=nodes,
        order=as_order(order), reconstruction=reconstruction, extension=extension, weights=weights,
        device=device.value, dtype=dtype.value,
        baseline={"scheme": scheme, "band_radius": band_radius, "readout": readout},
    )  # fmt: skip
    low, high = domain.surface.bounds
    half = float((high - low).max()) / 2
    spots, spreading = initial_spots(domain.points, half, domain.resolution)
    initial = spots if initial is None else initial
    time_ = spreading if time_ is None else time_
    run.conditions = [*(dirichlet or ()), *(neumann or ()), *(robin or ())]
    moments = [time_ * ((i + 1) / snapshots) for i in range(snapshots)]
    u = heat(
        domain, parse(initial), time_, conditions(dirichlet, neumann, robin),
        times=moments, frames=frames, steps=steps, accuracy=accuracy, method=method, tolerance=tolerance,
        show_progress=run.progress,
    )  # fmt: skip
    if true is not None:
        for moment, values in zip(u.times, u.snapshots, strict=True):
            run.add_errors(u, values, partial(true, t=moment), time=moment)
    options = {"dirichlet": dirichlet, "neumann": neumann, "robin": robin, "clip": clip}
    run.animations = [name for name, wanted in (("solution.gif", gif), ("solution.mp4", mp4)) if wanted]
    run.finish(u, {"initial": initial, "time": time_, "exact": exact, "method": method, **_without_none(options)})


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def info(
    surface: SurfaceArg,
    activation: Activation = None,
    omega: Omega = None,
    field: FieldKind = None,
    level: Level = None,
    bounds: Bounds = None,
    latent: Latent = None,
    viewpoint: Viewpoint = None,
    json_: Json = False,
) -> None:
    """Print what is known of a surface: representation, size, area, parts, thickness, and the default grid."""
    from lamina.domain import default_grid
    from lamina.grid.sizing import describe
    from lamina.surfaces.files import load

    shape = load(surface, **reading_options(activation, omega, field, level, bounds, latent, viewpoint))
    chosen = default_grid(shape)
    facts = describe(shape) | {
        "order": chosen.order,
        "order_reason": chosen.order_reason,
        "default_spacing": chosen.spacing,
        "reconstruction": chosen.reconstruction.method,
        "reconstruction_reason": chosen.reconstruction.reason,
        **shape.facts,
    }
    if isinstance(dropped := getattr(shape, "dropped", None), dict):
        facts["dropped"] = dropped
    facts["notes"] = shape.notes
    print_facts(facts, json_)


class _Run:
    """One solve, from the surface to the files: its times, errors and report."""

    def __init__(self, problem: str, as_json: bool, out: Path | None):
        self.problem, self.as_json, self.out = problem, as_json, out
        self.progress = False if as_json else None
        self.seconds: dict[str, float] = {}
        self.errors: dict[str, Any] = {}
        self.exact: list[Callable[[Any], Any]] = []  # the exact states that u is compared with
        self.remove_mean = False
        self.conditions: list[str] = []  # as typed, in the order of the solver
        self.animations: list[str] = []
        self.start = time.perf_counter()

    def domain(
        self,
        name: str,
        form: SampleForm | None,
        samples: int,
        noise: float,
        seed: int,
        *,
        reading: dict[str, Any],
        denoise: bool,
        clip: str | None,
        dtype: str,
        extension: Any,
        weights: Path | None,
        baseline: dict[str, Any],
        **options: Any,
    ):
        import torch

        from lamina.domain import Domain
        from lamina.expression import parse
        from lamina.paper.attention import Attention
        from lamina.surfaces.clipped import clip as clipped
        from lamina.surfaces.files import load
        from lamina.surfaces.mesh import Mesh

        if weights is not None:
            if extension not in ("attention", "auto"):
                raise InputError(f"--weights goes with --extension attention, not with {extension}.")
            extension = Attention(weights)
        begin = time.perf_counter()
        surface = load(name, **reading)
        if denoise:
            if not isinstance(surface, Mesh):
                raise InputError(f"--denoise is for meshes; {name} is a {surface.representation}.")
            surface = surface.denoised()
        if clip is not None:
            surface = clipped(surface, parse(clip))
        original = surface
        if form is not None:
            surface = as_point_cloud(surface, samples, noise, seed)
        elif noise:
            raise InputError("--noise goes with --as points, which samples the surface first.")
        self.seconds["load"] = time.perf_counter() - begin
        # Options of baselines are passed only if they were given: lamina.Domain itself does not have them.
        options |= {name: value for name, value in baseline.items() if value is not None}
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always", FutureWarning)
            domain = Domain(
                surface, extension=extension, dtype=getattr(torch, dtype), show_progress=self.progress, **options
            )
        self.warnings_of_options = [str(w.message) for w in recorded if w.category is FutureWarning]
        self.original = None if form is None else original
        self.seconds |= {"band": domain.seconds["geometry"], "extension": domain.seconds["operators"]}
        return domain

    def true_points(self, points: Any) -> Any:
        """Where the exact solution is evaluated: for noisy samples, at the closest points of the original surface."""
        import torch

        if self.original is None:
            return points
        return self.original.closest_points(points.to("cpu", torch.float64)).points.to(points)

    def add_errors(self, u: Any, values: Any, exact: Callable[[Any], Any], *, remove_mean: bool = False,
                   time: float | None = None) -> None:  # fmt: skip
        from lamina.metrics import errors

        component = u.domain.component if remove_mean else None
        points = self.true_points(u.domain.points)
        found = errors(values, exact(points), remove_mean=remove_mean, component=component).as_dict()
        self.errors |= found
        self.exact.append(exact)
        self.remove_mean = remove_mean
        if time is not None:
            self.errors.setdefault("errors_over_time", []).append({"time": time, **found})

    def exact_states(self, shown: Any) -> Any:
        """The exact states at the points that are shown, with the means of u where u has free constants, or None."""
        import torch

        from lamina.metrics import aligned

        if not self.exact:
            return None
        points = self.true_points(shown.points)
        states = [exact(points) for exact in self.exact]
        if self.remove_mean:
            states = [aligned(e, v, shown.component) for e, v in zip(states, shown.values, strict=True)]
        return torch.stack([state.detach().cpu() for state in states])

    def finish(self, u: Any, problem: dict[str, Any]) -> None:
        self.seconds["solve"] = u.seconds
        report = {"problem": self.problem, **problem, **u.report(), **u.statistics()}
        report["warnings"] = [*self.warnings_of_options, *report["warnings"]]
        if self.conditions:
            report["flux"] = dict(zip(self.conditions, u.fluxes.tolist(), strict=True))
        report |= {"seconds": self.seconds, **self.errors}
        if self.out is not None:
            if u.drawn.note is not None:
                report["drawn"] = u.drawn.note
            report["files"] = [str(p) for p in self._write(u, report)]
        else:
            self._count_seconds()
        print_facts(report, self.as_json)
        if self.out is not None:
            print_next_command("look at it", "view", self.out, self.as_json)

    def _write(self, u: Any, report: dict[str, Any]) -> list[Path]:
        from lamina.io.export import atomic_write
        from lamina.surfaces.splats import own_formats
        from lamina.view.charts import plot_residuals

        assert self.out is not None
        title = f"{self.problem} on {u.domain.surface.name}"
        files = [u.save(self.out / "solution.ply"), u.plot(self.out / "solution.png", title=title)]
        files += [u.save(self.out / f"solution.{ending}") for ending in own_formats(u.domain.surface)]
        if u.drawn.note is not None and u.domain.surface.representation != "splats":
            files.append(u.save(self.out / "original.ply", refine=False))
        reference = self.exact_states(u.drawn)
        files.append(u.page(title=title, reference=reference, reference_name="exact").save(self.out / "solution.html"))
        files += [u.animate(self.out / name, title=title, show_progress=self.progress) for name in self.animations]
        if sum(r > 0 for r in u.residuals) > 1:
            falling = {self.problem: [r for r in u.residuals if r > 0]}
            files.append(plot_residuals(self.out / "residuals.png", falling, title=f"relative residual, {title}"))
        path = self.out / "report.json"
        self._count_seconds()
        text = json.dumps({**report, "files": [str(p) for p in [*files, path]]}, indent=2)
        atomic_write(path, lambda file: file.write(text.encode()))
        return [*files, path]

    def _count_seconds(self) -> None:
        """Record the whole time since the command began, including imports, reading and writing."""
        self.seconds["total"] = time.perf_counter() - self.start


def as_point_cloud(surface: Any, samples: int, noise: float, seed: int):
    """Random samples of the surface, uniform by area: with its normals, or with noise and without normals."""
    import torch

    from lamina.surfaces.point_cloud import PointCloud

    if samples < MIN_CLI_SAMPLES:
        raise InputError(f"--samples must be at least {MIN_CLI_SAMPLES}, got {samples}.")
    if noise < 0:
        raise InputError(f"--noise must be >= 0, got {noise:g}.")
    drawn = surface.sample(samples, seed)
    if noise == 0:
        return PointCloud(drawn.points, drawn.normals, name=f"{surface.name} samples")
    generator = torch.Generator().manual_seed(seed + 1)
    shift = noise * torch.randn(drawn.points.shape, generator=generator, dtype=torch.float64)
    return PointCloud(drawn.points + shift.to(drawn.points), name=f"noisy {surface.name} samples")
