"""Vertices of a mesh without the noise on them, where the mesh alone tells how much there is.

The mesh is taken as x0 = x + e, e white: independent at each vertex, of one standard deviation sigma in all directions.

*How much.* With the mean P over the neighbours of a vertex and the normals n of the mesh smoothed a little, the high
pass r = (I - P)^2 [n . (I - P) x0] sees next to nothing of a smooth surface, and sigma |row| of white noise. What it
sees of creases and detail is here large and there small, while noise is the same everywhere: so the squares of r are
pooled over neighbourhoods, and their low quantile, compared with that of white noise put through the same filter, is
the noise and a little of the shape, which the median tells.

*Which surface.* x minimises |x - x0|^2 / sigma^2 + sum_i |(D x)_i|^2 / s_i^2, a Gaussian prior on a difference D x with
a variance s_i^2 for each place, found from the mesh itself by empirical Bayes (MacKay 1992, "Bayesian interpolation";
Tipping 2001, "Sparse Bayesian learning and the relevance vector machine"): where the surface is rough, at creases and
detail, it is smoothed less. First for the positions with D = I - P (Taubin 1995, "A signal processing approach to fair
surface design", has its filters from the same operator), then for heights along the normals with
D = (I - P) [n . (I - Q)], Q the mean-value weights (Floater 2003, "Mean value coordinates") of the mesh found first,
for which vertices may lie unevenly.

*How smooth.* The least error of positions leaves a rest of noise, which makes the surface too large: lengths grow with
the square of its slopes, while smoothing makes a curved surface smaller, in the first order. So all 1 / s_i^2 of the
heights get one more factor, for which the two cancel: a surface like the one found (that of the factor
25 sigma / edge), with noise put on it and smoothed so, has the area it had (a parametric bootstrap; Efron and
Tibshirani 1993, "An introduction to the bootstrap").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import SuperLU, splu

Array = NDArray[np.float64]
Faces = NDArray[np.int64]

LEAST_NOISE = 0.06  # of the median edge; less changes lengths by parts in a thousand, and detail looks like it
LOW, SHAPE = 0.05, 0.45  # the quantile that is read, and that of the shape's own share over its median: measured
FEWEST, MOST = 100, 0.65  # vertices to tell noise from, and the share that it has of the median's squares
POOLINGS = 3  # of the squares of the high pass, each the mean of a vertex and its neighbours
STEPS, PROBES = 3, 8  # of empirical Bayes, and random vectors in each for the variances of what it found
FACTORS = (0.25, 64.0)  # least and largest on 1 / s^2
PILOT, DRAWS = 25.0, 4  # the factor of the surface that noise is put on, over sigma / edge, and how often


@dataclass(frozen=True)
class Denoised:
    """Vertices (n, 3), and sigma; moved is the RMS distance of those that faces use, 0 if nothing was changed."""

    vertices: Array
    noise: float
    moved: float


def denoise(V: Array, F: Faces, noise: float | None = None) -> Denoised:
    """Vertices V (n, 3) of triangles F (m, 3) without white noise of standard deviation `noise`, by default found.

    Found noise below 6 % of the median edge changes nothing, nor does one that detail of the shape drowns, nor 0.
    Vertices on rims, and on edges of more than two faces, are smoothed along these alone; those where such lines end or
    meet, and unused ones, by nothing.
    """
    edges = np.unique(np.sort(np.concatenate([F[:, [0, 1]], F[:, [1, 2]], F[:, [2, 0]]]), 1), axis=0)
    edge = float(np.median(np.linalg.norm(V[edges[:, 0]] - V[edges[:, 1]], axis=1)))
    P = _mean_of_neighbours(F, len(V))
    sieve = _Sieve(V, F, P)
    sigma = sieve.noise(V) if noise is None else float(noise)
    if sigma == 0 or (noise is None and (sigma < LEAST_NOISE * edge or not sieve.clear(V, sigma))):
        return Denoised(V, sigma, 0.0)
    Y = _fit(_without(P), np.zeros((1, 3)), V, sigma, P).solve(1.0)
    X = _along_normals(V, Y, F, P, sigma, pilot=max(1.0, PILOT * sigma / edge))
    used = np.unique(F)
    return Denoised(X, sigma, float(np.sqrt(((X - V)[used] ** 2).sum(1).mean())))


def estimate_noise(V: Array, F: Faces) -> float:
    """The standard deviation of white noise on vertices V (n, 3) of triangles F (m, 3), each coordinate's."""
    P = _mean_of_neighbours(F, len(V))
    return _Sieve(V, F, P).noise(V)


class _Sieve:
    """The high pass r of a mesh, over what white noise of deviation 1 leaves of it."""

    def __init__(self, V: Array, F: Faces, P: sp.csr_array):
        smooth = V
        for _ in range(2):
            smooth = (smooth + P @ smooth) / 2
        self.normals, self.P = _normals(smooth, F), P
        L = _without(P)
        twice = sp.csr_array(L @ L @ _along(L, self.normals))
        self.high = sp.csr_array(L @ L)
        size = np.sqrt(np.asarray(twice.multiply(twice).sum(1)).reshape(-1))
        self.seen = size > 0
        self.size = np.where(self.seen, size, 1.0)
        white = twice @ np.random.default_rng(0).standard_normal((len(V), PROBES))
        self.white = self._quantiles(white)

    def _quantiles(self, r: Array) -> Array:
        """The low quantile and the median of the pooled squares of r (n, k)."""
        square = (r / self.size[:, None]) ** 2
        for _ in range(POOLINGS):
            square = (square + self.P @ square) / 2
        return np.quantile(square[self.seen], [LOW, 0.5]) if self.seen.any() else np.ones(2)

    def variances(self, X: Array) -> Array:
        """sigma^2 by the low quantile and by the median, as if the mesh X (n, 3) had no shape of its own."""
        r = self.high @ (self.normals * (X - self.P @ X)).sum(1)
        return self._quantiles(r[:, None]) / self.white

    def noise(self, X: Array) -> float:
        """sigma from low = sigma^2 + a and median = sigma^2 + b, with a = 0.45 b the share of the shape."""
        low, median = self.variances(X)
        return float(np.sqrt(max(0.0, min(low, (low - SHAPE * median) / (1 - SHAPE)))))

    def clear(self, X: Array, sigma: float) -> bool:
        """Whether this is noise: most of what the high pass sees at the median place, where the low quantile is not
        above the median beyond chance, as creases alone make it."""
        low, median = self.variances(X)
        return self.seen.sum() >= FEWEST and sigma**2 >= MOST * median and low <= median / MOST


@dataclass(frozen=True)
class _Fit:
    """argmin |h - h0|^2 / sigma^2 + factor sum_i |(D h + b)_i|^2 / s_i^2, for any factor."""

    D: sp.csr_array
    b: Array  # (n, k), or (1, k) where it is the same for all
    h0: Array  # (n, k)
    weight: Array  # (n,) sigma^2 / s^2

    def solve(self, factor: float, *others: Array) -> Array:
        """The minimisers (n, k + ...) for h0 and for others (n, ...) in its place."""
        weight = factor * self.weight
        h0 = np.concatenate([self.h0, *others], 1)
        return _factored(self.D, weight).solve(h0 - self.D.T @ (weight[:, None] * self.b))


def _fit(D: sp.csr_array, b: Array, h0: Array, sigma: float, P: sp.csr_array) -> _Fit:
    """s^2 by empirical Bayes: in each step the mean of EM's and MacKay's, pooled over neighbours.

    With v_i the variance that (D h)_i has given h0, known from random vectors of that distribution, and e_i the mean of
    the squares of (D h + b)_i, they are e + v and e / (1 - v / s^2).
    """
    draw = np.random.default_rng(0)
    size, used = np.asarray(D.multiply(D).sum(1)).reshape(-1), D.indptr[1:] > D.indptr[:-1]

    def pooled(a: Array) -> Array:
        return (a + P @ a) / 2

    # In units of sigma^2.
    white = pooled(size)
    s2 = np.maximum(pooled(((D @ h0 + b) ** 2).mean(1)) / sigma**2 - white, 0.02 * white)
    for _ in range(STEPS):
        weight = np.where(used, 1 / np.maximum(s2, 1e-4), 0.0)
        solver = _factored(D, weight)
        found = D @ solver.solve(h0 - D.T @ (weight[:, None] * b)) + b
        first, second = draw.standard_normal((2, len(h0), PROBES))
        sample = D @ solver.solve(first + D.T @ (np.sqrt(weight)[:, None] * second))
        e, v = pooled((found**2).mean(1)) / sigma**2, pooled((sample**2).mean(1))
        s2 = (e + v + e / np.clip(1 - v * weight, 0.02, 1)) / 2
    return _Fit(D, b, h0, np.where(used, 1 / np.maximum(s2, 1e-4), 0.0))


def _along_normals(V: Array, Y: Array, F: Faces, P: sp.csr_array, sigma: float, *, pilot: float) -> Array:
    """Y (n, 3) with heights along its normals fitted to V, of the area that the surface most likely has."""
    N, L, high = _normals(Y, F), _without(_mean_values(Y, F, P)), _without(P)
    D = sp.csr_array(high @ _along(L, N))
    b = high @ (N * (L @ Y)).sum(1, keepdims=True)
    fit = _fit(D, b, (N * (V - Y)).sum(1, keepdims=True), sigma, P)
    smooth = fit.solve(pilot)
    trials = smooth + sigma * np.random.default_rng(1).standard_normal((len(V), DRAWS))
    area = _area(Y + smooth * N, F)

    def excess(factor: float) -> tuple[Array, float]:
        """The surface for this factor, and by how much that of a trial is too large, over its area."""
        found, *again = fit.solve(factor, trials).T
        return Y + found[:, None] * N, float(np.mean([_area(Y + h[:, None] * N, F) for h in again])) / area - 1

    factor, (X, over) = 1.0, excess(1.0)
    step = 4.0 if over > 0 else 0.25
    while FACTORS[0] <= factor * step <= FACTORS[1]:
        before, beyond = over, factor * step
        X, over = excess(beyond)
        if (over > 0) != (before > 0):
            return excess(factor * step ** (before / (before - over)))[0]
        factor = beyond
    return X


def _factored(D: sp.csr_array, weight: Array) -> SuperLU:
    """I + D^T weight D, symmetric and positive definite."""
    A = sp.csc_array(sp.diags_array(np.ones_like(weight)) + D.T @ sp.diags_array(weight) @ D)
    return splu(A, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def _without(P: sp.csr_array) -> sp.csr_array:
    """I - P, with no row where P has none."""
    return (sp.diags_array(np.diff(P.indptr) > 0, dtype=np.float64) - P).tocsr()


def _along(L: sp.csr_array, N: Array) -> sp.csr_array:
    """n_i . sum_j L_ij n_j h_j, for heights h along normals N (n, 3)."""
    A = L.tocoo()
    return sp.coo_array((A.data * (N[A.row] * N[A.col]).sum(1), (A.row, A.col)), shape=A.shape).tocsr()


def _normalised(W: sp.csr_array) -> sp.csr_array:
    W.eliminate_zeros()
    total = np.asarray(W.sum(1)).reshape(-1)
    return sp.csr_array(sp.diags_array(1 / np.where(total > 0, total, 1)) @ W)


def _mean_of_neighbours(F: Faces, n: int) -> sp.csr_array:
    """P (n, n); on rims and edges of more than two faces the mean of the two neighbours along them."""
    a, b = np.concatenate([F[:, [0, 1]], F[:, [1, 2]], F[:, [2, 0]]]).T
    count = sp.coo_array((np.ones(2 * len(a)), (np.r_[a, b], np.r_[b, a])), shape=(n, n)).tocsr()
    line = count.copy()
    line.data = (line.data != 2).astype(np.float64)
    line.eliminate_zeros()
    lines = np.diff(line.indptr)
    inner = count.copy()
    inner.data[:] = 1.0
    rows = sp.diags_array((lines == 0) * 1.0) @ inner + sp.diags_array((lines == 2) * 1.0) @ line
    return _normalised(sp.csr_array(rows))


def _mean_values(V: Array, F: Faces, P: sp.csr_array) -> sp.csr_array:
    """Weights tan(a / 2) / length over the triangles at each edge, a the angle at the vertex, where P has entries."""
    row, column, weight = [], [], []
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        p, q = V[F[:, j]] - V[F[:, i]], V[F[:, k]] - V[F[:, i]]
        length = np.sqrt((p * p).sum(1)), np.sqrt((q * q).sum(1))
        tiny = np.finfo(float).tiny
        cosine = (p * q).sum(1) / np.maximum(length[0] * length[1], tiny)
        tangent = np.sqrt(np.clip((1 - cosine) / np.maximum(1 + cosine, 1e-9), 0, 9))
        for other, far in zip((F[:, j], F[:, k]), length, strict=True):
            row, column = [*row, F[:, i]], [*column, other]
            weight.append(tangent / np.maximum(far, tiny))
    at = (np.concatenate(row), np.concatenate(column))
    W = sp.coo_array((np.concatenate(weight), at), shape=P.shape).tocsr()
    return _normalised(sp.csr_array(W.multiply(P > 0)))


def _normals(V: Array, F: Faces) -> Array:
    across = np.cross(V[F[:, 1]] - V[F[:, 0]], V[F[:, 2]] - V[F[:, 0]])
    at = np.stack([np.bincount(F.reshape(-1), np.repeat(c, 3), len(V)) for c in across.T], 1)
    return at / np.maximum(np.linalg.norm(at, axis=1, keepdims=True), np.finfo(float).tiny)


def _area(V: Array, F: Faces) -> float:
    return float(np.linalg.norm(np.cross(V[F[:, 1]] - V[F[:, 0]], V[F[:, 2]] - V[F[:, 0]]), axis=1).sum() / 2)
