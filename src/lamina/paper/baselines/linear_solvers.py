"""Linear solvers for the symmetric positive definite systems of finite elements: the fastest one that is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import splu

from lamina.errors import InputError, SolveError

Array = NDArray[np.float64]
Solve = Callable[[Array], Array]

# An entry is strong if it is at least this share of the largest in its row: the value of Ruge and Stuben.
STRONG_ENTRY_RATIO = 0.25
MAX_AMG_COARSE_SIZE = 100  # Unknowns of a level that is solved directly.
MAX_AMG_ITERATIONS = 300  # A system that needs more is taken as failed. Chosen by trial.
# Rounding bounds the residual that can be reached: a tolerance below this many eps |A| |x| / |b| is raised to it.
ROUNDING_FACTOR = 16
_PACKAGE_OF_SOLVER = {"cholmod": "sksparse", "cholespy": "cholespy", "pyamg": "pyamg", "splu": "scipy"}


def choose_solver(solver: str) -> str:
    """The name of the solver to use. Raises InputError for an unknown one, or if its package is not installed."""
    if solver == "auto":
        return next(s for s in ("cholmod", "pyamg", "splu") if find_spec(_PACKAGE_OF_SOLVER[s]))
    if solver not in _PACKAGE_OF_SOLVER:
        raise InputError(f"solver is {solver!r}; expected auto, {', '.join(_PACKAGE_OF_SOLVER)}.")
    if not find_spec(_PACKAGE_OF_SOLVER[solver]):
        raise InputError(f"solver {solver!r} needs the package {_PACKAGE_OF_SOLVER[solver]}; install it or use 'auto'.")
    return solver


def factor(A: sp.csr_array, solver: str, tolerance: float) -> Solve:
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

    # Of 30 systems from 22 real meshes all but one were solved as fast or faster with these settings than with smoothed
    # aggregation. Only negative entries count as strong (norm "min"). Obtuse angles make positive entries; if those
    # count too, thin triangles take four times the iterations or more.
    hierarchy = pyamg.ruge_stuben_solver(
        A,
        strength=("classical", {"theta": STRONG_ENTRY_RATIO, "norm": "min"}),
        presmoother=("gauss_seidel", {"sweep": "forward"}),
        postsmoother=("gauss_seidel", {"sweep": "backward"}),
        max_coarse=MAX_AMG_COARSE_SIZE,
    )

    def iterate(b: Array, reduction: float) -> tuple[Array, int]:
        x, info = hierarchy.solve(b, tol=reduction, accel="cg", maxiter=MAX_AMG_ITERATIONS, return_info=True)
        return x, info

    def solve(b: Array) -> Array:
        x, info = iterate(b, tolerance)
        if info != 0:  # the large cotangents of thin triangles cause rounding errors above the tolerance
            floor = ROUNDING_FACTOR * np.finfo(float).eps * np.linalg.norm(abs(A) @ abs(x)) / np.linalg.norm(b)
            x, info = iterate(b, max(tolerance, float(floor)))
        if info != 0:
            residual = np.linalg.norm(b - A @ x) / np.linalg.norm(b)
            raise SolveError(
                f"AMG-CG ended with a residual of {residual:.1e} instead of {tolerance:.1e}; "
                "use a direct solver (cholmod, cholespy, splu) or a larger tolerance."
            )
        return x

    return solve
