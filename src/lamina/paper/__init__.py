"""The method of the CVPR 2026 paper "Learning to Solve PDEs on Neural Shape Representations".

The closest-point schemes of textbooks are here as well. All of them are here for comparison: `lamina.baselines.solve`
calls them beside finite elements and GINO.

>>> import lamina
>>> domain = lamina.paper.BandDomain(lamina.Sphere(), spacing=0.2, scheme="coupled", order=2)
>>> u = lamina.poisson(domain, "-6*x*y")
>>> exact = domain.points[:, 0] * domain.points[:, 1]
>>> bool((u.values - exact).abs().max() < 1e-2)
True
"""

from lamina.domain import Domain
from lamina.paper.attention import Attention
from lamina.paper.band_domain import BandDomain

Domain.baseline = BandDomain

__all__ = ["Attention", "BandDomain"]
