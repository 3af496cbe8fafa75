"""Training of the network of robust fits on clouds of one surface.

Let e be the error of a fit, and exp(l) the error that the network expects of it. The loss is l + e exp(-l), the
negative log-likelihood of an exponential distribution. At its minimum exp(l) is the mean error of such fits, and the
loss is the mean of its logarithm, so that clean and noisy clouds count alike. The cross-entropy of the predicted
outliers is added.
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
from lamina.learn.fit_data import CloudSource, FitData, fit_data
from lamina.learn.schedule import warm_cosine
from lamina.reconstruction.fit_network import FitConfig, FitNetwork, NetworkOutput
from lamina.reconstruction.weights import save_fit_network
from lamina.surfaces.base import Surface
from lamina.surfaces.spherical_map import SphericalMap

NETWORK_FILE, TRAINING_LOG = "neural.safetensors", "log.jsonl"  # written to the folder of a training
# Weights and limits, chosen by trial.
NORMAL_ERROR_WEIGHT = 0.5  # of an error of the normal, against an error of the position in units of the spacing
MAX_TRAINING_ERROR = 10.0  # spacings: a larger error counts as this
MISSED_OUTLIER_WEIGHT = 4.0  # of an outlier that is missed, against a good sample that is taken for an outlier
MAX_GRADIENT_NORM = 1.0  # a longer gradient is shortened to this
HELD_OUT_CLOUDS, HELD_OUT_NEIGHBOURHOODS = 24, 256  # clouds of the held-out surface, and neighbourhoods of each

Report = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class FitTraining:
    """The settings of a training."""

    steps: int = 3500  # of Adam
    batch: int = 2048  # neighbourhoods of 64 samples in each step; of larger ones as many as have the same samples
    rate: float = 3e-3  # peak of the learning rate
    clouds: int = 240  # for each size of neighbourhoods
    samples: int = 768  # neighbourhoods of each cloud
    validate_every: int = 500  # steps
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "clouds", "samples", "validate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.rate > 0:
            raise InputError(f"rate must be positive, got {self.rate:g}.")


def fit_errors(fits: NetworkOutput, clean_points: Tensor, clean_normals: Tensor) -> Tensor:
    """RMS error (n,) of fits at clean points (n, t, 3) with clean normals (n, t, 3) of either sign."""
    away, normals = fits.quadrics.offset(clean_points.double())
    turned = 2 - 2 * dot(normals, clean_normals.double()).abs().clamp(max=1)
    away = away.clamp(-MAX_TRAINING_ERROR, MAX_TRAINING_ERROR)
    return (away.square() + NORMAL_ERROR_WEIGHT**2 * turned + 1e-10).mean(1).sqrt()


def loss_of(fits: NetworkOutput, error: Tensor, outlier: Tensor) -> Tensor:
    """The loss () of fits with errors (n,); outlier (n,): 1 where the sample is one, else 0."""
    likelihood = fits.log_error + error * torch.exp(-fits.log_error)
    weight = torch.full_like(fits.outlier_logit[:1], MISSED_OUTLIER_WEIGHT)
    return likelihood.mean() + binary_cross_entropy_with_logits(fits.outlier_logit, outlier, pos_weight=weight)


@torch.no_grad()
def validation(network: FitNetwork, data: list[FitData]) -> dict[str, float]:
    """The loss on held-out data, and two figures for each size of neighbourhoods.

    These are the mean error of a cloud, as a geometric mean over clouds, and the share of samples that are wrongly
    taken for outliers or wrongly not.
    """
    figures: dict[str, float] = {}
    loss = 0.0
    for part in data:
        logs = wrong = 0.0
        every = torch.arange(part.points.shape[1], device=part.points.device)
        for cloud in range(len(part)):
            near, clean_points, clean_normals, outlier = part.rows(torch.full_like(every, cloud), every)
            fits = network(near)
            error = fit_errors(fits, clean_points, clean_normals)
            loss += float(loss_of(fits, error, outlier)) / len(part) / len(data)
            logs += math.log(float(error.mean())) / len(part)
            wrong += float(((fits.outlier_logit > 0) != (outlier > 0)).double().mean()) / len(part)
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
    """Train on clouds of one surface, validate on clouds of another, and write network and log to a folder.

    Raises InputError unless both surfaces are star-shaped maps of the sphere, and SolveError if the training diverges.
    """
    config, plan, folder, device = config or FitConfig(), plan or FitTraining(), Path(folder), available(device)
    data = _data(surface, config.neighbours, plan.clouds, plan.samples, plan.seed, device)
    unseen = _data(held_out, config.neighbours, HELD_OUT_CLOUDS, HELD_OUT_NEIGHBOURHOODS, plan.seed + 1, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        network = FitNetwork(config).to(device)
    adam = torch.optim.Adam(network.parameters(), lr=plan.rate)
    generator = torch.Generator().manual_seed(plan.seed)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with (folder / TRAINING_LOG).open("w") as log:
        for step in range(1, plan.steps + 1):
            loss = sum((_batch_loss(network, part, plan, generator) for part in data), torch.zeros((), device=device))
            adam.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT_NORM)
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
    notes = {"training": asdict(plan), "surface": surface.name, "held_out": held_out.name}
    save_fit_network(folder / NETWORK_FILE, network, **notes)
    return network


def _batch_loss(network: FitNetwork, data: FitData, plan: FitTraining, generator: torch.Generator) -> Tensor:
    # The cost of a batch is in proportion to its samples, so large neighbourhoods get smaller batches.
    size = max(1, plan.batch * 64 // data.points.shape[2])
    cloud = torch.randint(len(data), (size,), generator=generator).to(data.points.device)
    sample = torch.randint(data.points.shape[1], (size,), generator=generator).to(data.points.device)
    near, clean_points, clean_normals, outlier = data.rows(cloud, sample)
    fits = network(near)
    return loss_of(fits, fit_errors(fits, clean_points, clean_normals), outlier)


def _data(
    surface: Surface, sizes: tuple[int, ...], clouds: int, samples: int, seed: int, device: torch.device
) -> list[FitData]:
    if not isinstance(surface, SphericalMap):
        raise InputError(
            f"The learned operator is trained on star-shaped maps of the sphere, such as spike, not on "
            f"{surface.name!r} ({surface.representation})."
        )
    source = CloudSource(surface, seed)
    return [fit_data(source, k, clouds, samples, seed).to(device) for k in sizes]
