"""Linear finite elements on a triangle mesh: the reference for lamina's own schemes.

With stiffness K and mass M of the hat functions (`geometry/cotangent.py`) the problem Lap u = f reads -K u = M f.
The mesh need not be a manifold: the energies of triangles are added up, however many of them meet at an edge.
"""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from lamina.errors import InputError
from lamina.geometry.cotangent import checked_mesh, mass_of, scatter, stiffness_matrix, triangles_of, vertex_areas
from lamina.paper.baselines.linear_solvers import Array, Solve, choose_solver, factor


class SurfaceFEM:
    """Poisson and heat on the mesh V (n, 3), F (m, 3), with piecewise linear functions given at its vertices.

    Triangles without area are left out. component (n,) numbers the parts that the other triangles connect. A vertex
    that no triangle uses is a part of its own, and every solution is 0 there. areas (n,) are the integrals of the hat
    functions. lumped: whether M is replaced by the diagonal matrix of areas.

    robust: K and the lumped M of the intrinsic Delaunay triangulation of a tufted cover instead (Sharp and Crane, "A
    Laplacian for nonmanifold triangle meshes", 2020; package robust_laplacian), for meshes of poor triangles: no
    pair of obtuse angles couples with the wrong sign. Where sheets meet it agrees with the sum over triangles.

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
        robust: bool = False,
        solver: str = "auto",
        tolerance: float = 1e-8,
    ) -> None:
        self.lumped, self.solver, self.tolerance = lumped or robust, choose_solver(solver), tolerance
        vertices, faces = checked_mesh(V, F)
        self._triangles = triangles_of(vertices, faces)
        if robust:
            self.stiffness, self.areas = _tufted(vertices, faces)
        else:
            self.stiffness, self.areas = stiffness_matrix(self._triangles), vertex_areas(self._triangles)
        self._rim_edge, self._rim_length = _rim(vertices, faces)

    @cached_property
    def mass(self) -> sp.csr_array:
        return sp.diags_array(self.areas).tocsr() if self.lumped else mass_of(self._triangles, False)

    @cached_property
    def rim(self) -> NDArray[np.bool_]:
        """Whether each vertex (n,) is an end of an edge that only one triangle has."""
        found = np.zeros(self._triangles.vertices, dtype=bool)
        found[self._rim_edge] = True
        return found

    @cached_property
    def component(self) -> NDArray[np.int32]:
        return connected_components(self.stiffness, directed=False)[1]

    def load(self, f: Array) -> Array:
        """M f without the matrix: int f phi_i = area/12 (f_i + f_1 + f_2 + f_3), added over triangles."""
        if self.lumped:
            return self.areas * f
        at = f[self._triangles.corner]
        return scatter(self._triangles, (self._triangles.area / 12) * (at + at.sum(0)))

    def mean(self, u: Array) -> Array:
        """The area-weighted mean of u (n,) over the component of each vertex (n,)."""
        area = np.bincount(self.component, self.areas)
        total = np.bincount(self.component, self.areas * u)
        return (total / np.where(area > 0, area, 1))[self.component]

    def prepare(self) -> None:
        """Factor, or build the multigrid hierarchy, now instead of in the first `poisson`."""
        _ = self._solve_grounded

    def rim_load(self, flux: ArrayLike) -> Array:
        """int over the rim of flux phi_i: length/6 (2 flux_i + flux_j) added over edges, flux (n,) at the vertices."""
        at = self._field("flux", flux)[self._rim_edge]
        found = np.zeros(self._triangles.vertices)
        np.add.at(found, self._rim_edge, self._rim_length[:, None] / 6 * (at + at.sum(1, keepdims=True)))
        return found

    def poisson(self, f: ArrayLike, *, flux: ArrayLike | None = None) -> Array:
        """u (n,) with Lap u = f and du/dn = flux on the rims, of zero area-weighted mean on each component.

        f (n,): values at the vertices. On each component a constant is taken off so that f agrees with the flux through
        the rims; otherwise there is no solution. flux (n,): values at the vertices, used on rims; by default 0.
        """
        b = -self.load(self._field("f", f))
        if flux is not None:
            b = b + self.rim_load(flux)
        area = np.bincount(self.component, self.areas)
        u = self._solve_grounded(
            b - self.areas * (np.bincount(self.component, b) / np.where(area > 0, area, 1))[self.component]
        )
        return u - self.mean(u)

    def dirichlet(self, f: ArrayLike, held: ArrayLike, values: ArrayLike, *, flux: ArrayLike | None = None) -> Array:
        """u (n,) with Lap u = f, and u = values where held (n,) is true; on other rims du/dn = flux, by default 0."""
        f = self._field("f", f)
        u, free = self._fixed(held, values)
        right = -self.load(f) - self.stiffness @ u
        if flux is not None:
            right = right + self.rim_load(flux)
        u[free] = factor(sp.csr_array(self.stiffness[free][:, free]), self.solver, self.tolerance)(right[free])
        return u

    def heat(
        self, u0: ArrayLike, time: float, steps: int, *, held: ArrayLike | None = None, values: ArrayLike | None = None
    ) -> Array:
        """u (n,) at `time` with du/dt = Lap u from u0 (n,), by `steps` equal steps of TR-BDF2.

        Where held (n,) is true, u = values (n,) at all times; other rims are free. Second order and L-stable. With
        g = 2 - sqrt 2 the trapezoidal stage to t + g dt and the BDF2 stage to t + dt share the matrix
        M + (1 - 1/sqrt 2) dt K (Bank et al. 1985; Hosea and Shampine 1996).
        """
        u = self._field("u0", u0)
        if not (np.isfinite(time) and time >= 0 and steps >= 1):
            raise InputError(f"heat got time = {time} and steps = {steps}; expected time >= 0 and steps >= 1.")
        if held is not None:
            fixed, free = self._fixed(held, np.zeros_like(u) if values is None else values)
        else:
            fixed, free = np.zeros_like(u), self.areas > 0
        u = np.where(free, u, fixed)
        K, M = self.stiffness[free][:, free], self.mass[free][:, free]
        # Fixed values do not change in time: their part of M du/dt is zero, and their part of K u is constant.
        pull = self.stiffness[free] @ np.where(free, 0, u)
        g = 2 - np.sqrt(2)
        shift = g / 2 * time / steps
        solve = factor(sp.csr_array(M + shift * K), self.solver, self.tolerance)
        v = u[free]
        for _ in range(steps):
            middle = solve(M @ v - shift * (K @ v + 2 * pull))
            v = solve(M @ (middle - (1 - g) ** 2 * v) / (g * (2 - g)) - shift * pull)
        u[free] = v
        return u

    def _fixed(self, held: ArrayLike, values: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
        """The given values with 0 elsewhere (n,), and where to solve (n,)."""
        g, fixed = self._field("values", values), np.asarray(held, dtype=bool)
        if fixed.shape != g.shape or not fixed.any():
            raise InputError(f"held must be true at some of the {len(g)} vertices; its shape is {fixed.shape}.")
        return np.where(fixed, g, 0.0), ~fixed & (self.areas > 0)

    @cached_property
    def _solve_grounded(self) -> Solve:
        """Solves K u = b for b of zero sum on each component, with u = 0 at the first vertex p of each.

        K is singular; K + sum_p c_p e_p e_p^T is not. Summing its rows over a component gives c_p u_p = 0, so that u
        solves the original equations.
        """
        diagonal = self.stiffness.diagonal()
        ground = np.zeros_like(diagonal)
        first = np.zeros(self.component.max() + 1, dtype=np.int64)
        # In reverse order, so that the first vertex is written last.
        first[self.component[::-1]] = np.arange(len(diagonal))[::-1]
        ground[first] = np.where(diagonal[first] > 0, diagonal[first], 1)
        return factor((self.stiffness + sp.diags_array(ground)).tocsr(), self.solver, self.tolerance)

    def _field(self, name: str, values: ArrayLike) -> Array:
        u = np.asarray(values, dtype=np.float64)
        if u.shape != (self._triangles.vertices,) or not np.isfinite(u).all():
            raise InputError(
                f"{name} has shape {u.shape}; expected one finite number for each of "
                f"{self._triangles.vertices} vertices."
            )
        return u


def _rim(V: Array, F: NDArray[np.int64]) -> tuple[NDArray[np.int64], Array]:
    """Ends (r, 2) and lengths (r,) of the edges that only one triangle has."""
    edges = np.sort(np.concatenate([F[:, [0, 1]], F[:, [1, 2]], F[:, [2, 0]]]), 1)
    _, first, count = np.unique(edges[:, 0] * len(V) + edges[:, 1], return_index=True, return_counts=True)
    rim = edges[first[count == 1]]
    return rim, np.linalg.norm(V[rim[:, 0]] - V[rim[:, 1]], axis=1)


def _tufted(V: Array, F: NDArray[np.int64]) -> tuple[sp.csr_array, Array]:
    """Stiffness (n, n) and lumped mass (n,) by robust_laplacian, zero at vertices that no triangle uses."""
    if not find_spec("robust_laplacian"):
        raise InputError("robust=True needs the package robust_laplacian; pip install robust_laplacian.")
    from robust_laplacian import mesh_laplacian  # pyright: ignore[reportMissingImports]

    used, corner = np.unique(F, return_inverse=True)
    K, M = mesh_laplacian(V[used], corner.reshape(F.shape))
    K, own = sp.coo_array(K), used.astype(np.int32)
    stiffness = sp.coo_array((K.data, (own[K.row], own[K.col])), shape=(len(V), len(V))).tocsr()
    areas = np.zeros(len(V))
    areas[used] = M.diagonal()
    return stiffness, areas
