"""One surface from many jets: the zero set of a weighted mean of the signed distances to the jets around a point.

    phi(x) = sum_j w_j(x) g_j(x) / sum_j w_j(x),    w_j(x) = (1 - (|x - p_j|^2 - d^2) / R^2)_+^3,

where g_j is the signed distance, to first order, to the graph of the jet of sample p_j, and d is the distance of x to
its nearest sample. The mean is as accurate as the g_j are. A jet that continues beyond an edge of the surface is
outvoted there by the jets of the other face, so no fins grow. Edges stay sharp because the mean is taken over each face
separately: the surface is the maximum of the two means at a convex edge, the minimum at a concave one. Both ideas are
from Ohtake et al. (2003), "Multi-level partition of unity implicits".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_later

from lamina.device import by_kernel
from lamina.fits.jets import Jets
from lamina.fits.polynomials import coefficient_count, height_slopes
from lamina.geometry.triangles import dot, dot_rows
from lamina.shapes import Float, Int, shaped

# Two normals whose cosine is not above this look opposite ways and belong to sheets back to back. The normals at an
# edge of more than 60 degrees are less than 120 degrees apart and belong to one surface.
BACK_TO_BACK_COSINE = -0.5
# Two groups of jets whose mean normals have a cosine below this (more than 37 degrees) meet in an edge that stays
# sharp; a smaller angle is taken for curvature and is rounded. Chosen by trial.
MAX_EDGE_COSINE = 0.8
# Two groups of jets that look opposite ways are two sheets if one lies above the other by more than this share of
# R; otherwise they are one sheet with normals of both signs. Chosen by trial.
MIN_SHEET_GAP = 0.2
# A jet of at most this weight does not start a second group at an edge: its value hardly counts, and distant
# samples would make edges.
MIN_EDGE_WEIGHT = 0.01
# The distance d of this neighbour gives the local spacing s: a disc of radius d holds that many samples, pi d^2 = 8
# s^2. Nearer ones vary more by chance, farther ones are less local.
SPACING_NEIGHBOUR = 8
BLEND_BATCH = {"cpu": 2**12, "cuda": 2**18}  # points blended at a time


@shaped
@dataclass(frozen=True)
class Blend:
    """Jets around m samples, each blended with those of its neighbours."""

    points: Float[Tensor, "m 3"]
    normals: Float[Tensor, "m 3"]
    near: Int[Tensor, "m j"]  # nearest samples of the same component, first the sample itself
    jets: Jets
    reach: float = 3.0  # R^2 over the square of the local spacing
    sharp: bool = True  # whether edges stay sharp; otherwise they are rounded

    @property
    def spacing(self) -> Tensor:
        """Local spacing s (m,) around each sample."""
        last = min(SPACING_NEIGHBOUR, self.near.shape[1] - 1)
        offset = self.points[self.near[:, last]] - self.points
        return (torch.pi / SPACING_NEIGHBOUR * dot(offset, offset)).clamp_min(torch.finfo(offset.dtype).tiny).sqrt()

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """phi (n,) and unit normals (n, 3) at x (n, 3), whose nearest samples are index (n,)."""
        if self._by_kernel(x):
            from lamina.fits.blend_kernel import blended

            return blended(self, x, index)[:2]
        support = self.reach * self.spacing**2
        live = torch.is_grad_enabled() and (x.requires_grad or self.jets.coefficients.requires_grad)
        found = []
        for rows in torch.arange(len(x), device=x.device).split(BLEND_BATCH[x.device.type]):
            which = index.index_select(0, rows)
            chunk = x.index_select(0, rows), self.near.index_select(0, which), support.index_select(0, which)
            # Intermediate values are many times the result: for gradients they are computed again, not stored.
            found.append(recompute_later(self._chunk, *chunk, use_reentrant=False) if live else self._chunk(*chunk))
        if not found:
            return x[:, 0], x
        phi, normals = (torch.cat(part) for part in zip(*found, strict=True))
        return phi, normals

    def vanishing(self, x: Tensor, index: Tensor, tolerance: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """x (n, 3), whose nearest samples are index (n,), moved to where the blend vanishes, and unit normals there.

        At most `steps` steps of length |phi| along the normal. A point with |phi| at most `tolerance` (n,) is moved by
        that step and then stays. Without gradients.
        """
        if self._by_kernel(x):
            from lamina.fits.blend_kernel import blended

            _, normals, points = blended(self, x, index, tolerance, steps)
            return points, normals
        phi, normals = self(x, index)
        points = x - phi[:, None] * normals
        rows = (phi.abs() > tolerance).nonzero()[:, 0]
        for _ in range(steps - 1):
            if not len(rows):
                break
            phi, normals[rows] = self(points[rows], index[rows])
            points[rows] -= phi[:, None] * normals[rows]
            rows = rows[phi.abs() > tolerance[rows]]
        return points, normals

    def _by_kernel(self, x: Tensor) -> bool:
        return len(x) > 0 and by_kernel(x, self.points, self.normals, self.jets.centres, self.jets.coefficients)

    def detach(self) -> Blend:
        return replace(self, points=self.points.detach(), normals=self.normals.detach(), jets=self.jets.detach())

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        """The jets with one column a sample: scale, reach, centres (3) and frames (9) in one tensor (14, m), and the
        coefficients (c, m)."""
        jets = self.jets
        shape = [jets.scale[:, None], jets.reach[:, None], jets.centres, jets.frames.reshape(-1, 9)]
        count = coefficient_count(jets.degree)
        return torch.cat(shape, 1).T.contiguous(), jets.coefficients[:, :count].T.contiguous()

    def _chunk(self, x: Tensor, near: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
        # (3, n, j): it is several times faster to compute with three vectors of n j numbers than with n j of three.
        offset = self.points.T.index_select(1, near.reshape(-1)).view(3, *near.shape) - x.T[..., None]
        square = offset.square().sum(0)
        least = square.amin(1, keepdim=True)
        weight = (1 - (square - least) / support[:, None]).clamp_min(0) ** 3
        g, normal = self._offsets(x, near, weight.detach() > 0)
        if self.sharp:
            phi, normals = _sharp(offset, weight, g, normal, support)
        else:
            # The weighted mean normal tells which sheet x is nearest to: a single sample may be wrong.
            looks = self.normals.T.index_select(1, near.reshape(-1)).view(3, *near.shape)
            ahead = _unit((weight * looks).sum(-1))
            phi, normals = _mean(weight * (dot_rows(looks, ahead[..., None]) > BACK_TO_BACK_COSINE), g, normal)
        return phi, normals.T

    def _offsets(self, x: Tensor, near: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distances (n, j) of x (n, 3) to the jets near (n, j), and normals (3, n, j); zero where these are not
        counted (n, j)."""
        pairs = counted.reshape(-1).nonzero()[:, 0]
        which = near.reshape(-1).index_select(0, pairs)
        shape, coefficients = (v.index_select(1, which) for v in self._columns)
        scale, reach, centre, frame = shape[0], shape[1], shape[2:5], shape[5:].reshape(3, 3, -1)
        own = torch.div(pairs, near.shape[1], rounding_mode="floor")
        offset = (x.T.index_select(1, own) - centre) / scale
        a, b, c = (frame * offset).sum(1)
        # Beyond its reach a jet continues as its tangent plane there. The square root has no derivative at zero, and x
        # may lie exactly over the centre of a jet.
        hold = (reach / (a * a + b * b).clamp_min(torch.finfo(a.dtype).tiny).sqrt()).clamp(max=1)
        h, ha, hb = height_slopes(coefficients, a * hold, b * hold, self.jets.degree)
        h = h + (ha * a + hb * b) * (1 - hold)
        level = (1 + ha * ha + hb * hb).rsqrt()
        normal = (frame[2] - ha * frame[0] - hb * frame[1]) * level
        g = torch.zeros_like(near, dtype=x.dtype).reshape(-1).index_copy(0, pairs, (c - h) * level * scale)
        normals = x.new_zeros(3, near.numel()).index_copy(1, pairs, normal)
        return g.view_as(near), normals.view(3, *near.shape)


def _unit(v: Tensor) -> Tensor:
    """Vectors (3, ...) scaled to length 1; zero ones stay zero."""
    return v / dot_rows(v, v).clamp_min(torch.finfo(v.dtype).tiny).sqrt()


def _mean(weight: Tensor, g: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Means (n,) of g (n, j) and (3, n) of unit vectors normal (3, n, j)."""
    total = weight.sum(1).clamp_min(torch.finfo(g.dtype).tiny)
    return (weight * g).sum(1) / total, _unit((weight * normal).sum(-1))


def _sharp(offset: Tensor, weight: Tensor, g: Tensor, normal: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """As _mean, but where jets (n, j) look two ways, as at an edge, the maximum or the minimum of two means.

    The jet of most weight stands for one face, the jet turned away most from it for the other; every jet belongs to
    the face whose normal is nearer to its own. An edge is convex if the samples of each face, at offset (3, n, j) from
    x, lie below the other face: the solid is then where both means are negative. It is concave if they lie above: the
    solid is then where either mean is negative.
    """
    one = _pick(normal, weight.argmax(1))
    to_one = dot_rows(normal, one[..., None])
    two = _pick(normal, to_one.masked_fill(weight <= MIN_EDGE_WEIGHT, torch.inf).argmin(1))
    other = dot_rows(normal, two[..., None]) > to_one
    parts = [weight * ~other, weight * other]
    (a, na), (b, nb) = (_mean(part, g, normal) for part in parts)
    centres = [(part * offset).sum(-1) / part.sum(1).clamp_min(1e-300) for part in parts]
    across = centres[1] - centres[0]
    below = (dot_rows(across, na) - dot_rows(across, nb)) / support.sqrt()
    facing = dot_rows(na, nb)
    # Two sheets back to back lie apart. Normals of both signs in one plane belong to one sheet, with x on one side.
    edge = (facing < MAX_EDGE_COSINE) & (parts[1].sum(1) > 0)
    edge &= (facing > BACK_TO_BACK_COSINE) | (below.abs() > MIN_SHEET_GAP)
    second = edge & torch.where(below < 0, b > a, b < a)
    alone = ~edge & (facing > BACK_TO_BACK_COSINE)
    everything, n = _mean(weight, g, normal)
    phi = torch.where(alone, everything, torch.where(second, b, a))
    return phi, torch.where(alone, n, torch.where(second, nb, na))


def _pick(vectors: Tensor, which: Tensor) -> Tensor:
    """Of vectors (3, n, j), those (3, n) with numbers which (n,)."""
    return vectors.gather(2, which[None, :, None].expand(3, -1, 1))[..., 0]
