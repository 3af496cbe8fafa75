"""The network behind robust fits: weights for local least-squares fits of a surface to oriented samples.

Around each sample a quadric h(a, b) over a tangent plane is fitted to its k nearest neighbours by weighted least
squares. The network chooses the weights in a few rounds. In each round it sees how the neighbours lie about the fit of
the round before, and says how much the position and the normal of each shall count in the next. Iteratively reweighted
least squares do the same with a formula instead of a network. Lengths are in units of the local spacing of the samples,
and directions about the normal do not matter.

The result cannot be worse than a weighted fit: on clean samples of a smooth surface any weights give the accuracy of a
quadric. Outliers, other sheets, the far side of a crease, and noise lose their weight. The network also predicts the
error of its fit, and whether the sample itself lies on the surface.

After DeepFit (Ben-Shabat and Gould 2020, "DeepFit: 3D surface fitting via neural network weighted least squares").
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from lamina.device import by_kernel
from lamina.geometry.frames import tangent_frames
from lamina.geometry.triangles import dot, unit
from lamina.shapes import Float, shaped

NEIGHBOUR_FEATURES = 11  # that the network sees of each neighbour
SAMPLE_FEATURES = 5  # that the network sees of each sample, besides those of its neighbours
COEFFICIENTS = 6  # of a quadric: 1, a, b, a^2, ab, b^2
# Added to the diagonal of the normal equations, over its mean. It determines coefficients about which no neighbour says
# anything, and moves the others by about a millionth.
RIDGE_OVER_DIAGONAL = 1e-6
MIN_RESIDUAL = 1e-6  # spacings: residuals are divided by at least this, so that exact planes give finite features
# The coefficients of a quadric, all lengths in units of the radius, are clamped to this magnitude. A slope or a
# curvature of 10 fits no surface that the samples could show.
MAX_COEFFICIENT = 10.0


@dataclass(frozen=True)
class FitConfig:
    """Size of the network and of the neighbourhoods that it fits."""

    width: int = 32  # of the hidden layers
    rounds: int = 3  # of reweighting
    neighbours: tuple[int, ...] = (64, 256)  # samples that a fit sees, from the smallest neighbourhood to the largest

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@shaped
@dataclass(frozen=True)
class Neighbourhoods:
    """n samples with their k nearest samples, of which the first is the sample itself.

    Points are relative to the sample, in units of the local spacing.
    """

    points: Float[Tensor, "n k 3"]
    normals: Float[Tensor, "n k 3"]
    spacing: Float[Tensor, " n"]

    @classmethod
    def of(cls, points: Tensor, normals: Tensor, index: Tensor) -> Neighbourhoods:
        """Neighbourhoods given by rows index (n, k) of samples points (m, 3) with normals (m, 3)."""
        offset = points[index] - points[index[:, :1]]
        farthest = dot(offset, offset).amax(1).sqrt().clamp_min(torch.finfo(points.dtype).tiny)
        spacing = farthest * (math.pi / index.shape[1]) ** 0.5
        return cls(offset / spacing[:, None, None], normals[index], spacing)

    @property
    def radius(self) -> float:
        """The radius r of every neighbourhood in spacings: pi r^2 = k."""
        return (self.points.shape[1] / math.pi) ** 0.5


@shaped
@dataclass(frozen=True)
class Quadrics:
    """h(a, b) = sum c_ij a^i b^j over tangent planes at centres near the samples; units as in `Neighbourhoods`.

    a, b and h are divided by `radius`; the coefficients are those of 1, a, b, a^2, ab, b^2.
    """

    centres: Float[Tensor, "n 3"]  # relative to the sample
    frames: Float[Tensor, "n 3 3"]  # rows t1, t2, n
    coefficients: Float[Tensor, "n 6"]
    radius: float

    def local(self, x: Tensor) -> Tensor:
        """Local coordinates (n, 3, q) of x (n, 3, q), which is relative to the samples: in frames, over the radius."""
        return self.frames @ (x - self.centres[..., None]) / self.radius

    def height(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h and its two slopes (n, q) at local coordinates a, b (n, q)."""
        c0, ca, cb, caa, cab, cbb = (c[:, None] for c in self.coefficients.unbind(1))
        h = c0 + a * (ca + caa * a + cab * b) + b * (cb + cbb * b)
        return h, ca + 2 * caa * a + cab * b, cb + cab * a + 2 * cbb * b

    def offset(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distances (n, q) of x (n, q, 3) from the quadrics, to first order, and the normals (n, q, 3) below."""
        a, b, c = self.local(x.transpose(1, 2)).unbind(1)
        h, ha, hb = self.height(a, b)
        level = (1 + ha * ha + hb * hb).rsqrt()
        normal = torch.stack([-ha * level, -hb * level, level], -1) @ self.frames
        return (c - h) * level * self.radius, normal


@shaped
@dataclass(frozen=True)
class NetworkOutput:
    """The fits of the network around n samples, and its predictions about them."""

    quadrics: Quadrics
    share: Float[Tensor, "n k"]  # in (0, 1): how much of each neighbour's position counts
    log_error: Float[Tensor, " n"]  # logarithm of the expected RMS error of the fit, in units of the spacing
    vote: Float[Tensor, " n"]  # in (-1, 1): positive if the neighbours' normals point to the side of the fit's normal
    outlier_logit: Float[Tensor, " n"]  # logit of the probability that the sample is an outlier


class FitNetwork(nn.Module):
    """The network: weights for the fits, and the expected error of each."""

    def __init__(self, config: FitConfig | None = None):
        super().__init__()
        self.config = config = config or FitConfig()
        width = config.width
        self.first = nn.ModuleList(nn.Linear(NEIGHBOUR_FEATURES, width) for _ in range(config.rounds))
        self.context = nn.ModuleList(nn.Linear(2 * width + 2, width) for _ in range(config.rounds))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(config.rounds))
        self.logits = nn.ModuleList(nn.Linear(width, 2) for _ in range(config.rounds))
        self.verdict = nn.Sequential(nn.Linear(2 * width + SAMPLE_FEATURES, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, near: Neighbourhoods) -> NetworkOutput:
        if len(near.points) and by_kernel(near.points, near.normals, *self.parameters()):
            from lamina.reconstruction import fit_network_kernel

            if fit_network_kernel.fits_there(self, near):
                return fit_network_kernel.forward(self, near)
        dtype, live = next(self.parameters()).dtype, torch.is_grad_enabled()
        # In place where nothing is differentiated: allocating memory for the hidden layers would take most of the time.
        silu = partial(nn.functional.silu, inplace=not live)
        # (n, 3, k): products over neighbours are several times faster if neighbours are contiguous in memory.
        x, normals = (v.double().transpose(1, 2).contiguous() for v in (near.points, near.normals))
        away = x.square().sum(1) / near.radius**2
        kernel = (1 - away).clamp_min(0) ** 2
        normal = _majority_normals(normals, kernel)
        facing = (0.5 + 0.5 * (normal[:, None] @ normals)[:, 0]).clamp_min(0)
        flat = x.new_zeros(len(x), COEFFICIENTS)
        quadrics = Quadrics(torch.zeros_like(normal), tangent_frames(normal), flat, near.radius)
        position, slope = kernel * facing, kernel * facing
        share, pooled = facing, None
        for first, context, second, logits in zip(self.first, self.context, self.second, self.logits, strict=True):
            quadrics, local, turned = _weighted_fit(quadrics, x, normals, position, slope)
            residuals = _Residuals.of(quadrics, local, turned, position)
            hidden = silu(first(residuals.neighbours(away, dtype)))
            weight = (position / residuals.total).to(dtype)[:, None]
            around = torch.cat([_pooled(weight, hidden), residuals.sample(dtype)[:, :2]], 1)
            told = context(around)[:, None]
            hidden = silu(second(silu(hidden + told if live else hidden.add_(told))))
            both = logits(hidden).to(x.dtype)
            share = torch.sigmoid(both[..., 0] + 2)
            # Slopes may count for much more than heights, as clean normals should, or for nothing, as noisy ones.
            position, slope = kernel * share, kernel * torch.exp((both[..., 1] - 2).clamp(-12, 6))
            pooled = weight, hidden
        assert pooled is not None
        quadrics, local, turned = _weighted_fit(quadrics, x, normals, position, slope)
        residuals = _Residuals.of(quadrics, local, turned, position)
        log_error, outlier_logit = self.verdict(torch.cat([_pooled(*pooled), residuals.sample(dtype)], 1)).unbind(1)
        vote = (position * residuals.agree).sum(1) / residuals.total[:, 0]
        return NetworkOutput(quadrics, share, log_error, vote, outlier_logit)


def _pooled(weight: Tensor, hidden: Tensor) -> Tensor:
    """The weighted mean and the maximum (n, 2 w) of features hidden (n, k, w) over the neighbours.

    weight (n, 1, k): of the mean.
    """
    return torch.cat([(weight @ hidden)[:, 0], hidden.amax(1)], 1)


def _majority_normals(normals: Tensor, kernel: Tensor) -> Tensor:
    """The first (n, 3) of the normals (n, 3, k), turned to the side of the majority by weights kernel (n, k)."""
    normal = normals[..., 0]
    vote = (kernel * (normal[:, None] @ normals)[:, 0]).sum(1, keepdim=True)
    return torch.where(vote < 0, -normal, normal)


@cache
@torch.inference_mode(False)
def _terms(device: torch.device) -> Tensor:
    """Matrix (24, 42) from weighted sums of monomials to entries of the normal equations.

    Its input are the sums sum_q c_i(q) w(q) of the six monomials c_i with the four weights w = level,
    position * height, sa, sb. Its output are the 36 entries that slopes add to the normal equations, and the 6 of the
    right-hand side: with dc/da = (0, 1, 0, 2a, b, 0) and dc/db = (0, 0, 1, 0, a, 2b),
    sum level (dc/da dc/da^T + dc/db dc/db^T), and sum c position height - dc/da sa - dc/db sb.
    """
    along_a, along_b = {1: (1, 0), 3: (2, 1), 4: (1, 2)}, {2: (1, 0), 4: (1, 1), 5: (2, 2)}  # factor, monomial
    product = {(0, 0): 0, (0, 1): 1, (0, 2): 2, (1, 1): 3, (1, 2): 4, (2, 2): 5}
    terms = torch.zeros(COEFFICIENTS, 4, COEFFICIENTS * (COEFFICIENTS + 1), dtype=torch.float64)
    for along, weight in ((along_a, 2), (along_b, 3)):
        for i, (f, p) in along.items():
            terms[p, weight, COEFFICIENTS**2 + i] -= f
            for j, (g, q) in along.items():
                terms[product[min(p, q), max(p, q)], 0, COEFFICIENTS * i + j] += f * g
    for i in range(COEFFICIENTS):
        terms[i, 1, COEFFICIENTS**2 + i] += 1
    return terms.reshape(4 * COEFFICIENTS, -1).to(device)


def _weighted_fit(
    before: Quadrics, x: Tensor, normals: Tensor, position: Tensor, slope: Tensor
) -> tuple[Quadrics, Tensor, Tensor]:
    """Quadrics fitted to samples x (n, 3, k) with normals (n, 3, k), over the tangent planes of the quadrics before.

    position, slope (n, k): weights of positions and of normals. A position gives the equation h(a, b) = height. A
    normal (na, nb, nc) of either sign gives nc dh/da = -na and nc dh/db = -nb.
    Returns the quadrics, and the samples and normals (n, 3, k) in their frames.
    """
    frames, r = before.frames, before.radius
    lift, ca, cb = before.coefficients[:, :3].unbind(1)
    centres = before.centres + (lift * r)[:, None] * frames[:, 2]
    up = torch.stack([-ca, -cb, torch.ones_like(ca)], 1)[:, None] @ frames
    over = Quadrics(centres, tangent_frames(unit(up[:, 0])), before.coefficients, r)
    local, turned = over.local(x), over.frames @ normals
    (a, b, height), (na, nb, nc) = local.unbind(1), turned.unbind(1)
    columns = torch.stack([torch.ones_like(a), a, b, a * a, a * b, b * b], 1)  # (n, 6, k)
    turn = slope * nc
    weights = torch.stack([turn * nc, position * height, turn * na, turn * nb], 1)
    sums = columns @ torch.cat([columns * position[:, None], weights], 1).transpose(1, 2)  # (n, 6, 10)
    gram, rest = sums[..., :COEFFICIENTS], sums[..., COEFFICIENTS:].reshape(len(x), -1) @ _terms(x.device)
    gram = gram + rest[:, : COEFFICIENTS**2].reshape(gram.shape)
    ridge = RIDGE_OVER_DIAGONAL * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-9)
    gram = gram + torch.diag_embed(ridge[:, None].expand(-1, COEFFICIENTS))
    lower, _ = torch.linalg.cholesky_ex(gram)
    coefficients = torch.cholesky_solve(rest[:, COEFFICIENTS**2 :, None], lower)[..., 0]
    coefficients = coefficients.clamp(-MAX_COEFFICIENT, MAX_COEFFICIENT)
    return Quadrics(centres, over.frames, coefficients, r), local, turned


@shaped
@dataclass(frozen=True)
class _Residuals:
    """How k neighbours lie about the fits."""

    local: Float[Tensor, "n 3 k"]  # neighbours in the frames of the fits
    error: Float[Tensor, "n k"]  # signed distances from the fit
    level: Float[Tensor, "n k"]  # cosine between a neighbour's normal and that of the frame
    agree: Float[Tensor, "n k"]  # cosine between a neighbour's normal and that of the fit below it
    total: Float[Tensor, "n 1"]  # sum of the weights of positions
    sigma: Float[Tensor, "n 1"]  # RMS of the errors by these weights

    @classmethod
    def of(cls, quadrics: Quadrics, local: Tensor, turned: Tensor, position: Tensor) -> _Residuals:
        """local, turned (n, 3, k): neighbours and their normals in the frames. position (n, k): weights."""
        (a, b, c), (na, nb, nc) = local.unbind(1), turned.unbind(1)
        h, ha, hb = quadrics.height(a, b)
        level = (1 + ha * ha + hb * hb).rsqrt()
        error = (c - h) * level * quadrics.radius
        total = position.sum(1, keepdim=True).clamp_min(1e-12)
        sigma = ((position * error * error).sum(1, keepdim=True) / total + MIN_RESIDUAL**2).sqrt()
        return cls(local, error, nc, (nc - ha * na - hb * nb) * level, total, sigma)

    def neighbours(self, away: Tensor, dtype: torch.dtype) -> Tensor:
        """Features (n, k, 11) of the neighbours. away (n, k): squared distances over the squared radius."""
        a, b, c = self.local.to(dtype).unbind(1)
        relative, absolute = (_asinh((f * self.error).to(dtype)) for f in (1 / self.sigma, 4))
        agree, level = self.agree.to(dtype), self.level.to(dtype)
        size = torch.full_like(a, self._log_size)
        columns = [
            a * a + b * b, away.to(dtype), absolute, absolute.abs(), relative, relative.abs(), agree, agree * agree,
            level, c, size,
        ]  # fmt: skip
        return torch.stack(columns, -1)

    def sample(self, dtype: torch.dtype) -> Tensor:
        """Features (n, 5) of the samples."""
        k, own = self.error.shape[1], self.error[:, :1]
        absolute, relative = torch.asinh(4 * own), torch.asinh(own / self.sigma)
        size = torch.full_like(own, self._log_size)
        columns = [self.sigma.log(), (self.total / k).log(), absolute.abs(), relative.abs(), size]
        return torch.cat(columns, 1).to(dtype)

    @property
    def _log_size(self) -> float:
        return math.log(self.error.shape[1] / 64)


def _asinh(x: Tensor) -> Tensor:
    """asinh(x); several times faster than that of torch on a CPU."""
    if x.requires_grad:  # the formula has no derivative at zero
        return torch.asinh(x)
    size = x.abs()
    return torch.log1p(size + size * size / (1 + (size * size + 1).sqrt())).copysign(x)
