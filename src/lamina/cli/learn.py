"""lamina train, lamina fit."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.cli.options import RESULT, Device, DeviceOpt, Json, SurfaceArg, print_facts, say_next

# Headings of the options of train in the help.
TRAINING, DATA, NETWORK = "Training", "What it learns from", "The network"


class Operator(enum.StrEnum):
    attention = "attention"
    neural = "neural"


fit = typer.Typer(help="Fit a neural representation to a surface.", no_args_is_help=True)


def train(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for checkpoint, log and the trained network.", rich_help_panel=RESULT),
    ],
    operator: Annotated[
        Operator,
        typer.Option(
            help="attention, the paper's network, or neural, lamina's own; most options are the former's.",
            rich_help_panel=TRAINING,
        ),
    ] = Operator.attention,
    surface: Annotated[
        str | None, typer.Option(help="Surface to train on, a fitted SNS or other; spike.", rich_help_panel=DATA)
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Surface to validate on; by default starfruit.", rich_help_panel=DATA)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of Adam; 10000, or 3500 of neural.", rich_help_panel=TRAINING)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Patches a step; 256, or 2048 of neural.", rich_help_panel=TRAINING)
    ] = None,
    rate: Annotated[float, typer.Option(help="Largest step size of Adam.", rich_help_panel=TRAINING)] = 3e-3,
    alpha: Annotated[
        float, typer.Option(help="Weight of the normal-consistency loss.", rich_help_panel=TRAINING)
    ] = 1e-2,
    grids: Annotated[int, typer.Option(help="Lattices that patches are taken from.", rich_help_panel=DATA)] = 4,
    clouds: Annotated[
        int | None, typer.Option(help="Damaged clouds that neural learns from; 240.", rich_help_panel=DATA)
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples a patch; 256, or 768 a cloud of neural.", rich_help_panel=DATA)
    ] = None,
    validate_every: Annotated[
        int, typer.Option(help="Steps between validations and checkpoints.", rich_help_panel=TRAINING)
    ] = 1000,
    k: Annotated[int, typer.Option(help="Band nodes of a patch.", rich_help_panel=NETWORK)] = 400,
    width: Annotated[int, typer.Option(help="Width of the networks.", rich_help_panel=NETWORK)] = 64,
    depth: Annotated[int, typer.Option(help="Linear layers of each network.", rich_help_panel=NETWORK)] = 2,
    surface_width: Annotated[
        int | None, typer.Option(help="Width of the surface network, if another.", rich_help_panel=NETWORK)
    ] = None,
    surface_depth: Annotated[
        int | None, typer.Option(help="Its linear layers, if others.", rich_help_panel=NETWORK)
    ] = None,
    activation: Annotated[str, typer.Option(help="relu, silu, gelu or tanh.", rich_help_panel=NETWORK)] = "relu",
    features: Annotated[
        str, typer.Option(help="Any of points,normals,curvatures; none for none.", rich_help_panel=NETWORK)
    ] = "points,normals",
    strength: Annotated[float, typer.Option(help="First value of lambda.", rich_help_panel=NETWORK)] = 1.0,
    fixed_strength: Annotated[
        bool, typer.Option("--fixed-strength", help="Do not train lambda.", rich_help_panel=NETWORK)
    ] = False,
    spacing: Annotated[float, typer.Option(help="Grid spacing of the training data.", rich_help_panel=DATA)] = 0.05,
    radius: Annotated[float, typer.Option(help="Radius of the band, in spacings.", rich_help_panel=DATA)] = 4.5,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", rich_help_panel=TRAINING)] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the folder's checkpoint and settings.", rich_help_panel=TRAINING),
    ] = False,
    stop_after: Annotated[
        int | None, typer.Option(help="Stop after this step, to go on later.", rich_help_panel=TRAINING)
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.", rich_help_panel=TRAINING)] = Device.cpu,
    json_: Json = False,
) -> None:
    """Train the network of an extension operator on a surface; torchrun shares the work for attention."""
    if operator is Operator.neural:
        asked = {"steps": steps, "batch": batch, "clouds": clouds, "samples": samples}
        chosen = {key: value for key, value in asked.items() if value is not None}
        _train_fits(surface or "spike", held_out or "starfruit", out, device, json_, rate=rate, seed=seed, **chosen)
        return
    from lamina.io.safetensor_files import load_tensors
    from lamina.paper.attention_network import NetworkConfig
    from lamina.paper.training import FINAL, RESUME, TrainingConfig
    from lamina.paper.training import train as run
    from lamina.progress import progress
    from lamina.surfaces.files import load

    chosen = () if features == "none" else tuple(f.strip() for f in features.split(","))
    shape = NetworkConfig(
        k, width, depth, activation, chosen, strength, not fixed_strength, spacing, surface_width, surface_depth
    )
    plan = TrainingConfig(
        steps=10000 if steps is None else steps, batch=256 if batch is None else batch, rate=rate, alpha=alpha,
        radius=radius, grids=grids, samples=256 if samples is None else samples, validate_every=validate_every,
        seed=seed,
    )  # fmt: skip
    count = plan.steps
    before = ("spike", "starfruit")
    if resume:
        kept = load_tensors(out / RESUME)[1]
        count = kept.get("training", {}).get("steps", count)
        before = kept.get("sources") or ("spike", "starfruit")
    sources = (surface or before[0], held_out or before[1])
    last: dict[str, Any] = {}
    first = os.environ.get("RANK", "0") == "0"  # one of several processes speaks for all
    with progress("training", False if json_ or not first else None) as update:

        def report(step: int, figures: dict[str, float]) -> None:
            last.update({"step": step, **figures})
            held = f"held-out error {last['held_out_mse']:.3g}" if "held_out_mse" in last else ""
            update(step / count, f"step {step}  {held}")

        run(
            load(sources[0]), load(sources[1]), out, None if resume else shape, None if resume else plan,
            device=device.value, resume=resume, stop_after=stop_after, sources=sources, report=report,
        )  # fmt: skip
    if first:
        print_facts({"out": str(out), **last}, json_)
        say_next("use it", "solve poisson sphere --rhs x --extension attention --weights", out / FINAL, json_)


def _train_fits(surface: str, held_out: str, out: Path, device: Device, as_json: bool, **asked: Any) -> None:
    from lamina.learn.fit_training import FitTraining, train_fits
    from lamina.progress import progress
    from lamina.surfaces.files import load

    plan = FitTraining(**asked)
    last: dict[str, Any] = {}
    with progress("training", False if as_json else None) as update:

        def report(step: int, figures: dict[str, float]) -> None:
            last.update({"step": step, **figures})
            held = f"held-out loss {last['held_out_loss']:.3g}" if "held_out_loss" in last else ""
            update(step / plan.steps, f"step {step}  {held}")

        train_fits(load(surface), load(held_out), out, plan=plan, device=device.value, report=report)
    print_facts({"out": str(out), **last}, as_json)


FieldOut = Annotated[Path, typer.Option("--out", "-o", help="File for the network, .safetensors.")]
FieldSteps = Annotated[int | None, typer.Option(help="Steps of Adam.")]
FieldWidth = Annotated[int | None, typer.Option(help="Width of the network.")]
FieldDepth = Annotated[int | None, typer.Option(help="Hidden layers of the network.")]
FieldSamples = Annotated[int | None, typer.Option(help="Places at which distances are learnt; 200000.")]
FieldActivation = Annotated[str | None, typer.Option(help="sin, relu, softplus, elu, silu, gelu or tanh.")]
FieldSeed = Annotated[int, typer.Option(help="Seed of everything random.")]


@fit.command("siren")
def fit_siren(
    surface: SurfaceArg,
    out: FieldOut,
    steps: FieldSteps = None,
    width: FieldWidth = None,
    depth: FieldDepth = None,
    samples: FieldSamples = None,
    seed: FieldSeed = 0,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Fit a SIREN, a network with sines whose values are signed distances, to a surface that has an inside."""
    _fit_fields("siren", [surface], out, seed, device, json_, steps=steps, width=width, depth=depth, pool=samples)


@fit.command("occupancy")
def fit_occupancy(
    surface: SurfaceArg,
    out: FieldOut,
    steps: FieldSteps = None,
    width: FieldWidth = None,
    depth: FieldDepth = None,
    samples: FieldSamples = None,
    activation: FieldActivation = None,
    seed: FieldSeed = 0,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Fit an occupancy network, whose values are logits of being inside, to a surface that has an inside."""
    _fit_fields(
        "occupancy", [surface], out, seed, device, json_,
        steps=steps, width=width, depth=depth, pool=samples, activation=activation,
    )  # fmt: skip


@fit.command("deepsdf")
def fit_deepsdf(
    surfaces: Annotated[list[str], typer.Argument(help="One or several surfaces with an inside, in one place.")],
    out: FieldOut,
    steps: FieldSteps = None,
    width: FieldWidth = None,
    depth: FieldDepth = None,
    samples: FieldSamples = None,
    activation: FieldActivation = None,
    latent: Annotated[int | None, typer.Option(help="Length of the code of each surface.")] = None,
    seed: FieldSeed = 0,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Fit a DeepSDF auto-decoder, one network with a code for each of several surfaces."""
    _fit_fields(
        "deepsdf", surfaces, out, seed, device, json_,
        steps=steps, width=width, depth=depth, pool=samples, activation=activation, latent=latent,
    )  # fmt: skip


def _fit_fields(
    kind: str, surfaces: list[str], out: Path, seed: int, device: Device, as_json: bool, **asked: Any
) -> None:
    from lamina.learn.field_fit import fit_from_surfaces, plan_for
    from lamina.progress import progress
    from lamina.surfaces.fields import save_field
    from lamina.surfaces.files import load

    plan = plan_for(kind, **{key: value for key, value in asked.items() if value is not None})
    with progress("fitting", False if as_json else None) as update:
        field, facts = fit_from_surfaces(
            [load(name) for name in surfaces], plan, seed=seed, device=device.value, report=update
        )
    facts["seed"] = seed
    print_facts({"out": str(save_field(out, field, fit=facts)), **facts}, as_json)
    say_next("look at it", "view", out, as_json)


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
    from lamina.learn.sns import fit_from_surface
    from lamina.progress import progress
    from lamina.surfaces.files import load
    from lamina.surfaces.sns import SNSConfig, save_sns

    config = SNSConfig(width=width, depth=depth)
    with progress("fitting", False if json_ else None) as update:
        model, facts = fit_from_surface(
            load(surface), config, steps=steps, seed=seed, device=device.value, report=update
        )
    print_facts({"out": str(save_sns(out, model)), **facts}, json_)
    say_next("look at it", "view", out, json_)
