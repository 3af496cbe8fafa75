"""Principal curvatures and directions of a surface at its samples.

With the unit normal n the shape operator S maps a tangent t to the derivative of n along it, dn(t) = S t. It is
symmetric; its eigenvalues k1 >= k2 are the principal curvatures, its eigenvectors t1, t2 the directions:

    dn(t_i) = k_i t_i,

positive where the surface bends away from n: 1/R on a sphere of radius R with outward normals. do Carmo,
"Differential Geometry of Curves and Surfaces" (1976), chapter 3, has the opposite sign. No gradients are recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lamina.fits.jets import Jets, fit_jets
from lamina.fits.polynomials import height_derivatives
from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot, unit
from lamina.search.neighbours import PieceTrees
from lamina.shapes import Float, shaped

# Samples to which a quadric with 6 coefficients is fitted, the sample itself included. With half as many, noise counts
# twice as much; with twice as many, the neighbourhood is 1.4 times as wide and details are lost.
QUADRIC_NEIGHBOURS = 16


@shaped
@dataclass(frozen=True)
class SurfaceFeatures:
    """Points of a surface with the frames and curvatures of its osculating quadrics there."""

    points: Float[Tensor, "m 3"]
    frames: Float[Tensor, "m 3 3"]  # orthonormal rows n, t1, t2 with t2 = n x t1; t1 has the larger curvature
    curvatures: Float[Tensor, "m 2"]  # k1 >= k2

    def __len__(self) -> int:
        return len(self.points)

    @property
    def normals(self) -> Tensor:
        """Unit normals (m, 3)."""
        return self.frames[:, 0]

    @property
    def directions(self) -> Tensor:
        """Principal directions t1, t2 (m, 2, 3); their signs are arbitrary."""
        return self.frames[:, 1:]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        return type(self)(*(v.to(device=device, dtype=dtype) for v in (self.points, self.frames, self.curvatures)))

    def take(self, rows: Tensor) -> Self:
        """The rows given by indices or by a mask."""
        return type(self)(self.points[rows], self.frames[rows], self.curvatures[rows])

    def facing(self, normals: Tensor) -> Self:
        """The same features with n on the side of normals (m, 3). Where n is reversed, k1, k2 become -k2, -k1."""
        away = (dot(self.normals, normals) < 0)[:, None]
        n, t1, t2 = self.frames.unbind(1)
        # -n x t2 = t1: with t1 and t2 exchanged the frame is right-handed again.
        turned = torch.where(away[..., None], torch.stack([-n, t2, t1], 1), self.frames)
        return type(self)(self.points, turned, torch.where(away, -self.curvatures.flip(1), self.curvatures))


@torch.no_grad()
def from_shape_operator(points: Tensor, normals: Tensor, tangents: Tensor, shape: Tensor) -> SurfaceFeatures:
    """Features from the entries s11, s12, s22 (m, 3) of S in orthonormal tangents (m, 2, 3), t2 = n x t1.

    With the mean s = (s11 + s22) / 2 and the deviator d = (s11 - s22) / 2, k = s +- hypot(d, s12), and t1 is at the
    angle atan2(s12, d) / 2 from the first tangent: exact to rounding in |S|, whatever the angle. Where k1 = k2 up to
    rounding (umbilics) the angle is arbitrary; the frame is still orthonormal.
    """
    s11, s12, s22 = shape.unbind(1)
    mean, deviator = (s11 + s22) / 2, (s11 - s22) / 2
    radius = torch.hypot(deviator, s12)
    angle = torch.atan2(s12, deviator)[:, None] / 2
    e1, e2 = tangents.unbind(1)
    t1 = angle.cos() * e1 + angle.sin() * e2
    frames = torch.stack([normals, t1, torch.linalg.cross(normals, t1)], 1)
    return SurfaceFeatures(points, frames, torch.stack([mean + radius, mean - radius], 1))


@torch.no_grad()
def from_fundamental_forms(points: Tensor, normals: Tensor, tangents: Tensor, second: Tensor) -> SurfaceFeatures:
    """Features of a parametrised surface y(a, b) with tangents y_a, y_b (m, 2, 3), of any lengths and angle.

    second (m, 3): the entries b11, b12, b22 of B_ij = -n . y_ij = y_i . n_j. The first fundamental form is that of
    the tangents, G = J'J, and the shape operator in the parameters G^-1 B. In orthonormal tangents E with J = E A
    (G = A'A) that is the symmetric matrix S = A^-T B A^-1.
    """
    basis = tangent_basis(normals)
    a, b, c, d = torch.einsum("mic,mjc->mij", basis, tangents).flatten(1).unbind(1)  # A = [[a, b], [c, d]]
    determinant = a * d - b * c
    tiny = torch.finfo(points.dtype).tiny ** 0.5
    # Where the parametrisation is singular the curvature is undefined: the numbers are finite and mean nothing.
    inverse = 1 / torch.where(determinant.abs() < tiny, tiny, determinant)
    b11, b12, b22 = second.unbind(1)
    s11 = d * d * b11 - 2 * c * d * b12 + c * c * b22
    s12 = (a * d + b * c) * b12 - b * d * b11 - a * c * b22
    s22 = b * b * b11 - 2 * a * b * b12 + a * a * b22
    shape = torch.stack([s11, s12, s22], 1) * inverse[:, None] * inverse[:, None]
    return from_shape_operator(points, normals, basis, torch.nan_to_num(shape))


@torch.no_grad()
def from_level_set(points: Tensor, gradient: Tensor, hessian: Tensor) -> SurfaceFeatures:
    """Features of the level set of phi through each point, from its gradient (m, 3) and Hessian (m, 3, 3).

    n = grad phi / |grad phi|, and S is the Hessian projected to the tangent plane, over |grad phi|.
    """
    length = dot(gradient, gradient).sqrt().clamp_min(torch.finfo(points.dtype).tiny)
    normals = unit(gradient)
    basis = tangent_basis(normals)
    shape = torch.einsum("mac,mcd,mbd->mab", basis, hessian / length[:, None, None], basis)
    entries = [shape[:, 0, 0], 0.5 * (shape[:, 0, 1] + shape[:, 1, 0]), shape[:, 1, 1]]
    return from_shape_operator(points, normals, basis, torch.nan_to_num(torch.stack(entries, 1)))


@torch.no_grad()
def from_jets(points: Tensor, jets: Jets, index: Tensor, feet: Tensor) -> SurfaceFeatures:
    """Features at feet (m, 3) on the jets index (m,), reported for the given points (m, 3).

    The graph (a, b, h(a, b)) has tangents (1, 0, h_a), (0, 1, h_b), the normal (-h_a, -h_b, 1) / w with
    w = sqrt(1 + h_a^2 + h_b^2), and B_ij = -h_ij / w. Coordinates and heights of a jet are divided by its scale: first
    derivatives are the same as in units of length, second derivatives are `scale` times as large.
    """
    frame, scale = jets.frames[index], jets.scale[index]
    local = torch.einsum("mic,mc->mi", frame, feet - jets.centres[index]) / scale[:, None]
    at = height_derivatives(jets.coefficients[index].T.contiguous(), local[:, 0], local[:, 1], jets.degree)
    _, ha, hb, haa, hab, hbb = at
    one, zero = torch.ones_like(ha), torch.zeros_like(ha)
    tangents = torch.stack([torch.stack([one, zero, ha], 1), torch.stack([zero, one, hb], 1)], 1)
    normals = torch.stack([-ha, -hb, one], 1)[:, None] @ frame
    w = (1 + ha * ha + hb * hb).sqrt()
    second = -torch.stack([haa, hab, hbb], 1) / (w * scale)[:, None]
    return from_fundamental_forms(points, unit(normals[:, 0]), tangents @ frame, second)


@torch.no_grad()
def from_samples(points: Tensor, normals: Tensor, component: Tensor, slopes: bool) -> SurfaceFeatures:
    """Features at samples (m, 3) of a surface from quadrics fitted to the 16 nearest of the same component (m,).

    slopes: whether the normals (m, 3) are fitted besides the positions; they must be accurate to second order in the
    spacing. Samples at the same position count once, with their mean normal. The curvatures are of first order in the
    spacing, of second order where the neighbourhoods are symmetric.
    """
    labelled = torch.cat([points, component[:, None].to(points)], 1)
    distinct, which = torch.unique(labelled, dim=0, return_inverse=True)
    total = torch.zeros_like(distinct[:, :3]).index_add_(0, which, normals)
    # The normals of faces folded onto each other cancel: any normal will do.
    total[:, 2] += (total == 0).all(1)
    positions, piece = distinct[:, :3].contiguous(), distinct[:, 3].long()
    near, _ = PieceTrees(positions, piece).query(positions, piece, min(QUADRIC_NEIGHBOURS, len(distinct)))
    jets = fit_jets(positions, unit(total), near, 2, slopes=slopes)
    return from_jets(points, jets, which, jets.centres[which]).facing(normals)
