"""`lamina fit`: fit a neural representation to a surface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.cli.options import Device, DeviceOpt, Json, SurfaceArg, print_facts, print_next_command

fit = typer.Typer(help="Fit a neural representation to a surface.", no_args_is_help=True)
FieldOut = Annotated[Path, typer.Option("--out", "-o", help="File for the network, .safetensors.")]
FieldSteps = Annotated[int | None, typer.Option(help="Steps of Adam.")]
FieldWidth = Annotated[int | None, typer.Option(help="Width of the network.")]
FieldDepth = Annotated[int | None, typer.Option(help="Hidden layers of the network.")]
FieldSamples = Annotated[int | None, typer.Option(help="Points where distances are learnt; by default 200000.")]
FieldActivation = Annotated[str | None, typer.Option(help="sin, relu, softplus, elu, silu, gelu or tanh.")]
FieldSeed = Annotated[int, typer.Option(help="Seed of all random numbers.")]


@fit.command("siren", short_help="Fit a SIREN (signed distances, sines).")
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
    """Fit a SIREN, a sine network whose values are signed distances, to a surface with an inside."""
    _fit_fields("siren", [surface], out, seed, device, json_, steps=steps, width=width, depth=depth, pool=samples)


@fit.command("occupancy", short_help="Fit an occupancy network.")
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
    """Fit an occupancy network, whose values are logits of being inside, to a surface with an inside."""
    _fit_fields(
        "occupancy", [surface], out, seed, device, json_,
        steps=steps, width=width, depth=depth, pool=samples, activation=activation,
    )  # fmt: skip


@fit.command("deepsdf", short_help="Fit a DeepSDF to several surfaces.")
def fit_deepsdf(
    surfaces: Annotated[
        list[str], typer.Argument(help="One or several surfaces with an inside, in the same position.")
    ],
    out: FieldOut,
    steps: FieldSteps = None,
    width: FieldWidth = None,
    depth: FieldDepth = None,
    samples: FieldSamples = None,
    activation: FieldActivation = None,
    latent: Annotated[int | None, typer.Option(help="Length of each surface's code.")] = None,
    seed: FieldSeed = 0,
    device: DeviceOpt = Device.cpu,
    json_: Json = False,
) -> None:
    """Fit a DeepSDF auto-decoder: one network, with a code for each of several surfaces."""
    _fit_fields(
        "deepsdf", surfaces, out, seed, device, json_,
        steps=steps, width=width, depth=depth, pool=samples, activation=activation, latent=latent,
    )  # fmt: skip


def _fit_fields(
    kind: str, surfaces: list[str], out: Path, seed: int, device: Device, as_json: bool, **given: Any
) -> None:
    from lamina.learn.field_fit import fit_from_surfaces, plan_for
    from lamina.progress import progress
    from lamina.surfaces.fields import save_field
    from lamina.surfaces.files import load

    plan = plan_for(kind, **{key: value for key, value in given.items() if value is not None})
    with progress("fitting", False if as_json else None) as update:
        field, facts = fit_from_surfaces(
            [load(name) for name in surfaces], plan, seed=seed, device=device.value, report=update
        )
    facts["seed"] = seed
    print_facts({"out": str(save_field(out, field, fit=facts)), **facts}, as_json)
    print_next_command("look at it", "view", out, as_json)


@fit.command("sns", short_help="Fit a spherical neural surface.")
def fit_spherical(
    surface: SurfaceArg,
    out: FieldOut,
    steps: Annotated[int, typer.Option(help="Steps of Adam.")] = 4000,
    width: Annotated[int, typer.Option(help="Width of the network.")] = 128,
    depth: Annotated[int, typer.Option(help="Hidden layers of the network.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
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
    print_next_command("look at it", "view", out, json_)
