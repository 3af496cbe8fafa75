"""Linear finite elements on a triangle mesh: the reference that lamina's own schemes are measured against.

With hat functions phi_i over the vertices, stiffness K_ij = int grad phi_i . grad phi_j and mass
M_ij = int phi_i phi_j, the problem Lap u = f reads -K u = M f. On a triangle with angle t_k at corner k the
two vertices opposite to it are coupled by K_ij = -cot(t_k) / 2 (Pinkall and Polthier, "Computing discrete
minimal surfaces and their conjugates", 1993; Dziuk, "Finite elements for the Beltrami operator", 1988).
Nothing asks for a manifold: energies of triangles are added up, whatever number of them meet at an edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu
from torch import Tensor

from lamina.errors import InputError, SolveError
from lamina.surfaces.icosphere import split_triangles

Array = NDArray[np.float64]
Solve = Callable[[Array], Array]

# Twice the area over the longest edge squared, below which a triangle is a line: coordinates hold 16 digits,
# so what is left of the area at this size is their rounding.
_FLAT = 1e-13


@dataclass(frozen=True)
class _Triangles:
    """The triangles with an area, by corner: row k of corner and cotangent belongs to corner k."""

    corner: NDArray[np.int32]  # (3, m) vertices
    cotangent: Array  # (3, m) of the angle there
    area: Array  # (m,)
    vertices: int


def cotangent_stiffness(V: ArrayLike, F: ArrayLike) -> sp.csr_array:
    """Stiffness matrix K (n, n) of vertices V (n, 3), triangles F (m, 3): symmetric, semi-definite."""
    return _stiffness(_triangles(*_checked(V, F)))


def mass_matrix(V: ArrayLike, F: ArrayLike, *, lumped: bool = False) -> sp.csr_array:
    """Mass matrix M (n, n): area/6 on the diagonal and area/12 off it, added over triangles.

    lumped: the diagonal matrix of its row sums, a third of the area around each vertex.
    """
    return _mass(_triangles(*_checked(V, F)), lumped)


class SurfaceFEM:
    """Poisson and heat on the mesh V (n, 3), F (m, 3), with piecewise linear functions given at its vertices.

    Triangles without area are left out. component (n,) numbers the parts that the others connect; a vertex
    that no triangle uses is a part of its own, and every solution is 0 there. areas (n,) are the integrals of
    the hat functions. lumped: whether M is replaced by the diagonal matrix of these.

    solver: "cholmod" (scikit-sparse), "cholespy", "pyamg" (CG with algebraic multigrid, to a residual of
    `tolerance` times the right-hand side), "splu" (scipy), or "auto": the first of cholmod, pyamg, splu
    that is installed.
    """

    def __init__(
        self,
        V: ArrayLike,
        F: ArrayLike,
        *,
        lumped: bool = False,
        solver: str = "auto",
        tolerance: float = 1e-8,
    ) -> None:
        self.lumped, self.solver, self.tolerance = lumped, _choose(solver), tolerance
        self._triangles = _triangles(*_checked(V, F))
        self.stiffness = _stiffness(self._triangles)
        self.areas = _vertex_areas(self._triangles)

    @cached_property
    def mass(self) -> sp.csr_array:
        return _mass(self._triangles, self.lumped)

    @cached_property
    def component(self) -> NDArray[np.int32]:
        return connected_components(self.stiffness, directed=False)[1]

    def load(self, f: Array) -> Array:
        """M f without the matrix: int f phi_i = area/12 (f_i + f_1 + f_2 + f_3), added over triangles."""
        if self.lumped:
            return self.areas * f
        at = f[self._triangles.corner]
        return _scatter(self._triangles, (self._triangles.area / 12) * (at + at.sum(0)))

    def mean(self, u: Array) -> Array:
        """The area-weighted mean of u (n,) over the component of each vertex (n,)."""
        area = np.bincount(self.component, self.areas)
        total = np.bincount(self.component, self.areas * u)
        return (total / np.where(area > 0, area, 1))[self.component]

    def prepare(self) -> None:
        """Factor, or build the multigrid hierarchy, now rather than in the first `poisson`."""
        _ = self._solve_grounded

    def poisson(self, f: ArrayLike) -> Array:
        """u (n,) with Lap u = f, of zero area-weighted mean on each component.

        f (n,): values at the vertices, of which the part with zero mean on each component is taken; the rest
        has no solution. Rims are free: zero derivative across them.
        """
        f = self._field("f", f)
        u = self._solve_grounded(self.load(self.mean(f) - f))
        return u - self.mean(u)

    def dirichlet(self, f: ArrayLike, held: ArrayLike, values: ArrayLike) -> Array:
        """u (n,) with Lap u = f and u = values where held (n,) is true; other rims are free."""
        f, g, fixed = self._field("f", f), self._field("values", values), np.asarray(held, dtype=bool)
        if fixed.shape != g.shape or not fixed.any():
            raise InputError(f"held must be true at some of {len(g)} vertices, got shape {fixed.shape}.")
        free = np.flatnonzero(~fixed & (self.areas > 0))
        u = np.where(fixed, g, 0.0)
        right = -self.load(f) - self.stiffness @ u
        u[free] = _factor(sp.csr_array(self.stiffness[free][:, free]), self.solver, self.tolerance)(right[free])
        return u

    def heat(self, u0: ArrayLike, time: float, steps: int) -> Array:
        """u (n,) at `time` with du/dt = Lap u from u0 (n,), by `steps` equal steps of TR-BDF2.

        Second order and L-stable. With g = 2 - sqrt 2 the trapezoidal stage to t + g dt and the BDF2 stage to
        t + dt share the matrix M + (1 - 1/sqrt 2) dt K (Bank et al. 1985; Hosea and Shampine 1996).
        """
        u = self._field("u0", u0)
        if not (np.isfinite(time) and time >= 0 and steps >= 1):
            raise InputError(f"heat got time = {time} and steps = {steps}; expected time >= 0 and steps >= 1.")
        g = 2 - np.sqrt(2)
        shift = g / 2 * time / steps
        unused = sp.diags_array((self.areas == 0).astype(float))
        solve = _factor((self.mass + shift * self.stiffness + unused).tocsr(), self.solver, self.tolerance)
        for _ in range(steps):
            middle = solve(self.mass @ u - shift * (self.stiffness @ u))
            u = solve(self.mass @ (middle - (1 - g) ** 2 * u) / (g * (2 - g)))
        return u

    @cached_property
    def _solve_grounded(self) -> Solve:
        """Solves K u = b for b of zero sum on each component, with u = 0 at the first vertex p of each.

        K is singular; K + sum_p c_p e_p e_p^T is not. Summing its rows over a component gives c_p u_p = 0, so
        u solves the original equations.
        """
        diagonal = self.stiffness.diagonal()
        ground = np.zeros_like(diagonal)
        first = np.zeros(self.component.max() + 1, dtype=np.int64)
        first[self.component[::-1]] = np.arange(len(diagonal))[::-1]  # the last to be written is the first vertex
        ground[first] = np.where(diagonal[first] > 0, diagonal[first], 1)
        return _factor((self.stiffness + sp.diags_array(ground)).tocsr(), self.solver, self.tolerance)

    def _field(self, name: str, values: ArrayLike) -> Array:
        u = np.asarray(values, dtype=np.float64)
        if u.shape != (self._triangles.vertices,) or not np.isfinite(u).all():
            raise InputError(
                f"{name} has shape {u.shape}; expected one finite number for each of "
                f"{self._triangles.vertices} vertices."
            )
        return u


def refine(V: ArrayLike, F: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """Each triangle in four through its edge midpoints; the first n vertices stay those of V (n, 3)."""
    vertices, faces = split_triangles(*(torch.from_numpy(a) for a in _checked(V, F)))
    return vertices.numpy(), faces.numpy()


@dataclass(frozen=True)
class Reference:
    """A solution at the n original vertices, and how far it was taken."""

    values: Array  # (n,)
    change: float  # RMS of what the last refinement changed, over the range of the values
    ratio: float  # of the last two changes: 4 where u is smooth, less where cone points slow it down
    levels: int  # refinements made
    vertices: int  # of the finest mesh
    converged: bool  # whether change < tolerance


def reference_poisson(
    V: ArrayLike,
    F: ArrayLike,
    f: Callable[[Tensor], Tensor],
    *,
    tolerance: float = 1e-4,
    max_vertices: int = 1_000_000,
    extrapolate: bool = True,
    solver: str = "auto",
) -> Reference:
    """Lap u = f on the polyhedron V, F itself: the mesh is refined until u at its vertices settles.

    f maps points (k, 3), a float64 tensor, to values (k,). Refinement ends when it changes the values by less
    than `tolerance` of their range (RMS), or when the next mesh would exceed max_vertices; `converged` says
    which. extrapolate: the last change d is continued as a geometric series, u + d / (ratio - 1), which was
    3 to 20 times more accurate on ten real meshes. Values have zero mean on each component, area-weighted
    on the finest mesh.

    Parts that share a vertex but no edge have no limit: the flux through that point grows like log(1/h).
    """
    V, F = _checked(V, F)
    count, levels = len(V), 0
    u, change, ratio = _poisson_values(V, F, f, solver), np.inf, 4.0
    step = np.zeros_like(u)
    # Closed meshes have 3/2 edges for a triangle, and every edge becomes a vertex.
    while change >= tolerance and len(V) + 3 * len(F) // 2 <= max_vertices:
        V, F = refine(V, F)
        finer = _poisson_values(V, F, f, solver)[:count]
        before, step, u, levels = change, finer - u, finer, levels + 1
        change = float(np.sqrt(np.mean(step**2)) / np.ptp(u))
        if levels > 1:
            ratio = before / change
    if extrapolate:
        u = u + step / (min(max(ratio, 2.0), 4.0) - 1)
    return Reference(u, change, ratio, levels, len(V), change < tolerance)


def _poisson_values(V: Array, F: NDArray[np.int64], f: Callable[[Tensor], Tensor], solver: str) -> Array:
    return SurfaceFEM(V, F, solver=solver).poisson(f(torch.from_numpy(V)).detach().cpu())


def _checked(V: ArrayLike, F: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    vertices = np.ascontiguousarray(V, dtype=np.float64)
    faces = np.ascontiguousarray(F)
    if vertices.ndim != 2 or vertices.shape[1] != 3 or not np.isfinite(vertices).all():
        raise InputError(f"V has shape {vertices.shape}; expected finite coordinates (n, 3).")
    if faces.ndim != 2 or faces.shape[1] != 3 or faces.dtype.kind not in "iu" or len(faces) == 0:
        raise InputError(f"F has shape {faces.shape} and type {faces.dtype}; expected integers (m, 3), m > 0.")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise InputError(f"F refers to vertices {faces.min()} to {faces.max()}, but V has {len(vertices)} rows.")
    return vertices, faces.astype(np.int64, copy=False)


def _triangles(V: Array, F: NDArray[np.int64]) -> _Triangles:
    # Coordinate by coordinate in contiguous arrays, which is several times faster than rows of three.
    corner = np.ascontiguousarray(F.T, dtype=np.int32)
    p = [[x.take(c) for x in np.ascontiguousarray(V.T)] for c in corner]
    # edge[k] is opposite to corner k.
    edge = [[b - a for a, b in zip(p[k - 2], p[k - 1], strict=True)] for k in range(3)]
    (ax, ay, az), (bx, by, bz), _ = edge
    double_area = np.sqrt((ay * bz - az * by) ** 2 + (az * bx - ax * bz) ** 2 + (ax * by - ay * bx) ** 2)
    longest = np.maximum.reduce([_dot(e, e) for e in edge])
    solid = double_area > _FLAT * longest
    cosine = np.stack([-_dot(edge[k - 2], edge[k - 1]) for k in range(3)])
    if not solid.all():
        corner, cosine, double_area = corner[:, solid], cosine[:, solid], double_area[solid]
    return _Triangles(corner, cosine / double_area, double_area / 2, len(V))


def _dot(a: list[Array], b: list[Array]) -> Array:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _scatter(triangles: _Triangles, at_corner: Array) -> Array:
    """Values at the corners (3, m) added up at the vertices (n,)."""
    total = np.bincount(triangles.corner.reshape(-1), at_corner.reshape(-1), triangles.vertices)
    return total.astype(np.float64, copy=False)


def _edges(triangles: _Triangles, weight: Array) -> sp.csr_array:
    """Symmetric matrix with weight (3, m), of the edge opposite to each corner, added up and no diagonal."""
    i, j = np.roll(triangles.corner, -1, 0).reshape(-1), np.roll(triangles.corner, -2, 0).reshape(-1)
    n = triangles.vertices
    # The upper half alone goes through the sort: twice as fast as both halves.
    upper = sp.coo_array((weight.reshape(-1), (np.minimum(i, j), np.maximum(i, j))), shape=(n, n)).tocsr()
    return (upper + upper.T.tocsr()).tocsr()


def _stiffness(triangles: _Triangles) -> sp.csr_array:
    edges = _edges(triangles, triangles.cotangent / 2)
    return (sp.diags_array(edges.sum(1)).tocsr() - edges).tocsr()


def _vertex_areas(triangles: _Triangles) -> Array:
    return _scatter(triangles, np.broadcast_to(triangles.area / 3, triangles.corner.shape))


def _mass(triangles: _Triangles, lumped: bool) -> sp.csr_array:
    areas = _vertex_areas(triangles)
    if lumped:
        return sp.diags_array(areas).tocsr()
    twelfth = np.broadcast_to(triangles.area / 12, triangles.corner.shape)
    return (_edges(triangles, twelfth) + sp.diags_array(areas / 2)).tocsr()


_PACKAGE = {"cholmod": "sksparse", "cholespy": "cholespy", "pyamg": "pyamg", "splu": "scipy"}


def _choose(solver: str) -> str:
    if solver == "auto":
        return next(s for s in ("cholmod", "pyamg", "splu") if find_spec(_PACKAGE[s]))
    if solver not in _PACKAGE:
        raise InputError(f"solver is {solver!r}; expected auto, {', '.join(_PACKAGE)}.")
    if not find_spec(_PACKAGE[solver]):
        raise InputError(f"solver {solver!r} needs the package {_PACKAGE[solver]}; install it or use 'auto'.")
    return solver


def _factor(A: sp.csr_array, solver: str, tolerance: float) -> Solve:
    """The map b -> A^-1 b for a symmetric positive definite matrix."""
    if solver == "pyamg":
        return _pyamg(A, tolerance)
    return {"cholmod": _cholmod, "cholespy": _cholespy, "splu": _splu}[solver](A.tocsc())


def _cholmod(A: sp.csc_array) -> Solve:
    # AMD with supernodes was the fastest of five orderings on an icosphere of 163,842 vertices.
    from sksparse import cholmod  # pyright: ignore[reportMissingImports]

    if hasattr(cholmod, "cho_factor"):  # scikit-sparse 0.5
        return cholmod.cho_factor(A, order="amd", supernodal_mode="supernodal").solve
    return cholmod.cholesky(A, ordering_method="amd", mode="supernodal")


def _cholespy(A: sp.csc_array) -> Solve:
    from cholespy import CholeskySolverD, MatrixType  # pyright: ignore

    factor = CholeskySolverD(len(A.indptr) - 1, A.indptr, A.indices, A.data, MatrixType.CSC)

    def solve(b: Array) -> Array:
        x = np.zeros_like(b)
        factor.solve(np.ascontiguousarray(b), x)
        return x

    return solve


def _splu(A: sp.csc_array) -> Solve:
    return splu(A, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve


def _pyamg(A: sp.csr_array, tolerance: float) -> Solve:
    """CG with classical algebraic multigrid (Ruge and Stuben 1987; Bell et al., PyAMG, JOSS 2023)."""
    import pyamg

    # Of 30 systems from 22 real meshes all but one were solved fastest, or as fast, with these settings and
    # not with smoothed aggregation. Only negative entries count as strong (norm "min"): obtuse angles make
    # positive ones, and counting those too took four times the iterations or more where triangles are thin.
    hierarchy = pyamg.ruge_stuben_solver(
        A,
        strength=("classical", {"theta": 0.25, "norm": "min"}),
        presmoother=("gauss_seidel", {"sweep": "forward"}),
        postsmoother=("gauss_seidel", {"sweep": "backward"}),
        max_coarse=100,
    )

    def iterate(b: Array, reduction: float) -> tuple[Array, int]:
        x, info = hierarchy.solve(b, tol=reduction, accel="cg", maxiter=300, return_info=True)
        return x, info

    def solve(b: Array) -> Array:
        x, info = iterate(b, tolerance)
        if info != 0:  # the large cotangents of thin triangles round to more than the tolerance: ask for less
            floor = 16 * np.finfo(float).eps * np.linalg.norm(abs(A) @ abs(x)) / np.linalg.norm(b)
            x, info = iterate(b, max(tolerance, float(floor)))
        if info != 0:
            residual = np.linalg.norm(b - A @ x) / np.linalg.norm(b)
            raise SolveError(
                f"AMG-CG ended with a residual of {residual:.1e} instead of {tolerance:.1e}; "
                "use a direct solver (cholmod, cholespy, splu) or a larger tolerance."
            )
        return x

    return solve
