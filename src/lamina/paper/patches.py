"""Overlapping patches of a band, on which the learned extension acts.

The centre of a patch is a surface sample. A patch has the k band nodes nearest to its centre, nearest first, and the
surface samples in the dilated bounding box of these nodes. Patches are placed by a flood fill over the band, as in the
published demonstration of the paper. From the box of a patch the flood steps to the nodes beyond the corners of the
box. At each of them that no other patch has come near, it starts a patch, centred at the nearest sample. Then it starts
patches at the nodes that boxes have reached but no patch contains. A node that lies just beyond the k nearest nodes of
its own sample replaces the last of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor

from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures
from lamina.geometry.lattice import cell_keys
from lamina.linear.graph import expand

# Side of the bins in which samples are looked up, over the mean side of the boxes. It affects only the time: smaller
# bins mean more look-ups, larger ones more samples to check.
BIN_SIDE_PER_BOX_SIDE = 0.5
# A node that no patch contains replaces the last node of a patch if its distance from the centre is at most this many
# times that of the patch's farthest node. With a larger ratio a band that is much too wide for k would pass. Chosen by
# trial.
MAX_DISTANCE_PAST_PATCH = 1.15
# The flood steps to nodes whose distance from the surface is more than this share of the radius of the band.
OUTER_HEIGHT_SHARE = 0.8


@dataclass(frozen=True)
class Patches:
    """p patches over a band of n nodes and m surface samples."""

    centres: Tensor  # (p,) int64, the sample at the centre
    nodes: Tensor  # (p, k) int64, nearest to the centre first
    samples: Tensor  # (s,) int64, the samples of each patch, patch after patch
    patch: Tensor  # (s,) int64, increasing: the patch that each belongs to
    distances: Tensor  # (p, k) from the centre to the nodes

    def __len__(self) -> int:
        return len(self.centres)

    def thinned(self, max_samples: int) -> Patches:
        """The same patches with at most max_samples samples each, evenly picked from their lists."""
        count = torch.bincount(self.patch, minlength=len(self))
        wanted = count.clamp(max=max_samples)
        number, patch = expand(torch.zeros_like(wanted), wanted)
        first = (torch.cumsum(count, 0) - count)[patch]
        index = first + torch.div(number * count[patch], wanted[patch], rounding_mode="floor")
        return replace(self, samples=self.samples[index], patch=patch)

    def take(self, first: int, last: int) -> Patches:
        """Patches first ... last - 1."""
        low, high = torch.searchsorted(self.patch, torch.tensor([first, last], device=self.patch.device)).tolist()
        return Patches(
            self.centres[first:last],
            self.nodes[first:last],
            self.samples[low:high],
            self.patch[low:high] - first,
            self.distances[first:last],
        )


@dataclass(frozen=True)
class LocalPatches:
    """Patches in the frames (n, t1, t2) of their centres; lengths are multiplied by a scale."""

    nodes: Tensor  # (p, k, 3)
    points: Tensor  # (s, 3)
    normals: Tensor  # (s, 3)
    curvatures: Tensor  # (s, 2) mean and Gaussian
    patch: Tensor  # (s,)

    def features(self, names: tuple[str, ...]) -> Tensor:
        """The named features side by side (s, f)."""
        columns = [getattr(self, name) for name in names]
        return torch.cat(columns, 1) if columns else self.points[:, :0]


def localise(patches: Patches, positions: Tensor, surface: SurfaceFeatures, scale: float) -> LocalPatches:
    """Nodes at positions (n, 3) and samples of the patches, in local frames; scale: of lengths."""
    frames = surface.frames[patches.centres].transpose(1, 2)  # columns n, t1, t2
    origin = surface.points[patches.centres]
    nodes = scale * ((positions[patches.nodes] - origin[:, None]) @ frames)
    turn = frames.index_select(0, patches.patch)
    offset = surface.points.index_select(0, patches.samples) - origin.index_select(0, patches.patch)
    points = scale * (offset[:, None] @ turn)[:, 0]
    normals = (surface.normals.index_select(0, patches.samples)[:, None] @ turn)[:, 0]
    k1, k2 = (surface.curvatures.index_select(0, patches.samples) / scale).unbind(1)
    return LocalPatches(nodes, points, normals, torch.stack([(k1 + k2) / 2, k1 * k2], 1), patches.patch)


def cover(
    surface: SurfaceFeatures,
    component: Tensor,
    positions: Tensor,
    ijk: Tensor,
    node_component: Tensor,
    rim: Tensor,
    *,
    k: int,
    spacing: float,
    margin: float,
    least: int = 0,
    advice: str | None = None,
) -> Patches:
    """Patches that cover a band.

    component (m,): of the samples. positions (n, 3), ijk (n, 3), node_component (n,): the band, in lexicographic order.
    rim (n,) bool: its outer nodes. spacing: distance beyond the box of a patch at which the flood places the next ones.
    margin: by how much boxes are dilated. Both are over the sides of the box; spacing < margin. least: if the flood
    places fewer patches, more are placed at the samples farthest from all centres.
    The flood runs on the CPU, wherever the band is. Raises InputError with the number of uncovered nodes if patches of
    k nodes do not cover the band; its message ends with `advice`.
    """
    xyz, points = (v.detach().double().cpu().numpy() for v in (positions, surface.points))
    label, node_label = component.cpu().numpy(), node_component.cpu().numpy()
    cells, outer = ijk.cpu().numpy(), rim.cpu().numpy()
    centres, nodes, floods = [], [], []
    for c in np.unique(node_label):
        here, mine = np.flatnonzero(node_label == c), np.flatnonzero(label == c)
        flood = _Flood(points[mine], xyz[here], cells[here], min(k, len(here)), spacing, margin)
        flood.run(outer[here])
        floods.append((here, mine, flood))
    growth = least / sum(len(flood.centres) for _, _, flood in floods)
    for here, mine, flood in floods:
        flood.grow(math.ceil(growth * len(flood.centres) - 1e-9))
        centres.append(mine[flood.centres])
        # If a component is smaller than a patch, its farthest node is repeated to fill the patch.
        near = np.stack(flood.nodes)[:, np.minimum(np.arange(k), len(here) - 1)]
        nodes.append(here[near])
    centre = torch.from_numpy(np.concatenate(centres)).to(positions.device)
    node = torch.from_numpy(np.concatenate(nodes)).to(positions.device)
    missing = len(positions) - len(torch.unique(node))
    if missing:
        raise InputError(
            f"{missing} of {len(positions)} band nodes are in no patch of {k} nodes. "
            + (advice or "Use a narrower band, a network with a larger k, or more samples of the surface.")
        )
    box = positions[node]
    low, high = box.amin(1), box.amax(1)
    found, patch = samples_in_boxes(surface.points, low - margin * (high - low), high + margin * (high - low))
    same = component[found] == component[centre[patch]]
    offset = box - surface.points[centre][:, None]
    return Patches(centre, node, found[same], patch[same], (offset * offset).sum(-1).sqrt())


class _Flood:
    """The flood fill over the nodes of one component, with samples points (m, 3) and nodes xyz (n, 3).

    Boxes are looked up in a dense table of the bounding box of the component. `reached` are the nodes in the dilated
    box of some patch. `corners` are those of them beyond its corners, that is, outside the box dilated by the spacing
    in every coordinate.
    """

    def __init__(self, points: NDArray, xyz: NDArray, ijk: NDArray, k: int, spacing: float, margin: float):
        self.points, self.xyz, self.k, self.spacing, self.margin = points, xyz, k, spacing, margin
        self.samples, self.tree = KDTree(points), KDTree(xyz)
        self.ijk = ijk - ijk.min(0)
        self.table = np.full(self.ijk.max(0) + 1, -1, dtype=np.int32)
        self.table[tuple(self.ijk.T)] = np.arange(len(xyz), dtype=np.int32)
        self.covered, self.reached, self.corners = np.zeros((3, len(xyz)), dtype=bool)
        self.centres: list[int] = []
        self.nodes: list[NDArray] = []

    def run(self, outer: NDArray) -> None:
        """Flood until every reached node is covered or cannot be. outer (n,) bool: nodes that the flood steps to."""
        starts = np.flatnonzero(outer)
        self._patch(int(starts[0]) if len(starts) else 0)
        ahead, missing = self.corners & outer, self.reached & ~self.covered
        while missing.any():
            before = len(self.centres)
            while ahead.any():
                node = int(ahead.argmax())
                box, corner = self._patch(node)
                ahead[box[~corner]] = False
                ahead[node] = False
            # Nodes that were missing before these steps get patches of their own, because overlap is wanted.
            while missing.any():
                node = int(missing.argmax())
                self._patch(node)
                missing[self.nodes[-1]] = False
                missing[node] = False
            hopeless = not set(self.centres[before:]) - set(self.centres[:before])
            missing = self.reached & ~self.covered
            ahead = self.corners & missing & outer
            if hopeless:
                break
        self._replace_last_nodes(np.flatnonzero(missing))

    def _replace_last_nodes(self, missing: NDArray) -> None:
        """Add a patch for every node without one: at its nearest sample, with the node in place of the last one.

        Nothing is added unless this covers all of them: a band much too wide for k is an error.
        """
        if not len(missing):
            return
        away, centre = self.samples.query(self.xyz[missing])
        far, near = (v.reshape(len(missing), -1) for v in self.tree.query(self.points[centre], self.k))
        if (away <= MAX_DISTANCE_PAST_PATCH * far[:, -1]).all():
            near[:, -1] = missing
            self.centres.extend(np.atleast_1d(centre).tolist())
            self.nodes.extend(near)
            self.covered[missing] = True

    def grow(self, count: int) -> None:
        """Add patches at the samples farthest from all centres until there are `count`."""
        away = KDTree(self.points[self.centres]).query(self.points)[0]
        for _ in range(min(count - len(self.centres), len(self.points))):
            centre = int(away.argmax())
            if away[centre] == 0:
                break  # every sample is a centre
            self.centres.append(centre)
            self.nodes.append(np.atleast_1d(self.tree.query(self.points[centre], self.k)[1]))
            away = np.minimum(away, np.linalg.norm(self.points - self.points[centre], axis=1))

    def _patch(self, node: int) -> tuple[NDArray, NDArray]:
        """Start a patch at the sample nearest to a node. Returns the nodes of its dilated box and which are corners."""
        centre = int(self.samples.query(self.xyz[node])[1])
        near = np.atleast_1d(self.tree.query(self.points[centre], self.k)[1])
        self.centres.append(centre)
        self.nodes.append(near)
        self.covered[near] = True
        low, high = self.ijk[near].min(0), self.ijk[near].max(0)
        side = high - low
        first, last = np.ceil(low - self.margin * side - 1e-9), np.floor(high + self.margin * side + 1e-9)
        window = tuple(slice(max(int(a), 0), int(b) + 1) for a, b in zip(first, last, strict=True))
        box = self.table[window]
        box = box[box >= 0]
        at = self.ijk[box]
        corner = ((at <= low - self.spacing * side) | (at >= high + self.spacing * side)).all(1)
        self.reached[box] = True
        self.corners[box[corner]] = True
        return box, corner


def samples_in_boxes(points: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Samples (s,) of points (m, 3) in each box low (p, 3) to high (p, 3), box after box, and their boxes (s,).

    Samples are binned and sorted by bin. The bins of a box that follow each other in the last coordinate are then one
    range of samples. Every sample of these ranges is checked exactly.
    """
    extent = float((points.amax(0) - points.amin(0)).max())
    cell = max(BIN_SIDE_PER_BOX_SIDE * float((high - low).mean()), 1e-6 * extent)  # never zero
    origin = points.amin(0)
    bins = torch.floor((points - origin) / cell).long()
    shape = bins.amax(0) + 1
    # The sort is stable because patches are thinned by the order of their samples: it must not depend on the device.
    key, order = torch.sort(cell_keys(bins.unbind(1), shape), stable=True)
    first = torch.floor((low - origin) / cell).long().clamp_min(0)
    last = torch.minimum(torch.floor((high - origin) / cell).long(), shape - 1)
    size = (last - first + 1).clamp_min(0)
    columns, box = expand(torch.zeros_like(size[:, 0]), size[:, 0] * size[:, 1])
    across = size[box, 1].clamp_min(1)
    i = first[box, 0] + torch.div(columns, across, rounding_mode="floor")
    row = cell_keys((i, first[box, 1] + columns % across, torch.zeros_like(i)), shape)
    start = torch.searchsorted(key, row + first[box, 2])
    stop = torch.searchsorted(key, row + last[box, 2], right=True)
    entry, column = expand(start, (stop - start).clamp_min(0))
    found, owner = order[entry], box[column]
    position = points.index_select(0, found)
    inside = ((position >= low.index_select(0, owner)) & (position <= high.index_select(0, owner))).all(1)
    return found[inside], owner[inside]


def coverage_radius(k: int, spacing: float) -> float:
    """Radius dx (3k / 4 pi)^(1/3) of a ball of about k nodes: bands up to this radius are covered."""
    return spacing * (3 * k / (4 * math.pi)) ** (1 / 3)


def safe_radius(k: int) -> float:
    """Radius of a band, over dx, that patches of k nodes always cover: 4.5 for 400 nodes.

    A ball of radius r dx contains 4 pi r^3 / 3 nodes up to +-4 r, wherever its centre lies on the lattice.
    """
    r = (3 * k / (4 * math.pi)) ** (1 / 3)
    for _ in range(8):
        r -= (4 * math.pi / 3 * r**3 + 4 * r - k) / (4 * math.pi * r**2 + 4)
    return math.floor(100 * r) / 100


def coverage_warning(radius: float, spacing: float, k: int) -> str | None:
    """A sentence when a band of this radius breaks the coverage condition radius <= dx (3k / 4 pi)^(1/3)."""
    reach = coverage_radius(k, spacing)
    if radius <= reach * (1 + 1e-9):
        return None
    enough = math.ceil(4 * math.pi / 3 * (radius / spacing) ** 3)
    return (
        f"A band of radius {radius:.3g} breaks the coverage condition: patches of {k} nodes at spacing {spacing:g} "
        f"reach {_rounded(reach, math.floor):g}; use a radius of at most that, a spacing of at least "
        f"{_rounded(spacing * radius / reach, math.ceil):g}, or a "
        f"network with k = {enough}."
    )


def _rounded(x: float, towards: Callable[[float], int]) -> float:
    """x to three digits, rounded by math.floor or math.ceil."""
    unit = 10.0 ** (math.floor(math.log10(x)) - 2)
    return towards(x / unit * (1 + (1e-12 if towards is math.floor else -1e-12))) * unit
