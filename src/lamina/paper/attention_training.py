"""Training the attention network on patches of one surface.

All random numbers of step i come from a generator seeded with (seed, i). A run that is resumed from its checkpoint (the
network and the moments of Adam) therefore draws the same numbers as an uninterrupted one. With several processes
(torchrun) each takes its share of every batch, and gradients are averaged.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lamina.device import available
from lamina.errors import InputError
from lamina.io.safetensor_files import load_tensors, save_tensors
from lamina.paper.attention_loss import losses
from lamina.paper.attention_network import AttentionNetwork, NetworkConfig
from lamina.paper.attention_training_data import PatchData, draw, fixed_batch, patch_data
from lamina.paper.attention_weights import ATTENTION_FORMAT, network_from, save_network
from lamina.surfaces.base import Surface

CHECKPOINT_FILE = "checkpoint.safetensors"
NETWORK_FILE = "attention.safetensors"
LOG_FILE = "log.jsonl"
ADAM_BETAS = (0.9, 0.999)
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")  # the names that torch gives them
# Gradients are scaled down to this norm. Usual gradients are several times smaller, so that it acts on outliers only:
# a single wild step can ruin a run.
MAX_GRADIENT_NORM_ATTENTION = 0.1
VALIDATION_BATCH = 32  # patches at a time

Report = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a training run.

    steps: of Adam, with `batch` patches each. rate: largest step size of Adam; step sizes rise to it over `warm_up`
    steps and fall to zero by a cosine. alpha: weight of L_NC. radius: of the band, over its spacing. grids,
    validation_grids: number of lattices that patches are taken from. samples: surface samples in a patch, in each step.
    validate_every: steps between validations.
    """

    steps: int = 10000
    batch: int = 256
    rate: float = 3e-3
    warm_up: int = 500
    alpha: float = 1e-2
    radius: float = 4.5
    grids: int = 4
    validation_grids: int = 1
    samples: int = 256
    validate_every: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "grids", "validation_grids", "samples", "validate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must lie between 0 and 2^63, got {self.seed}.")
        if not (self.rate > 0 and self.alpha >= 0 and self.radius > 0):
            raise InputError("rate and radius must be positive and alpha >= 0.")


class Trainer:
    """The state of a run: network, Adam, step. names: of the surfaces, if the run was resumed."""

    def __init__(
        self, network: AttentionNetwork, config: TrainingConfig, step: int = 0, names: dict[str, str] | None = None
    ):
        self.network, self.config, self.step, self.names = network, config, step, names or {}
        self.adam = torch.optim.Adam(network.parameters(), lr=config.rate, betas=ADAM_BETAS)

    @classmethod
    def fresh(cls, network: NetworkConfig, config: TrainingConfig, device: torch.device | str) -> Trainer:
        # Drawn on the CPU, so that the start is the same on every device.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(AttentionNetwork(network).to(device), config)

    @classmethod
    def resumed(cls, path: Path, device: torch.device | str) -> Trainer:
        tensors, metadata = load_tensors(path)
        network = network_from(tensors, metadata, path).to(device)
        if "step" not in metadata:
            raise InputError(f"{path} holds a network, not a checkpoint of a run; start a new run.")
        names = {key: metadata[key] for key in ("surface", "held_out") if key in metadata}
        trainer = cls(network, TrainingConfig(**metadata["training"]), metadata["step"], names)
        for name, parameter in network.named_parameters():
            moments = {key: tensors[f"adam.{key}.{name}"].to(device) for key in ADAM_MOMENTS}
            trainer.adam.state[parameter] = {"step": torch.tensor(float(trainer.step)), **moments}
        return trainer

    def save(self, path: Path, **notes: Any) -> None:
        tensors = dict(self.network.state_dict())
        for name, parameter in self.network.named_parameters():
            tensors |= {f"adam.{key}.{name}": self.adam.state[parameter][key] for key in ADAM_MOMENTS}
        state = {"config": self.network.config.as_dict(), "training": asdict(self.config), "step": self.step}
        save_tensors(path, tensors, {"format": ATTENTION_FORMAT, **state, **notes})

    def advance(self, data: PatchData) -> tuple[Tensor, Tensor]:
        """Take one step and return its losses."""
        rank, processes = _rank_and_count()
        config = self.config
        generator = torch.Generator().manual_seed(_seed_of_step(config.seed, self.step))
        which = torch.randint(len(data), (config.batch,), generator=generator)
        # Each process draws the whole batch, so that the batch does not depend on the number of processes.
        batch = draw(data, which, config.samples, generator)
        share = slice(rank * config.batch // processes, (rank + 1) * config.batch // processes)
        part = type(batch)(*(getattr(batch, name)[share] for name in batch.__dataclass_fields__))
        mse, nc = losses(self.network, part, config.alpha > 0)
        parameters = list(self.network.parameters())
        weight = (share.stop - share.start) / config.batch
        gradients = torch.autograd.grad(weight * (mse + config.alpha * nc), parameters)
        *gradients, mse, nc = _sum_over_processes([*gradients, weight * mse.detach(), weight * nc.detach()])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM_ATTENTION)
        for group in self.adam.param_groups:
            group["lr"] = self._rate()
        self.adam.step()
        self.step += 1
        return mse, nc

    def _rate(self) -> float:
        config = self.config
        rise = min(1.0, (self.step + 1) / max(1, config.warm_up))
        return config.rate * rise * 0.5 * (1 + math.cos(math.pi * self.step / config.steps))


@torch.no_grad()
def validation_error(network: AttentionNetwork, data: PatchData, samples: int) -> tuple[float, float]:
    """L_MSE and L_NC over all patches of data, without random rotations."""
    total = torch.zeros(2, dtype=torch.float64)
    for which in torch.arange(len(data), device=data.nodes.device).split(VALIDATION_BATCH):
        found = losses(network, fixed_batch(data, which, samples))
        total += len(which) * torch.stack(found).double().cpu()
    mse, nc = (total / len(data)).tolist()
    return mse, nc


def train(
    surface: Surface,
    held_out: Surface,
    folder: str | Path,
    network: NetworkConfig | None = None,
    config: TrainingConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    resume: bool = False,
    stop_after: int | None = None,
    sources: tuple[str, str] | None = None,
    report: Report = lambda step, figures: None,
) -> AttentionNetwork:
    """Train on patches of a surface, validate on those of another; write checkpoints, log and network to a folder.

    resume: continue from the checkpoint in the folder, with its configuration; on the same machine the result has the
    same bits as that of an uninterrupted run. stop_after: end after that step, with a checkpoint.
    sources: names or files of the surfaces, which are kept in the checkpoint.
    report(step, figures): called after every step; at validations the figures are the losses, otherwise empty.
    """
    folder = Path(folder)
    if stop_after is not None and stop_after < 1:
        raise InputError(f"stop_after must be at least 1, got {stop_after}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made as a folder for the results: {error.strerror or error}.") from error
    names = {"surface": surface.name, "held_out": held_out.name}
    with _process_group(available(device)) as device:
        rank, processes = _rank_and_count()
        path = folder / CHECKPOINT_FILE
        if resume:
            if network is not None or config is not None:
                raise InputError("A resumed run has the configuration of its checkpoint; leave network and config out.")
            trainer = Trainer.resumed(path, device)
            if trainer.names and trainer.names != names:
                raise InputError(
                    f"The run in {folder} has surfaces {' and '.join(trainer.names.values())}; got {surface.name} "
                    f"and {held_out.name}: resume it with its own surfaces."
                )
        else:
            trainer = Trainer.fresh(network or NetworkConfig(), config or TrainingConfig(), device)
        config, shape = trainer.config, trainer.network.config
        if config.batch < processes:
            raise InputError(
                f"A batch of {config.batch} cannot be shared by {processes} processes; use a larger batch."
            )
        radius = config.radius * shape.spacing
        data = patch_data(surface, shape, radius=radius, grids=config.grids, seed=config.seed).to(device)
        held = patch_data(held_out, shape, radius=radius, grids=config.validation_grids, seed=config.seed).to(device)
        start, logged = time.perf_counter(), False
        last = config.steps if stop_after is None else min(stop_after, config.steps)
        while trainer.step < last:
            mse, nc = trainer.advance(data)
            figures: dict[str, float] = {}
            if trainer.step % config.validate_every == 0 or trainer.step == last:
                figures = {"mse": float(mse), "nc": float(nc), "strength": float(trainer.network.strength.detach())}
                error = validation_error(trainer.network, held, config.samples)
                figures |= {"held_out_mse": error[0], "held_out_nc": error[1]}
                figures["seconds"] = round(time.perf_counter() - start, 1)
                if rank == 0:
                    trainer.save(path, sources=sources, **names)
                    _log(folder / LOG_FILE, {"step": trainer.step, **figures}, fresh=not (resume or logged))
                    logged = True
            report(trainer.step, figures)
        if rank == 0 and trainer.step == config.steps:
            save_network(folder / NETWORK_FILE, trainer.network, training=asdict(config), **names)
        return trainer.network


def _log(path: Path, line: dict[str, Any], fresh: bool) -> None:
    with path.open("w" if fresh else "a") as file:
        file.write(json.dumps(line) + "\n")


def _seed_of_step(seed: int, step: int) -> int:
    """A seed for one step. The generator of torch keeps only the low 32 bits, which must depend on seed and step."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1)[0])


# Several processes


def _rank_and_count() -> tuple[int, int]:
    """Rank of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@contextmanager
def _process_group(device: torch.device | str) -> Iterator[torch.device]:
    """Join the other processes if torchrun started several, and yield the device of this one."""
    device = torch.device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def _sum_over_processes(tensors: list[Tensor]) -> list[Tensor]:
    """The sums of tensors over all processes, in one exchange."""
    if _rank_and_count()[1] == 1:
        return tensors
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    parts = flat.split([t.numel() for t in tensors])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]
