"""Expressions mean what mathematics says they mean, and bad ones are refused with a useful sentence."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lamina.errors import InputError
from lamina.expression import MAX_FORMULA_DEPTH, MAX_FORMULA_LENGTH, parse

RNG = np.random.default_rng(1)
POINTS = RNG.uniform(-1.5, 1.5, (7, 3))
X, Y, Z = POINTS.T


def value(text, **kwargs):
    return parse(text, **kwargs)(torch.from_numpy(POINTS)).numpy()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-x^2", -(X**2)),
        ("2^3^2", 512 + 0 * X),
        ("2**-1 ** 2", 0.5 + 0 * X),
        ("(2^3)^2", 64 + 0 * X),
        ("2^-x", 2**-X),
        ("x - y - z", X - Y - Z),
        ("x / y / z", X / Y / Z),
        ("x - -y", X + Y),
        ("--x*+y", X * Y),
        ("-x*-y", X * Y),
        ("1e-3 + .5 + 2. + 1E2", 102.501 + 0 * X),
        ("2*pi*e", 2 * math.pi * math.e + 0 * X),
        ("min(x, y) + max(y,z)*2", np.minimum(X, Y) + 2 * np.maximum(Y, Z)),
        ("atan2(y, x)", np.arctan2(Y, X)),
        ("abs(x) + sign(y)", np.abs(X) + np.sign(Y)),
        ("asin(x/2)+acos(y/2)+atan(z)", np.arcsin(X / 2) + np.arccos(Y / 2) + np.arctan(Z)),
        ("sinh(x) * cosh(y) - tan(z)", np.sinh(X) * np.cosh(Y) - np.tan(Z)),
        (" log( exp(x) ) + sqrt(4) ", X + 2),
        ("x < y", (X < Y) * 1.0),
        ("(x <= 0) + (y >= 0)*2 - (z > x)", (X <= 0) + (Y >= 0) * 2.0 - (Z > X)),
        ("x + 1 > y*z", (X + 1 > Y * Z) * 1.0),
        ("x == x and 1 != 2", 1 + 0 * X),
        ("x > 0 and y > 0 or z > 0", ((X > 0) & (Y > 0) | (Z > 0)) * 1.0),
        ("x > 0 & (y > 0 | !z > 0)", ((X > 0) & ((Y > 0) | ~(Z > 0))) * 1.0),
        ("not x > 0 and y > 0", (~(X > 0) & (Y > 0)) * 1.0),
        ("where(x > 0, sqrt(abs(x)), -y)", np.where(X > 0, np.sqrt(np.abs(X)), -Y)),
        ("where(x, 1, 2)", 1 + 0 * X),
        ("x if y > 0 else -z", np.where(Y > 0, X, -Z)),
        ("1 + 1 if x > 0 and y > 0 else 3 if z > 0 else 4", np.where((X > 0) & (Y > 0), 2, np.where(Z > 0, 3, 4))),
        ("2*(x if x > 0 else 0)", 2 * np.maximum(X, 0)),
        ("-(x > 0) + sin(y > 0)", -1.0 * (X > 0) + np.sin((Y > 0) * 1.0)),
    ],
)
def test_meaning_of_each_construct(text, expected):
    np.testing.assert_allclose(value(text), expected, rtol=1e-12, atol=1e-12)


# Random trees. A tree is a number, a variable, or (operation, children).
LEAF = st.one_of(
    st.sampled_from(["x", "y", "z"]),
    st.floats(0, 20, allow_nan=False).map(lambda v: float(f"{v:.4g}")),
)
UNARY = {"sin": np.sin, "cos": np.cos, "tanh": np.tanh, "exp": np.exp, "atan": np.arctan, "abs": np.abs}
BINARY = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "^": np.power}
PAIRS = {"min": np.minimum, "max": np.maximum}
LEVEL = {"+": 1, "-": 1, "*": 2, "/": 2, "negate": 3, "^": 4}


def _grow(tree):
    return st.one_of(
        st.tuples(st.sampled_from([*UNARY, "negate"]), tree),
        st.tuples(st.sampled_from([*BINARY, *PAIRS]), tree, tree),
    )


TREES = st.recursive(LEAF, _grow, max_leaves=12)


def show(tree):
    """The tree with no more parentheses than precedence asks for, and its own precedence."""
    if isinstance(tree, float):
        return repr(tree), 5
    if isinstance(tree, str):
        return tree, 5
    name, *children = tree
    if name in LEVEL:
        level = LEVEL[name]
        # The operand on the associative side may be of the same level, the other must bind tighter; what
        # follows ^ may carry a sign without parentheses.
        least = {"negate": [3], "^": [5, 3]}.get(name, [level, level + 1])
        parts = [
            text if inner >= need else f"({text})"
            for (text, inner), need in zip(map(show, children), least, strict=True)
        ]
        return (f"-{parts[0]}" if name == "negate" else f" {name} ".join(parts)), level
    return f"{name}({', '.join(show(child)[0] for child in children)})", 5


def evaluate(tree):
    """numpy's value of the tree; gives up where rounding alone could change the answer."""
    if isinstance(tree, float):
        return np.full(len(X), tree)
    if isinstance(tree, str):
        return {"x": X, "y": Y, "z": Z}[tree]
    name, *children = tree
    values = [evaluate(child) for child in children]
    if name == "/":
        assume(np.abs(values[1]).min() > 1e-2)
    if name == "^":
        assume(values[0].min() > 1e-2)
    with np.errstate(over="ignore"):
        result = -values[0] if name == "negate" else (UNARY | BINARY | PAIRS)[name](*values)
    assume(np.abs(result).max() < 1e3)
    return result


def postfix(tree):
    if not isinstance(tree, tuple):
        return (tree,)
    return sum((postfix(child) for child in tree[1:]), ()) + tree[:1]


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_parsing_inverts_printing(tree):
    assert parse(show(tree)[0]).program == postfix(tree)


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_values_equal_numpy(tree):
    expected = evaluate(tree)
    np.testing.assert_allclose(value(show(tree)[0]), expected, rtol=1e-7, atol=1e-7)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="xyzt0123456789.eE+-*/^(), sincoqab\t#π", max_size=30))
def test_any_text_parses_or_is_refused(text):
    try:
        result = parse(text)(torch.from_numpy(POINTS))
    except InputError:
        return
    assert result.shape == (len(POINTS),)


def test_constant_has_one_value_per_point_in_the_dtype_of_the_points():
    points = torch.zeros(5, 3, dtype=torch.float32)
    result = parse("2*pi")(points)
    assert result.shape == (5,)
    assert result.dtype == torch.float32
    assert parse("1")(torch.zeros(0, 3)).shape == (0,)


def test_variables_are_those_that_occur():
    assert parse("z + sin(x)*0").variables == ("x", "z")
    assert parse("pi").variables == ()


def test_time_is_a_keyword():
    decay = parse("x*exp(-2*t)", variables=("x", "y", "z", "t"))
    assert decay.variables == ("t", "x")
    np.testing.assert_allclose(decay(torch.from_numpy(POINTS), t=0.5).numpy(), X * math.exp(-1))
    with pytest.raises(InputError, match="depends on t"):
        decay(torch.from_numpy(POINTS))
    with pytest.raises(InputError, match="unknown name 't'"):
        parse("x*t")


def test_values_of_x_are_a_copy():
    points = torch.ones(3, 3)
    parse("x")(points).zero_()
    assert points.min() == 1


def test_a_comparison_says_where_it_holds_in_truth_values():
    expression = parse("z > 0 and x < 1")
    held = expression.holds(torch.from_numpy(POINTS))
    assert expression.is_comparison
    assert held.dtype == torch.bool
    np.testing.assert_array_equal(held.numpy(), (Z > 0) & (X < 1))
    assert not parse("(z > 0)*x").is_comparison


def test_comparisons_keep_single_precision():
    assert parse("sin(x > 0) + (y > 0)")(torch.zeros(4, 3)).dtype == torch.float32


def test_gradient_flows_to_the_points():
    points = torch.from_numpy(POINTS).requires_grad_()
    parse("x^2*sin(y)")(points).sum().backward()
    assert points.grad is not None
    np.testing.assert_allclose(points.grad[:, 0].numpy(), 2 * X * np.sin(Y))


def test_expressions_compare_and_pickle():
    expression = parse("x + y")
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert str(expression) == "x + y"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sin(q)", r"""unknown name 'q' at position 4 in "sin\(q\)"; known: x, y, z, pi, e, sin"""),
        ("", "expression is empty"),
        ("  ", "expression is empty"),
        ("x +", "expected a number, a name or '\\(' at position 3 but found the end"),
        ("x + * y", "position 4 but found '\\*'"),
        ("2x", "expected an operator at position 1 but found 'x' \\(write \\* to multiply\\)"),
        ("(x + y", "'\\(' at position 0 is never closed"),
        ("x + y)", "expected an operator at position 5 but found '\\)'"),
        ("sin x", "function 'sin' at position 0 needs its arguments in parentheses, as in sin\\(x\\)"),
        ("sin(x, y)", "takes 1 argument, got 2"),
        ("min(x)", "takes 2 arguments, got 1"),
        ("sin()", "takes 1 argument, got 0"),
        ("x(2)", "'x' at position 0 is not a function"),
        ("x $ y", "unexpected character '\\$' at position 2"),
        ("__import__('os')", "unexpected character"),
        ("1..2", "position 2"),
        ("x < y < z", "expected one comparison at a time but found '<' at position 6"),
        ("x = y", "unexpected character '=' at position 2"),
        ("x and", "expected a number, a name or '\\(' at position 5 but found the end"),
        ("1 if x > 0", "the 'if' at position 2 has no 'else'"),
        ("where(x > 0, 1)", "takes 3 arguments, got 2"),
    ],
)
def test_errors_say_what_and_where(text, message):
    with pytest.raises(InputError, match=message):
        parse(text)


@pytest.mark.parametrize("text", ["(" * 5000, "-" * 5000 + "x", "x^" * 4000 + "x", "sin(" * 1000 + "x" + ")" * 1000])
def test_deep_nesting_is_refused_rather_than_overflowing_the_stack(text):
    with pytest.raises(InputError, match="levels of nesting"):
        parse(text)


def test_limits_leave_room_for_long_sums_and_refuse_longer_ones():
    assert value("x" + "+x" * 4000)[0] == pytest.approx(4001 * X[0])
    depth = MAX_FORMULA_DEPTH - 1
    assert value("(" * depth + "x" + ")" * depth)[0] == X[0]
    with pytest.raises(InputError, match="characters"):
        parse("x" + "+x" * MAX_FORMULA_LENGTH)
