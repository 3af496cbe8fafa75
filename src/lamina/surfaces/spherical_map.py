"""Surfaces that are images of the unit sphere, y = fn(s), |s| = 1: formulas and spherical neural surfaces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures, from_fundamental_forms
from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot, unit, vertex_areas
from lamina.linear.adjoint import first_order
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.newton import FUNCTION_BATCH, DistanceModel, NewtonSurface, minimise, solve_two

# Coarsest icosphere whose vertices are the starts of Newton's method, 10242 of them, whatever the level of the samples.
# One level less has a quarter of the starts, so that more points may reach another minimum; one more has four times as
# many and takes four times the memory.
MIN_START_LEVEL = 5


class SphericalMap(NewtonSurface):
    """The image of the unit sphere under a function, such as a spherical neural surface.

    The samples are the images of the vertices of an icosphere. Closest points minimise |x - fn(s)|^2 over s by Newton's
    method from the nearest vertex. Where several points are almost equally near (the medial axis), one of them is
    found, and its distance may exceed the smallest by about the square of the sample spacing. Normals point outwards if
    the surface bounds a volume.

    Parameters
    ----------
    fn : callable
        A differentiable torch function (n, 3) -> (n, 3) of unit vectors. If it is a module, the surface takes its
        precision and device; otherwise float64 on the CPU.
    level : int, default 5
        The level of the icosphere, from 0 to 8; it has 10 4^level + 2 vertices.
    name : str, optional
        What reports call the surface.

    Raises
    ------
    InputError
        If fn is not such a function, or if the level is out of range.

    Examples
    --------
    >>> import lamina
    >>> stretched = lamina.SphericalMap(lambda s: s * s.new_tensor([2.0, 1.0, 1.0]), level=3)
    >>> len(stretched.points)
    642
    """

    representation = "spherical map"
    smooth = True

    def __init__(self, fn: Callable[[Tensor], Tensor], *, level: int = 5, name: str = "") -> None:
        super().__init__(name)
        if not callable(fn):
            raise InputError(f"fn must be a function of an (n, 3) tensor, got {type(fn).__name__}.")
        if not (isinstance(level, int) and 0 <= level <= 8):
            raise InputError(f"level must be an integer from 0 to 8, got {level!r}; 5 gives 10242 samples.")
        self.fn = fn
        # A user may want few samples for coarse fields, but the starts must be dense whatever the level.
        vertices, faces = icosphere(max(level, MIN_START_LEVEL))
        like = next(iter(fn.parameters()), None) if isinstance(fn, nn.Module) else None
        if like is not None:
            vertices, faces = vertices.to(like), faces.to(like.device)
        self.parameters = vertices
        self.starts = torch.cat([_checked(fn, s) for s in vertices.split(FUNCTION_BATCH)])
        self.start_component = faces.new_zeros(len(vertices))
        edges = self.starts[faces] - self.starts[faces.roll(1, 1)]
        # No point of a flat triangle is farther from a corner than 0.58 of the longest edge: the whole leaves room for
        # bulges.
        self.covering_radius = float(dot(edges, edges).max().sqrt())
        self.size = float((self.starts.amax(0) - self.starts.amin(0)).norm())
        self._set_samples(level)
        self.tracked = _carries_gradients(fn, vertices[:1])

    def _set_samples(self, level: int) -> None:
        coarse, faces = icosphere(level)  # its vertices are the first of every finer one
        self.points = self.starts[: len(coarse)].clone()
        faces = faces.to(self.points.device)
        a, b, c = self.points[faces].unbind(1)
        self.sign = -1.0 if float(dot(a, torch.linalg.cross(b, c)).sum()) < 0 else 1.0
        self.faces = faces if self.sign > 0 else faces.flip(1)
        self.areas = vertex_areas(self.points, self.faces)
        self.component = self.start_component[: len(coarse)].clone()
        parts = self.parameters[: len(coarse)].split(FUNCTION_BATCH)
        self.normals = torch.cat([self._normals(s) for s in parts])

    def _find_features(self) -> SurfaceFeatures:
        parts = self.parameters[: len(self.points)].split(FUNCTION_BATCH)
        forms = [self._forms(*rows) for rows in zip(parts, self.normals.split(FUNCTION_BATCH), strict=True)]
        tangents, second = (torch.cat(part) for part in zip(*forms, strict=True))
        return from_fundamental_forms(self.points, self.normals, tangents, second)

    def _refine(self, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        # The first steps are at most two edges of the icosphere long: the model is not trusted farther away.
        trust = 2 * math.sqrt(4 * math.pi / len(self.parameters))
        with torch.no_grad():
            s = unit(minimise(self._model, x.detach(), self.parameters[start], trust, 1.0))
        if torch.is_grad_enabled() and (self.tracked or x.requires_grad):
            return self._attached(x, s)
        return self.fn(s).detach(), self._normals(s)

    def _attached(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Feet fn(s) (n, 3) of x (n, 3) and normals there, with the gradients of x and of fn.

        At s the gradient g of |x - fn|^2 / 2 along the sphere vanishes. When g changes by dg, s moves by -H^-1 dg, H
        being the Hessian.
        """
        frame, model = tangent_basis(s), self._model(x.detach(), s)
        a = s.new_zeros(len(s), 2, requires_grad=True)
        offset = x - self.fn(_on_sphere(s, frame, a))
        (g,) = torch.autograd.grad(0.5 * dot(offset, offset).sum(), a, create_graph=True)
        h11, h12, h22 = model.hessian.unbind(1)
        hessian = torch.stack([torch.stack([h11, h12], 1), torch.stack([h12, h22], 1)], 1)
        moved = _on_sphere(s, frame, solve_two(hessian, g.detach() - g))
        points, normals = self.fn(moved), self._normals(moved)
        return first_order(points), first_order(normals)

    def own_feet(self) -> ClosestPoints:
        """The images under fn of fixed points of the sphere."""
        feet = super().own_feet()
        if not (self.tracked and torch.is_grad_enabled()):
            return feet
        s = self.parameters[: len(self.points)]
        return replace(feet, points=self.fn(s), normals=self._normals(s))

    def own_areas(self) -> Tensor:
        if not (self.tracked and torch.is_grad_enabled()):
            return self.areas
        assert self.faces is not None
        return vertex_areas(self.fn(self.parameters[: len(self.points)]), self.faces)

    def _model(self, x: Tensor, s: Tensor) -> _MapModel:
        """Gradient and Hessian of |x - fn(s(a))|^2 / 2, s(a) = unit(s + a_1 e_1 + a_2 e_2), at a = 0."""
        frame = tangent_basis(s)
        with torch.enable_grad():
            a = s.new_zeros(len(s), 2, requires_grad=True)
            y = self.fn(_on_sphere(s, frame, a))
            offset = x - y
            value = 0.5 * dot(offset, offset)
            (g,) = torch.autograd.grad(value.sum(), a, create_graph=True)
            first = _gradient(g[:, 0], a)
            second = _gradient(g[:, 1], a)
        value, g = value.detach(), g.detach()
        eps = torch.finfo(x.dtype).eps
        noise = 8 * eps * (value + value.sqrt() * self.size)
        hessian = torch.stack([first[:, 0], 0.5 * (first[:, 1] + second[:, 0]), second[:, 1]], 1)
        return _MapModel(s, torch.nan_to_num(value, nan=torch.inf), noise, g, hessian, frame)

    def _normals(self, s: Tensor) -> Tensor:
        """Unit normals (n, 3) along dy/da_1 x dy/da_2, with gradients where s or fn has them."""
        keep = torch.is_grad_enabled() and (s.requires_grad or self.tracked)
        with torch.enable_grad():
            a = s.new_zeros(len(s), 2, requires_grad=True)
            tangents = _jacobian(self.fn(_on_sphere(s, tangent_basis(s), a)), a, keep)
        return self.sign * unit(torch.linalg.cross(tangents[:, 0], tangents[:, 1]))

    def _forms(self, s: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Tangents dy/da_i (n, 2, 3), and the entries 11, 12, 22 of -n . d^2 y / da_i da_j (n, 3)."""
        with torch.enable_grad():
            a = s.new_zeros(len(s), 2, requires_grad=True)
            y = self.fn(_on_sphere(s, tangent_basis(s), a))
            tangents = _jacobian(y, a)
            # The Hessian of the height n . y over the tangent plane: two sweeps instead of six.
            (slope,) = torch.autograd.grad(dot(y, normals).sum(), a, create_graph=True)
            first, second = (_gradient(slope[:, k], a) for k in (0, 1))
        return tangents, -torch.stack([first[:, 0], 0.5 * (first[:, 1] + second[:, 0]), second[:, 1]], 1)


class _MapModel(DistanceModel):
    """Models whose `at` are the parameters s, unit vectors."""

    def moved(self, step: Tensor) -> Tensor:
        return unit(super().moved(step))


def spike(level: int = 5) -> SphericalMap:
    """The shape that the CVPR 2026 paper trains on, r = 1 + 0.4 sin^2(th) sin(6 th) sin(6 ph); th polar, ph azimuth.

    Parameters
    ----------
    level : int, default 5
        The level of the icosphere of its samples, as in `SphericalMap`.

    Returns
    -------
    SphericalMap
        The surface.

    Examples
    --------
    >>> import lamina
    >>> len(lamina.spike(level=3).points)
    642
    """
    return SphericalMap(_spike, level=level, name="spike")


def starfruit(level: int = 5) -> SphericalMap:
    """The shape of the paper's ablations, r = 1 + 0.5 (cos^2(th) + 0.1 (th (pi - th))^2 sin^2(5 ph + 2 th)).

    Parameters
    ----------
    level : int, default 5
        The level of the icosphere of its samples, as in `SphericalMap`.

    Returns
    -------
    SphericalMap
        The surface.

    Examples
    --------
    >>> import lamina
    >>> len(lamina.starfruit(level=3).points)
    642
    """
    return SphericalMap(_starfruit, level=level, name="starfruit")


def _spike(s: Tensor) -> Tensor:
    """sin(6 th) = rho (32 z^5 - 32 z^3 + 6 z), rho = sin th; sin(6 ph) = Im (c + i d)^6."""
    z = s[:, 2]
    rho, c, d = _azimuth(s)
    sin_6ph = 2 * c * d * (3 * c**4 - 10 * c**2 * d**2 + 3 * d**4)
    radius = 1 + 0.4 * rho**3 * z * (32 * z**4 - 32 * z**2 + 6) * sin_6ph
    return radius[:, None] * s


def _starfruit(s: Tensor) -> Tensor:
    """sin(5 ph + 2 th) = Im (c + i d)^5 (z + i rho)^2."""
    z = s[:, 2]
    rho, c, d = _azimuth(s)
    theta = torch.atan2(rho, z)
    re = c * (c**4 - 10 * c**2 * d**2 + 5 * d**4)
    im = d * (5 * c**4 - 10 * c**2 * d**2 + d**4)
    wave = im * (z**2 - rho**2) + re * 2 * z * rho
    radius = 1 + 0.5 * (z**2 + 0.1 * (theta * (math.pi - theta) * wave) ** 2)
    return radius[:, None] * s


def _azimuth(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rho = sqrt(x^2 + y^2), cos ph = x / rho, sin ph = y / rho.

    Where rho is so small that the shapes differ from their poles by less than rounding, rho is held constant. Then the
    derivatives of sqrt and of the quotients stay finite, and those of c and d vanish at the pole itself.
    """
    x, y = s[:, 0], s[:, 1]
    rho = (x * x + y * y).clamp_min(torch.finfo(s.dtype).eps ** 1.25).sqrt()
    return rho, x / rho, y / rho


def _on_sphere(s: Tensor, frame: Tensor, a: Tensor) -> Tensor:
    v = s + a[:, :1] * frame[:, 0] + a[:, 1:] * frame[:, 1]
    return v / dot(v, v).sqrt()[:, None]


def _jacobian(y: Tensor, a: Tensor, keep: bool = False) -> Tensor:
    """dy/da_1, dy/da_2 (n, 2, 3) of y (n, 3); keep: their own gradients."""
    return torch.stack([_gradient(y[:, k], a, keep) for k in range(3)], 2)


def _gradient(v: Tensor, a: Tensor, keep: bool = False) -> Tensor:
    """d sum(v) / d a, zero where v does not depend on a."""
    if not v.requires_grad:
        return torch.zeros_like(a)
    (g,) = torch.autograd.grad(v.sum(), a, retain_graph=True, allow_unused=True, create_graph=keep)
    if g is None:
        return torch.zeros_like(a)
    return g if keep else g.detach()


def _carries_gradients(fn: Callable[[Tensor], Tensor], s: Tensor) -> bool:
    """Whether fn depends on a tensor that wants gradients."""
    with torch.enable_grad():
        return fn(s.detach()).requires_grad


def _checked(fn: Callable[[Tensor], Tensor], s: Tensor) -> Tensor:
    y = fn(s)
    if not isinstance(y, Tensor) or y.shape != s.shape:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"fn must map unit vectors {tuple(s.shape)} to points of that shape, got {got}.")
    if not bool(torch.isfinite(y).all()):
        raise InputError("fn gave points that are not finite for some unit vectors; check it at the poles.")
    return y.detach()
