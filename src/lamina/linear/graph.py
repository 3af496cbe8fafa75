"""Connected components of a graph, and lists of the positions that share a label."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def components(count: int, a: Tensor, b: Tensor) -> Tensor:
    """Component (count,) int64 of each vertex of the graph with edges a[i] - b[i], numbered by its lowest vertex."""
    if a.device.type == "cpu":
        ones = np.ones(len(a), dtype=np.int8)
        graph = coo_matrix((ones, (a.numpy(), b.numpy())), shape=(count, count))
        label = torch.from_numpy(connected_components(graph, directed=False)[1].astype(np.int64))
        lowest = torch.full((count,), count).scatter_reduce_(0, label, torch.arange(count), "amin")[label]
    else:
        lowest = _lowest_member(count, a, b)
    return numbered(count, lowest)


def numbered(count: int, label: Tensor) -> Tensor:
    """The labels numbered anew without gaps, in the same order; they run from 0 to count - 1, not all in use."""
    used = torch.zeros(count, dtype=torch.int64, device=label.device)
    used[label.reshape(-1)] = 1
    return (torch.cumsum(used, 0) - 1)[label]


def first_of_each(label: Tensor, count: int) -> Tensor:
    """For each label from 0 to count - 1, its lowest position (count,) in label (n,)."""
    first = torch.full((count,), len(label), dtype=torch.int64, device=label.device)
    return first.scatter_reduce_(0, label, torch.arange(len(label), device=label.device), "amin")


def expand(first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The ranges first[i] ... first[i] + counts[i] - 1 one after the other; and the i that each number belongs to."""
    source = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    start = torch.cumsum(counts, 0) - counts
    return torch.arange(len(source), device=counts.device) + (first - start).index_select(0, source), source


def members(label: Tensor, count: int, which: Tensor) -> tuple[Tensor, Tensor]:
    """For each label in which (k,), all its positions in label (n,), list after list; and the index into `which` that
    each position belongs to. Labels run from 0 to count - 1.
    """
    order = torch.argsort(label, stable=True)
    size = torch.bincount(label, minlength=count)
    first = torch.cumsum(size, 0) - size
    position, source = expand(first.index_select(0, which), size.index_select(0, which))
    return order.index_select(0, position), source


def _lowest_member(count: int, a: Tensor, b: Tensor) -> Tensor:
    """Lowest vertex of each vertex's component, by hooking roots and jumping pointers."""
    label = torch.arange(count, device=a.device)
    while True:
        for _ in range(3):  # several rounds between two tests for the end, because a test makes the device wait
            # index_select is used because plain indexing takes four times as long to launch.
            la, lb = label.index_select(0, a), label.index_select(0, b)
            low = torch.minimum(la, lb)
            label = label.scatter_reduce(0, torch.cat([la, lb, a, b]), low.repeat(4), "amin")
            label = label.index_select(0, label)
            label = label.index_select(0, label)
        settled = label.index_select(0, a) == label.index_select(0, b)
        if bool(settled.all() & (label.index_select(0, label) == label).all()):
            return label
