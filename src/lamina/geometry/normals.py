"""Normals of a bare point cloud: directions from local principal components, signs from a spanning tree."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from torch import Tensor

from lamina.geometry.neighbours import k_nearest
from lamina.geometry.triangles import dot

START_NEIGHBOURS, MOST_NEIGHBOURS = 24, 192
FLAT = 0.1  # height over width of a neighbourhood above which noise is suspected
TREE_NEIGHBOURS = 12


def pca_normals(points: Tensor, k: int | None = None) -> Tensor:
    """Unit normals (n, 3), of either sign: the direction of least variance of the k nearest neighbours.

    The eigenvector of the smallest eigenvalue of sum_j (p_j - mean)(p_j - mean)^T (Hoppe et al. 1992).
    k None: 24 (a quarter of a small cloud), doubled up to 192 while neighbourhoods are thick (height over
    width above 0.1) and become flatter by growing, as they do when it is noise and not curvature.
    """
    if k is not None:
        return _principal(points, k)[0]
    k = min(START_NEIGHBOURS, max(6, len(points) // 4))
    normals, thickness = _principal(points, k)
    while thickness > FLAT and 2 * k <= min(MOST_NEIGHBOURS, len(points) // 4):
        wider, thinner = _principal(points, 2 * k)
        if thinner > 0.8 * thickness:  # noise would shrink by a half, curvature would double
            break
        normals, thickness, k = wider, thinner, 2 * k
    return normals


def _principal(points: Tensor, k: int) -> tuple[Tensor, float]:
    """Normals (n, 3), and the median over points of height / width of the neighbourhood."""
    index, _ = k_nearest(points, min(k, len(points)))
    normals, thickness = [], []
    for rows in index.split(max(1, 2**20 // index.shape[1])):
        offset = points[rows] - points[rows].mean(1, keepdim=True)
        # eigh of float32 covariances loses the small eigenvalue of flat neighbourhoods.
        values, vectors = torch.linalg.eigh((offset.transpose(1, 2) @ offset).double())
        normals.append(vectors[..., 0].to(points.dtype))
        thickness.append((values[:, 0].clamp_min(0) / values[:, 1].clamp_min(1e-300)).sqrt())
    return torch.cat(normals), float(torch.cat(thickness).median())


def orient_normals(points: Tensor, normals: Tensor, k: int = TREE_NEIGHBOURS) -> Tensor:
    """The normals (n, 3) with signs that agree between neighbours and point outwards.

    Signs spread along the minimum spanning tree of the k-nearest-neighbour graph with weights
    1 - |n_i . n_j|, so they cross from sheet to sheet where the surface is flattest (Hoppe et al. 1992,
    "Surface reconstruction from unorganized points"). Each connected piece starts from its outermost
    points, where outwards is known. The tree is built on the CPU, wherever the points are.
    """
    index, _ = k_nearest(points, min(k + 1, len(points)))
    p, n = points.detach().cpu().double().numpy(), normals.detach().cpu().double().numpy()
    count = len(p)
    first = np.repeat(np.arange(count), index.shape[1] - 1)
    second = index[:, 1:].reshape(-1).cpu().numpy()
    # Sparse graphs have no edges of weight zero, so parallel normals weigh a little.
    weight = 1 + 1e-9 - np.abs(np.einsum("ij,ij->i", n[first], n[second])).clip(max=1)
    graph = coo_array((weight, (first, second)), shape=(count, count)).tocsr()
    # The transpose differs only where the neighbour relation is one-sided.
    tree = minimum_spanning_tree(graph.maximum(graph.T))
    _, piece = connected_components(tree, directed=False)
    sign = _signs_from_roots(tree, piece, n)
    sign = sign * _outwards(p, n * sign[:, None], piece)[piece]
    return normals * torch.from_numpy(sign).to(normals)[:, None]


def _signs_from_roots(tree, piece: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Signs (n,) that make neighbours in the forest agree, +1 at the first point of each piece."""
    count = len(n)
    roots = np.unique(piece, return_index=True)[1]
    # One more node above all roots makes the forest a tree, with one traversal.
    edges = tree.tocoo()
    rows = np.concatenate([edges.row, np.full(len(roots), count)])
    columns = np.concatenate([edges.col, roots])
    whole = coo_array((np.ones(len(rows)), (rows, columns)), shape=(count + 1, count + 1)).tocsr()
    _, parent = breadth_first_order(whole, count, directed=False)
    parent[count] = count
    sign = np.ones(count + 1)
    inner = np.nonzero(parent[:count] < count)[0]
    sign[inner] = np.where(np.einsum("ij,ij->i", n[inner], n[parent[inner]]) < 0, -1.0, 1.0)
    # Pointer jumping: after j rounds each node holds the product of the 2^j signs above it.
    while np.any(parent != count):
        sign = sign * sign[parent]
        parent = parent[parent]
    return sign[:count]


def _outwards(p: np.ndarray, n: np.ndarray, piece: np.ndarray) -> np.ndarray:
    """For each piece +1 or -1: whether the normals at its six outermost points look outwards, on balance."""
    outward = np.zeros(piece.max() + 1)
    for axis in range(3):
        order = np.lexsort((p[:, axis], piece))
        starts = np.nonzero(np.diff(piece[order], prepend=-1))[0]
        ends = np.append(starts[1:], len(order)) - 1
        outward += n[order[ends], axis] - n[order[starts], axis]
    return np.where(outward < 0, -1.0, 1.0)


def signs_disagree(points: Tensor, normals: Tensor) -> bool:
    """Whether normals look both ways from one sheet, as estimated ones do before they are oriented.

    That is, more than a fifth of the pairs of near neighbours have opposite normals though they lie side by
    side, |d . n| < 0.3 |d|; on two sheets back to back they lie one above the other.
    """
    index, _ = k_nearest(points, 5)
    offset = points[index[:, 1:]] - points[:, None]
    above = dot(offset, normals[:, None].expand_as(offset)).abs()
    beside = above < 0.3 * dot(offset, offset).sqrt()
    opposite = dot(normals[:, None], normals[index[:, 1:]]) < 0
    return float((beside & opposite).double().mean()) > 0.2
