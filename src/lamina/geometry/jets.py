"""Jets: local polynomial height fits to samples of a surface, and closest points on them.

Around a sample p with normal n and tangents t1, t2 the surface is the graph of a polynomial

    a t1 + b t2 + h(a, b) n,    h(a, b) = sum_{i + j <= q} c_ij a^i b^j,

in coordinates around p divided by the neighbourhood radius r. Neighbours give heights, and their normals
m, where used, slopes: dh/da = -m.t1 / m.n and dh/db = -m.t2 / m.n. Degree q is accurate to r^(q+1) in
position and r^q in the normal. After Cazals and Pouget (2005), "Estimating differential quantities using
polynomial fitting of osculating jets". Jets and feet have the gradients of the samples, neighbours held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lamina.geometry.neighbours import tangent_frames
from lamina.geometry.polynomials import coefficient_count, derivatives, evaluator, height_derivatives, monomials
from lamina.geometry.triangles import unit
from lamina.linear.adjoint import first_order

MAX_ENTRIES = {"cpu": 2**18, "cuda": 2**25}  # of one chunk's design matrix
SHEET_OFF, SHEET_ON = 0.1, 0.6  # n_i . n_j at which a neighbour counts not at all, and fully
SMALLEST_PIVOT = 1e-11  # of the equilibrated Gram matrix; below, the samples do not determine the jet
WILDEST = 1.5  # sum of |c_ij| over i + j >= 2: beyond, the height varies by more than the radius
TRUST_NEIGHBOUR, TRUST = 8, 1.75  # how far from its sample a foot may lie: that many times that neighbour
NEWTON_STEPS = 40


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


def project(jets: Jets, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Closest points (n, 3) to x (n, 3) on the jets index (n,), and unit normals (n, 3) there.

    Newton's method for the minimum of |x - s(a, b)|^2 over the disc |(a, b)| <= reach, with the exact
    derivatives of the polynomial, damped (Levenberg) where it does not come closer, and without the
    curvature term where the Hessian is not positive definite.
    """
    points, normals = [x[:0]], [x[:0]]
    rows = torch.arange(len(x), device=x.device)
    for chunk in rows.split(MAX_ENTRIES[x.device.type] // coefficient_count(jets.degree)):
        foot, normal = _project_chunk(jets, x[chunk], index[chunk])
        points.append(foot)
        normals.append(normal)
    return torch.cat(points), torch.cat(normals)


def _project_chunk(jets: Jets, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    # index_select: plain indexing takes four times as long to launch.
    centre, frame, scale = (v.index_select(0, index) for v in (jets.centres, jets.frames, jets.scale))
    coefficients, reach = jets.coefficients.index_select(0, index).T.contiguous(), jets.reach.index_select(0, index)
    target = (((x - centre) / scale[:, None])[:, None] @ frame.transpose(1, 2))[:, 0].T
    with torch.no_grad():
        ab, (h, ha, hb) = _nearest(target, coefficients, reach, jets.degree)
    if torch.is_grad_enabled() and (target.requires_grad or coefficients.requires_grad):
        ab = _attached(target, ab, coefficients, reach, jets.degree)
        h, ha, hb, *_ = height_derivatives(coefficients, ab[0], ab[1], jets.degree)
    foot = torch.stack([ab[0], ab[1], h], 1)[:, None] @ frame
    normal = torch.stack([-ha, -hb, torch.ones_like(scale)], 1)[:, None] @ frame
    return torch.addcmul(centre, foot[:, 0], scale[:, None]), unit(normal[:, 0])


def _attached(target: Tensor, ab: Tensor, coefficients: Tensor, reach: Tensor, degree: int) -> Tensor:
    """Places (2, n) of minima, with the gradients of targets and coefficients; at the rim of the disc without.

    There the gradient of the distance vanishes, and goes on doing so: a step of Newton's method follows it.
    """
    at = height_derivatives(coefficients, ab[0], ab[1], degree)
    above = at[0] - target[2]
    ga, gb = ab[0] - target[0] + above * at[1], ab[1] - target[1] + above * at[2]
    with torch.no_grad():
        Haa = 1 + at[1] * at[1] + above * at[3]
        Hab = at[1] * at[2] + above * at[4]
        Hbb = 1 + at[2] * at[2] + above * at[5]
        determinant = Haa * Hbb - Hab * Hab
        free = ((ab**2).sum(0).sqrt() < (1 - 1e-9) * reach) & (determinant > 1e-6)
        determinant = torch.where(free, determinant, 1)
    ga, gb = ga - ga.detach(), gb - gb.detach()
    step = torch.stack([Hab * gb - Hbb * ga, Hab * ga - Haa * gb]) / determinant
    return first_order(ab + torch.where(free, step, 0))


def _nearest(target: Tensor, coefficients: Tensor, reach: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Where (2, n) in their discs the graphs of polynomials are nearest to targets (3, n), and h, h_a, h_b (3, n)."""
    heights = evaluator(coefficients, degree)
    ab = _inside(target[:2], reach)
    at = heights(ab[0], ab[1])
    gap = _gap(target, ab, at)
    damping = torch.zeros_like(reach)
    tolerance, slack = torch.finfo(target.dtype).eps ** 0.5, 1 + 16 * torch.finfo(target.dtype).eps
    for _ in range(NEWTON_STEPS):
        new = _inside(ab + _newton_step(target, ab, at, damping), reach)
        there = heights(new[0], new[1])
        # Gaps are quadratic in the distance to the minimum: rounding must not refuse the last steps.
        closer = _gap(target, new, there)
        better = closer <= gap * slack
        moved = ((new - ab) ** 2).sum(0).sqrt()
        ab = torch.where(better, new, ab)
        at = torch.where(better, there, at)
        gap = torch.where(better, closer, gap)
        damping = torch.where(better, damping / 8 * (damping > 0.1), 8 * damping + 0.5)
        # An undamped Newton step of size e leaves an error of size e^2.
        if bool((moved <= tolerance).all()):
            break
    return ab, at[:3]


def _inside(ab: Tensor, reach: Tensor) -> Tensor:
    """The nearest places (2, n) in the disc of radius reach (n,)."""
    return ab * (reach / (ab**2).sum(0).sqrt().clamp_min(1e-30)).clamp(max=1)


def _gap(target: Tensor, ab: Tensor, at: Tensor) -> Tensor:
    return ((target[:2] - ab) ** 2).sum(0) + (target[2] - at[0]) ** 2


def _newton_step(target: Tensor, ab: Tensor, at: Tensor, damping: Tensor) -> Tensor:
    """Newton step (2, n) for |target - (a, b, h)|^2 / 2, with at = h, h_a, h_b, h_aa, h_ab, h_bb (6, n)."""
    h, ha, hb, haa, hab, hbb = at
    above = h - target[2]
    ga = ab[0] - target[0] + above * ha
    gb = ab[1] - target[1] + above * hb
    Haa, Hab, Hbb = 1 + ha * ha + above * haa, ha * hb + above * hab, 1 + hb * hb + above * hbb
    convex = (Haa > 0.05) & (Haa * Hbb - Hab * Hab > 0.05 * Haa)
    Haa = torch.where(convex, Haa, 1 + ha * ha) + damping
    Hab = torch.where(convex, Hab, ha * hb)
    Hbb = torch.where(convex, Hbb, 1 + hb * hb) + damping
    return torch.stack([Hab * gb - Hbb * ga, Hab * ga - Haa * gb]) / (Haa * Hbb - Hab * Hab)
