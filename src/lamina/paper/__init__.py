"""The method of the CVPR 2026 paper "Learning to Solve PDEs on Neural Shape Representations", and the closest-point
schemes beside it.

They are here to be compared with: `lamina.baselines.solve` calls them beside finite elements and GINO.

>>> import lamina
>>> domain = lamina.paper.BandDomain(lamina.Sphere(), spacing=0.2, scheme="coupled", order=2)
>>> u = lamina.poisson(domain, "-6*x*y")
>>> exact = domain.points[:, 0] * domain.points[:, 1]
>>> bool((u.values - exact).abs().max() < 1e-2)
True
"""

from lamina.domain import Domain
from lamina.paper.attention import Attention
from lamina.paper.domain import BandDomain

Domain.baseline = BandDomain

__all__ = ["Attention", "BandDomain"]
