"""The Poisson problem of the hemisphere with each kind of condition at its rim."""

from lamina import Dirichlet, Neumann, Robin
from lamina.gallery import hemisphere_poisson

PROBLEM = hemisphere_poisson()
exact, rhs, flux = PROBLEM.solution, PROBLEM.rhs, PROBLEM.flux

KINDS = {
    "Dirichlet": Dirichlet("rim", exact),
    "Neumann": Neumann("rim", flux),
    "Robin": Robin("rim", lambda x: flux(x) + 2.5 * exact(x), 2.5),
}
