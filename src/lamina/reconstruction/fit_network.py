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
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from lamina.device import by_kernel
from lamina.geometry.frames import tangent_frames
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
        """x (n, 3, q), relative to the samples, in the frames and divided by the radius."""
        return self.frames @ (x - self.centres[..., None]) / self.radius

    def height(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h and its two slopes (n, q) at local coordinates a, b (n, q)."""
        c0, ca, cb, caa, cab, cbb = (c[:, None] for c in self.coefficients.unbind(1))
        h = c0 + a * (ca + caa * a + cab * b) + b * (cb + cbb * b)
        return h, ca + 2 * caa * a + cab * b, cb + cab * a + 2 * cbb * b

    def offset(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distance (n, q), to first order, and normal (n, q, 3) of the graphs below x (n, q, 3)."""
        a, b, c = self.local(x.transpose(1, 2)).unbind(1)
        h, ha, hb = self.height(a, b)
        level = (1 + ha * ha + hb * hb).rsqrt()
        normal = torch.stack([-ha * level, -hb * level, level], -1) @ self.frames
        return (c - h) * level * self.radius, normal


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
        if len(near.points) and by_kernel(near.points, near.normals, *self.parameters()):
            from lamina.reconstruction import fit_network_kernel

            if fit_network_kernel.fits_there(self, near):
                return fit_network_kernel.forward(self, near)
        dtype, live = next(self.parameters()).dtype, torch.is_grad_enabled()
        # In place where nothing is differentiated: fresh memory for all that is hidden would take most of the time.
        silu = partial(nn.functional.silu, inplace=not live)
        # (n, 3, k): products over neighbours are several times faster when these lie next to each other.
        x, looks = (v.double().transpose(1, 2).contiguous() for v in (near.points, near.normals))
        away = x.square().sum(1) / near.radius**2
        kernel = (1 - away).clamp_min(0) ** 2
        normal = _voted(looks, kernel)
        facing = (0.5 + 0.5 * (normal[:, None] @ looks)[:, 0]).clamp_min(0)
        flat = x.new_zeros(len(x), COEFFICIENTS)
        quadrics = Quadrics(torch.zeros_like(normal), tangent_frames(normal), flat, near.radius)
        position, slope = kernel * facing, kernel * facing
        share, pooled = facing, None
        for first, context, second, logits in zip(self.first, self.context, self.second, self.logits, strict=True):
            quadrics, local, turned = _fitted(quadrics, x, looks, position, slope)
            seen = _Seen.of(quadrics, local, turned, position)
            hidden = silu(first(seen.neighbours(away, dtype)))
            weight = (position / seen.total).to(dtype)[:, None]
            around = torch.cat([_pooled(weight, hidden), seen.sample(dtype)[:, :2]], 1)
            told = context(around)[:, None]
            hidden = silu(second(silu(hidden + told if live else hidden.add_(told))))
            both = logits(hidden).to(x.dtype)
            share = torch.sigmoid(both[..., 0] + 2)
            # Slopes may count for much more than heights or for nothing: that of clean normals, or of noisy ones.
            position, slope = kernel * share, kernel * torch.exp((both[..., 1] - 2).clamp(-12, 6))
            pooled = weight, hidden
        assert pooled is not None
        quadrics, local, turned = _fitted(quadrics, x, looks, position, slope)
        seen = _Seen.of(quadrics, local, turned, position)
        log_error, off = self.verdict(torch.cat([_pooled(*pooled), seen.sample(dtype)], 1)).unbind(1)
        vote = (position * seen.agree).sum(1) / seen.total[:, 0]
        return Fits(quadrics, share, log_error, vote, off)


def _pooled(weight: Tensor, hidden: Tensor) -> Tensor:
    """Mean by weights (n, 1, k) and largest of what neighbours say, hidden (n, k, w): (n, 2 w)."""
    return torch.cat([(weight @ hidden)[:, 0], hidden.amax(1)], 1)


def _voted(looks: Tensor, kernel: Tensor) -> Tensor:
    """The first normals (n, 3) of looks (n, 3, k), to the side that most of these look to."""
    normal = looks[..., 0]
    vote = (kernel * (normal[:, None] @ looks)[:, 0]).sum(1, keepdim=True)
    return torch.where(vote < 0, -normal, normal)


@cache
@torch.inference_mode(False)
def _terms(device: torch.device) -> Tensor:
    """Matrix (24, 42) that makes of sum_q c_i(q) w(q), six monomials c_i times weights w = level, position * height,
    sa, sb, what slopes add to the entries (6, 6) of the normal equations, and their right-hand side (6).

    With dc/da = (0, 1, 0, 2a, b, 0) and dc/db = (0, 0, 1, 0, a, 2b): sum level (dc/da dc/da^T + dc/db dc/db^T), and
    sum c position height - dc/da sa - dc/db sb.
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


def _fitted(
    before: Quadrics, x: Tensor, looks: Tensor, position: Tensor, slope: Tensor
) -> tuple[Quadrics, Tensor, Tensor]:
    """Quadrics with the given weights (n, k) over the tangent planes of those before, to x and looks (n, 3, k); these
    in the frames, too.

    Heights give h(a, b) = height, normals (na, nb, nc), of either sign, nc dh/da = -na and nc dh/db = -nb.
    """
    frames, r = before.frames, before.radius
    lift, ca, cb = before.coefficients[:, :3].unbind(1)
    centres = before.centres + (lift * r)[:, None] * frames[:, 2]
    up = torch.stack([-ca, -cb, torch.ones_like(ca)], 1)[:, None] @ frames
    over = Quadrics(centres, tangent_frames(unit(up[:, 0])), before.coefficients, r)
    local, turned = over.local(x), over.frames @ looks
    (a, b, height), (na, nb, nc) = local.unbind(1), turned.unbind(1)
    columns = torch.stack([torch.ones_like(a), a, b, a * a, a * b, b * b], 1)  # (n, 6, k)
    turn = slope * nc
    weights = torch.stack([turn * nc, position * height, turn * na, turn * nb], 1)
    sums = columns @ torch.cat([columns * position[:, None], weights], 1).transpose(1, 2)  # (n, 6, 10)
    gram, rest = sums[..., :COEFFICIENTS], sums[..., COEFFICIENTS:].reshape(len(x), -1) @ _terms(x.device)
    gram = gram + rest[:, : COEFFICIENTS**2].reshape(gram.shape)
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-9)
    gram = gram + torch.diag_embed(ridge[:, None].expand(-1, COEFFICIENTS))
    lower, _ = torch.linalg.cholesky_ex(gram)
    coefficients = torch.cholesky_solve(rest[:, COEFFICIENTS**2 :, None], lower)[..., 0].clamp(-STEEPEST, STEEPEST)
    return Quadrics(centres, over.frames, coefficients, r), local, turned


@dataclass(frozen=True)
class _Seen:
    """How k neighbours lie about fits."""

    local: Tensor  # (n, 3, k)
    error: Tensor  # (n, k) signed distance
    level: Tensor  # (n, k) cosine between a neighbour's normal and that of the frame
    agree: Tensor  # (n, k) and that of the fit below it
    total: Tensor  # (n, 1) sum of the weights of positions
    sigma: Tensor  # (n, 1) RMS of the errors by these

    @classmethod
    def of(cls, quadrics: Quadrics, local: Tensor, turned: Tensor, position: Tensor) -> _Seen:
        """Of neighbours with places and normals (n, 3, k) in the frames, and weights (n, k)."""
        (a, b, c), (na, nb, nc) = local.unbind(1), turned.unbind(1)
        h, ha, hb = quadrics.height(a, b)
        level = (1 + ha * ha + hb * hb).rsqrt()
        error = (c - h) * level * quadrics.radius
        total = position.sum(1, keepdim=True).clamp_min(1e-12)
        sigma = ((position * error * error).sum(1, keepdim=True) / total + FLAT**2).sqrt()
        return cls(local, error, nc, (nc - ha * na - hb * nb) * level, total, sigma)

    def neighbours(self, away: Tensor, dtype: torch.dtype) -> Tensor:
        """Features (n, k, 11) of the neighbours, whose squared distances are away (n, k)."""
        a, b, c = self.local.to(dtype).unbind(1)
        relative, absolute = (_asinh((f * self.error).to(dtype)) for f in (1 / self.sigma, 4))
        agree, level = self.agree.to(dtype), self.level.to(dtype)
        many = torch.full_like(a, self._many)
        columns = [
            a * a + b * b, away.to(dtype), absolute, absolute.abs(), relative, relative.abs(), agree, agree * agree,
            level, c, many,
        ]  # fmt: skip
        return torch.stack(columns, -1)

    def sample(self, dtype: torch.dtype) -> Tensor:
        """Features (n, 5) of the samples."""
        k, own = self.error.shape[1], self.error[:, :1]
        absolute, relative = torch.asinh(4 * own), torch.asinh(own / self.sigma)
        many = torch.full_like(own, self._many)
        columns = [self.sigma.log(), (self.total / k).log(), absolute.abs(), relative.abs(), many]
        return torch.cat(columns, 1).to(dtype)

    @property
    def _many(self) -> float:
        return math.log(self.error.shape[1] / 64)


def _asinh(x: Tensor) -> Tensor:
    """asinh(x), several times faster than torch's on a CPU."""
    if x.requires_grad:  # the formula has no derivative at zero
        return torch.asinh(x)
    size = x.abs()
    return torch.log1p(size + size * size / (1 + (size * size + 1).sqrt())).copysign(x)
