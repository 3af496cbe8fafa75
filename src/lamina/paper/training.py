"""Training the attention network on patches of one surface.

Everything random in step i comes from a generator seeded with (seed, i), so that an interrupted run that is taken up
again from its checkpoint, network and moments of Adam, goes through the same numbers. With several processes
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
from lamina.paper.attention_network import AttentionNetwork, NetworkConfig
from lamina.paper.loss import losses
from lamina.paper.training_data import PatchData, draw, patch_data, whole
from lamina.paper.weights import FORMAT, network_from, save_network
from lamina.surfaces.base import Surface

RESUME, FINAL, LOG = "checkpoint.safetensors", "attention.safetensors", "log.jsonl"
BETAS, MOMENTS = (0.9, 0.999), ("exp_avg", "exp_avg_sq")
CLIP = 0.1  # largest norm of a gradient, several times what is usual: one wild step can end a run
VALIDATION_BATCH = 32

Report = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class TrainingConfig:
    """steps of `batch` patches; alpha: weight of L_NC. radius: of the band, over its spacing. grids, validation_grids:
    lattices that patches are taken from. samples: of the surface, a patch and step. rate: first of Adam's step sizes,
    which rise over `warm_up` steps and fall to nothing by a cosine."""

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
    """A network on its way: parameters, Adam and its moments, the step; names: of the surfaces, if it was resumed."""

    def __init__(
        self, network: AttentionNetwork, config: TrainingConfig, step: int = 0, names: dict[str, str] | None = None
    ):
        self.network, self.config, self.step, self.names = network, config, step, names or {}
        self.adam = torch.optim.Adam(network.parameters(), lr=config.rate, betas=BETAS)

    @classmethod
    def fresh(cls, network: NetworkConfig, config: TrainingConfig, device: torch.device | str) -> Trainer:
        # Drawn on the CPU: the same start on every device.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(AttentionNetwork(network).to(device), config)

    @classmethod
    def resumed(cls, path: Path, device: torch.device | str) -> Trainer:
        tensors, metadata = load_tensors(path)
        network = network_from(tensors, metadata, path).to(device)
        if "step" not in metadata:
            raise InputError(f"{path} holds a network, not a run to be resumed; start a new run.")
        names = {key: metadata[key] for key in ("surface", "held_out") if key in metadata}
        trainer = cls(network, TrainingConfig(**metadata["training"]), metadata["step"], names)
        for name, parameter in network.named_parameters():
            moments = {key: tensors[f"adam.{key}.{name}"].to(device) for key in MOMENTS}
            trainer.adam.state[parameter] = {"step": torch.tensor(float(trainer.step)), **moments}
        return trainer

    def save(self, path: Path, **notes: Any) -> None:
        tensors = dict(self.network.state_dict())
        for name, parameter in self.network.named_parameters():
            tensors |= {f"adam.{key}.{name}": self.adam.state[parameter][key] for key in MOMENTS}
        state = {"config": self.network.config.as_dict(), "training": asdict(self.config), "step": self.step}
        save_tensors(path, tensors, {"format": FORMAT, **state, **notes})

    def advance(self, data: PatchData) -> tuple[Tensor, Tensor]:
        """One step; its losses."""
        rank, processes = _place()
        config = self.config
        generator = torch.Generator().manual_seed(_mixed(config.seed, self.step))
        which = torch.randint(len(data), (config.batch,), generator=generator)
        # Each process draws for all, so that the batch is the same however many share it.
        batch = draw(data, which, config.samples, generator)
        share = slice(rank * config.batch // processes, (rank + 1) * config.batch // processes)
        part = type(batch)(*(getattr(batch, name)[share] for name in batch.__dataclass_fields__))
        mse, nc = losses(self.network, part, config.alpha > 0)
        parameters = list(self.network.parameters())
        weight = (share.stop - share.start) / config.batch
        gradients = torch.autograd.grad(weight * (mse + config.alpha * nc), parameters)
        *gradients, mse, nc = _summed([*gradients, weight * mse.detach(), weight * nc.detach()])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
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
    """L_MSE and L_NC over all patches of data, as they are."""
    total = torch.zeros(2, dtype=torch.float64)
    for which in torch.arange(len(data), device=data.nodes.device).split(VALIDATION_BATCH):
        found = losses(network, whole(data, which, samples))
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

    resume: go on from the checkpoint in the folder, with its configuration; the result is that of an uninterrupted run
    to the last bit, on the same machine. stop_after: end early, after that step, leaving a checkpoint.
    sources: where the surfaces came from, kept in the checkpoint.
    report(step, figures) is called after every step, with the losses at every validation.
    """
    folder = Path(folder)
    if stop_after is not None and stop_after < 1:
        raise InputError(f"stop_after must be at least 1, got {stop_after}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made a folder for the results: {error.strerror or error}.") from error
    names = {"surface": surface.name, "held_out": held_out.name}
    with _processes(available(device)) as device:
        rank, processes = _place()
        path = folder / RESUME
        if resume:
            if network is not None or config is not None:
                raise InputError("A run that is resumed has the configuration of its checkpoint; give none.")
            trainer = Trainer.resumed(path, device)
            if trainer.names and trainer.names != names:
                raise InputError(
                    f"The run in {folder} has surfaces {' and '.join(trainer.names.values())}; got {surface.name} "
                    f"and {held_out.name}: resume it with its own."
                )
        else:
            trainer = Trainer.fresh(network or NetworkConfig(), config or TrainingConfig(), device)
        config, shape = trainer.config, trainer.network.config
        if config.batch < processes:
            raise InputError(f"A batch of {config.batch} cannot be shared by {processes} processes; use a larger one.")
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
                    _log(folder / LOG, {"step": trainer.step, **figures}, fresh=not (resume or logged))
                    logged = True
            report(trainer.step, figures)
        if rank == 0 and trainer.step == config.steps:
            save_network(folder / FINAL, trainer.network, training=asdict(config), **names)
        return trainer.network


def _log(path: Path, line: dict[str, Any], fresh: bool) -> None:
    with path.open("w" if fresh else "a") as file:
        file.write(json.dumps(line) + "\n")


def _mixed(seed: int, step: int) -> int:
    """A seed for one step: torch's generator keeps the low 32 bits only, which must depend on both."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1)[0])


# Several processes


def _place() -> tuple[int, int]:
    """Rank of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@contextmanager
def _processes(device: torch.device | str) -> Iterator[torch.device]:
    """Join the other processes where torchrun has started several; the device of this one."""
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


def _summed(tensors: list[Tensor]) -> list[Tensor]:
    """The sums of tensors over all processes, in one exchange."""
    if _place()[1] == 1:
        return tensors
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    parts = flat.split([t.numel() for t in tensors])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]
