"""What lamina asks of a surface, whatever its representation."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina.fits.curvature import SurfaceFeatures, from_samples
from lamina.geometry.lattice import Lattice, nodes_within
from lamina.geometry.triangles import dot, points_in, triangle_areas
from lamina.linear.operator import SparseOperator, sparse_rows
from lamina.search.neighbours import k_nearest
from lamina.shapes import Bool, Float, Int, shaped

INTERPOLATION_BATCH = 2**16  # points that are interpolated at a time: intermediate results are many times the result
RADIUS_SLACK = 1e-9  # relative: distances that exceed a radius by rounding alone count as within it
# Ridge on the slopes of an interpolation, added to sums of weights of order 1: far below what samples show of slopes
# along the surface, far above rounding. Half or double makes no visible difference.
INTERPOLATION_RIDGE = 1e-6
INTERPOLATION_NEIGHBOURS = 12  # samples that an interpolation takes: a linear fit needs 4, more of them average noise


@shaped
@dataclass(frozen=True)
class ClosestPoints:
    """Closest points on a surface (feet) of n points in space."""

    points: Float[Tensor, "n 3"]  # the closest points
    normals: Float[Tensor, "n 3"]  # unit normals there
    component: Int[Tensor, " n"]  # the connected component that each lies on
    face: Int[Tensor, " n"] | None = None  # the face of a mesh that each lies on
    beyond: Bool[Tensor, " n"] | None = None  # whether the foot was moved back to a rim from beyond it; None: nowhere

    def detach(self) -> ClosestPoints:
        return ClosestPoints(self.points.detach(), self.normals.detach(), self.component, self.face, self.beyond)

    def take(self, rows: Tensor) -> ClosestPoints:
        face, beyond = (None if v is None else v[rows] for v in (self.face, self.beyond))
        return ClosestPoints(self.points[rows], self.normals[rows], self.component[rows], face, beyond)


@shaped
@dataclass(frozen=True)
class NearNodes:
    """Lattice nodes near a surface. A node that is near to several components occurs once for each."""

    ijk: Int[Tensor, "n 3"]
    feet: ClosestPoints


class Surface(ABC):
    """The base of all surfaces: samples where solutions are reported, and a closest-point map near the surface.

    A subclass sets `points`, `normals`, `areas` and `component`, and defines `closest_points`.

    Parameters
    ----------
    name : str, optional
        What reports call the surface, the name of its class unless given.

    Attributes
    ----------
    points, normals, areas : Tensor
        Samples (m, 3), their unit normals (m, 3) and their shares (m,) of the area.
    faces : Tensor or None
        Triangles (f, 3) int64 over the points, for files and pictures only.
    component : Tensor
        The connected component (m,) int64 of each sample, from 0.
    notes : list of str
        What was repaired or assumed when the surface was made, one sentence each.
    facts : dict
        Further facts that `lamina info` reports, by name.
    reach : float or None
        The smallest medial radius, where a formula gives it. Otherwise lamina.grid.sizing measures it on the samples.
    smooth : bool
        Whether the normal varies continuously, as on analytic surfaces, sphere maps and zero sets. It is a property
        of the representation: a zero set whose function has kinks is called smooth, too.
    sampled : bool
        Whether the surface is known at points only, as point clouds and splats are.
    noisy : bool
        Whether the samples carry noise. A point cloud counts as noisy until a reconstruction has measured it.
    sharp : bool
        Whether the surface may have creases, as meshes may.
    open : bool
        Whether the surface may have rims, where it ends.
    exact : bool
        Whether closest points are those of the surface itself, not of a fit to samples.
    faceted : bool
        Whether the surface consists of flat faces, with a crease along every edge.
    tracked : bool
        Whether the shape carries gradients. `points` and everything made of them are constants even then; closest
        points, `positions`, `own_feet` and `own_areas` carry the gradients.

    Notes
    -----
    The booleans are traits. They are decided where a surface is made, and later code asks them instead of the class. A
    surface that is made of another one (Clipped) inherits them with `inherit_traits`.

    Examples
    --------
    >>> import torch, lamina
    >>> feet = lamina.Sphere(level=3).closest_points(torch.tensor([[0.0, 0.0, 3.0]], dtype=torch.float64))
    >>> feet.points
    tensor([[0., 0., 1.]], dtype=torch.float64)
    """

    representation: str = "surface"
    reach: float | None = None
    smooth: bool = False
    sampled: bool = False
    noisy: bool = False
    sharp: bool = False
    open: bool = False
    exact: bool = True
    faceted: bool = False
    tracked: bool = False
    points: Tensor
    normals: Tensor
    areas: Tensor
    component: Tensor
    faces: Tensor | None = None
    _features: SurfaceFeatures | None = None

    def __init__(self, name: str = "") -> None:
        self.name = name or type(self).__name__.lower()
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.thickness: tuple[NDArray, NDArray] | None = None  # filled by lamina.grid.sizing when first asked for

    def __repr__(self) -> str:
        parts = self.component_count
        size = " x ".join(f"{float(side):.4g}" for side in self.bounds[1] - self.bounds[0])
        faces = "" if self.faces is None else f"{len(self.faces)} faces, "
        return (
            f"{type(self).__name__} {self.name!r} ({self.representation}): {len(self.points)} points, {faces}"
            f"{parts} component{'s' if parts > 1 else ''}, extent {size}"
        )

    def inherit_traits(self, base: Surface) -> None:
        """Take over what is true of `base` wherever this surface is a part of it.

        `open` and `tracked` are not taken over: a part may end where `base` does not, and may hold no gradients.
        """
        self.smooth, self.sampled, self.noisy = base.smooth, base.sampled, base.noisy
        self.sharp, self.exact, self.faceted = base.sharp, base.exact, base.faceted

    @abstractmethod
    def closest_points(self, x: Float[Tensor, "n 3"]) -> ClosestPoints:
        """Feet of x (n, 3), for x within the surface's reach."""

    def offsets(self, x: Tensor, feet: ClosestPoints) -> Tensor:
        """Signed distances (n,) of x (n, 3) with the given feet, positive on the side that normals point to."""
        return dot(x - feet.points, feet.normals)

    def rim_tangents(self, x: Tensor) -> Tensor | None:
        """Unit tangents (n, 3) that lead off the surface at points x (n, 3) of its rim, or None.

        None, unless the surface knows these tangents better than the flat pieces that the grid cuts it into."""
        return None

    @property
    def positions(self) -> Float[Tensor, "m 3"]:
        """`points` (m, 3), with gradients if the surface was given points that want gradients."""
        return self.points

    def own_feet(self) -> ClosestPoints:
        """`points` as points on the surface."""
        return ClosestPoints(self.points, self.normals, self.component)

    def own_areas(self) -> Float[Tensor, " m"]:
        """`areas`, with gradients where the surface has them."""
        return self.areas

    def features(self) -> SurfaceFeatures:
        """Normal, principal directions and curvatures at each of `points`, computed at the first call."""
        if self._features is None:
            self._features = self._find_features()
        return self._features

    def _find_features(self) -> SurfaceFeatures:
        """From quadrics through neighbouring samples; representations that know better override this."""
        feet = self.own_feet()
        return from_samples(feet.points, feet.normals, feet.component, slopes=True)

    @property
    def bounds(self) -> Float[Tensor, "2 3"]:
        """Corners (2, 3) of a box around the surface."""
        return torch.stack([self.points.amin(0), self.points.amax(0)])

    @property
    def component_count(self) -> int:
        return int(self.component.max()) + 1

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        """All lattice nodes within the distance radius of the surface, or of a component of it."""

        def distance(x: Tensor) -> Tensor:
            offset = x - self.closest_points(x).points
            return dot(offset, offset).sqrt()

        ijk = nodes_within(lattice, self.bounds, radius, distance)
        return NearNodes(ijk, self.closest_points(lattice.position(ijk)))

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count random points, uniform by area: drawn on the triangles of `faces` and moved to the surface."""
        if self.faces is None:
            raise TypeError(f"{type(self).__name__} must say how it is sampled")
        corners = self.points[self.faces]
        # Drawn on the CPU so that a seed means the same points on every device.
        generator = torch.Generator().manual_seed(seed)
        face = torch.multinomial(triangle_areas(corners).cpu().double(), count, True, generator=generator)
        r = torch.rand(count, 2, generator=generator, dtype=torch.float64).to(corners)
        return self.closest_points(points_in(corners[face.to(corners.device)], r))

    def interpolate(self, values: Tensor, x: Tensor) -> Tensor:
        """Values (n,) or (n, k) at surface points x (n, 3), to second order, from values (m,) or (m, k) at `points`."""
        return self.interpolation(x) @ values

    def interpolation(self, x: Tensor, face: Tensor | None = None) -> SparseOperator:
        """The matrix (n, m) of `interpolate` at surface points x (n, 3).

        It is a linear least-squares fit in space over the nearest samples, weighted towards x. With rows
        r_q = (1, p_q - x), weights w_q and G = sum w_q r_q r_q^T, the fit to the differences of the values from their
        weighted mean c has the value e_0^T G^-1 sum w_q r_q (v_q - c) at x.
        face (n,): the faces of a mesh that x lie on, if known; then no closest points are searched for.
        """
        parts = [self._interpolation_rows(part) for part in x.split(INTERPOLATION_BATCH)]
        index, weights = (torch.cat(part) for part in zip(*parts, strict=True))
        return sparse_rows(index, weights, len(self.points))

    def _interpolation_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest samples (n, 12) int32 of points x (n, 3) and their weights (n, 12)."""
        index, distance = k_nearest(self.points, min(INTERPOLATION_NEIGHBOURS, len(self.points)), x.detach())
        scale = distance[:, -1:].clamp_min(torch.finfo(x.dtype).tiny)
        offset = (self.positions[index] - x[:, None]) / scale[..., None]
        square = dot(offset, offset)
        weight = torch.exp(-4 * square / square[:, -1:].clamp_min(torch.finfo(x.dtype).tiny))
        share = weight / weight.sum(1, keepdim=True)
        rows = torch.cat([torch.ones_like(offset[..., :1]), offset], -1)  # (n, neighbours, 4)
        gram = torch.einsum("nk,nki,nkj->nij", weight, rows, rows)
        # Samples of a smooth surface are nearly coplanar, so that their fit does not know the slope along the normal. A
        # small ridge makes that slope zero.
        gram = gram + INTERPOLATION_RIDGE * torch.diag(gram.new_tensor([0.0, 1.0, 1.0, 1.0]))
        first = torch.linalg.solve(gram, gram.new_tensor([1.0, 0.0, 0.0, 0.0]).expand(len(x), 4))
        slope = weight * (rows @ first[..., None])[..., 0]
        return index.to(torch.int32), slope + (1 - slope.sum(1, keepdim=True)) * share

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same surface with its tensors on another device or in another precision."""
        moved = copy.copy(self)
        for key, value in vars(self).items():
            if isinstance(value, Tensor):
                real = value.is_floating_point()
                setattr(moved, key, value.to(device=device, dtype=dtype if real else None))
        moved.notes = list(self.notes)
        moved._features = None if self._features is None else self._features.to(device, dtype)
        return moved
