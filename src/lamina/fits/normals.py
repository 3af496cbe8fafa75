"""Normals of a bare point cloud: directions from local principal components, signs from a spanning forest."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from torch import Tensor

from lamina.geometry.triangles import dot
from lamina.search.neighbours import PointTree, k_nearest
from lamina.search.winding import WindingTree

# Neighbours to which a plane is fitted: at first, and at most where noise needs more. Fewer follow noise, more average
# over curvature. A small cloud uses a quarter of its points, but at least the third number.
FIRST_PLANE_NEIGHBOURS, MAX_PLANE_NEIGHBOURS, MIN_PLANE_NEIGHBOURS = 24, 192, 6
EIGEN_BATCH = 2**15  # matrices decomposed at a time; cuSOLVER fails on 2**16
COVARIANCE_BATCH = 2**20  # neighbours whose covariances are summed at a time
# Neighbourhoods are doubled while their height over width (median of the square root of the two smallest eigenvalues'
# ratio) is above the first number, where noise is suspected, and falls to at most the second share of what it was. If
# noise makes them thick it falls to a half; if curvature does, it doubles.
MAX_FLAT_THICKNESS, MAX_THICKNESS_SHARE = 0.1, 0.8
# Neighbours of each point in the graph along which signs spread. Fewer leave it in pieces, more link opposite sheets.
ORIENTATION_NEIGHBOURS = 12
# Two neighbours agree clearly if the absolute value of their agreement is above this: patches grow along such pairs
# only.
MIN_CLEAR_AGREEMENT = 0.9
# Mirroring a normal uses the line d between two points, which noise tilts. It counts less the larger the root of the
# median of |d . n_i||d . n_j| is, and not at all from this value on.
MAX_LINE_TILT = 0.5
# Winding numbers are taken on both sides of this many points of a piece, at this many spacings from it: nearer, single
# points count too much; farther, other parts of the surface are near.
WINDING_PROBES, PROBE_DISTANCE = 64, 2.0
# The winding numbers decide the side of a piece if the absolute value of their mean sum is above this; the sum is 1 or
# -1 on a closed surface and 0 on a flat one. Otherwise its outermost points decide.
MIN_CLEAR_WINDING = 0.2
# A piece with fewer points than this has no meaningful winding numbers.
MIN_WINDING_POINTS = 20
# Normals have mixed signs if more than this share of the pairs of near neighbours lie side by side, |d . n| below the
# second number times |d|, and have opposite normals. Random signs give a half, oriented normals almost none.
MAX_OPPOSITE_SHARE, MAX_BESIDE_SLOPE = 0.2, 0.3


def pca_normals(points: Tensor, k: int | None = None) -> Tensor:
    """Unit normals (n, 3), of either sign: the direction of least variance of the k nearest neighbours.

    The eigenvector of the smallest eigenvalue of sum_j w_j (p_j - mean)(p_j - mean)^T (Hoppe et al. 1992), with the
    weights w_j = (1 - d_j^2 / r^2)^2 of the distance d_j and the radius r of the neighbourhood.
    With k = None there are 24 neighbours (a quarter of a small cloud). Their number is doubled up to 192, without
    weights, while neighbourhoods are thick (height over width above 0.1) and become flatter by growing, as they do
    under noise but not where the surface is curved.
    """
    tree = PointTree(points)
    if k is not None:
        near = tree.query(points, min(k, len(points)))
        return _smallest_directions(_covariances(points, *near, weighted=True)).to(points.dtype)
    start = k = min(FIRST_PLANE_NEIGHBOURS, max(MIN_PLANE_NEIGHBOURS, len(points) // 4))
    near = tree.query(points, min(k, len(points)))
    chosen = _covariances(points, *near, weighted=False)
    thickness = _thickness(chosen)
    while thickness > MAX_FLAT_THICKNESS and 2 * k <= min(MAX_PLANE_NEIGHBOURS, len(points) // 4):
        wider = _covariances(points, *tree.query(points, 2 * k), weighted=False)
        thinner = _thickness(wider)
        if thinner > MAX_THICKNESS_SHARE * thickness:
            break
        chosen, thickness, k = wider, thinner, 2 * k
    return _smallest_directions(chosen if k > start else _covariances(points, *near, weighted=True)).to(points.dtype)


def _covariances(points: Tensor, index: Tensor, distance: Tensor, weighted: bool) -> Tensor:
    """Covariances (n, 3, 3) of neighbourhoods with the given index (n, k) and distances (n, k), in float64: float32
    would lose the small eigenvalue of flat neighbourhoods."""
    found = []
    size = max(1, COVARIANCE_BATCH // index.shape[1])
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
    """Median over points of the height of a neighbourhood over its width."""
    values = torch.cat([torch.linalg.eigvalsh(part) for part in covariances.split(EIGEN_BATCH)])
    return float((values[:, 0].clamp_min(0) / values[:, 1].clamp_min(1e-300)).sqrt().median())


def _smallest_directions(covariances: Tensor) -> Tensor:
    """The directions (n, 3) of least variance."""
    return torch.cat([torch.linalg.eigh(part).eigenvectors[..., 0] for part in covariances.split(EIGEN_BATCH)])


def orient_normals(
    points: Tensor, normals: Tensor, k: int = ORIENTATION_NEIGHBOURS, *, viewpoint: Tensor | None = None
) -> Tensor:
    """The normals (n, 3) with signs that agree between neighbours and point outwards.

    The agreement of two neighbours is n_j . (n_i - 2 d (d . n_i)) with the unit vector d from one to the other. It
    compares n_j with n_i mirrored in the plane between the two points; they are equal on a circle through both, also
    around an edge and between two sheets. Signs spread along a maximum spanning forest of the k-nearest-neighbour
    graph (Hoppe et al. 1992, "Surface reconstruction from unorganized points"), first within patches whose neighbours
    agree clearly. Then they spread from patch to patch by the sum of the agreements of all pairs along their common
    border, so that no single pair decides for a patch. Finally each connected piece is turned outwards as a whole.

    viewpoint (3,): a point from which all points were seen; then patches are turned towards it instead. The graph is
    searched on the CPU, wherever the points are.
    """
    index, distance = k_nearest(points, min(k + 1, len(points)))
    p, n = points.detach().cpu().double().numpy(), normals.detach().cpu().double().numpy()
    first = np.repeat(np.arange(len(p)), index.shape[1] - 1)
    second = index[:, 1:].reshape(-1).cpu().numpy()
    says = _agreement(p, n, first, second)
    # Noise tilts the line between two points that lie close together: such pairs get less weight.
    usual = distance[:, 1:].median(1, keepdim=True).values.clamp_min(1e-300)
    says = says * (distance[:, 1:] / usual).clamp(max=1).reshape(-1).cpu().double().numpy()
    clear = np.abs(says) > MIN_CLEAR_AGREEMENT
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
    """n_i . n_j - 2 c (d . n_i)(d . n_j) for pairs i, j; the factor c falls from 1 to 0 as noise tilts d."""
    d = p[second] - p[first]
    d = d / np.maximum(np.linalg.norm(d, axis=1, keepdims=True), np.finfo(p.dtype).tiny)
    across = np.einsum("ij,ij->i", d, n[first]) * np.einsum("ij,ij->i", d, n[second])
    trust = max(0.0, 1 - float(np.median(np.abs(across))) ** 0.5 / MAX_LINE_TILT)
    return np.einsum("ij,ij->i", n[first], n[second]) - 2 * trust * across


def _votes(first: np.ndarray, second: np.ndarray, says: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of different patches, each once, and the sum of the agreements between them."""
    apart = first != second
    low, high = np.minimum(first, second)[apart], np.maximum(first, second)[apart]
    count = int(max(first.max(), second.max())) + 1
    summed = coo_array((says[apart], (low, high)), shape=(count, count)).tocsr().tocoo()
    return summed.row, summed.col, summed.data


def _spread(count: int, first: np.ndarray, second: np.ndarray, says: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signs (count,), spread along the forest of the edges with the largest |says|; the piece (count,) of each node.

    The first node of each piece has sign +1; an edge with says < 0 changes the sign. Of an edge given in both
    directions the value with the larger |says| counts.
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
    """For each piece +1 if its normals look outwards, -1 if they look inwards.

    Winding numbers decide where they are clear, otherwise the normals at the six outermost points of the piece.
    """
    outward = np.zeros(piece.max() + 1)
    for axis in range(3):
        order = np.lexsort((p[:, axis], piece))
        starts = np.nonzero(np.diff(piece[order], prepend=-1))[0]
        ends = np.append(starts[1:], len(order)) - 1
        outward += n[order[ends], axis] - n[order[starts], axis]
    for c in np.nonzero(np.bincount(piece) >= MIN_WINDING_POINTS)[0]:
        rows = np.nonzero(piece == c)[0]
        wound = _winding(p[rows], n[rows], spacing[rows])
        if abs(wound) > MIN_CLEAR_WINDING:
            outward[c] = wound
    return np.where(outward < 0, -1.0, 1.0)


def _winding(p: np.ndarray, n: np.ndarray, spacing: np.ndarray) -> float:
    """Mean of w(x + d n) + w(x - d n) over some of the points, w being the winding number of the cloud.

    It is 1 on a closed surface with normals outwards, -1 with normals inwards, and near 0 on a flat sheet. On an open
    surface its sign tells the convex side. The area of a point is the square of its spacing.
    """
    some = np.linspace(0, len(p) - 1, min(WINDING_PROBES, len(p))).astype(np.int64)
    off = PROBE_DISTANCE * spacing[some, None] * n[some]
    tree = WindingTree.of_points(*(torch.from_numpy(v) for v in (p, n, spacing**2)))
    return float(tree(torch.from_numpy(np.concatenate([p[some] + off, p[some] - off]))).sum()) / len(some)


def signs_disagree(points: Tensor, normals: Tensor) -> bool:
    """Whether normals of one sheet look to both sides, as estimated ones do before they are oriented.

    This is so if more than a fifth of the pairs of near neighbours have opposite normals although they lie side by
    side, |d . n| < 0.3 |d|. Neighbours on two sheets back to back lie above each other instead.
    """
    index, _ = k_nearest(points, 5)
    offset = points[index[:, 1:]] - points[:, None]
    above = dot(offset, normals[:, None].expand_as(offset)).abs()
    beside = above < MAX_BESIDE_SLOPE * dot(offset, offset).sqrt()
    opposite = dot(normals[:, None], normals[index[:, 1:]]) < 0
    return float((beside & opposite).double().mean()) > MAX_OPPOSITE_SHARE
