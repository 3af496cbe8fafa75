"""The network of lamina's learned operator: robust local fits of a surface to oriented samples.

Around each sample a quadric h(a, b) over a tangent plane is fitted to its k nearest neighbours by weighted least
squares. The network chooses the weights: in each of a few rounds it sees how the neighbours lie about the fit of the
round before, and says how much each one's position and normal shall count in the next, as iteratively reweighted least
squares do with a formula instead of a network. Lengths are in units of the local spacing of the samples, directions
about the normal do not matter. So it cannot be wrong by more than a weighted fit is: on clean samples of a smooth
surface any weights give the accuracy of a quadric, and outliers, other sheets, what lies beyond a crease, or noise are
weighted away. It also predicts the error of its fit, and whether the sample itself lies on the surface at all.

After DeepFit (Ben-Shabat and Gould 2020, "DeepFit: 3D surface fitting via neural network weighted least squares").
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina.geometry.neighbours import tangent_frames
from lamina.geometry.triangles import dot, unit

FEATURES = 11  # of a neighbour
OWN = 5  # of a sample, besides what its neighbours say
COEFFICIENTS = 6  # of a quadric: 1, a, b, a^2, ab, b^2
RIDGE = 1e-6  # of the mean diagonal, on the normal equations: settles what no neighbour says
FLAT = 1e-6  # spacings: residuals that are none
STEEPEST = 10.0  # a coefficient, all lengths in units of the radius


@dataclass(frozen=True)
class FitConfig:
    """width of the hidden layers; rounds of reweighting; neighbours: how many samples a fit sees, small to large."""

    width: int = 32
    rounds: int = 3
    neighbours: tuple[int, ...] = (64, 256)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Neighbourhoods:
    """n samples with their k nearest, the first the sample itself, around it and in units of the spacing."""

    points: Tensor  # (n, k, 3)
    normals: Tensor  # (n, k, 3)
    spacing: Tensor  # (n,)

    @classmethod
    def of(cls, points: Tensor, normals: Tensor, index: Tensor) -> Neighbourhoods:
        """Rows index (n, k) of samples (m, 3) with normals (m, 3)."""
        offset = points[index] - points[index[:, :1]]
        farthest = dot(offset, offset).amax(1).sqrt().clamp_min(torch.finfo(points.dtype).tiny)
        spacing = farthest * (math.pi / index.shape[1]) ** 0.5
        return cls(offset / spacing[:, None, None], normals[index], spacing)

    @property
    def radius(self) -> float:
        """Of every neighbourhood: pi r^2 = k."""
        return (self.points.shape[1] / math.pi) ** 0.5


@dataclass(frozen=True)
class Quadrics:
    """h(a, b) = sum c_ij a^i b^j over tangent planes at centres near the samples; units as in `Neighbourhoods`.

    a, b and h are divided by `radius`; the coefficients are those of 1, a, b, a^2, ab, b^2.
    """

    centres: Tensor  # (n, 3) relative to the sample
    frames: Tensor  # (n, 3, 3) rows t1, t2, n
    coefficients: Tensor  # (n, 6)
    radius: float

    def local(self, x: Tensor) -> Tensor:
        """x (n, q, 3), relative to the samples, in the frames and divided by the radius."""
        return (x - self.centres[:, None]) @ self.frames.transpose(1, 2) / self.radius

    def height(self, local: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h and its two slopes (n, q) at local coordinates (n, q, 3)."""
        a, b = local[..., 0], local[..., 1]
        c0, ca, cb, caa, cab, cbb = (c[:, None] for c in self.coefficients.unbind(1))
        h = c0 + a * (ca + caa * a + cab * b) + b * (cb + cbb * b)
        return h, ca + 2 * caa * a + cab * b, cb + cab * a + 2 * cbb * b

    def offset(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distance (n, q), to first order, and normal (n, q, 3) of the graphs below x (n, q, 3)."""
        local = self.local(x)
        h, ha, hb = self.height(local)
        level = (1 + ha * ha + hb * hb).rsqrt()
        normal = torch.stack([-ha * level, -hb * level, level], -1) @ self.frames
        return (local[..., 2] - h) * level * self.radius, normal


@dataclass(frozen=True)
class Fits:
    """What the network finds at n samples."""

    quadrics: Quadrics
    share: Tensor  # (n, k) in (0, 1): how much of each neighbour's position counts
    log_error: Tensor  # (n,) of the RMS error of the fit that is to be expected, in units of the spacing
    vote: Tensor  # (n,) in (-1, 1): whether the neighbours' normals look to the side of the fit's
    off: Tensor  # (n,) logit of the sample being an outlier


class FitNetwork(nn.Module):
    """Weights for the fits, and the error to be expected of them."""

    def __init__(self, config: FitConfig | None = None):
        super().__init__()
        self.config = config = config or FitConfig()
        width = config.width
        self.first = nn.ModuleList(nn.Linear(FEATURES, width) for _ in range(config.rounds))
        self.context = nn.ModuleList(nn.Linear(2 * width + 2, width) for _ in range(config.rounds))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(config.rounds))
        self.logits = nn.ModuleList(nn.Linear(width, 2) for _ in range(config.rounds))
        self.verdict = nn.Sequential(nn.Linear(2 * width + OWN, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, near: Neighbourhoods) -> Fits:
        x, looks, dtype = near.points.double(), near.normals.double(), next(self.parameters()).dtype
        away = dot(x, x) / near.radius**2
        kernel = (1 - away).clamp_min(0) ** 2
        normal = _voted(looks[:, 0], looks, kernel)
        facing = (0.5 + 0.5 * dot(looks, normal[:, None])).clamp_min(0)
        flat = x.new_zeros(len(x), COEFFICIENTS)
        quadrics = Quadrics(torch.zeros_like(normal), tangent_frames(normal), flat, near.radius)
        position, slope = kernel * facing, kernel * facing
        share, pooled, seen = facing, None, None
        for first, context, second, logits in zip(self.first, self.context, self.second, self.logits, strict=True):
            quadrics = _fitted(quadrics, x, looks, position, slope)
            features, seen = (v.to(dtype) for v in _features(quadrics, x, looks, position, away))
            hidden = nn.functional.silu(first(features))
            weight = (position / position.sum(1, keepdim=True).clamp_min(1e-12)).to(dtype)[..., None]
            pooled = torch.cat([(weight * hidden).sum(1), hidden.amax(1)], 1)
            hidden = hidden + context(torch.cat([pooled, seen[:, :2]], 1))[:, None]
            hidden = nn.functional.silu(second(nn.functional.silu(hidden)))
            both = logits(hidden).to(x.dtype)
            share = torch.sigmoid(both[..., 0] + 2)
            # Slopes may count for much more than heights or for nothing: that of clean normals, or of noisy ones.
            position, slope = kernel * share, kernel * torch.exp((both[..., 1] - 2).clamp(-12, 6))
            pooled = torch.cat([(weight * hidden).sum(1), hidden.amax(1)], 1)
        quadrics = _fitted(quadrics, x, looks, position, slope)
        _, seen = _features(quadrics, x, looks, position, away)
        assert pooled is not None
        log_error, off = self.verdict(torch.cat([pooled, seen.to(dtype)], 1)).unbind(1)
        _, ours = quadrics.offset(x)
        vote = (position * dot(ours, looks)).sum(1) / position.sum(1).clamp_min(1e-12)
        return Fits(quadrics, share, log_error, vote, off)


def _voted(normal: Tensor, looks: Tensor, kernel: Tensor) -> Tensor:
    """normal (n, 3), to the side that most of its neighbours look to."""
    vote = (kernel * dot(looks, normal[:, None])).sum(1, keepdim=True)
    return torch.where(vote < 0, -normal, normal)


def _fitted(before: Quadrics, x: Tensor, looks: Tensor, position: Tensor, slope: Tensor) -> Quadrics:
    """Quadrics with the given weights over the tangent planes of those before.

    Heights give h(a, b) = height, normals (na, nb, nc), of either sign, nc dh/da = -na and nc dh/db = -nb.
    """
    frames, r = before.frames, before.radius
    lift, ca, cb = before.coefficients[:, :3].unbind(1)
    centres = before.centres + (lift * r)[:, None] * frames[:, 2]
    up = torch.stack([-ca, -cb, torch.ones_like(ca)], 1)[:, None] @ frames
    over = Quadrics(centres, tangent_frames(unit(up[:, 0])), before.coefficients, r)
    local = over.local(x)
    turned = looks @ over.frames.transpose(1, 2)
    a, b, height = local.unbind(-1)
    na, nb, nc = turned.unbind(-1)
    one, zero = torch.ones_like(a), torch.zeros_like(a)
    columns = torch.stack([one, a, b, a * a, a * b, b * b], 1)  # (n, 6, k)
    along_a = torch.stack([zero, one, zero, 2 * a, b, zero], 1)
    along_b = torch.stack([zero, zero, one, zero, a, 2 * b], 1)
    level = (slope * nc * nc)[:, None]
    gram = (columns * position[:, None]) @ columns.transpose(1, 2)
    gram = gram + (along_a * level) @ along_a.transpose(1, 2) + (along_b * level) @ along_b.transpose(1, 2)
    right = columns @ (position * height)[..., None]
    right = right - along_a @ (slope * nc * na)[..., None] - along_b @ (slope * nc * nb)[..., None]
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-9)
    gram = gram + ridge[:, None, None] * torch.eye(COEFFICIENTS, dtype=gram.dtype, device=gram.device)
    lower, _ = torch.linalg.cholesky_ex(gram)
    coefficients = torch.cholesky_solve(right, lower)[..., 0].clamp(-STEEPEST, STEEPEST)
    return Quadrics(centres, over.frames, coefficients.to(x.dtype), r)


def _features(quadrics: Quadrics, x: Tensor, looks: Tensor, position: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    """Of the neighbours (n, k, 11) about the fit, and of the samples (n, 5)."""
    k, local = x.shape[1], quadrics.local(x)
    error, ours = quadrics.offset(x)
    total = position.sum(1, keepdim=True).clamp_min(1e-12)
    sigma = ((position * error * error).sum(1, keepdim=True) / total + FLAT**2).sqrt()
    relative, absolute = torch.asinh(error / sigma), torch.asinh(4 * error)
    agree = dot(ours, looks)
    across = (local[..., :2] ** 2).sum(-1)
    many = torch.full_like(sigma, math.log(k / 64))
    columns = [
        across, away, absolute, absolute.abs(), relative, relative.abs(), agree, agree * agree,
        dot(looks, quadrics.frames[:, None, 2]), local[..., 2], many.expand_as(error),
    ]  # fmt: skip
    own = torch.cat([sigma.log(), (total / k).log(), absolute[:, :1].abs(), relative[:, :1].abs(), many], 1)
    return torch.stack(columns, -1), own
