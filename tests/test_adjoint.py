"""Sparse products and linear solves have the gradients of their dense twins, one column or many at a time."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from lamina.errors import InputError
from lamina.linear import krylov
from lamina.linear.adjoint import FirstOrder, System, solve
from lamina.linear.krylov import KrylovResult, conjugate_gradients, fgmres, in_blocks
from lamina.linear.operator import SparseOperator, sparse_rows, transposed


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pattern(rows, columns):
    """About a third of the places of a matrix, in the order of CSR."""
    return (random(rows, columns, seed=5) > 0.4).nonzero().T


def csr(place, values, shape):
    return torch.sparse_coo_tensor(place, values, shape, check_invariants=True).to_sparse_csr()


def dense(place, values, shape):
    return torch.zeros(shape, dtype=values.dtype).index_put(tuple(place), values)


# Products


SHAPE = (7, 5)
PLACE = pattern(*SHAPE)
VALUES = random(PLACE.shape[1], seed=1)


def tracked(values):
    """The matrix with these entries, and with their gradients."""
    return SparseOperator(csr(PLACE, values.detach(), SHAPE), values)


@pytest.mark.parametrize("columns", [(), (1,), (4,)])
def test_products_are_those_of_the_dense_matrix(columns):
    A, full = tracked(VALUES), dense(PLACE, VALUES, SHAPE)
    u, v = random(5, *columns), random(7, *columns)
    torch.testing.assert_close(A @ u, full @ u)
    torch.testing.assert_close(A.T @ v, full.T @ v)
    assert A.T.T is A
    assert A.T.shape == (5, 7)


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_products_to_vector_and_entries(columns, turned):
    values, u = VALUES.clone().requires_grad_(), random(7 if turned else 5, *columns).requires_grad_()

    def product(values, u):
        A = tracked(values)
        return (A.T if turned else A) @ u

    def twin(values, u):
        A = dense(PLACE, values, SHAPE)
        return (A.T if turned else A) @ u

    ours, theirs = (torch.autograd.grad(f(values, u).square().sum(), (values, u)) for f in (product, twin))
    torch.testing.assert_close(ours, theirs)
    assert gradcheck(product, (values, u))
    assert gradgradcheck(product, (values, u))


def test_products_without_gradients_in_entries_have_them_in_the_vector_only():
    A, u = SparseOperator(csr(PLACE, VALUES, SHAPE)), random(5).requires_grad_()
    assert not A.tracked
    assert gradcheck(lambda u: A @ u, (u,))
    assert not (A @ u.detach()).requires_grad
    with torch.no_grad():
        assert not (tracked(VALUES.clone().requires_grad_()) @ u).requires_grad


def test_the_transpose_knows_which_entry_each_of_its_entries_was():
    matrix = csr(PLACE, VALUES, SHAPE)
    turned, order = transposed(matrix)
    torch.testing.assert_close(turned.to_dense(), matrix.to_dense().T)
    torch.testing.assert_close(turned.values(), matrix.values()[order])


def test_rows_with_a_column_twice_add_up():
    index = torch.tensor([[0, 2], [1, 1], [3, 0]], dtype=torch.int32)
    values = random(3, 2).requires_grad_()
    full = torch.zeros(3, 4, dtype=torch.float64).index_put(
        (torch.arange(3)[:, None].expand(3, 2), index.long()), values, accumulate=True
    )
    A, u, v = sparse_rows(index, values, 4), random(4), random(3)
    torch.testing.assert_close(A @ u, full @ u)
    torch.testing.assert_close(A.T @ v, full.T @ v)
    ours, theirs = (torch.autograd.grad((v * (B @ u)).sum() + (B.T @ v).norm(), values)[0] for B in (A, full))
    torch.testing.assert_close(ours, theirs)


def test_a_symmetric_operator_is_its_own_transpose_and_has_the_same_gradients():
    """To a parameter of all entries, in which they stay symmetric: one entry alone would not."""
    root = random(5, 5)
    base, u = root + root.T, random(5, 2)
    place, t = torch.ones(5, 5).nonzero().T, torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def found(symmetric):
        values = torch.sin(t * base).reshape(-1)
        A = SparseOperator(csr(place, values.detach(), (5, 5)), values, symmetric)
        assert (A.T is A) == symmetric
        v = u.clone().requires_grad_()
        first = torch.autograd.grad((A @ (A.T @ v)).pow(3).sum(), (t, v), create_graph=True)
        return (*first, *torch.autograd.grad(first[1].sum(), (t, v)))

    torch.testing.assert_close(found(True), found(False))


def test_the_product_of_two_matrices_is_the_first_after_the_second():
    other = pattern(5, 6)
    B = SparseOperator(csr(other, random(other.shape[1]), (5, 6)))
    A, u = SparseOperator(csr(PLACE, VALUES, SHAPE)), random(6, 2)
    torch.testing.assert_close(A.after(B) @ u, A @ (B @ u))


def test_products_of_many_vectors_by_vmap():
    A, u, w = SparseOperator(csr(PLACE, VALUES, SHAPE)), random(4, 5), random(4, 7)
    full = dense(PLACE, VALUES, SHAPE)
    torch.testing.assert_close(torch.func.vmap(lambda v: A @ v)(u), u @ full.T)
    torch.testing.assert_close(torch.func.vmap(lambda v: A @ v, in_dims=1, out_dims=1)(u.T), full @ u.T)
    each = torch.func.vmap(torch.func.grad(lambda v, w: (w * (A @ v)).sum()))(u, w)
    torch.testing.assert_close(each, w @ full)


@pytest.mark.gpu
def test_products_and_transposes_on_the_gpu_are_those_on_the_cpu():
    u, v = random(5, 3), random(7, 3)
    found = []
    for device in ("cpu", "cuda"):
        values = VALUES.detach().to(device).requires_grad_()
        A = SparseOperator(csr(PLACE.to(device), values.detach(), SHAPE), values)
        B = SparseOperator(transposed(A.matrix)[0])
        product = A @ u.to(device)
        (gradient,) = torch.autograd.grad(product.square().sum() + (A.T @ v.to(device)).square().sum(), values)
        found.append([x.detach().cpu() for x in (product, gradient, B.after(SparseOperator(A.matrix)) @ u.to(device))])
    torch.testing.assert_close(found[0], found[1])


# Solves


N = 6
SQUARE = random(N, N, seed=2) + 6 * torch.eye(N, dtype=torch.float64)  # far from symmetric, and from singular


class Counted:
    """The dense system A u = g, whose solves are counted."""

    def __init__(self, A):
        self.A, self.forwards, self.backwards = A, 0, 0

    def __call__(self):
        def forward(g, size):
            self.forwards += 1
            return KrylovResult(torch.linalg.solve(self.A.detach(), g), 1, 0.0, True)

        def backward(g, size):
            self.backwards += 1
            return KrylovResult(torch.linalg.solve(self.A.detach().T, g), 1, 0.0, True)

        def by_entries(v, u):
            return (-torch.einsum("i...,j...->ij", v, u),)

        return System(forward, backward, (self.A,), by_entries)


@pytest.mark.parametrize("columns", [(), (3,)])
def test_gradients_of_solutions_to_right_hand_side_and_matrix(columns):
    A, g = SQUARE.clone().requires_grad_(), random(N, *columns).requires_grad_()

    def solution(A, g):
        return solve(Counted(A)(), g).solution

    ours, theirs = (torch.autograd.grad(f(A, g).pow(3).sum(), (A, g)) for f in (solution, torch.linalg.solve))
    torch.testing.assert_close(ours, theirs)
    assert gradcheck(solution, (A, g))
    assert gradgradcheck(solution, (A, g))


def test_backward_is_one_solve_with_the_transpose():
    system, g = Counted(SQUARE.clone().requires_grad_()), random(N).requires_grad_()
    found = solve(system(), g)
    assert (system.forwards, system.backwards) == (1, 0)
    found.solution.square().sum().backward()
    assert (system.forwards, system.backwards) == (1, 1)


def test_a_solution_that_is_let_go_leaves_nothing_behind():
    """At once, without a search for cycles, which may come long after a GPU is full."""
    g = random(N).requires_grad_()
    gc.disable()
    try:
        system = Counted(SQUARE)()
        found, watched = solve(system, g), weakref.ref(system)
        (gradient,) = torch.autograd.grad(found.solution.sum(), g)
        del system, found, gradient
        assert watched() is None
    finally:
        gc.enable()


def test_a_matrix_that_wants_no_gradient_is_not_asked_for_one():
    def never(v, u):
        raise AssertionError("asked")

    system = replace(Counted(SQUARE)(), by_entries=never)
    g = random(N).requires_grad_()
    (gradient,) = torch.autograd.grad(solve(system, g).solution.sum(), g)
    torch.testing.assert_close(gradient, torch.linalg.solve(SQUARE.T, torch.ones(N, dtype=torch.float64)))


def test_solves_for_many_right_hand_sides_by_vmap_are_one_solve():
    system, g, w = Counted(SQUARE), random(4, N), random(4, N, seed=3)
    found = torch.func.vmap(lambda g: solve(system(), g).solution)(g)
    torch.testing.assert_close(found, torch.linalg.solve(SQUARE, g.T).T)
    assert system.forwards == 1
    each = torch.func.vmap(torch.func.grad(lambda g, w: (w * solve(system(), g).solution).sum()))(g, w)
    torch.testing.assert_close(each, torch.linalg.solve(SQUARE.T, w.T).T)
    assert system.backwards == 1


# Krylov methods, column by column


def spread(n=60, condition=1e3):
    """A symmetric positive matrix with eigenvalues from 1 to its condition number, and its eigenvectors."""
    Q = torch.linalg.qr(random(n, n, seed=7)).Q
    values = torch.logspace(0, torch.log10(torch.tensor(condition)), n, dtype=torch.float64)
    return Q @ torch.diag(values) @ Q.T, Q


FUNCTIONS = {"conjugate_gradients": conjugate_gradients, "fgmres": fgmres}


def matrix_for(name):
    """A matrix that takes about twenty preconditioned steps, symmetric only if it must be."""
    A = spread(condition=20)[0]
    return A + (torch.triu(random(*A.shape, seed=8), 1) / 5 if name == "fgmres" else 0)


def run(name, b, **options):
    A = matrix_for(name)
    inverse = 1 / A.diagonal()

    def precondition(r):
        return (inverse if r.ndim == 1 else inverse[:, None]) * r

    return FUNCTIONS[name](lambda u: A @ u, b, precondition=precondition, **options)


METHODS = pytest.mark.parametrize("name", ["conjugate_gradients", "fgmres"])


@METHODS
def test_columns_together_are_solved_as_each_alone(name):
    A, b = matrix_for(name), random(60, 4)
    together = run(name, b, tolerance=1e-11)
    alone = [run(name, b[:, i], tolerance=1e-11) for i in range(4)]
    assert together.converged
    torch.testing.assert_close(together.solution, torch.stack([a.solution for a in alone], 1), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(together.solution, torch.linalg.solve(A, b), rtol=1e-7, atol=1e-9)
    assert together.iterations == pytest.approx(max(a.iterations for a in alone), abs=2)


@METHODS
def test_columns_of_zeros_stay_zero_among_others(name):
    b = random(60, 3)
    b[:, 1] = 0
    found, without = (run(name, c, tolerance=1e-10) for c in (b, b[:, ::2]))
    assert found.converged
    assert found.iterations == without.iterations
    assert bool((found.solution[:, 1] == 0).all())
    torch.testing.assert_close(found.solution[:, ::2], without.solution)
    nothing = run(name, torch.zeros(60, 2, dtype=torch.float64))
    assert (nothing.iterations, nothing.residual, nothing.converged) == (0, 0.0, True)
    assert bool((nothing.solution == 0).all())


@METHODS
def test_a_column_that_is_done_early_waits_unharmed_for_the_others(name):
    """Without a preconditioner, an eigenvector takes a single step."""
    A, Q = spread()
    b = torch.stack([Q[:, 5], random(60)], 1)
    alone, both = (
        FUNCTIONS[name](lambda u: A @ u, c, precondition=lambda r: r, tolerance=1e-12, max_iterations=1000)
        for c in (b[:, 0], b)
    )
    assert alone.iterations <= 2 < 20 < both.iterations
    assert both.converged
    residual = (b - A @ both.solution).norm(dim=0) / b.norm(dim=0)
    assert float(residual.max()) <= 1e-12


@METHODS
def test_columns_may_be_measured_against_sizes_of_their_own(name):
    b = random(60, 2)
    scale = b.norm(dim=0) * torch.tensor([1.0, 1e6])
    found = run(name, b, tolerance=1e-9, scale=scale)
    residual = (b - matrix_for(name) @ found.solution).norm(dim=0)
    assert found.converged
    assert float((residual / scale).max()) <= 1e-9
    assert found.residual == pytest.approx(float((residual / scale).max()), rel=1e-3)


@METHODS
def test_the_worst_column_says_whether_all_have_converged(name):
    A, Q = spread()
    b = torch.stack([Q[:, 0], random(60)], 1)
    found = FUNCTIONS[name](lambda u: A @ u, b, precondition=lambda r: r, tolerance=1e-10, max_iterations=4)
    assert not found.converged
    residual = (b - A @ found.solution).norm(dim=0) / b.norm(dim=0)
    assert float(residual[0]) < 1e-10 < float(residual[1])
    assert found.residual == pytest.approx(float(residual.max()), rel=1e-6)


def test_flexible_gradients_bear_a_preconditioner_in_single_precision():
    A, _ = spread()
    b, inverse = random(60, 3), torch.linalg.inv(A).float()
    found = conjugate_gradients(
        lambda u: A @ u, b, precondition=lambda r: (inverse @ r.float()).double(), tolerance=1e-12, flexible=True
    )
    assert found.converged
    assert found.iterations <= 8
    torch.testing.assert_close(found.solution, torch.linalg.solve(A, b), rtol=1e-9, atol=1e-11)


def test_blocks_of_columns_of_unit_size_are_put_together_again(monkeypatch):
    monkeypatch.setitem(krylov.COLUMNS_PER_BLOCK, "cpu", 3)
    b, factor, asked = random(5, 8), torch.arange(1.0, 9.0, dtype=torch.float64), []
    b[:, 4], b[:, 6] = 0, 1e-200 * b[:, 6]

    def scaled(c, part, size):
        asked.append(c.shape)
        torch.testing.assert_close(c * size, b[:, part], rtol=1e-12, atol=0)
        assert bool(((c.abs().amax(0) - 1).abs() < 1e-12).logical_or((c == 0).all(0)).all())
        first = float(factor[part][0])
        return KrylovResult(factor[part] * c, int(first), 1 / first, first != 4)

    found = in_blocks(scaled, b)
    assert asked == [(5, 3), (5, 3), (5, 2)]
    torch.testing.assert_close(found.solution, factor * b, rtol=1e-12, atol=0)
    assert (found.iterations, found.residual, found.converged) == (7, 1.0, False)


def test_a_vector_is_one_block_of_unit_size():
    b = 1e-200 * random(5)

    def whole(c, part, size):
        assert part == slice(None)
        assert float(c.abs().max()) == pytest.approx(1)
        torch.testing.assert_close(c * size, b, rtol=1e-12, atol=0)
        return KrylovResult(2 * c, 3, 0.5, True)

    found = in_blocks(whole, b)
    torch.testing.assert_close(found.solution, 2 * b, rtol=1e-12, atol=0)
    assert (found.iterations, found.residual, found.converged) == (3, 0.5, True)


# Second derivatives that are not to be had


def test_first_derivatives_pass_and_second_ones_are_refused_in_a_sentence():
    x = random(4).requires_grad_()
    (gradient,) = torch.autograd.grad(FirstOrder.apply(x).pow(3).sum(), x)
    torch.testing.assert_close(gradient, 3 * x.detach() ** 2)
    with pytest.raises(InputError, match=r"Second derivatives with respect to a shape .* create_graph=False"):
        torch.autograd.grad(FirstOrder.apply(x).pow(3).sum(), x, create_graph=True)


def test_second_derivatives_through_what_is_linear_are_not_refused():
    x, y = random(4).requires_grad_(), random(4, seed=1).requires_grad_()
    (by_y,) = torch.autograd.grad((FirstOrder.apply(x.detach()) * y.pow(2)).sum(), y, create_graph=True)
    (twice,) = torch.autograd.grad(by_y.sum(), y)
    torch.testing.assert_close(twice, 2 * x.detach())
    (gradient,) = torch.autograd.grad(FirstOrder.apply(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, torch.ones_like(x))
