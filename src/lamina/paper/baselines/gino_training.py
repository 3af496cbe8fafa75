"""Training GINO on solved problems: shapes with f and u at their points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from lamina.device import available
from lamina.errors import InputError, SolveError
from lamina.learn.schedule import warm_cosine
from lamina.paper.baselines.gino import GINO, GINOConfig, Shape, normalised

# Gradients are scaled down to this norm, so that a single wild step does not ruin a run. Chosen by trial.
MAX_GRADIENT_NORM_GINO = 1.0
STEPS_BETWEEN_REPORTS = 50

Report = Callable[[int, dict[str, float]], None]  # the step, and figures of the steps since the last report


@dataclass(frozen=True)
class Example:
    """A solved problem Lap u = f on one shape."""

    points: Tensor  # (n, 3) in the box of the configuration
    areas: Tensor  # (n,) share of the area of each
    f: Tensor  # (n,)
    u: Tensor  # (n,) of zero mean
    distance: Tensor  # (grid, grid, grid) signed distances of the nodes, as gino.signed_distances gives them


def train_gino(
    examples: Sequence[Example],
    config: GINOConfig | None = None,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    rate: float = 1e-3,
    seed: int = 0,
    device: torch.device | str = "cpu",
    report: Report | None = None,
) -> GINO:
    """A network that minimises |u - network(f)|^2 / |u|^2 over the examples, one a step, in random order, by Adam.

    Training ends after `steps` or `seconds`, whichever comes first. The step size rises to `rate` over the first
    twentieth of the run and falls to zero by a cosine. The seed determines the start and the order. On a GPU, sums over
    neighbours have no fixed order, so that runs differ by rounding. report(step, {"loss", "rate", "seconds"}) is called
    every 50 steps and at the end, with the mean loss since the last call. Raises SolveError if the loss is not finite.
    """
    if not examples or not (steps or seconds) or min(steps or 1, seconds or 1.0) <= 0:
        raise InputError(
            f"got {len(examples)} examples, steps = {steps}, seconds = {seconds}; expected at least one example, and "
            "positive steps, seconds, or both."
        )
    device = available(device)
    config = config or GINOConfig()
    shapes, given, wanted, scale = _prepared(examples, config, device)
    with torch.random.fork_rng(devices=[]):  # drawn on the CPU, so that the start is the same on every device
        torch.manual_seed(seed)
        gino = GINO(config, scale).to(device)
    adam = torch.optim.Adam(gino.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    start, step, done, order = perf_counter(), 0, 0.0, []
    total, since = torch.zeros((), device=device), 0
    while done < 1:
        if not order:
            order = torch.randperm(len(examples), generator=generator).tolist()
        i = order.pop()
        for group in adam.param_groups:
            group["lr"] = rate * warm_cosine(done)
        loss = relative_square(gino.normalised_solution(shapes[i], given[i]), wanted[i])
        adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gino.parameters(), MAX_GRADIENT_NORM_GINO, foreach=False)
        adam.step()
        total, since, step = total + loss.detach(), since + 1, step + 1
        elapsed = perf_counter() - start
        done = max(step / steps if steps else 0.0, elapsed / seconds if seconds else 0.0)
        if since == STEPS_BETWEEN_REPORTS or done >= 1:
            mean = float(total) / since
            if not math.isfinite(mean):
                raise SolveError(f"the loss was {mean} at step {step}: training diverged; lower the rate, {rate:g}.")
            if report is not None:
                report(step, {"loss": mean, "rate": adam.param_groups[0]["lr"], "seconds": perf_counter() - start})
            total, since = torch.zeros_like(total), 0
    return gino.requires_grad_(False)


def relative_square(found: Tensor, wanted: Tensor) -> Tensor:
    """|found - wanted|^2 / |wanted|^2, of vectors (n,)."""
    return (found - wanted).square().sum() / wanted.square().sum()


def _prepared(
    examples: Sequence[Example], config: GINOConfig, device: torch.device
) -> tuple[list[Shape], list[Tensor], list[Tensor], float]:
    """Shapes, f over its size, u over (size of f times scale), and the scale with which the last has mean square 1."""
    shapes, given, wanted = [], [], []
    for example in examples:
        points, areas, f, u, distance = (
            getattr(example, name).to(device, torch.float32) for name in ("points", "areas", "f", "u", "distance")
        )
        if f.shape != points.shape[:1] or u.shape != f.shape:
            raise InputError(
                f"an example has {len(points)} points, f of shape {tuple(f.shape)} and u of shape {tuple(u.shape)}; "
                "expected one number for each point."
            )
        shape = Shape.build(points, areas, distance, config)
        g, size = normalised(f, shape.weights)
        u = (u - (shape.weights * u).sum()) / size
        if not bool(torch.isfinite(g).all() and torch.isfinite(u).all() and u.abs().max() > 0):
            raise InputError("an example has an f or u that is constant or not finite; leave it out.")
        shapes.append(shape)
        given.append(g)
        wanted.append(u)
    scale = float(torch.stack([u.square().mean() for u in wanted]).mean().sqrt())
    return shapes, given, [u / scale for u in wanted], scale
