"""Removes noise from the vertices of a mesh, and finds from the mesh alone how much noise there is.

The given vertices are taken as x0 = x + e, where the noise e is white: independent at each vertex, with one standard
deviation sigma in all directions.

*How much noise.* P is the mean over the neighbours of a vertex, and n are the normals of the mesh after a little
smoothing. The high pass r = (I - P)^2 [n . (I - P) x0] sees almost nothing of a smooth surface, and sigma |row| of
white noise. Creases and detail make r large in some places, while noise is the same everywhere. So the squares of r are
pooled over neighbourhoods, and their low quantile is compared with that of white noise after the same filter. It
contains the noise and a little of the shape; the median tells how much of the shape.

*Which surface.* x minimises |x - x0|^2 / sigma^2 + sum_i |(D x)_i|^2 / s_i^2, which is a Gaussian prior on a difference
D x with its own variance s_i^2 at each vertex. The variances are found from the mesh itself by empirical Bayes
(MacKay 1992, "Bayesian interpolation"; Tipping 2001, "Sparse Bayesian learning and the relevance vector machine"), so
that creases and detail are smoothed less. That is done first for the positions, with D = I - P (Taubin 1995, "A signal
processing approach to fair surface design", uses the same operator), and then for heights along the normals, with
D = (I - P) [n . (I - Q)]. Q are the mean-value weights (Floater 2003, "Mean value coordinates") of the mesh that was
found first; with them vertices may lie unevenly.

*How smooth.* The positions of least error keep some noise, which makes the surface too large: lengths grow with the
square of its slopes. Smoothing makes a curved surface smaller, to first order. So all 1 / s_i^2 of the heights are
multiplied by one factor, for which the two effects cancel. It is found by a parametric bootstrap (Efron and Tibshirani
1993, "An introduction to the bootstrap"): noise is put on a surface like the one found, that of the factor
25 sigma / edge, and after smoothing with the right factor that surface has its own area again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import SuperLU, splu

Array = NDArray[np.float64]
Faces = NDArray[np.int64]

# Noise that was found is ignored if its standard deviation is below this share of the median edge: less noise changes
# lengths by parts in a thousand only, and detail of the shape looks like it. At half detail is smoothed away, at double
# visible noise stays.
MIN_NOISE_OVER_EDGE = 0.06
# Quantile of the pooled squares of the high pass from which the noise is read: few vertices there are on creases. At
# half it is read from fewer vertices, at double it contains more of the shape.
LOW_QUANTILE = 0.05
# What the shape adds to that quantile, over what it adds to the median. This was measured on meshes; half would leave
# more of the shape in the noise, double would take most of the noise for shape.
SHAPE_AT_LOW_OVER_MEDIAN = 0.45
# Vertices that the high pass must see: the 5 % quantile of fewer rests on fewer than five of them.
MIN_NOISY_VERTICES = 100
# Share that noise must have of the median of the pooled squares, or it is taken for shape; its inverse is how far the
# low quantile may exceed the median. Chosen by trial: half takes detail of the shape for noise, double refuses all.
MIN_NOISE_SHARE_OF_MEDIAN = 0.65
NOISE_POOLINGS = 3  # times that the squares of the high pass are averaged over neighbours: fewer leave more chance
BAYES_STEPS = 3  # of empirical Bayes, each with two factorised solves; chosen by trial
VARIANCE_PROBES = 8  # random vectors that estimate variances: their relative error is about sqrt(2 / 8) before pooling
MIN_POOLED_VARIANCE = 0.02  # least s^2 at the start, over what white noise gives: it must be positive
MIN_VARIANCE = 1e-4  # least s^2, in units of sigma^2: bounds the condition of the systems
MIN_UNEXPLAINED_SHARE = 0.02  # least 1 - v / s^2 that MacKay's step divides by
# Range in which the factor on all 1 / s^2 is searched, in steps of 4. A factor at an end means that no area fits: a
# wider range would smooth such meshes more, or hardly at all.
MIN_SMOOTHING_FACTOR, MAX_SMOOTHING_FACTOR = 0.25, 64.0
# Factor of the surface that noise is put on, over sigma / edge, and at least 1. That surface is to be smooth, because
# noise left on it would count twice. Chosen by trial: half leaves more noise, double flattens detail.
PILOT_FACTOR_PER_NOISE = 25.0
AREA_DRAWS = 4  # times that noise is put on that surface: the error of the mean area falls with the root of this


@dataclass(frozen=True)
class Denoised:
    """Vertices (n, 3), and sigma; moved is the RMS distance of those that faces use, 0 if nothing was changed."""

    vertices: Array
    noise: float
    moved: float


def denoise(V: Array, F: Faces, noise: float | None = None) -> Denoised:
    """Vertices V (n, 3) of triangles F (m, 3) without white noise, whose standard deviation is `noise` or is found.

    Nothing is changed by noise that was found and is below 6 % of the median edge or hidden by detail of the shape, or
    by noise = 0. Vertices on rims, and on edges of more than two faces, are smoothed along these lines alone. Vertices
    where such lines end or meet, and those of no face, stay.
    """
    edges = np.unique(np.sort(np.concatenate([F[:, [0, 1]], F[:, [1, 2]], F[:, [2, 0]]]), 1), axis=0)
    edge = float(np.median(np.linalg.norm(V[edges[:, 0]] - V[edges[:, 1]], axis=1)))
    P = _mean_of_neighbours(F, len(V))
    sieve = _Sieve(V, F, P)
    sigma = sieve.noise(V) if noise is None else float(noise)
    if sigma == 0 or (noise is None and (sigma < MIN_NOISE_OVER_EDGE * edge or not sieve.clear(V, sigma))):
        return Denoised(V, sigma, 0.0)
    Y = _smoothing(_without(P), np.zeros((1, 3)), V, sigma, P).solve(1.0)
    X = _along_normals(V, Y, F, P, sigma, pilot=max(1.0, PILOT_FACTOR_PER_NOISE * sigma / edge))
    used = np.unique(F)
    return Denoised(X, sigma, float(np.sqrt(((X - V)[used] ** 2).sum(1).mean())))


def estimate_noise(V: Array, F: Faces) -> float:
    """The standard deviation of white noise on vertices V (n, 3) of triangles F (m, 3), each coordinate's."""
    P = _mean_of_neighbours(F, len(V))
    return _Sieve(V, F, P).noise(V)


class _Sieve:
    """The high pass r of a mesh, in units of what it makes of white noise of standard deviation 1."""

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
        white = twice @ np.random.default_rng(0).standard_normal((len(V), VARIANCE_PROBES))
        self.white = self._quantiles(white)

    def _quantiles(self, r: Array) -> Array:
        """The low quantile and the median of the pooled squares of r (n, k)."""
        square = (r / self.size[:, None]) ** 2
        for _ in range(NOISE_POOLINGS):
            square = (square + self.P @ square) / 2
        return np.quantile(square[self.seen], [LOW_QUANTILE, 0.5]) if self.seen.any() else np.ones(2)

    def variances(self, X: Array) -> Array:
        """sigma^2 from the low quantile and from the median, as if the mesh X (n, 3) were flat but for noise."""
        r = self.high @ (self.normals * (X - self.P @ X)).sum(1)
        return self._quantiles(r[:, None]) / self.white

    def noise(self, X: Array) -> float:
        """sigma from low = sigma^2 + a and median = sigma^2 + b; a and b are due to the shape, and a = 0.45 b."""
        low, median = self.variances(X)
        without_shape = (low - SHAPE_AT_LOW_OVER_MEDIAN * median) / (1 - SHAPE_AT_LOW_OVER_MEDIAN)
        return float(np.sqrt(max(0.0, min(low, without_shape))))

    def clear(self, X: Array, sigma: float) -> bool:
        """Whether sigma is noise of the mesh X (n, 3), not shape.

        Noise must make most of the median. The low quantile, relative to white noise, may exceed the median by chance
        only.
        """
        low, median = self.variances(X)
        mostly_noise = sigma**2 >= MIN_NOISE_SHARE_OF_MEDIAN * median
        return self.seen.sum() >= MIN_NOISY_VERTICES and mostly_noise and low <= median / MIN_NOISE_SHARE_OF_MEDIAN


@dataclass(frozen=True)
class _Smoothing:
    """The problem argmin |h - h0|^2 / sigma^2 + factor sum_i |(D h + b)_i|^2 / s_i^2, for any factor."""

    D: sp.csr_array
    b: Array  # (n, k), or (1, k) if it is the same in all rows
    h0: Array  # (n, k)
    weight: Array  # (n,) sigma^2 / s^2

    def solve(self, factor: float, *others: Array) -> Array:
        """The minimisers (n, k + ...) for h0, and for the columns of others (n, ...) in the place of h0."""
        weight = factor * self.weight
        h0 = np.concatenate([self.h0, *others], 1)
        return _factored(self.D, weight).solve(h0 - self.D.T @ (weight[:, None] * self.b))


def _smoothing(D: sp.csr_array, b: Array, h0: Array, sigma: float, P: sp.csr_array) -> _Smoothing:
    """The problem with s^2 by empirical Bayes: a step takes the mean of EM's and MacKay's, pooled over neighbours.

    v_i is the variance of (D h)_i given h0, estimated by random vectors of that distribution, and e_i the mean of the
    squares of (D h + b)_i. EM gives e + v, MacKay e / (1 - v / s^2).
    """
    draw = np.random.default_rng(0)
    size, used = np.asarray(D.multiply(D).sum(1)).reshape(-1), D.indptr[1:] > D.indptr[:-1]

    def pooled(a: Array) -> Array:
        return (a + P @ a) / 2

    # In units of sigma^2.
    white = pooled(size)
    s2 = np.maximum(pooled(((D @ h0 + b) ** 2).mean(1)) / sigma**2 - white, MIN_POOLED_VARIANCE * white)
    for _ in range(BAYES_STEPS):
        weight = np.where(used, 1 / np.maximum(s2, MIN_VARIANCE), 0.0)
        solver = _factored(D, weight)
        found = D @ solver.solve(h0 - D.T @ (weight[:, None] * b)) + b
        first, second = draw.standard_normal((2, len(h0), VARIANCE_PROBES))
        sample = D @ solver.solve(first + D.T @ (np.sqrt(weight)[:, None] * second))
        e, v = pooled((found**2).mean(1)) / sigma**2, pooled((sample**2).mean(1))
        s2 = (e + v + e / np.clip(1 - v * weight, MIN_UNEXPLAINED_SHARE, 1)) / 2
    return _Smoothing(D, b, h0, np.where(used, 1 / np.maximum(s2, MIN_VARIANCE), 0.0))


def _along_normals(V: Array, Y: Array, F: Faces, P: sp.csr_array, sigma: float, *, pilot: float) -> Array:
    """Y (n, 3) moved along its normals to fit V (n, 3), so that its area is that of the surface without noise."""
    N, L, high = _normals(Y, F), _without(_mean_values(Y, F, P)), _without(P)
    D = sp.csr_array(high @ _along(L, N))
    b = high @ (N * (L @ Y)).sum(1, keepdims=True)
    smoothing = _smoothing(D, b, (N * (V - Y)).sum(1, keepdims=True), sigma, P)
    smooth = smoothing.solve(pilot)
    trials = smooth + sigma * np.random.default_rng(1).standard_normal((len(V), AREA_DRAWS))
    area = _area(Y + smooth * N, F)

    def excess(factor: float) -> tuple[Array, float]:
        """The surface for this factor, and the mean relative excess of the areas of the trials after smoothing."""
        found, *smoothed = smoothing.solve(factor, trials).T
        return Y + found[:, None] * N, float(np.mean([_area(Y + h[:, None] * N, F) for h in smoothed])) / area - 1

    factor, (X, over) = 1.0, excess(1.0)
    step = 4.0 if over > 0 else 0.25
    while MIN_SMOOTHING_FACTOR <= factor * step <= MAX_SMOOTHING_FACTOR:
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
    """I - P, with an empty row wherever P has one."""
    return (sp.diags_array(np.diff(P.indptr) > 0, dtype=np.float64) - P).tocsr()


def _along(L: sp.csr_array, N: Array) -> sp.csr_array:
    """The matrix h -> n_i . sum_j L_ij n_j h_j for heights h along normals N (n, 3)."""
    A = L.tocoo()
    return sp.coo_array((A.data * (N[A.row] * N[A.col]).sum(1), (A.row, A.col)), shape=A.shape).tocsr()


def _normalised(W: sp.csr_array) -> sp.csr_array:
    W.eliminate_zeros()
    total = np.asarray(W.sum(1)).reshape(-1)
    return sp.csr_array(sp.diags_array(1 / np.where(total > 0, total, 1)) @ W)


def _mean_of_neighbours(F: Faces, n: int) -> sp.csr_array:
    """P (n, n); a vertex on a rim, or on an edge of more than two faces, has its two neighbours along that line."""
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
