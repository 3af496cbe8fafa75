"""Jets: local polynomial height fits to samples of a surface.

Around a sample p with normal n and tangents t1, t2 the surface is the graph of a polynomial

    a t1 + b t2 + h(a, b) n,    h(a, b) = sum_{i + j <= q} c_ij a^i b^j,

in coordinates around p divided by the neighbourhood radius r. Neighbours give heights, and their normals
m, where used, slopes: dh/da = -m.t1 / m.n and dh/db = -m.t2 / m.n. Degree q is accurate to r^(q+1) in
position and r^q in the normal. After Cazals and Pouget (2005), "Estimating differential quantities using
polynomial fitting of osculating jets". Jets have the gradients of the samples, neighbours held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.fits.polynomials import coefficient_count, derivatives, monomials
from lamina.geometry.frames import tangent_frames

MAX_ENTRIES = {"cpu": 2**18, "cuda": 2**25}  # of one chunk's design matrix
SHEET_OFF, SHEET_ON = 0.1, 0.6  # n_i . n_j at which a neighbour counts not at all, and fully
SMALLEST_PIVOT = 1e-11  # of the equilibrated Gram matrix; below, the samples do not determine the jet
WILDEST = 1.5  # sum of |c_ij| over i + j >= 2: beyond, the height varies by more than the radius
TRUST_NEIGHBOUR, TRUST = 8, 1.75  # how far from its sample a foot may lie: that many times that neighbour
WIDEST_BY_KERNEL = 256  # neighbours


@dataclass(frozen=True)
class Jets:
    """Height polynomials around m samples; coordinates are divided by `scale`."""

    degree: int
    centres: Tensor  # (m, 3)
    frames: Tensor  # (m, 3, 3) rows t1, t2, n
    coefficients: Tensor  # (m, c) of a^i b^j, ordered by i + j, then by j
    scale: Tensor  # (m,) neighbourhood radius
    reach: Tensor  # (m,) how far from the centre, in units of scale, the fit is used
    residual: Tensor  # (m,) weighted RMS distance of the neighbours from the fit, in units of length

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def height(self) -> Tensor:
        """Height (m,) of the fit over its centre, in units of length."""
        return self.coefficients[:, 0] * self.scale

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Jets:
        moved = {key: v.to(device=device, dtype=dtype) for key, v in vars(self).items() if key != "degree"}
        return Jets(self.degree, **moved)

    def detach(self) -> Jets:
        return Jets(self.degree, **{key: v.detach() for key, v in vars(self).items() if key != "degree"})

    def moving_as(self, other: Jets) -> Jets:
        """These jets with the gradients of other ones around the same samples."""

        def moving(key: str) -> Tensor:
            mine, theirs = getattr(self, key), getattr(other, key)
            change = theirs - theirs.detach()
            return mine + (_padded(change, mine.shape[1])[:, : mine.shape[1]] if key == "coefficients" else change)

        return Jets(self.degree, **{f.name: moving(f.name) for f in fields(self) if f.name != "degree"})

    def take(self, rows: Tensor) -> Jets:
        return Jets(self.degree, **{key: v.index_select(0, rows) for key, v in vars(self).items() if key != "degree"})

    def replaced(self, rows: Tensor, others: Jets) -> Jets:
        """These jets with others in the given rows; of the higher of the two degrees."""
        degree = max(self.degree, others.degree)
        values = {}
        for key in (f.name for f in fields(self) if f.name != "degree"):
            mine, theirs = getattr(self, key), getattr(others, key)
            if key == "coefficients":
                mine, theirs = (_padded(c, coefficient_count(degree)) for c in (mine, theirs))
            values[key] = mine.index_copy(0, rows, theirs)
        return Jets(degree, **values)


def _padded(coefficients: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(coefficients, (0, count - coefficients.shape[1]))


def fit_jets(
    points: Tensor,
    normals: Tensor,
    index: Tensor,
    degree: int,
    *,
    centres: Tensor | None = None,
    directions: Tensor | None = None,
    slopes: bool = True,
) -> Jets:
    """Fit a jet of given degree to each row of neighbours, by weighted least squares.

    points, normals (n, 3): the samples. index (m, k) int64: neighbours, nearest first, the first the sample
    itself. centres, directions (m, 3): where the frames stand, default that first sample and its normal.
    slopes: whether neighbours' normals are fitted besides their positions.

    Weights are (1 - d^2 / r^2)^2, times a factor that falls from 1 to 0 as a neighbour's normal turns away,
    so that another sheet or the far side of a sharp edge has no say. Computed in float64 by normal equations
    (equilibrated, in scaled coordinates); where samples do not determine the polynomial, or it swings by more
    than the radius, a lower degree is taken, down to a constant.
    """
    first = index[:, 0]
    if centres is None and directions is None and _kernel_fits(points, normals, index):
        from lamina.fits.fit_kernel import fit

        found = fit(points, normals, index, degree, slopes=slopes, left=False)
        return Jets(degree, points[first], *(v.to(points.dtype) for v in found[:5]))
    centres = points[first] if centres is None else centres
    directions = normals[first] if directions is None else directions
    size = index.shape[1] * coefficient_count(degree)
    rows = torch.arange(len(index), device=index.device)
    parts = []
    for chunk in rows.split(max(1, MAX_ENTRIES[points.device.type] // size)):
        patch = _Patch.of(Surroundings.of(points, normals, index[chunk], centres[chunk], directions[chunk]))
        columns, gram, right = patch.equations(degree, slopes)
        parts.append(patch.fitted(columns, _solve(gram, right, degree)))
    return Jets(degree, centres, *(torch.cat(part).to(points.dtype) for part in zip(*parts, strict=True)))


@torch.no_grad()
def fit_and_predict(
    points: Tensor, normals: Tensor, index: Tensor, degree: int, *, slopes: bool = True
) -> tuple[Jets, Tensor]:
    """Jets as fit_jets makes them, without gradients, and what their height (m,) over the samples would be if these
    were left out; infinite where no neighbour counts."""
    if _kernel_fits(points, normals, index):
        from lamina.fits.fit_kernel import fit

        *found, height = (v.to(points.dtype) for v in fit(points, normals, index, degree, slopes=slopes))
        return Jets(degree, points[index[:, 0]], *found), height
    parts = []
    for near in index.split(max(1, MAX_ENTRIES[points.device.type] // (index.shape[1] * coefficient_count(degree)))):
        patch = _Patch.of(Surroundings.of(points, normals, near))
        columns, gram, right = patch.without_first().equations(degree, slopes)
        without = _solve(gram, right, degree)
        height = torch.where((without == 0).all(1), torch.inf, without[:, 0] * patch.scale)
        # At its own sample a jet is 1, and so are the slopes of its linear terms: nothing else of it changes.
        gram.diagonal(dim1=1, dim2=2)[:, : 3 if slopes else 1] += patch.weight[:, :1]
        parts.append((*patch.fitted(columns, _solve(gram, right, degree)), height))
    frame, coefficients, scale, reach, residual, height = (
        torch.cat(part).to(points.dtype) for part in zip(*parts, strict=True)
    )
    return Jets(degree, points[index[:, 0]], frame, coefficients, scale, reach, residual), height


def _kernel_fits(points: Tensor, normals: Tensor, index: Tensor) -> bool:
    """Whether jets are fitted by the kernel: it holds the neighbours index (m, k) of a sample all at once."""
    return len(index) > 0 and index.shape[1] <= WIDEST_BY_KERNEL and by_kernel(points, normals)


@torch.no_grad()
def predict(points: Tensor, normals: Tensor, index: Tensor, degree: int, slopes: bool) -> tuple[Tensor, Tensor]:
    """Height (m,) over the samples index[:, 0] of jets fitted to the others, and their scale (m,)."""
    if _kernel_fits(points, normals, index):
        from lamina.fits.fit_kernel import fit

        _, _, scale, _, _, height = fit(points, normals, index, degree, slopes=slopes, whole=False)
        return height, scale
    k = index.shape[1]
    blocks = index.split(max(1, MAX_ENTRIES[index.device.type] // k))
    parts = [Surroundings.of(points, normals, block).predict(k, degree, slopes) for block in blocks]
    height, scale = (torch.cat(part) for part in zip(*parts, strict=True))
    return height, scale


@dataclass(frozen=True)
class Surroundings:
    """k neighbours of m centres, nearest first, in the frames of these; in float64 and units of length."""

    frame: Tensor  # (m, 3, 3) rows t1, t2, n
    square: Tensor  # (m, k) squared distances
    local: Tensor  # (m, 3, k) places; products are faster with neighbours next to each other
    turned: Tensor  # (m, 3, k) normals

    @classmethod
    def of(
        cls,
        points: Tensor,
        normals: Tensor,
        index: Tensor,
        centres: Tensor | None = None,
        directions: Tensor | None = None,
    ) -> Surroundings:
        """Of samples (n, 3): neighbours index (m, k) of centres (m, 3), which have directions (m, 3), default the first
        of these samples and its normal."""
        near, looks = points[index].double(), normals[index].double()
        frame = tangent_frames(looks[:, 0] if directions is None else directions.double())
        offset = (near - (near[:, :1] if centres is None else centres.double()[:, None])).transpose(1, 2).contiguous()
        return cls(frame, offset.square().sum(1), frame @ offset, frame @ looks.transpose(1, 2))

    @torch.no_grad()
    def predict(self, k: int, degree: int, slopes: bool) -> tuple[Tensor, Tensor]:
        """Height (m,) over their centres of jets that are fitted to the k nearest but the first, and their scale."""
        parts = []
        size = max(1, MAX_ENTRIES[self.square.device.type] // (k * coefficient_count(degree)))
        for i in range(0, len(self.square), size):
            near = (v[i : i + size, ..., :k] for v in (self.square, self.local, self.turned))
            patch = _Patch.of(Surroundings(self.frame[i : i + size], *near))
            _, gram, right = patch.without_first().equations(degree, slopes)
            parts.append((_solve(gram, right, degree)[:, 0] * patch.scale, patch.scale))
        height, scale = (torch.cat(part) for part in zip(*parts, strict=True))
        return height, scale


@dataclass(frozen=True)
class _Patch:
    """Neighbours to which jets are fitted: coordinates divided by `scale`, and weights."""

    frame: Tensor  # (m, 3, 3)
    scale: Tensor  # (m,) distance of the farthest neighbour
    square: Tensor  # (m, k) squared distances, in units of length
    local: Tensor  # (m, 3, k) a, b, height
    turned: Tensor  # (m, 3, k) normals
    weight: Tensor  # (m, k)

    @classmethod
    def of(cls, around: Surroundings) -> _Patch:
        square, turned = around.square, around.turned
        widest = square.amax(1).clamp_min(1e-300)
        scale = widest.sqrt()
        weight = (1 - square / widest[:, None]).clamp_min(0) ** 2
        weight = weight * ((turned[:, 2] - SHEET_OFF) / (SHEET_ON - SHEET_OFF)).clamp(0, 1) ** 2
        return cls(around.frame, scale, square, around.local / scale[:, None, None], turned, weight)

    def without_first(self) -> _Patch:
        return replace(self, weight=torch.nn.functional.pad(self.weight[:, 1:], (1, 0)))

    def equations(self, degree: int, slopes: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Monomials (m, c, k), the normal equations (m, c, c) and their right-hand sides (m, c, 1)."""
        columns = monomials(self.local[:, 0], self.local[:, 1], degree)
        values = [columns, self.local[:, 2:]]
        if slopes:
            values.append(self.turned[:, :2] / self.turned[:, 2:].clamp_min(SHEET_OFF))
        c = columns.shape[1]
        sums = columns @ (torch.cat(values, 1) * self.weight[:, None]).transpose(1, 2)  # (m, c, c + 1 or c + 3)
        gram, right = sums[..., :c], sums[..., c : c + 1]
        return columns, *(_with_slopes(gram, right, sums[..., c + 1 :], degree) if slopes else (gram, right))

    def fitted(self, columns: Tensor, coefficients: Tensor) -> tuple[Tensor, ...]:
        """Frames, coefficients, scale, reach and residual of jets."""
        with torch.no_grad():  # figures to report
            missed = (coefficients[:, None] @ columns)[:, 0] - self.local[:, 2]
            residual = ((self.weight * missed**2).sum(1) / self.weight.sum(1).clamp_min(1e-300)).sqrt() * self.scale
            trusted = self.square[:, min(TRUST_NEIGHBOUR, self.square.shape[1] - 1)].sqrt()
            reach = (TRUST * trusted / self.scale).clamp(max=1.25)
        return self.frame, coefficients, self.scale, reach, residual


def _with_slopes(gram: Tensor, right: Tensor, slopes: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Normal equations (m, c, c) and (m, c, 1) with slopes fitted besides heights, with the same weights.

    With monomials c_p and weights w: gram = sum w c_p c_q, slopes (m, c, 2) = sum w c_p times a neighbour's -dh/da and
    -dh/db. The derivative of c_p is f_p c_p', and so the sums of the products of derivatives are f_p f_q gram_p'q'.
    """
    count = gram.shape[1]
    before, factor = derivatives(degree, gram.device)
    flat, total, target = gram.reshape(len(gram), -1), gram, right[..., 0]
    for axis in (0, 1):
        p, f = before[axis], factor[axis]
        entries = (p[:, None] * count + p).reshape(-1)
        total = torch.addcmul(total, flat.index_select(1, entries).view_as(gram), f[:, None] * f)
        target = target - slopes[..., axis].index_select(1, p) * f
    return total, target[..., None]


def _solve(gram: Tensor, right: Tensor, degree: int) -> Tensor:
    """Coefficients (m, c), of the highest degree that each system determines; zero above it."""
    solution, todo = torch.zeros_like(right[..., 0]), None
    for q in range(degree, -1, -1):
        # Monomials are ordered by degree, so the system of a lower degree is the leading block.
        c = coefficient_count(q)
        block, target = (gram, right) if todo is None else (gram[todo, :c, :c], right[todo, :c])
        diagonal = block.diagonal(dim1=1, dim2=2)
        balance = torch.where(diagonal > 0, diagonal, torch.ones_like(diagonal)).rsqrt()[..., None]
        balanced, wanted = block * (balance * balance.transpose(1, 2)), target * balance
        with torch.no_grad():
            lower, failed = torch.linalg.cholesky_ex(balanced)
            pivots = lower.diagonal(dim1=1, dim2=2).square().amin(1)
            found = (_solve_lower(lower, wanted) * balance)[..., 0]
            good = (failed == 0) & (pivots > SMALLEST_PIVOT) & (found[:, 3:].abs().sum(1) <= WILDEST)
            rows = good.nonzero()[:, 0]
        every = todo is None and len(rows) == len(good)
        if gram.requires_grad:
            found = (torch.linalg.solve(balanced[rows], wanted[rows]) * balance[rows])[..., 0]
        elif not every:
            found = found[rows]
        if every:
            return found
        solution[rows if todo is None else todo[rows], :c] = found
        todo = (~good).nonzero()[:, 0] if todo is None else todo[~good]
        if len(todo) == 0:
            break
    return solution


def _solve_lower(lower: Tensor, right: Tensor) -> Tensor:
    """Solution (m, c, 1) of L L^T x = right; anything where L is not regular."""
    if lower.device.type == "cpu":
        return torch.cholesky_solve(right, lower)
    # Two batched substitutions take a third of the time of torch.cholesky_solve on a GPU.
    half = torch.linalg.solve_triangular(lower, right, upper=False)
    return torch.linalg.solve_triangular(lower.transpose(1, 2), half, upper=True)
