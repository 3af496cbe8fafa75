"""The lowest eigenpairs of K x = lambda M x, by the locally optimal block preconditioned conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Apply = Callable[[Tensor], Tensor]  # (n, k) -> (n, k)


@dataclass(frozen=True)
class Eigenpairs:
    values: Tensor  # (k,), increasing
    vectors: Tensor  # (n, k), orthonormal in M
    residuals: Tensor  # (k,) |K x - lambda M x| over (lambda + scale) |M x|
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
    """The `wanted` lowest eigenpairs, from a block start (n, b), b >= wanted; the extra columns speed up the last.

    K symmetric positive semidefinite, M symmetric positive definite, the preconditioner symmetric positive
    definite. Residuals are measured against lambda + scale, so that zero eigenvalues converge too.
    Knyazev (2001); the basis is kept M-orthonormal as Hetmaniuk and Lehoucq (2006) advise.
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
        # Only what has not converged is searched for further.
        W = precondition(R[:, residuals > 0.5 * tolerance])
        W, KW, MW = _added(W, [(X, MX), (P, MP)], K, M)
        S, KS, MS = (torch.cat(parts, 1) for parts in ((X, P, W), (KX, KP, KW), (MX, MP, MW)))
        values, C = torch.linalg.eigh(_symmetric(S.T @ KS))
        width = X.shape[1]
        values, C = values[:width], C[:, :width]
        # The new direction is what the step added, orthogonal to the new X within the span of S.
        D = C.clone()
        D[:width] = 0
        U, size, _ = torch.linalg.svd(D - C @ (C.T @ D), full_matrices=False)
        D = U[:, size > 1e-6]
        P, KP, MP = S @ D, KS @ D, MS @ D
        X, KX, MX = S @ C, KS @ C, MS @ C
        if iterations % 10 == 0:  # rounding creeps into the recurrences
            values, X, KX, MX = _ritz(X, K, M)
            P, KP, MP = _added(P, [(X, MX)], K, M)


def _ritz(X: Tensor, K: Apply, M: Apply) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ritz values in the span of X, with X, K X and M X for their vectors."""
    KX, MX = K(X), M(X)
    C = _orthonormalising(X, MX)
    values, vectors = torch.linalg.eigh(_symmetric(C.T @ (X.T @ KX) @ C))
    C = C @ vectors
    return values, X @ C, KX @ C, MX @ C


def _added(W: Tensor, basis: list[tuple[Tensor, Tensor]], K: Apply, M: Apply) -> tuple[Tensor, Tensor, Tensor]:
    """W made M-orthonormal, and orthogonal to the blocks V of the basis, given with M V; with K W and M W."""
    W = W / W.norm(dim=0).clamp_min(torch.finfo(W.dtype).tiny)
    for _ in range(2):
        for V, MV in basis:
            W = W - V @ (MV.T @ W)
        W = W @ _orthonormalising(W, M(W))
    return W, K(W), M(W)


def _orthonormalising(V: Tensor, MV: Tensor) -> Tensor:
    """C with (V C)^T M V C = I; directions that the others span already are dropped."""
    gram = _symmetric(V.T @ MV)
    size = gram.diagonal().clamp_min(torch.finfo(V.dtype).tiny).rsqrt()
    values, vectors = torch.linalg.eigh(size[:, None] * gram * size)
    keep = values > 1e2 * torch.finfo(V.dtype).eps * values[-1:]  # there may be none
    return size[:, None] * vectors[:, keep] * values[keep].rsqrt()


def _symmetric(A: Tensor) -> Tensor:
    return 0.5 * (A + A.T)
