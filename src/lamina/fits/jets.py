"""Jets: local polynomial height fits to samples of a surface.

Around a sample p with normal n and tangents t1, t2 the surface is the graph of a polynomial

    a t1 + b t2 + h(a, b) n,    h(a, b) = sum_{i + j <= q} c_ij a^i b^j,

in coordinates around p divided by the neighbourhood radius r. Neighbours give heights. Their normals m, where they are
used, give slopes: dh/da = -m.t1 / m.n and dh/db = -m.t2 / m.n. A jet of degree q is accurate to r^(q+1) in position and
to r^q in the normal. After Cazals and Pouget (2005), "Estimating differential quantities using polynomial fitting of
osculating jets". Jets have the gradients of the samples; which samples are neighbours is held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.fits.polynomials import coefficient_count, derivatives, monomials
from lamina.geometry.frames import tangent_frames
from lamina.shapes import Float, shaped

MAX_DESIGN_ENTRIES = {"cpu": 2**18, "cuda": 2**25}  # entries of the design matrices of one batch
# Weight of a neighbour by the cosine of the angle between its normal and that of the sample: none up to the first
# cosine, full from the second on. A neighbour turned by 84 degrees or more is on another sheet or face; one turned by
# less than 53 degrees may be on the same curved surface. Both were chosen by trial.
ZERO_WEIGHT_COSINE, FULL_WEIGHT_COSINE = 0.1, 0.6
# The samples do not determine a jet if a pivot of its Gram matrix, scaled to a diagonal of ones, is not above this
# share: then a lower degree is fitted. It lies well above the rounding of float64 (2e-16).
MIN_PIVOT = 1e-11
# A jet is rejected, and a lower degree is fitted, if the sum of |c_ij| over i + j >= 2 is larger than this: its height
# then varies by more than the radius of its neighbourhood, which no smooth surface does.
MAX_CURVED_COEFFICIENTS = 1.5
# A foot may lie at most this many times as far from the sample of its jet as the neighbour of this number does. Over
# half that distance feet would be cut short between samples; over twice that distance a jet would be used where
# samples beside it know better.
REACH_NEIGHBOUR, REACH_OVER_NEIGHBOUR = 8, 1.75
MAX_REACH = 1.25  # but not farther than this many radii of its neighbourhood, beyond which there are no samples
MAX_KERNEL_NEIGHBOURS = 256  # the Triton kernel holds all neighbours of a sample at once; with more, torch is used


@shaped
@dataclass(frozen=True)
class Jets:
    """Height polynomials around m samples; coordinates are divided by `scale`."""

    degree: int
    centres: Float[Tensor, "m 3"]
    frames: Float[Tensor, "m 3 3"]  # rows t1, t2, n
    coefficients: Float[Tensor, "m c"]  # of a^i b^j, ordered by i + j, then by j
    scale: Float[Tensor, " m"]  # neighbourhood radius
    reach: Float[Tensor, " m"]  # how far from the centre, in units of scale, the fit is used
    residual: Float[Tensor, " m"]  # weighted RMS distance of the neighbours from the fit, in units of length

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
        """These jets with the gradients of other jets around the same samples."""

        def moving(key: str) -> Tensor:
            mine, theirs = getattr(self, key), getattr(other, key)
            change = theirs - theirs.detach()
            return mine + (_padded(change, mine.shape[1])[:, : mine.shape[1]] if key == "coefficients" else change)

        return Jets(self.degree, **{f.name: moving(f.name) for f in fields(self) if f.name != "degree"})

    def take(self, rows: Tensor) -> Jets:
        return Jets(self.degree, **{key: v.index_select(0, rows) for key, v in vars(self).items() if key != "degree"})

    def replaced(self, rows: Tensor, others: Jets) -> Jets:
        """These jets, with other ones in the given rows. Their degree is the higher of the two."""
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

    points, normals (n, 3): the samples.
    index (m, k) int64: neighbours, nearest first; the first is the sample itself.
    centres, directions (m, 3): origins and normals of the frames; by default those of the first sample.
    slopes: whether neighbours' normals are fitted besides their positions.

    Weights are (1 - d^2 / r^2)^2, times a factor that falls from 1 to 0 as a neighbour's normal turns away, so that
    another sheet or the far side of a sharp edge does not count. The normal equations are solved in float64, in scaled
    coordinates and with a diagonal of ones. Where samples do not determine the polynomial, or where it varies by more
    than the radius, a lower degree is fitted, down to a constant.
    """
    first = index[:, 0]
    if centres is None and directions is None and _kernel_fits(points, normals, index):
        from lamina.fits.jets_kernel import fit

        found = fit(points, normals, index, degree, slopes=slopes, left=False)
        return Jets(degree, points[first], *(v.to(points.dtype) for v in found[:5]))
    centres = points[first] if centres is None else centres
    directions = normals[first] if directions is None else directions
    size = index.shape[1] * coefficient_count(degree)
    rows = torch.arange(len(index), device=index.device)
    parts = []
    for chunk in rows.split(max(1, MAX_DESIGN_ENTRIES[points.device.type] // size)):
        around = Neighbourhoods.of(points, normals, index[chunk], centres[chunk], directions[chunk])
        least_squares = _WeightedFit.of(around)
        columns, gram, right = least_squares.equations(degree, slopes)
        parts.append(least_squares.fitted(columns, _solve(gram, right, degree)))
    return Jets(degree, centres, *(torch.cat(part).to(points.dtype) for part in zip(*parts, strict=True)))


@torch.no_grad()
def fit_and_predict(
    points: Tensor, normals: Tensor, index: Tensor, degree: int, *, slopes: bool = True
) -> tuple[Jets, Tensor]:
    """Jets as fit_jets makes them, without gradients, and the height (m,) over each sample of the jet fitted without
    it; infinite where no neighbour counts."""
    if _kernel_fits(points, normals, index):
        from lamina.fits.jets_kernel import fit

        *found, height = (v.to(points.dtype) for v in fit(points, normals, index, degree, slopes=slopes))
        return Jets(degree, points[index[:, 0]], *found), height
    parts = []
    size = index.shape[1] * coefficient_count(degree)
    for near in index.split(max(1, MAX_DESIGN_ENTRIES[points.device.type] // size)):
        least_squares = _WeightedFit.of(Neighbourhoods.of(points, normals, near))
        columns, gram, right = least_squares.without_first().equations(degree, slopes)
        without = _solve(gram, right, degree)
        height = torch.where((without == 0).all(1), torch.inf, without[:, 0] * least_squares.scale)
        # At the sample itself a = b = 0: only the monomial 1, and the slopes of the linear ones, differ from zero.
        # The first neighbour therefore adds its weight to these diagonal entries alone.
        gram.diagonal(dim1=1, dim2=2)[:, : 3 if slopes else 1] += least_squares.weight[:, :1]
        parts.append((*least_squares.fitted(columns, _solve(gram, right, degree)), height))
    frame, coefficients, scale, reach, residual, height = (
        torch.cat(part).to(points.dtype) for part in zip(*parts, strict=True)
    )
    return Jets(degree, points[index[:, 0]], frame, coefficients, scale, reach, residual), height


def _kernel_fits(points: Tensor, normals: Tensor, index: Tensor) -> bool:
    """Whether the kernel fits jets to the neighbours index (m, k)."""
    return len(index) > 0 and index.shape[1] <= MAX_KERNEL_NEIGHBOURS and by_kernel(points, normals)


@torch.no_grad()
def predict(points: Tensor, normals: Tensor, index: Tensor, degree: int, slopes: bool) -> tuple[Tensor, Tensor]:
    """Height (m,) over the samples index[:, 0] of jets fitted to the others of each row, and their scale (m,)."""
    if _kernel_fits(points, normals, index):
        from lamina.fits.jets_kernel import fit

        _, _, scale, _, _, height = fit(points, normals, index, degree, slopes=slopes, whole=False)
        return height, scale
    k = index.shape[1]
    blocks = index.split(max(1, MAX_DESIGN_ENTRIES[index.device.type] // k))
    parts = [Neighbourhoods.of(points, normals, block).predict(k, degree, slopes) for block in blocks]
    height, scale = (torch.cat(part) for part in zip(*parts, strict=True))
    return height, scale


@shaped
@dataclass(frozen=True)
class Neighbourhoods:
    """The k nearest neighbours of m centres, nearest first, in the frames of the centres; in float64."""

    frame: Float[Tensor, "m 3 3"]  # rows t1, t2, n
    square: Float[Tensor, "m k"]  # squared distances in units of length, as the positions
    local: Float[Tensor, "m 3 k"]  # positions; products are faster with neighbours next to each other in memory
    turned: Float[Tensor, "m 3 k"]  # normals

    @classmethod
    def of(
        cls,
        points: Tensor,
        normals: Tensor,
        index: Tensor,
        centres: Tensor | None = None,
        directions: Tensor | None = None,
    ) -> Neighbourhoods:
        """Neighbours index (m, k) among samples (n, 3) of centres (m, 3) with normals directions (m, 3); by default the
        first neighbour and its normal."""
        near, looks = points[index].double(), normals[index].double()
        frame = tangent_frames(looks[:, 0] if directions is None else directions.double())
        offset = (near - (near[:, :1] if centres is None else centres.double()[:, None])).transpose(1, 2).contiguous()
        return cls(frame, offset.square().sum(1), frame @ offset, frame @ looks.transpose(1, 2))

    @torch.no_grad()
    def predict(self, k: int, degree: int, slopes: bool) -> tuple[Tensor, Tensor]:
        """Height (m,) over the centres of jets fitted to the k nearest without the first; their scale (m,)."""
        parts = []
        size = max(1, MAX_DESIGN_ENTRIES[self.square.device.type] // (k * coefficient_count(degree)))
        for i in range(0, len(self.square), size):
            near = (v[i : i + size, ..., :k] for v in (self.square, self.local, self.turned))
            least_squares = _WeightedFit.of(Neighbourhoods(self.frame[i : i + size], *near))
            _, gram, right = least_squares.without_first().equations(degree, slopes)
            parts.append((_solve(gram, right, degree)[:, 0] * least_squares.scale, least_squares.scale))
        height, scale = (torch.cat(part) for part in zip(*parts, strict=True))
        return height, scale


@shaped
@dataclass(frozen=True)
class _WeightedFit:
    """Weighted least squares for jets: neighbours in coordinates divided by `scale`, and their weights."""

    frame: Float[Tensor, "m 3 3"]
    scale: Float[Tensor, " m"]  # distance of the farthest neighbour
    square: Float[Tensor, "m k"]  # squared distances, in units of length
    local: Float[Tensor, "m 3 k"]  # a, b, height
    turned: Float[Tensor, "m 3 k"]  # normals
    weight: Float[Tensor, "m k"]

    @classmethod
    def of(cls, around: Neighbourhoods) -> _WeightedFit:
        square, turned = around.square, around.turned
        widest = square.amax(1).clamp_min(1e-300)
        scale = widest.sqrt()
        weight = (1 - square / widest[:, None]).clamp_min(0) ** 2
        facing = (turned[:, 2] - ZERO_WEIGHT_COSINE) / (FULL_WEIGHT_COSINE - ZERO_WEIGHT_COSINE)
        weight = weight * facing.clamp(0, 1) ** 2
        return cls(around.frame, scale, square, around.local / scale[:, None, None], turned, weight)

    def without_first(self) -> _WeightedFit:
        return replace(self, weight=torch.nn.functional.pad(self.weight[:, 1:], (1, 0)))

    def equations(self, degree: int, slopes: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Monomials (m, c, k), the normal equations (m, c, c) and their right-hand sides (m, c, 1)."""
        columns = monomials(self.local[:, 0], self.local[:, 1], degree)
        values = [columns, self.local[:, 2:]]
        if slopes:
            values.append(self.turned[:, :2] / self.turned[:, 2:].clamp_min(ZERO_WEIGHT_COSINE))
        c = columns.shape[1]
        sums = columns @ (torch.cat(values, 1) * self.weight[:, None]).transpose(1, 2)  # (m, c, c + 1 or c + 3)
        gram, right = sums[..., :c], sums[..., c : c + 1]
        return columns, *(_with_slopes(gram, right, sums[..., c + 1 :], degree) if slopes else (gram, right))

    def fitted(self, columns: Tensor, coefficients: Tensor) -> tuple[Tensor, ...]:
        """Frames, coefficients, scale, reach and residual of the jets, as in `Jets`."""
        with torch.no_grad():  # these are reported, not differentiated
            missed = (coefficients[:, None] @ columns)[:, 0] - self.local[:, 2]
            residual = ((self.weight * missed**2).sum(1) / self.weight.sum(1).clamp_min(1e-300)).sqrt() * self.scale
            trusted = self.square[:, min(REACH_NEIGHBOUR, self.square.shape[1] - 1)].sqrt()
            reach = (REACH_OVER_NEIGHBOUR * trusted / self.scale).clamp(max=MAX_REACH)
        return self.frame, coefficients, self.scale, reach, residual


def _with_slopes(gram: Tensor, right: Tensor, slopes: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Normal equations (m, c, c) and (m, c, 1) with slopes fitted besides heights, with the same weights.

    For monomials c_p and weights w: gram = sum w c_p c_q, and slopes (m, c, 2) is the sum of w c_p times a neighbour's
    -dh/da and -dh/db. The derivative of c_p is f_p c_p' with another monomial c_p', so the sums of the products of
    derivatives are f_p f_q gram_p'q'.
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
    """Coefficients (m, c) of the highest degree that each system determines; those of higher degrees are zero."""
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
            good = (failed == 0) & (pivots > MIN_PIVOT) & (found[:, 3:].abs().sum(1) <= MAX_CURVED_COEFFICIENTS)
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
    """Solution (m, c, 1) of L L^T x = right; arbitrary where L is not regular."""
    if lower.device.type == "cpu":
        return torch.cholesky_solve(right, lower)
    # Two batched substitutions take a third of the time of torch.cholesky_solve on a GPU.
    half = torch.linalg.solve_triangular(lower, right, upper=False)
    return torch.linalg.solve_triangular(lower.transpose(1, 2), half, upper=True)
