"""One surface out of many jets: where the mean of the signed distances to those around vanishes.

    phi(x) = sum_j w_j(x) g_j(x) / sum_j w_j(x),    w_j(x) = (1 - (|x - p_j|^2 - d^2) / R^2)_+^3,

g_j the signed distance, to first order, to the graph of the jet of sample p_j, d the distance of x to its nearest
sample. As a mean of the g_j it is as accurate as these are. A jet that runs on beyond an edge of the surface is
outvoted there by those of the other face, so that no fins grow; edges stay sharp where the mean is taken over each face
for itself, and the greater or the smaller of the two as the edge is convex or not. Both after Ohtake et al. (2003),
"Multi-level partition of unity implicits".
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

BACK = -0.5  # n_i . n_j below which two samples are on sheets back to back
EDGE = 0.8  # n_a . n_b below which two faces meet in an edge
APART = 0.2  # heights above each other, over R, of sheets that are two
FAINT = 0.01  # weight of a jet that has no say about edges
SPACED = 8  # neighbour whose distance tells the spacing s: pi d^2 = 8 s^2
ROWS = {"cpu": 2**12, "cuda": 2**18}  # places at a time


@dataclass(frozen=True)
class Blend:
    """Jets around m samples, blended among neighbours."""

    points: Tensor  # (m, 3)
    normals: Tensor  # (m, 3)
    near: Tensor  # (m, j) int64, nearest samples of the same component, first the sample itself
    jets: Jets
    reach: float = 3.0  # R^2 over the square of the local spacing
    sharp: bool = True  # whether edges are kept; otherwise they are rounded

    @property
    def spacing(self) -> Tensor:
        """Local spacing s (m,) around each sample."""
        last = min(SPACED, self.near.shape[1] - 1)
        offset = self.points[self.near[:, last]] - self.points
        return (torch.pi / SPACED * dot(offset, offset)).clamp_min(torch.finfo(offset.dtype).tiny).sqrt()

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """phi (n,) and unit normals (n, 3) at x (n, 3), whose nearest samples are index (n,)."""
        if self._by_kernel(x):
            from lamina.fits.blend_kernel import blended

            return blended(self, x, index)[:2]
        support = self.reach * self.spacing**2
        live = torch.is_grad_enabled() and (x.requires_grad or self.jets.coefficients.requires_grad)
        found = []
        for rows in torch.arange(len(x), device=x.device).split(ROWS[x.device.type]):
            which = index.index_select(0, rows)
            chunk = x.index_select(0, rows), self.near.index_select(0, which), support.index_select(0, which)
            # What a chunk makes on the way is many times its result: for gradients it is made again.
            found.append(recompute_later(self._chunk, *chunk, use_reentrant=False) if live else self._chunk(*chunk))
        if not found:
            return x[:, 0], x
        phi, normals = (torch.cat(part) for part in zip(*found, strict=True))
        return phi, normals

    def vanishing(self, x: Tensor, index: Tensor, there: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """x (n, 3), whose nearest samples are index (n,), moved to where the blend vanishes by that many steps, and
        normals there; those nearer to it than there (n,) once more and then no more. Without gradients."""
        if self._by_kernel(x):
            from lamina.fits.blend_kernel import blended

            _, normals, points = blended(self, x, index, there, steps)
            return points, normals
        phi, normals = self(x, index)
        points = x - phi[:, None] * normals
        rows = (phi.abs() > there).nonzero()[:, 0]
        for _ in range(steps - 1):
            if not len(rows):
                break
            phi, normals[rows] = self(points[rows], index[rows])
            points[rows] -= phi[:, None] * normals[rows]
            rows = rows[phi.abs() > there[rows]]
        return points, normals

    def _by_kernel(self, x: Tensor) -> bool:
        return len(x) > 0 and by_kernel(x, self.points, self.normals, self.jets.centres, self.jets.coefficients)

    def detach(self) -> Blend:
        return replace(self, points=self.points.detach(), normals=self.normals.detach(), jets=self.jets.detach())

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        """What the chunks take of the jets, sample by sample: scale, reach, centres (3) and frames (9), (14, m); and
        the coefficients (c, m)."""
        jets = self.jets
        shape = [jets.scale[:, None], jets.reach[:, None], jets.centres, jets.frames.reshape(-1, 9)]
        count = coefficient_count(jets.degree)
        return torch.cat(shape, 1).T.contiguous(), jets.coefficients[:, :count].T.contiguous()

    def _chunk(self, x: Tensor, near: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
        # (3, n, j): three vectors of n j numbers are several times faster to compute with than n j of three.
        place = self.points.T.index_select(1, near.reshape(-1)).view(3, *near.shape) - x.T[..., None]
        square = place.square().sum(0)
        least = square.amin(1, keepdim=True)
        weight = (1 - (square - least) / support[:, None]).clamp_min(0) ** 3
        g, normal = self._offsets(x, near, weight.detach() > 0)
        if self.sharp:
            phi, normals = _sharp(place, weight, g, normal, support)
        else:
            # The sheet that x is nearest to is that of most weight, whatever a single sample says.
            looks = self.normals.T.index_select(1, near.reshape(-1)).view(3, *near.shape)
            ahead = _unit((weight * looks).sum(-1))
            phi, normals = _mean(weight * (dot_rows(looks, ahead[..., None]) > BACK), g, normal)
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
        # Beyond its reach a jet goes on as its tangent plane does. The root of zero has no derivative, and a place may
        # lie right over the centre of a jet.
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


def _sharp(place: Tensor, weight: Tensor, g: Tensor, normal: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """As _mean, but where jets (n, j) look two ways, as at an edge, the greater or the smaller of two means.

    Jets belong to the face of the one of most weight or to that of the one turned away most from it. An edge is
    convex, and the solid where both means are negative, if the samples of each face, at place (3, n, j) about x, lie
    below the other, and concave, the solid where either is, if they lie above.
    """
    one = _pick(normal, weight.argmax(1))
    to_one = dot_rows(normal, one[..., None])
    two = _pick(normal, to_one.masked_fill(weight <= FAINT, torch.inf).argmin(1))
    other = dot_rows(normal, two[..., None]) > to_one
    parts = [weight * ~other, weight * other]
    (a, na), (b, nb) = (_mean(part, g, normal) for part in parts)
    centres = [(part * place).sum(-1) / part.sum(1).clamp_min(1e-300) for part in parts]
    across = centres[1] - centres[0]
    below = (dot_rows(across, na) - dot_rows(across, nb)) / support.sqrt()
    facing = dot_rows(na, nb)
    # Sheets back to back lie apart; what looks two ways in one plane is one sheet, of which x is on one side.
    edge = (facing < EDGE) & (parts[1].sum(1) > 0) & ((facing > BACK) | (below.abs() > APART))
    second = edge & torch.where(below < 0, b > a, b < a)
    alone = ~edge & (facing > BACK)
    everything, n = _mean(weight, g, normal)
    phi = torch.where(alone, everything, torch.where(second, b, a))
    return phi, torch.where(alone, n, torch.where(second, nb, na))


def _pick(vectors: Tensor, which: Tensor) -> Tensor:
    """Vectors (3, n) of vectors (3, n, j)."""
    return vectors.gather(2, which[None, :, None].expand(3, -1, 1))[..., 0]
