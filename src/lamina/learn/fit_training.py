"""Training the network of the learned operator on clouds of one surface.

The loss of a fit with the error e, of which the network expects exp(l), is l + e exp(-l): the likelihood of an
exponential distribution. At its minimum exp(l) is the mean error of such fits, and the loss the mean of its logarithm,
so that clean and noisy clouds count alike. To it comes the cross-entropy of what it says about outliers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lamina.device import available
from lamina.errors import InputError, SolveError
from lamina.geometry.triangles import dot
from lamina.learn.fit_data import FitData, Source, fit_data
from lamina.learn.schedule import warm_cosine
from lamina.reconstruction.fit_network import FitConfig, FitNetwork, Fits
from lamina.reconstruction.weights import save_fit_network
from lamina.surfaces.base import Surface
from lamina.surfaces.spherical_map import SphericalMap

FINAL, LOG = "neural.safetensors", "log.jsonl"
NORMALS = 0.5  # of an error of the normal against one of the position, in units of the spacing
FARTHEST = 10.0  # spacings: beyond, an error is not worse
MISSED = 4.0  # of an outlier that is missed against a sample that is taken for one
CLIP = 1.0  # largest norm of a gradient
VALIDATION = 24  # clouds of the held-out surface

Report = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class FitTraining:
    """steps of Adam with `batch` neighbourhoods of each size; clouds of each size, `samples` neighbourhoods of each."""

    steps: int = 3500
    batch: int = 2048
    rate: float = 3e-3
    clouds: int = 240
    samples: int = 768
    validate_every: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "clouds", "samples", "validate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.rate > 0:
            raise InputError(f"rate must be positive, got {self.rate:g}.")


def fit_errors(fits: Fits, places: Tensor, looks: Tensor) -> Tensor:
    """RMS error (n,) of fits at clean places (n, t, 3) with normals looks (n, t, 3), of either sign."""
    away, ours = fits.quadrics.offset(places.double())
    turned = 2 - 2 * dot(ours, looks.double()).abs().clamp(max=1)
    return (away.clamp(-FARTHEST, FARTHEST).square() + NORMALS**2 * turned + 1e-10).mean(1).sqrt()


def loss_of(fits: Fits, error: Tensor, off: Tensor) -> Tensor:
    likelihood = fits.log_error + error * torch.exp(-fits.log_error)
    weight = torch.full_like(fits.off[:1], MISSED)
    return likelihood.mean() + binary_cross_entropy_with_logits(fits.off, off, pos_weight=weight)


@torch.no_grad()
def validation(network: FitNetwork, data: list[FitData]) -> dict[str, float]:
    """Loss; for each size of neighbourhoods the mean error of a cloud, as a geometric mean over clouds, and the share
    of samples wrongly taken for outliers or not."""
    figures: dict[str, float] = {}
    loss = 0.0
    for part in data:
        logs = wrong = 0.0
        every = torch.arange(part.points.shape[1], device=part.points.device)
        for cloud in range(len(part)):
            near, places, looks, off = part.rows(torch.full_like(every, cloud), every)
            fits = network(near)
            error = fit_errors(fits, places, looks)
            loss += float(loss_of(fits, error, off)) / len(part) / len(data)
            logs += math.log(float(error.mean())) / len(part)
            wrong += float(((fits.off > 0) != (off > 0)).double().mean()) / len(part)
        k = part.points.shape[2]
        figures |= {f"held_out_error_{k}": math.exp(logs), f"held_out_wrong_{k}": wrong}
    return {"held_out_loss": loss, **figures}


def train_fits(
    surface: Surface,
    held_out: Surface,
    folder: str | Path,
    config: FitConfig | None = None,
    plan: FitTraining | None = None,
    *,
    device: torch.device | str = "cpu",
    report: Report = lambda step, figures: None,
) -> FitNetwork:
    """Train on clouds of a surface, validate on those of another; write log and network to a folder."""
    config, plan, folder, device = config or FitConfig(), plan or FitTraining(), Path(folder), available(device)
    data = _data(surface, config.neighbours, plan.clouds, plan.samples, plan.seed, device)
    unseen = _data(held_out, config.neighbours, VALIDATION, 256, plan.seed + 1, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        network = FitNetwork(config).to(device)
    adam = torch.optim.Adam(network.parameters(), lr=plan.rate)
    generator = torch.Generator().manual_seed(plan.seed)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with (folder / LOG).open("w") as log:
        for step in range(1, plan.steps + 1):
            loss = sum((_batch_loss(network, part, plan, generator) for part in data), torch.zeros((), device=device))
            adam.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            if not bool(torch.isfinite(norm)):
                raise SolveError(f"Training diverged at step {step}: the gradient is not finite; use a smaller rate.")
            for group in adam.param_groups:
                group["lr"] = plan.rate * warm_cosine(step / plan.steps)
            adam.step()
            figures: dict[str, float] = {}
            if step % plan.validate_every == 0 or step == plan.steps:
                seconds = time.perf_counter() - start
                figures = {"loss": float(loss.detach()) / len(data), **validation(network, unseen), "seconds": seconds}
                log.write(json.dumps({"step": step, **figures}) + "\n")
                log.flush()
            report(step, figures)
    save_fit_network(folder / FINAL, network, training=asdict(plan), surface=surface.name, held_out=held_out.name)
    return network


def _batch_loss(network: FitNetwork, data: FitData, plan: FitTraining, generator: torch.Generator) -> Tensor:
    # As many samples of either size cost as much: large neighbourhoods get smaller batches.
    size = max(1, plan.batch * 64 // data.points.shape[2])
    cloud = torch.randint(len(data), (size,), generator=generator).to(data.points.device)
    sample = torch.randint(data.points.shape[1], (size,), generator=generator).to(data.points.device)
    near, places, looks, off = data.rows(cloud, sample)
    fits = network(near)
    return loss_of(fits, fit_errors(fits, places, looks), off)


def _data(
    surface: Surface, sizes: tuple[int, ...], clouds: int, samples: int, seed: int, device: torch.device
) -> list[FitData]:
    if not isinstance(surface, SphericalMap):
        raise InputError(
            f"The learned operator is trained on star-shaped maps of the sphere, such as spike, not on "
            f"{surface.name!r} ({surface.representation})."
        )
    source = Source(surface, seed)
    return [fit_data(source, k, clouds, samples, seed).to(device) for k in sizes]
