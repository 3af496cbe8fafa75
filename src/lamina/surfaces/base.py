"""What lamina asks of a surface, whatever its representation."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina.fits.curvature import SurfaceFeatures, from_samples
from lamina.geometry.lattice import Lattice, nodes_within
from lamina.geometry.triangles import dot, points_in, triangle_areas
from lamina.linear.adjoint import Sparse, sparse_rows
from lamina.search.neighbours import k_nearest

ROWS = 2**16  # places at a time to interpolate at: what is made on the way is many times the result


@dataclass(frozen=True)
class ClosestPoints:
    """Feet on the surface of n points in space."""

    points: Tensor  # (n, 3) the closest points
    normals: Tensor  # (n, 3) unit normals there
    component: Tensor  # (n,) int64, the connected component that each lies on
    face: Tensor | None = None  # (n,) int64, the face of a mesh that each lies on
    beyond: Tensor | None = None  # (n,) bool, whether the foot was brought back from beyond a rim; None: nowhere

    def detach(self) -> ClosestPoints:
        return ClosestPoints(self.points.detach(), self.normals.detach(), self.component, self.face, self.beyond)

    def take(self, rows: Tensor) -> ClosestPoints:
        face, beyond = (None if v is None else v[rows] for v in (self.face, self.beyond))
        return ClosestPoints(self.points[rows], self.normals[rows], self.component[rows], face, beyond)


@dataclass(frozen=True)
class NearNodes:
    """Lattice nodes near a surface, once for every component that they are near to."""

    ijk: Tensor  # (n, 3) int64
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
    exact : bool
        Whether closest points are those of the surface itself, not of a fit to samples.
    open : bool
        Whether it may have rims, where it ends.
    faceted : bool
        Whether it consists of flat faces, with a crease along every edge.
    tracked : bool
        Whether its shape carries gradients. `points` and everything made of them are constants then; closest points,
        `positions`, `own_feet` and `own_areas` carry the gradients.

    Examples
    --------
    >>> import torch, lamina
    >>> feet = lamina.Sphere(level=3).closest_points(torch.tensor([[0.0, 0.0, 3.0]], dtype=torch.float64))
    >>> feet.points
    tensor([[0., 0., 1.]], dtype=torch.float64)
    """

    representation: str = "surface"
    exact: bool = True
    reach: float | None = None
    open: bool = False
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

    @abstractmethod
    def closest_points(self, x: Tensor) -> ClosestPoints:
        """Feet of x (n, 3), for x within the surface's reach."""

    def offsets(self, x: Tensor, feet: ClosestPoints) -> Tensor:
        """Signed distances (n,) of x (n, 3), whose feet are given, positive on the side that normals look to."""
        return dot(x - feet.points, feet.normals)

    def rim_tangents(self, x: Tensor) -> Tensor | None:
        """Unit tangents (n, 3) that lead off the surface at points x (n, 3) of its rim, where it knows them better than
        the pieces that it is cut into."""
        return None

    @property
    def positions(self) -> Tensor:
        """`points` (m, 3), with gradients where they were given with them."""
        return self.points

    def own_feet(self) -> ClosestPoints:
        """`points` as points on the surface."""
        return ClosestPoints(self.points, self.normals, self.component)

    def own_areas(self) -> Tensor:
        """`areas`, with gradients where the surface has them."""
        return self.areas

    def features(self) -> SurfaceFeatures:
        """Normal, principal directions and curvatures at each of `points`, found when first asked for."""
        if self._features is None:
            self._features = self._find_features()
        return self._features

    def _find_features(self) -> SurfaceFeatures:
        """From quadrics through neighbouring samples; representations that know better say so."""
        feet = self.own_feet()
        return from_samples(feet.points, feet.normals, feet.component, slopes=True)

    @property
    def bounds(self) -> Tensor:
        """Corners (2, 3) of a box around the surface."""
        return torch.stack([self.points.amin(0), self.points.amax(0)])

    @property
    def component_count(self) -> int:
        return int(self.component.max()) + 1

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        """All lattice nodes whose distance to (a component of) the surface is at most radius."""

        def distance(x: Tensor) -> Tensor:
            offset = x - self.closest_points(x).points
            return dot(offset, offset).sqrt()

        ijk = nodes_within(lattice, self.bounds, radius, distance)
        return NearNodes(ijk, self.closest_points(lattice.position(ijk)))

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count random points, uniform by area: drawn on the triangles of `faces`, moved to the surface."""
        if self.faces is None:
            raise TypeError(f"{type(self).__name__} must say how it is sampled")
        corners = self.points[self.faces]
        # Drawn on the CPU so that a seed means the same points on every device.
        generator = torch.Generator().manual_seed(seed)
        face = torch.multinomial(triangle_areas(corners).cpu().double(), count, True, generator=generator)
        r = torch.rand(count, 2, generator=generator, dtype=torch.float64).to(corners)
        return self.closest_points(points_in(corners[face.to(corners.device)], r))

    def interpolate(self, values: Tensor, x: Tensor) -> Tensor:
        """Values (n,) or (n, k) at surface points x (n, 3) from values (m,) or (m, k) at `points`, second order."""
        return self.interpolation(x) @ values

    def interpolation(self, x: Tensor, face: Tensor | None = None) -> Sparse:
        """The matrix (n, m) that does so: a linear least-squares fit in space over the nearest samples, weighted
        towards x.
        face (n,): where x lie on the faces of a mesh, if that is known; closest points are then not searched for.

        With rows r_q = (1, p_q - x), weights w_q and G = sum w_q r_q r_q^T, the fit to the differences of the values
        from their weighted mean c has the value e_0^T G^-1 sum w_q r_q (v_q - c) at x.
        """
        parts = [self._interpolation_rows(part) for part in x.split(ROWS)]
        index, weights = (torch.cat(part) for part in zip(*parts, strict=True))
        return sparse_rows(index, weights, len(self.points))

    def _interpolation_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (n, 12) int32 and their weights."""
        index, distance = k_nearest(self.points, min(12, len(self.points)), x.detach())
        scale = distance[:, -1:].clamp_min(torch.finfo(x.dtype).tiny)
        offset = (self.positions[index] - x[:, None]) / scale[..., None]
        square = dot(offset, offset)
        weight = torch.exp(-4 * square / square[:, -1:].clamp_min(torch.finfo(x.dtype).tiny))
        share = weight / weight.sum(1, keepdim=True)
        rows = torch.cat([torch.ones_like(offset[..., :1]), offset], -1)  # (n, neighbours, 4)
        gram = torch.einsum("nk,nki,nkj->nij", weight, rows, rows)
        # Samples of a smooth surface are nearly coplanar: a little ridge settles the slope along the normal.
        gram = gram + 1e-6 * torch.diag(gram.new_tensor([0.0, 1.0, 1.0, 1.0]))
        first = torch.linalg.solve(gram, gram.new_tensor([1.0, 0.0, 0.0, 0.0]).expand(len(x), 4))
        slope = weight * (rows @ first[..., None])[..., 0]
        return index.to(torch.int32), slope + (1 - slope.sum(1, keepdim=True)) * share

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Surface:
        """The same surface with its tensors on another device or in another precision."""
        moved = copy.copy(self)
        for key, value in vars(self).items():
            if isinstance(value, Tensor):
                real = value.is_floating_point()
                setattr(moved, key, value.to(device=device, dtype=dtype if real else None))
        moved.notes = list(self.notes)
        moved._features = None if self._features is None else self._features.to(device, dtype)
        return moved
