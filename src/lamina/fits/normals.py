"""Normals of a bare point cloud: directions from local principal components, signs from a spanning tree."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from torch import Tensor

from lamina.geometry.triangles import dot
from lamina.search.neighbours import PointTree, k_nearest
from lamina.search.winding import WindingTree

START_NEIGHBOURS, MOST_NEIGHBOURS = 24, 192
EIGEN_BATCH = 2**15  # matrices
FLAT = 0.1  # height over width of a neighbourhood above which noise is suspected
TREE_NEIGHBOURS = 12
CLEAR = 0.9  # of two neighbours that agree beyond doubt
TILTED = 0.5  # usual |d . n| between neighbours at which noise decides it, and mirroring says nothing
PROBES, OFF = 64, 2.0  # places about which winding numbers are taken, so many usual distances off the surface
SURE = 0.2  # of a sum of winding numbers that is 1 on a closed surface and 0 on a flat one
FEWEST_WOUND = 20  # samples of a piece for which winding numbers mean something


def pca_normals(points: Tensor, k: int | None = None) -> Tensor:
    """Unit normals (n, 3), of either sign: the direction of least variance of the k nearest neighbours.

    The eigenvector of the smallest eigenvalue of sum_j w_j (p_j - mean)(p_j - mean)^T (Hoppe et al. 1992), with the
    weights w_j = (1 - d_j^2 / r^2)^2 of the distance d_j and the radius r of the neighbourhood.
    k None: 24 (a quarter of a small cloud), and without weights doubled up to 192 while neighbourhoods are thick
    (height over width above 0.1) and become flatter by growing, as they do when it is noise and not curvature.
    """
    tree = PointTree(points)
    if k is not None:
        return _least(_covariances(points, *tree.query(points, min(k, len(points))), weighted=True)).to(points.dtype)
    start = k = min(START_NEIGHBOURS, max(6, len(points) // 4))
    near = tree.query(points, min(k, len(points)))
    chosen = _covariances(points, *near, weighted=False)
    thickness = _thickness(chosen)
    while thickness > FLAT and 2 * k <= min(MOST_NEIGHBOURS, len(points) // 4):
        wider = _covariances(points, *tree.query(points, 2 * k), weighted=False)
        thinner = _thickness(wider)
        if thinner > 0.8 * thickness:  # noise would shrink by a half, curvature would double
            break
        chosen, thickness, k = wider, thinner, 2 * k
    return _least(chosen if k > start else _covariances(points, *near, weighted=True)).to(points.dtype)


def _covariances(points: Tensor, index: Tensor, distance: Tensor, weighted: bool) -> Tensor:
    """Of neighbourhoods with the given index (n, k) and distances, (n, 3, 3) float64: float32 would lose the small
    eigenvalue of flat ones."""
    found = []
    size = max(1, 2**20 // index.shape[1])
    for rows, away in zip(index.split(size), distance.split(size), strict=True):
        near = points.index_select(0, rows.reshape(-1)).reshape(*rows.shape, 3)
        if weighted:
            weight = (1 - (away / (1.01 * away[:, -1:]).clamp_min(1e-300)) ** 2)[..., None].square()
            offset = near - (weight * near).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
            heavy = weight * offset
        else:
            heavy = offset = near - near.mean(1, keepdim=True)
        found.append((offset.transpose(1, 2) @ heavy).double())
    return torch.cat(found)


def _thickness(covariances: Tensor) -> float:
    """Median over points of height / width of the neighbourhood."""
    values = torch.cat([torch.linalg.eigvalsh(part) for part in covariances.split(EIGEN_BATCH)])
    return float((values[:, 0].clamp_min(0) / values[:, 1].clamp_min(1e-300)).sqrt().median())


def _least(covariances: Tensor) -> Tensor:
    """The directions (n, 3) of least variance."""
    return torch.cat([torch.linalg.eigh(part).eigenvectors[..., 0] for part in covariances.split(EIGEN_BATCH)])


def orient_normals(
    points: Tensor, normals: Tensor, k: int = TREE_NEIGHBOURS, *, viewpoint: Tensor | None = None
) -> Tensor:
    """The normals (n, 3) with signs that agree between neighbours and point outwards.

    Two neighbours agree by n_j . (n_i - 2 d (d . n_i)), d the direction from one to the other: n_i mirrored in the
    plane between them, which is n_j on a circle through both, round an edge and from sheet to sheet. Signs spread
    along a maximum spanning forest of the k-nearest-neighbour graph, first within patches where neighbours agree
    clearly (Hoppe et al. 1992, "Surface reconstruction from unorganized points"), then from patch to patch by the
    sum of what all pairs along their common border say, so that no single pair decides for a patch. Each connected
    piece then looks outwards as a whole. With a viewpoint (3,) from which all points were seen, patches look there
    instead. The graph is searched on the CPU, wherever the points are.
    """
    index, distance = k_nearest(points, min(k + 1, len(points)))
    p, n = points.detach().cpu().double().numpy(), normals.detach().cpu().double().numpy()
    first = np.repeat(np.arange(len(p)), index.shape[1] - 1)
    second = index[:, 1:].reshape(-1).cpu().numpy()
    says = _agreement(p, n, first, second)
    # Noise tilts the line between two points that lie close together: these say less.
    usual = distance[:, 1:].median(1, keepdim=True).values.clamp_min(1e-300)
    says = says * (distance[:, 1:] / usual).clamp(max=1).reshape(-1).cpu().double().numpy()
    clear = np.abs(says) > CLEAR
    sign, patch = _spread(len(p), first[clear], second[clear], says[clear])
    if viewpoint is None:
        a, b, vote = _votes(patch[first], patch[second], says * sign[first] * sign[second])
        turn, piece = _spread(int(patch.max()) + 1, a, b, vote)
        sign, piece = sign * turn[patch], piece[patch]
        spacing = distance[:, 1:].median(1).values.cpu().double().numpy()
        sign = sign * _outwards(p, n * sign[:, None], spacing, piece)[piece]
    else:
        sight = viewpoint.detach().cpu().double().numpy() - p
        sight = sight / np.maximum(np.linalg.norm(sight, axis=1, keepdims=True), np.finfo(p.dtype).tiny)
        seen = np.bincount(patch, sign * np.einsum("ij,ij->i", n, sight))
        sign = sign * np.where(seen < 0, -1.0, 1.0)[patch]
    return normals * torch.from_numpy(sign).to(normals)[:, None]


def _agreement(p: np.ndarray, n: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """n_i . n_j - 2 c (d . n_i)(d . n_j) for pairs i, j; c falls from 1 to 0 as noise tilts d."""
    d = p[second] - p[first]
    d = d / np.maximum(np.linalg.norm(d, axis=1, keepdims=True), np.finfo(p.dtype).tiny)
    across = np.einsum("ij,ij->i", d, n[first]) * np.einsum("ij,ij->i", d, n[second])
    trust = max(0.0, 1 - float(np.median(np.abs(across))) ** 0.5 / TILTED)
    return np.einsum("ij,ij->i", n[first], n[second]) - 2 * trust * across


def _votes(first: np.ndarray, second: np.ndarray, says: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of different patches, each once, and the sum of what is said about them."""
    apart = first != second
    low, high = np.minimum(first, second)[apart], np.maximum(first, second)[apart]
    count = int(max(first.max(), second.max())) + 1
    summed = coo_array((says[apart], (low, high)), shape=(count, count)).tocsr().tocoo()
    return summed.row, summed.col, summed.data


def _spread(count: int, first: np.ndarray, second: np.ndarray, says: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signs (count,) spread along the forest of edges that say most, +1 at the first node of each piece; and pieces.

    An edge with says < 0 turns the sign round. An edge given both ways counts with the larger of its values.
    """
    strength = np.abs(says)
    # Sparse graphs have no edges of weight zero, so even the clearest edge weighs a little.
    weight = (1 + 1e-9) * strength.max(initial=0) - strength + 1e-300
    # The transpose differs only where the neighbour relation is one-sided; entries given twice would be summed.
    order = np.lexsort((weight, np.maximum(first, second), np.minimum(first, second)))
    low, high = np.minimum(first, second)[order], np.maximum(first, second)[order]
    once = np.concatenate([[True], (np.diff(low) != 0) | (np.diff(high) != 0)])[: len(order)]
    low, high, order = low[once], high[once], order[once]
    tree = minimum_spanning_tree(coo_array((weight[order], (low, high)), shape=(count, count)).tocsr()).tocoo()
    _, piece = connected_components(tree, directed=False)
    roots = np.unique(piece, return_index=True)[1]
    # One more node above all roots makes the forest a tree, with one traversal.
    rows = np.concatenate([tree.row, np.full(len(roots), count)])
    columns = np.concatenate([tree.col, roots])
    whole = coo_array((np.ones(len(rows)), (rows, columns)), shape=(count + 1, count + 1)).tocsr()
    _, parent = breadth_first_order(whole, count, directed=False)
    parent[count] = count
    inner = np.nonzero(parent[:count] < count)[0]
    up = parent[inner]
    key = low.astype(np.int64) * count + high  # increasing
    edge = np.searchsorted(key, np.minimum(inner, up).astype(np.int64) * count + np.maximum(inner, up))
    sign = np.ones(count + 1)
    sign[inner] = np.where(says[order[edge]] < 0, -1.0, 1.0)
    # Pointer jumping: after j rounds each node holds the product of the 2^j signs above it.
    while np.any(parent != count):
        sign = sign * sign[parent]
        parent = parent[parent]
    return sign[:count], piece


def _outwards(p: np.ndarray, n: np.ndarray, spacing: np.ndarray, piece: np.ndarray) -> np.ndarray:
    """For each piece +1 or -1: whether its normals look outwards as they are.

    By winding numbers where these are clear, otherwise by the normals at its six outermost points.
    """
    outward = np.zeros(piece.max() + 1)
    for axis in range(3):
        order = np.lexsort((p[:, axis], piece))
        starts = np.nonzero(np.diff(piece[order], prepend=-1))[0]
        ends = np.append(starts[1:], len(order)) - 1
        outward += n[order[ends], axis] - n[order[starts], axis]
    for c in np.nonzero(np.bincount(piece) >= FEWEST_WOUND)[0]:
        rows = np.nonzero(piece == c)[0]
        wound = _winding(p[rows], n[rows], spacing[rows])
        if abs(wound) > SURE:
            outward[c] = wound
    return np.where(outward < 0, -1.0, 1.0)


def _winding(p: np.ndarray, n: np.ndarray, spacing: np.ndarray) -> float:
    """Mean of w(x + d n) + w(x - d n) over some of the points: 1 on a closed surface with normals outwards, -1 with
    normals inwards, near 0 on a flat sheet; its sign tells the convex side of an open one.

    w is the winding number of the cloud, each point with the square of the spacing for its area.
    """
    some = np.linspace(0, len(p) - 1, min(PROBES, len(p))).astype(np.int64)
    off = OFF * spacing[some, None] * n[some]
    tree = WindingTree.of_points(*(torch.from_numpy(v) for v in (p, n, spacing**2)))
    return float(tree(torch.from_numpy(np.concatenate([p[some] + off, p[some] - off]))).sum()) / len(some)


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
