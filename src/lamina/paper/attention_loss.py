"""The losses of the paper: the values at closest points, and constancy along normals.

Let g be a monomial of degree <= 5, and u~ the extension of its values at the nodes of a patch. L_MSE is the mean square
of u~(q) - g(cp(q)) over the nodes q of the patch. L_NC is the mean of |<grad u~(q), n(cp(q))>|. The gradient is taken
by automatic differentiation with respect to the query alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.paper.attention_network import AttentionNetwork
from lamina.paper.attention_training_data import Batch, monomials


def losses(network: AttentionNetwork, batch: Batch, normal_consistency: bool = True) -> tuple[Tensor, Tensor]:
    """L_MSE and L_NC (zero unless normal_consistency) of a batch."""
    weights, slopes = extension_weights(network, batch, normal_consistency)
    values = monomials(batch.nodes)  # (b, k, 56)
    mse = (weights @ values - monomials(batch.feet)).square().mean()
    if slopes is None:
        return mse, torch.zeros_like(mse)
    return mse, (slopes @ values).abs().mean()


def extension_weights(network: AttentionNetwork, batch: Batch, slopes: bool) -> tuple[Tensor, Tensor | None]:
    """Weights a_j(q) (b, k, k) at the nodes, and their derivatives along the normals n(cp(q)).

    With V' the derivative of V = Phi2(q) along n, in forward mode, l_j' = <U_j, V'> and
    a_j' = a_j (l_j' - sum_i a_i l_i').
    """
    scores = network.pooled_scores(batch.features)
    keys = network.band_net(batch.local_nodes).transpose(1, 2)
    if not slopes:
        queries = network.query_net(batch.local_nodes)
        return torch.softmax(torch.baddbmm(scores[:, None], queries, keys, beta=-1), -1), None
    both = torch.func.jvp(network.query_net, (batch.local_nodes,), (batch.local_normals,))
    queries, change = both[0], both[1]
    weights = torch.softmax(torch.baddbmm(scores[:, None], queries, keys, beta=-1), -1)
    change = change @ keys
    return weights, weights * (change - (weights * change).sum(-1, keepdim=True))
