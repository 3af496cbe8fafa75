"""The paper's learned extension as a sparse matrix.

In every patch the network gives weights a_j(x), which take the values at the nodes of the patch to the extended value
at its node x. Patches are blended,

    u~(x) = sum_i w_i(x) u~_i(x) / sum_i w_i(x),   w_i(x) = exp(-|x - c_i|^2 / T),

over the patches i that contain x, with centres c_i (T = 0.5 in the paper). All of this depends on the geometry alone:
it is one matrix E with rows that sum to one, assembled once. Weights below a tolerance are dropped and rows are scaled
to sum to one again; docs/attention.md says what that changes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from lamina.checks import positive
from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures, from_samples
from lamina.geometry.lattice import cell_keys
from lamina.grid.band import Band
from lamina.linear.graph import expand
from lamina.linear.operator import SparseOperator
from lamina.paper.attention_network import AttentionNetwork
from lamina.paper.patches import OUTER_HEIGHT_SHARE, Patches, cover, coverage_warning, localise
from lamina.progress import Update
from lamina.search.neighbours import PieceTrees
from lamina.surfaces.base import Surface

# The closest points of nodes become samples if the nodes lie within this many dx of the surface. At 0.5 there is about
# one sample for every dx^2; with double the height there would be twice as many, with half of it half as many.
MAX_SAMPLE_HEIGHT = 0.5
MAX_SAMPLES_PER_PATCH = 1024  # The network takes means over the samples of a patch; more samples hardly change them.
# A node counts as next to the surface if it is at most this many dx from it: it is then a corner of a cut cell.
MAX_CORNER_HEIGHT = 3**0.5
BLENDING_KERNELS = ("gaussian", "exponential")
BLOCK_SIDE = {"cpu": 24, "cuda": 48}  # Nodes along the side of the blocks of rows that are assembled together.
MAX_DENSE_ENTRIES = {"cpu": 2**21, "cuda": 2**27}  # Entries of dense intermediate arrays; on a CPU they fit its caches.


@dataclass(frozen=True)
class Attention:
    """Settings of the learned extension, to pass as `extension` to `lamina.paper.BandDomain`.

    Parameters
    ----------
    weights : str, Path or AttentionNetwork, optional
        A checkpoint file or a network; by default the weights that lamina ships.
    temperature : float, default 0.5
        T of the blending, for grids of the spacing of the training. On other grids it is scaled with the square of dx.
    kernel : str, default "gaussian"
        "gaussian", exp(-d^2 / T), as in the paper; or "exponential", exp(-d / T), which with T = 0.0423 made the field
        that the authors published.
    patch_spacing : float, default 0.27
        How far beyond a patch the next ones are placed, as a share of the sides of its bounding box.
    margin : float, default 0.5
        By how much the boxes of surface samples are dilated, as a share of the sides of the bounding box of a patch.
    tolerance : float, default 1e-5
        Smaller weights are dropped.
    least_patches : int, default 0
        The smallest number of patches. If fewer cover the band, more are placed evenly.

    Raises
    ------
    InputError
        If a setting is out of range.

    Examples
    --------
    >>> import lamina
    >>> lamina.paper.Attention(tolerance=1e-4).kernel
    'gaussian'
    """

    weights: str | Path | AttentionNetwork | None = None
    temperature: float = 0.5
    kernel: str = "gaussian"
    patch_spacing: float = 0.27
    margin: float = 0.5
    tolerance: float = 1e-5
    least_patches: int = 0

    def __post_init__(self) -> None:
        if self.kernel not in BLENDING_KERNELS:
            raise InputError(f"Unknown kernel {self.kernel!r}; known: {', '.join(BLENDING_KERNELS)}.")
        for name in ("temperature", "patch_spacing", "margin"):
            positive(name, getattr(self, name))
        if not 0 <= self.tolerance < 0.01:
            raise InputError(f"tolerance must lie between 0 and 0.01, got {self.tolerance!r}.")
        if not (isinstance(self.least_patches, int) and self.least_patches >= 0):
            raise InputError(f"least_patches must be an integer of at least 0, got {self.least_patches!r}.")
        if not self.margin > self.patch_spacing:
            raise InputError(
                f"margin must be larger than patch_spacing, got {self.margin!r} and {self.patch_spacing!r}."
            )

    def network(self) -> AttentionNetwork:
        from lamina.paper.attention_weights import load_network, shipped_network

        if isinstance(self.weights, AttentionNetwork):
            return self.weights
        return shipped_network() if self.weights is None else load_network(self.weights).requires_grad_(False)


@dataclass(frozen=True)
class LearnedExtension:
    """The matrix E with its patches and warnings."""

    matrix: SparseOperator  # (n, n), with gradients of the weights of the network if these require them
    patches: Patches
    warnings: list[str]


@dataclass(frozen=True)
class Samples:
    """Oriented samples of a surface with their components: all that the learned extension sees of the surface."""

    features: SurfaceFeatures
    component: Tensor  # (m,) int64


def band_near_samples(surface: Surface, band: Band, radius: float) -> tuple[Band, Samples]:
    """The nodes of a band that lie within `radius` of a sample, and these samples, which are as dense as the nodes.

    The samples are the surface's own. If these are farther apart than the nodes, the samples are the closest points of
    the nodes next to the surface. A few nodes at rims are near the surface but not near a sample, and a patch might
    miss them. Those in cells that the surface cuts are kept, and their closest points become samples.
    """
    if float(surface.areas.sum()) <= len(surface.points) * band.spacing**2:
        samples = Samples(surface.features(), surface.component)
        kept, lost = _nodes_near_samples(band, radius, samples)
        if not bool(lost.any()):
            return band.take(kept), samples
    height = band.heights
    # The node of each component that is nearest to the surface always counts: a small component may have no other.
    least = torch.full_like(height[:1], torch.inf).repeat(surface.component_count)
    least.scatter_reduce_(0, band.component, height, "amin")
    chosen = height <= least[band.component].clamp_min(MAX_SAMPLE_HEIGHT * band.spacing)
    samples = _feet_as_samples(band, chosen)
    kept, lost = _nodes_near_samples(band, radius, samples)
    if bool(lost.any()):  # closest points jump here, so that the feet of all nodes nearby lie elsewhere
        samples = _feet_as_samples(band, chosen | lost)
        kept = _nodes_near_samples(band, radius, samples)[0] | lost
    return band.take(kept), samples


def _feet_as_samples(band: Band, chosen: Tensor) -> Samples:
    rows = chosen.nonzero()[:, 0]
    points, normals, component = (v[rows] for v in (band.feet.points, band.feet.normals, band.component))
    return Samples(from_samples(points, normals, component, slopes=True), component)


def _nodes_near_samples(band: Band, radius: float, samples: Samples) -> tuple[Tensor, Tensor]:
    """Which nodes (n,) are within radius of a sample of their component; which (n,) next to the surface are not."""
    tree = PieceTrees(samples.features.points, samples.component)
    _, away = tree.query(band.lattice.position(band.ijk), band.component, 1)
    kept = away[:, 0] <= radius
    return kept, ~kept & (band.heights <= MAX_CORNER_HEIGHT * band.spacing)


def attention_extension(
    band: Band,
    radius: float,
    samples: Samples,
    options: Attention,
    network: AttentionNetwork,
    update: Update = lambda fraction, what: None,
) -> LearnedExtension:
    """The learned extension on a band of this radius, whose nodes are all near samples; network: that of the options.

    If the weights of the network require gradients, it is used in its own precision and E carries the gradients.
    """
    like = band.feet.points
    tracked = torch.is_grad_enabled() and any(p.requires_grad for p in network.parameters())
    if not tracked:  # a copy: the network of the caller is not changed
        network = copy.deepcopy(network).to(like.device, torch.float32).requires_grad_(False)
    dx, trained = band.spacing, network.config.spacing
    warning = coverage_warning(radius, dx, network.config.k)
    update(0.0, "patches")
    positions = band.lattice.position(band.ijk)
    surface = samples.features
    patches = cover_band(
        band, radius, samples, network.config.k, options.patch_spacing, options.margin, options.least_patches
    )
    patches = patches.thinned(MAX_SAMPLES_PER_PATCH)
    blend = blend_weights(patches, len(band), options.kernel, options.temperature, trained / dx)
    matrix = assemble(network, patches, positions, surface, blend, band.ijk, trained / dx, options.tolerance, update)
    return LearnedExtension(_rows_to_one(matrix, positions.dtype), patches, [warning] if warning else [])


def cover_band(
    band: Band, radius: float, samples: Samples, k: int, spacing: float, margin: float, least: int = 0
) -> Patches:
    """Patches of k nodes that cover a band of this radius."""
    return cover(
        samples.features,
        samples.component,
        band.lattice.position(band.ijk),
        band.ijk,
        band.component,
        band.heights > OUTER_HEIGHT_SHARE * radius,
        k=k,
        spacing=spacing,
        margin=margin,
        least=least,
        advice=coverage_warning(radius, band.spacing, k),
    )


def blend_weights(patches: Patches, nodes: int, kernel: str, temperature: float, scale: float) -> Tensor:
    """w_i(x) / sum_i w_i(x) (p, k), with distances in the lengths of the training data, d scale."""
    d = patches.distances * scale
    exponent = (d if kernel == "exponential" else d**2) / temperature
    flat = patches.nodes.reshape(-1)
    # Only differences of exponents count. Measured from the smallest one, no weight of the nearest centre underflows.
    least = torch.full_like(exponent.reshape(-1)[:1], torch.inf).repeat(nodes)
    least.scatter_reduce_(0, flat, exponent.reshape(-1), "amin")
    weight = torch.exp(least[flat] - exponent.reshape(-1))
    total = torch.zeros_like(least).index_add_(0, flat, weight)
    return (weight / total[flat]).reshape(exponent.shape)


def assemble(
    network: AttentionNetwork,
    patches: Patches,
    positions: Tensor,
    surface: SurfaceFeatures,
    blend: Tensor,
    ijk: Tensor,
    scale: float,
    tolerance: float,
    update: Update = lambda fraction, what: None,
) -> SparseOperator:
    """E (n, n), CSR with int32 indices and sorted columns, in the precision of the network; see the module.

    E is assembled block by block of the lattice. First comes the attention of all patches that meet the block, then the
    rows of its nodes. A row is the sum over the patches that contain the node. Rows are added up in a dense strip whose
    columns are the nodes of these patches.
    """
    # Positions are centred first: the precision of the network may have fewer digits.
    origin = positions.mean(0)
    dtype = next(network.parameters()).dtype
    surface = replace(surface, points=surface.points - origin).to(dtype=dtype)
    positions = (positions - origin).to(dtype)
    n, k = len(positions), patches.nodes.shape[1]
    device = positions.device
    block = _blocks(ijk, BLOCK_SIDE[device.type])
    node_order = torch.argsort(block, stable=True)
    starts = torch.searchsorted(block[node_order], torch.arange(int(block.max()) + 2, device=device)).tolist()
    # For every node, its positions in patches.nodes.
    flat = patches.nodes.reshape(-1)
    entry_order = torch.argsort(flat, stable=True)
    times = torch.bincount(flat, minlength=n)
    first = torch.cumsum(times, 0) - times
    scores = _rank_scores(network, patches, positions, surface, scale)
    columns, values, counts = [], [], torch.zeros(n, dtype=torch.int64, device=device)
    local = torch.zeros(n, dtype=torch.int64, device=device)
    for low, high in pairwise(starts):
        update(low / n, f"attention of {len(patches)} patches")
        rows = node_order[low:high]
        entry, _ = expand(first[rows], times[rows])
        meeting, seat = torch.unique(torch.div(entry_order[entry], k, rounding_mode="floor"), return_inverse=True)
        attention = _attention(network, patches, meeting, positions, surface, scores, blend, scale)
        around = torch.unique(patches.nodes[meeting])
        local[around] = torch.arange(len(around), device=device)
        where = local[patches.nodes[meeting]]  # (q, k) columns of the strip
        line = seat * k + entry_order[entry] % k  # row of attention, for each entry
        end = torch.cumsum(times[rows], 0)
        for strip in torch.arange(len(rows), device=device).split(
            max(1, MAX_DENSE_ENTRIES[device.type] // len(around))
        ):
            a, b = int(end[strip[0]] - times[rows[strip[0]]]), int(end[strip[-1]])
            row = torch.repeat_interleave(torch.arange(len(strip), device=device), times[rows[strip]])
            weights = attention.index_select(0, line[a:b])
            index = where.index_select(0, seat[a:b]).add_(row[:, None] * len(around))
            dense = torch.zeros(len(strip) * len(around), dtype=dtype, device=device)
            dense = dense.scatter_add_(0, index.reshape(-1), weights.reshape(-1)).reshape(len(strip), -1)
            # The largest entry of a row is always kept.
            least = dense.amax(1, keepdim=True).clamp(max=max(tolerance, torch.finfo(dense.dtype).tiny))
            at, column = (dense >= least).nonzero().unbind(1)
            kept = dense[at, column]
            columns.append(around.to(torch.int32)[column])
            values.append(kept / kept.new_zeros(len(strip)).index_add(0, at, kept)[at])
            counts[rows[strip]] = torch.bincount(at, minlength=len(strip))
    return _to_csr(columns, values, counts, node_order)


def _blocks(ijk: Tensor, side: int) -> Tensor:
    """Number (n,) of the cube of `side` nodes that each node lies in."""
    cube = torch.div(ijk.long() - ijk.long().amin(0), side, rounding_mode="floor")
    shape = cube.amax(0) + 1
    return torch.unique(cell_keys(cube.unbind(1), shape), return_inverse=True)[1]


def _rank_scores(
    network: AttentionNetwork, patches: Patches, positions: Tensor, surface: SurfaceFeatures, scale: float
) -> Tensor:
    """lambda W (p, k) of all patches, computed in chunks."""
    k = network.config.k
    size = torch.bincount(patches.patch, minlength=len(patches))
    step = max(1, MAX_DENSE_ENTRIES[positions.device.type] // (k * max(1, int(size.max()))))
    parts = []
    for i in range(0, len(patches), step):
        some = patches.take(i, min(i + step, len(patches)))
        local = localise(some, positions, surface, scale)
        parts.append(network.rank_scores(local.features(network.config.features), local.patch, len(some)))
    return torch.cat(parts)


def _attention(
    network: AttentionNetwork,
    patches: Patches,
    which: Tensor,
    positions: Tensor,
    surface: SurfaceFeatures,
    scores: Tensor,
    blend: Tensor,
    scale: float,
) -> Tensor:
    """Attention times blending (q k, k) of the patches numbered which (q,), a row for each of their nodes."""
    k = patches.nodes.shape[1]
    out = []
    step = max(1, MAX_DENSE_ENTRIES[scores.device.type] // k**2)
    none = patches.samples[:0]
    for i in range(0, len(which), step):
        some = which[i : i + step]
        bare = Patches(patches.centres[some], patches.nodes[some], none, none, patches.distances[some])
        nodes = localise(bare, positions, surface, scale).nodes
        weights = torch.softmax(network.logits(nodes, nodes, scores[some]), -1)
        out.append(weights * blend[some, :, None].to(weights))
    return torch.cat(out).reshape(-1, k)


def _rows_to_one(sparse: SparseOperator, dtype: torch.dtype) -> SparseOperator:
    """The matrix with rows that sum to one in this precision, so that constants stay constant over many steps."""
    crow, column = sparse.matrix.crow_indices(), sparse.matrix.col_indices()
    values = (sparse.matrix.values() if sparse.values is None else sparse.values).to(dtype)
    total = values.new_zeros(len(crow) - 1).index_add(0, sparse.row, values)
    return _csr(crow, column, values / total[sparse.row])


def _to_csr(columns: list[Tensor], values: list[Tensor], counts: Tensor, order: Tensor) -> SparseOperator:
    """CSR from entries that are listed row by row in the given order of rows. counts (n,): entries of each row."""
    column, value = torch.cat(columns), torch.cat(values)
    listed = torch.cumsum(counts[order], 0) - counts[order]
    first = torch.empty_like(listed)
    first[order] = listed
    crow = torch.zeros(len(counts) + 1, dtype=torch.int32, device=counts.device)
    crow[1:] = torch.cumsum(counts, 0)
    entry, _ = expand(first, counts)
    return _csr(crow, column[entry], value[entry])


def _csr(crow: Tensor, column: Tensor, values: Tensor) -> SparseOperator:
    n = len(crow) - 1
    matrix = torch.sparse_csr_tensor(crow, column, values.detach(), size=(n, n), check_invariants=False)
    return SparseOperator(matrix, values if values.requires_grad else None)
