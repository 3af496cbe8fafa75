"""Surfaces whose closest points have a formula or solve one scalar equation: Sphere, Torus, Ellipsoid."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lamina.checks import positive
from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures, from_level_set, from_shape_operator
from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot, unit, vertex_areas
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.icosphere import icosphere


class _Analytic(Surface):
    """One connected closed surface with a triangulation of samples on it."""

    representation = "analytic"
    smooth = True

    def _set_samples(self, points: Tensor, faces: Tensor) -> None:
        self.points, self.faces = points, faces
        self.component = torch.zeros(len(points), dtype=torch.int64)
        self.areas = vertex_areas(points, faces)
        self.normals = self.closest_points(points).normals

    def _feet(self, points: Tensor, normals: Tensor) -> ClosestPoints:
        return ClosestPoints(points, normals, torch.zeros(len(points), dtype=torch.int64, device=points.device))


class Sphere(_Analytic):
    """A sphere around the origin.

    Parameters
    ----------
    radius : float, default 1.0
        Its radius.
    level : int, default 5
        The level of the icosphere whose 10 4^level + 2 vertices are the samples.

    Raises
    ------
    InputError
        If the radius is not positive.

    Examples
    --------
    >>> import lamina
    >>> lamina.Sphere(radius=2.0, level=3)
    Sphere 'sphere' (analytic): 642 points, 1280 faces, 1 component, extent 4 x 4 x 4
    """

    def __init__(self, radius: float = 1.0, level: int = 5) -> None:
        super().__init__("sphere")
        _check_positive(radius=radius)
        self.radius = self.reach = float(radius)
        vertices, faces = icosphere(level)
        self._set_samples(self.radius * vertices, faces)

    def closest_points(self, x: Tensor) -> ClosestPoints:
        normal = _outward(x)
        return self._feet(self.radius * normal, normal)

    def _find_features(self) -> SurfaceFeatures:
        shape = self.points.new_tensor([1.0, 0.0, 1.0]) / self.radius
        return from_shape_operator(
            self.points, self.normals, tangent_basis(self.normals), shape.expand(len(self.points), 3)
        )


class Torus(_Analytic):
    """A torus around the z axis: a tube of radius r around a circle of radius R.

    Parameters
    ----------
    R : float, default 1.0
        The radius of the circle.
    r : float, default 0.4
        The radius of the tube, less than R.

    Raises
    ------
    InputError
        If a radius is not positive, or if r is not less than R.

    Examples
    --------
    >>> import lamina
    >>> torus = lamina.Torus(R=1.0, r=0.25)
    >>> torus.reach
    0.25
    """

    def __init__(self, R: float = 1.0, r: float = 0.4) -> None:
        super().__init__("torus")
        _check_positive(R=R, r=r)
        if not r < R:
            raise InputError(f"Torus needs r < R, got R = {R:g}, r = {r:g}; choose a thinner tube.")
        self.R, self.r = float(R), float(r)
        self.reach = min(self.r, self.R - self.r)
        around = max(12, round(math.sqrt(10000 * self.R / self.r)))
        across = max(12, round(10000 / around))
        self._set_samples(*torus_grid(self.R, self.r, around, across))

    def closest_points(self, x: Tensor) -> ClosestPoints:
        ring = _outward(torch.stack([x[:, 0], x[:, 1], torch.zeros_like(x[:, 0])], 1))
        normal = _outward(x - self.R * ring, fallback=ring)
        return self._feet(self.R * ring + self.r * normal, normal)

    def _find_features(self) -> SurfaceFeatures:
        """1 / r around the tube, cos v / (R + r cos v) around the axis, where cos v is the outward part of n."""
        x, y, _ = self.points.unbind(1)
        around = unit(torch.stack([-y, x, torch.zeros_like(x)], 1))
        across = torch.linalg.cross(around, self.normals)
        cosine = (self.normals[:, 0] * x + self.normals[:, 1] * y) / torch.hypot(x, y)
        second = cosine / (self.R + self.r * cosine)
        shape = torch.stack([torch.full_like(second, 1 / self.r), torch.zeros_like(second), second], 1)
        return from_shape_operator(self.points, self.normals, torch.stack([across, around], 1), shape)


class Ellipsoid(_Analytic):
    """The ellipsoid x^2/a^2 + y^2/b^2 + z^2/c^2 = 1.

    Parameters
    ----------
    a, b, c : float, default 1.0, 0.8, 0.6
        Its semi-axes.
    level : int, default 5
        The level of the icosphere whose 10 4^level + 2 vertices, scaled by the semi-axes, are the samples.

    Raises
    ------
    InputError
        If a semi-axis is not positive.

    Examples
    --------
    >>> import lamina
    >>> lamina.Ellipsoid(1.0, 0.5, 0.5, level=3)
    Ellipsoid 'ellipsoid' (analytic): 642 points, 1280 faces, 1 component, extent 2 x 1 x 1
    """

    def __init__(self, a: float = 1.0, b: float = 0.8, c: float = 0.6, level: int = 5) -> None:
        super().__init__("ellipsoid")
        _check_positive(a=a, b=b, c=c)
        self.semi_axes = torch.tensor([a, b, c], dtype=torch.float64)
        self.reach = min(a, b, c) ** 2 / max(a, b, c)
        vertices, faces = icosphere(level)
        self._set_samples(self.semi_axes * vertices, faces)

    def closest_points(self, x: Tensor) -> ClosestPoints:
        """The foot is y = a^2 x / (a^2 + t), t the largest root of g(t) = sum (a x / (a^2 + t))^2 - 1.

        g falls monotonically and is convex on (-min a^2, inf). So Newton's method, started to the left of the root
        where g > 0, approaches the root without overshooting (Eberly, "Distance from a point to an ellipse").
        """
        square = self.semi_axes**2
        tiny = 1e-12 * self.semi_axes.max()
        # On a plane of symmetry the root can lie at the pole of g. A small step off the plane selects one of two feet.
        x = torch.where(x.abs() < tiny, torch.full_like(x, 1.0) * tiny, x)
        scaled = self.semi_axes * x.abs()
        smallest = square.argmin()
        t = (scaled - square).amax(1)  # g >= 0 here: one term alone is already 1
        t = torch.maximum(t, scaled[:, smallest] - square[smallest])
        for _ in range(60):
            ratio = scaled / (square + t[:, None])
            g = dot(ratio, ratio) - 1
            slope = -2 * (ratio * ratio / (square + t[:, None])).sum(1)
            step = -g / slope
            t = t + step
            if bool((step.abs() <= 1e-15 * (1 + t.abs())).all()):
                break
        y = square * x / (square + t[:, None])
        y = y / ((y / self.semi_axes) ** 2).sum(1, keepdim=True).sqrt()
        return self._feet(y, unit(y / square))

    def _find_features(self) -> SurfaceFeatures:
        """From phi = (x^2/a^2 + y^2/b^2 + z^2/c^2) / 2."""
        bend = torch.diag(self.semi_axes**-2)
        return from_level_set(self.points, self.points @ bend, bend.expand(len(self.points), 3, 3))


def _outward(v: Tensor, fallback: Tensor | None = None) -> Tensor:
    """Unit vectors along v (n, 3); where v vanishes every direction is right, and `fallback` is taken."""
    if fallback is None:
        fallback = torch.zeros_like(v)
        fallback[:, 0] = 1.0
    zero = dot(v, v) <= torch.finfo(v.dtype).tiny
    return unit(torch.where(zero[:, None], fallback, v))


def _check_positive(**lengths: float) -> None:
    for name, value in lengths.items():
        positive(name, float(value))


def torus_grid(R: float, r: float, around: int, across: int) -> tuple[Tensor, Tensor]:
    u = torch.arange(around, dtype=torch.float64) * (2 * math.pi / around)
    v = torch.arange(across, dtype=torch.float64) * (2 * math.pi / across)
    u, v = (w.reshape(-1) for w in torch.meshgrid(u, v, indexing="ij"))
    radius = R + r * v.cos()
    points = torch.stack([radius * u.cos(), radius * u.sin(), r * v.sin()], 1)
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(around), torch.arange(across), indexing="ij"))
    corner = i * across + j
    right = (i + 1) % around * across + j
    above = i * across + (j + 1) % across
    both = (i + 1) % around * across + (j + 1) % across
    return points, torch.cat([torch.stack([corner, right, both], 1), torch.stack([corner, both, above], 1)])
