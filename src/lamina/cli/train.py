"""`lamina paper train`: train the network of the CVPR 2026 paper, or that of lamina's own fits."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.cli.options import RESULT_PANEL, Device, Json, is_first_process, print_facts, print_next_command

# Headings of the options in the help.
TRAINING_PANEL = "Training"
DATA_PANEL = "What it learns from"
NETWORK_PANEL = "The network"
DEFAULT_SURFACES = ("spike", "starfruit")  # to train on, and to validate on


class Operator(enum.StrEnum):
    attention = "attention"
    neural = "neural"


def train(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for checkpoint, log and the trained network.", rich_help_panel=RESULT_PANEL
        ),
    ],
    operator: Annotated[
        Operator,
        typer.Option(
            help="Network to train: attention (the paper's) or neural (lamina's own). neural has no options for the "
            "network, and of the others it takes --surface, --held-out, --steps, --batch, --rate, --clouds, "
            "--samples, --seed, --device.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = Operator.attention,
    surface: Annotated[
        str | None, typer.Option(help="Surface to train on; by default spike.", rich_help_panel=DATA_PANEL)
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Surface to validate on; by default starfruit.", rich_help_panel=DATA_PANEL)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of Adam; by default 10000 (neural: 3500).", rich_help_panel=TRAINING_PANEL),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Patches in a step; by default 256 (neural: 2048 neighbourhoods).", rich_help_panel=TRAINING_PANEL
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Largest step size of Adam.", rich_help_panel=TRAINING_PANEL)] = 3e-3,
    alpha: Annotated[
        float, typer.Option(help="Weight of the normal-consistency loss.", rich_help_panel=TRAINING_PANEL)
    ] = 1e-2,
    grids: Annotated[
        int, typer.Option(help="Number of lattices that patches are taken from.", rich_help_panel=DATA_PANEL)
    ] = 4,
    clouds: Annotated[
        int | None,
        typer.Option(help="neural: damaged clouds of each size; by default 240.", rich_help_panel=DATA_PANEL),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Surface samples in a patch; by default 256 (neural: 768 neighbourhoods of a cloud).",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    validate_every: Annotated[
        int, typer.Option(help="Steps between validations and checkpoints.", rich_help_panel=TRAINING_PANEL)
    ] = 1000,
    k: Annotated[int, typer.Option(help="Grid nodes in a patch.", rich_help_panel=NETWORK_PANEL)] = 400,
    width: Annotated[int, typer.Option(help="Width of the networks.", rich_help_panel=NETWORK_PANEL)] = 64,
    depth: Annotated[int, typer.Option(help="Linear layers of each network.", rich_help_panel=NETWORK_PANEL)] = 2,
    surface_width: Annotated[
        int | None,
        typer.Option(help="Width of the surface network; by default --width.", rich_help_panel=NETWORK_PANEL),
    ] = None,
    surface_depth: Annotated[
        int | None,
        typer.Option(help="Linear layers of the surface network; by default --depth.", rich_help_panel=NETWORK_PANEL),
    ] = None,
    activation: Annotated[str, typer.Option(help="relu, silu, gelu or tanh.", rich_help_panel=NETWORK_PANEL)] = "relu",
    features: Annotated[
        str,
        typer.Option(
            help='What the surface network sees: any of points,normals,curvatures; or "none".',
            rich_help_panel=NETWORK_PANEL,
        ),
    ] = "points,normals",
    strength: Annotated[float, typer.Option(help="Initial value of lambda.", rich_help_panel=NETWORK_PANEL)] = 1.0,
    fixed_strength: Annotated[
        bool, typer.Option("--fixed-strength", help="Do not train lambda.", rich_help_panel=NETWORK_PANEL)
    ] = False,
    spacing: Annotated[
        float, typer.Option(help="Grid spacing of the training data.", rich_help_panel=DATA_PANEL)
    ] = 0.05,
    radius: Annotated[float, typer.Option(help="Radius of the band, in spacings.", rich_help_panel=DATA_PANEL)] = 4.5,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.", rich_help_panel=TRAINING_PANEL)] = 0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the checkpoint in the folder, with its settings.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = False,
    stop_after: Annotated[
        int | None,
        typer.Option(help="Stop after this step; --resume continues later.", rich_help_panel=TRAINING_PANEL),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.", rich_help_panel=TRAINING_PANEL)] = Device.cpu,
    json_: Json = False,
) -> None:
    """Train the network of a learned operator on a surface. torchrun runs attention in several processes."""
    if operator is Operator.neural:
        options = {"steps": steps, "batch": batch, "clouds": clouds, "samples": samples}
        given = {key: value for key, value in options.items() if value is not None}
        train_on, validate_on = surface or DEFAULT_SURFACES[0], held_out or DEFAULT_SURFACES[1]
        _train_fits(train_on, validate_on, out, device, json_, rate=rate, seed=seed, **given)
        return
    from lamina.io.safetensor_files import load_tensors
    from lamina.paper.attention_network import NetworkConfig
    from lamina.paper.attention_training import CHECKPOINT_FILE, NETWORK_FILE, TrainingConfig
    from lamina.paper.attention_training import train as run
    from lamina.progress import progress
    from lamina.surfaces.files import load

    named = () if features == "none" else tuple(f.strip() for f in features.split(","))
    network = NetworkConfig(
        k, width, depth, activation, named, strength, not fixed_strength, spacing, surface_width, surface_depth
    )
    plan = TrainingConfig(
        steps=10000 if steps is None else steps, batch=256 if batch is None else batch, rate=rate, alpha=alpha,
        radius=radius, grids=grids, samples=256 if samples is None else samples, validate_every=validate_every,
        seed=seed,
    )  # fmt: skip
    count = plan.steps
    defaults = DEFAULT_SURFACES
    if resume:
        checkpoint = load_tensors(out / CHECKPOINT_FILE)[1]
        count = checkpoint.get("training", {}).get("steps", count)
        defaults = checkpoint.get("sources") or DEFAULT_SURFACES
    sources = (surface or defaults[0], held_out or defaults[1])
    last: dict[str, Any] = {}
    prints = is_first_process()
    with progress("training", False if json_ or not prints else None) as update:

        def report(step: int, figures: dict[str, float]) -> None:
            last.update({"step": step, **figures})
            held = f"held-out error {last['held_out_mse']:.3g}" if "held_out_mse" in last else ""
            update(step / count, f"step {step}  {held}")

        run(
            load(sources[0]), load(sources[1]), out, None if resume else network, None if resume else plan,
            device=device.value, resume=resume, stop_after=stop_after, sources=sources, report=report,
        )  # fmt: skip
    if prints:
        print_facts({"out": str(out), **last}, json_)
        command = "solve poisson sphere --rhs x --extension attention --weights"
        print_next_command("use it", command, out / NETWORK_FILE, json_)


def _train_fits(surface: str, held_out: str, out: Path, device: Device, as_json: bool, **given: Any) -> None:
    from lamina.learn.fit_training import FitTraining, train_fits
    from lamina.progress import progress
    from lamina.surfaces.files import load

    plan = FitTraining(**given)
    last: dict[str, Any] = {}
    with progress("training", False if as_json else None) as update:

        def report(step: int, figures: dict[str, float]) -> None:
            last.update({"step": step, **figures})
            held = f"held-out loss {last['held_out_loss']:.3g}" if "held_out_loss" in last else ""
            update(step / plan.steps, f"step {step}  {held}")

        train_fits(load(surface), load(held_out), out, plan=plan, device=device.value, report=report)
    print_facts({"out": str(out), **last}, as_json)
