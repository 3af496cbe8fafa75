"""The lowest eigenpairs of K x = lambda M x, by the locally optimal block preconditioned conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.shapes import Float, shaped

Apply = Callable[[Tensor], Tensor]  # (n, k) -> (n, k)

# Columns whose residual is at most this times the tolerance get no new search direction. With 1 columns would wait just
# at the tolerance and could rise above it again as the others change; with a smaller value converged columns cost more
# products. Chosen by trial.
MAX_RESIDUAL_OF_SETTLED_COLUMN = 0.5
# Directions of the last step with singular values of at most this are dropped from the search space: they lie in the
# span of the others up to rounding. Singular values are of order 1, so half or double of it rarely matters.
MAX_DROPPED_SINGULAR_VALUE = 1e-6
# Every so many iterations the products with K and M are computed anew instead of by recurrence, because rounding
# accumulates in the recurrences. Half of it costs more products. Chosen by trial.
ITERATIONS_BETWEEN_FRESH_PRODUCTS = 10
# Directions whose eigenvalue in the scaled Gram matrix is at most this many units of rounding times the largest one are
# dropped: they cannot be told from linear combinations of the others. Chosen by trial.
MAX_DROPPED_GRAM_EIGENVALUE_EPS = 1e2


@shaped
@dataclass(frozen=True)
class Eigenpairs:
    values: Float[Tensor, " k"]  # increasing
    vectors: Float[Tensor, "n k"]  # orthonormal in M
    residuals: Float[Tensor, " k"]  # |K x - lambda M x| over (lambda + scale) |M x|
    iterations: int


def lobpcg(
    K: Apply,
    M: Apply,
    start: Tensor,
    wanted: int,
    *,
    precondition: Apply,
    scale: float,
    tolerance: float,
    max_iterations: int = 1000,
    report: Callable[[int, float], None] | None = None,
) -> Eigenpairs:
    """The `wanted` lowest eigenpairs, from a block `start` (n, b) with b >= wanted.

    Extra columns make the last wanted pairs converge faster. K is symmetric positive semidefinite; M and the
    preconditioner are symmetric positive definite. Residuals are divided by lambda + scale, so that zero eigenvalues
    converge too. Knyazev (2001); the basis is kept M-orthonormal as Hetmaniuk and Lehoucq (2006) advise.
    """
    values, X, KX, MX = _ritz(start, K, M)
    P = KP = MP = X[:, :0]
    iterations = 0
    while True:
        R = KX - MX * values
        residuals = R.norm(dim=0) / ((values + scale) * MX.norm(dim=0))
        worst = float(residuals[:wanted].max())
        if report:
            report(iterations, worst)
        if worst <= tolerance or iterations >= max_iterations or worst != worst:
            return Eigenpairs(values[:wanted], X[:, :wanted], residuals[:wanted], iterations)
        iterations += 1
        # Only columns that have not converged get new search directions.
        W = precondition(R[:, residuals > MAX_RESIDUAL_OF_SETTLED_COLUMN * tolerance])
        W, KW, MW = _orthonormal_to(W, [(X, MX), (P, MP)], K, M)
        S, KS, MS = (torch.cat(parts, 1) for parts in ((X, P, W), (KX, KP, KW), (MX, MP, MW)))
        values, C = torch.linalg.eigh(_symmetric(S.T @ KS))
        width = X.shape[1]
        values, C = values[:width], C[:, :width]
        # P: the part of the new X that lies outside the old X, made orthogonal to the new X within the span of S.
        D = C.clone()
        D[:width] = 0
        U, size, _ = torch.linalg.svd(D - C @ (C.T @ D), full_matrices=False)
        D = U[:, size > MAX_DROPPED_SINGULAR_VALUE]
        P, KP, MP = S @ D, KS @ D, MS @ D
        X, KX, MX = S @ C, KS @ C, MS @ C
        if iterations % ITERATIONS_BETWEEN_FRESH_PRODUCTS == 0:
            values, X, KX, MX = _ritz(X, K, M)
            P, KP, MP = _orthonormal_to(P, [(X, MX)], K, M)


def _ritz(X: Tensor, K: Apply, M: Apply) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ritz values in the span of X; and X, K X and M X for the Ritz vectors."""
    KX, MX = K(X), M(X)
    C = _orthonormalising(X, MX)
    values, vectors = torch.linalg.eigh(_symmetric(C.T @ (X.T @ KX) @ C))
    C = C @ vectors
    return values, X @ C, KX @ C, MX @ C


def _orthonormal_to(W: Tensor, basis: list[tuple[Tensor, Tensor]], K: Apply, M: Apply) -> tuple[Tensor, Tensor, Tensor]:
    """W, made M-orthonormal and M-orthogonal to the blocks V of the basis of pairs (V, M V); then K W and M W."""
    W = W / W.norm(dim=0).clamp_min(torch.finfo(W.dtype).tiny)
    for _ in range(2):
        for V, MV in basis:
            W = W - V @ (MV.T @ W)
        W = W @ _orthonormalising(W, M(W))
    return W, K(W), M(W)


def _orthonormalising(V: Tensor, MV: Tensor) -> Tensor:
    """C with (V C)^T M V C = I. Directions that the others span already are dropped."""
    gram = _symmetric(V.T @ MV)
    size = gram.diagonal().clamp_min(torch.finfo(V.dtype).tiny).rsqrt()
    values, vectors = torch.linalg.eigh(size[:, None] * gram * size)
    smallest = MAX_DROPPED_GRAM_EIGENVALUE_EPS * torch.finfo(V.dtype).eps * values[-1:]  # V may have no columns
    keep = values > smallest
    return size[:, None] * vectors[:, keep] * values[keep].rsqrt()


def _symmetric(A: Tensor) -> Tensor:
    return 0.5 * (A + A.T)
