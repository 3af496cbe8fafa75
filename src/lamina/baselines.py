"""Methods to compare lamina with: surface FEM, closest point methods, the paper's method, GINO. All are called alike.

>>> import lamina
>>> mesh = lamina.Mesh(*lamina.surfaces.icosphere.icosphere(3))
>>> lamina.baselines.solve(mesh, lambda x: x[:, 0], "fem").values.shape
torch.Size([642])
"""

from lamina.paper.baselines.compare import METHODS, Answer, heat, solve

__all__ = ["METHODS", "Answer", "heat", "solve"]
