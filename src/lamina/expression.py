"""Formulas typed by a user, such as sin(5*x) + y^2. They are parsed here and never eval'ed.

    formula = either ["if" either "else" formula]
    either  = both (("or" | "|") both)*
    both    = negated (("and" | "&") negated)*
    negated = ("not" | "!") negated | compared
    compared = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
    sum     = product (("+" | "-") product)*
    product = signed (("*" | "/") signed)*
    signed  = ("-" | "+") signed | power
    power   = atom [("^" | "**") signed]             so -x^2 = -(x^2), 2^3^2 = 2^(3^2), 2^-x is allowed
    atom    = number | name | name "(" formula ("," formula)* ")" | "(" formula ")"

A comparison is 1 where it is true and 0 elsewhere: (z > 0)*x is x on the upper half. A number counts as true unless it
is 0. where(c, a, b) is a where c is true, and b elsewhere; a if c else b is the same.

The parser climbs precedences (Pratt, 1973) and makes a program in postfix order. Evaluation is a loop over a stack of
tensors, so no text can overflow the stack of the interpreter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lamina.errors import InputError

# A formula has at most this many characters. It is far beyond what people write, and bounds the time of parsing.
MAX_FORMULA_LENGTH = 10_000
# Parentheses and operators are nested at most this deep. The parser calls itself a few times for each level, and
# stays far below the limit of the interpreter, 1000 calls.
MAX_FORMULA_DEPTH = 100

CONSTANTS = {"pi": math.pi, "e": math.e}

FUNCTIONS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "sin": (1, torch.sin),
    "cos": (1, torch.cos),
    "tan": (1, torch.tan),
    "asin": (1, torch.asin),
    "acos": (1, torch.acos),
    "atan": (1, torch.atan),
    "sinh": (1, torch.sinh),
    "cosh": (1, torch.cosh),
    "tanh": (1, torch.tanh),
    "exp": (1, torch.exp),
    "log": (1, torch.log),
    "sqrt": (1, torch.sqrt),
    "abs": (1, torch.abs),
    "sign": (1, torch.sign),
    "min": (2, torch.minimum),
    "max": (2, torch.maximum),
    "atan2": (2, torch.atan2),
    "where": (3, torch.where),
}

# Operations whose results are truth values, by name.
_COMPARISONS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "<": (2, torch.lt),
    "<=": (2, torch.le),
    ">": (2, torch.gt),
    ">=": (2, torch.ge),
    "==": (2, torch.eq),
    "!=": (2, torch.ne),
}
_LOGIC: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "and": (2, torch.logical_and),
    "or": (2, torch.logical_or),
    "not": (1, torch.logical_not),
}
_CONDITIONAL = ("if", "else")
_SPELLINGS = {"**": "^", "&": "and", "&&": "and", "|": "or", "||": "or", "!": "not"}

# Operators are functions, too. No user can type their names.
_OPERATIONS = (
    FUNCTIONS
    | _COMPARISONS
    | _LOGIC
    | {
        "+": (2, torch.add),
        "-": (2, torch.sub),
        "*": (2, torch.mul),
        "/": (2, torch.div),
        "^": (2, torch.pow),
        "negate": (1, torch.neg),
        "if else": (3, lambda a, condition, b: torch.where(condition, a, b)),
    }
)

_COMPARISON_PRECEDENCE = 3  # also that of the operand of `not`
_SIGN_PRECEDENCE = 6  # looser than ^, tighter than *
_PRECEDENCE = {"or": 1, "and": 2, "+": 4, "-": 4, "*": 5, "/": 5, "^": 7} | dict.fromkeys(
    _COMPARISONS, _COMPARISON_PRECEDENCE
)
_COLUMN = {"x": 0, "y": 1, "z": 2}

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>\*\*|[<>=!]=|&&?|\|\|?|[-+*/^(),<>!]))"
)


@dataclass(frozen=True)
class Expression:
    """A formula in the coordinates of points, and possibly time.

    text: what the user wrote.
    variables: the variables that occur in it, in alphabetical order.
    program: postfix instructions. A float or the name of a variable is pushed; an operation combines the last values.
    """

    text: str
    variables: tuple[str, ...]
    program: tuple[float | str, ...]

    def __call__(self, points: Tensor, *, t: float | Tensor | None = None) -> Tensor:
        """Values (n,) at points (n, 3), in their dtype and on their device. t is required if it occurs."""
        # A copy, so that writing into the values of the formula "x" does not change the points.
        return self._result(points, t).to(points.dtype).expand(len(points)).clone()

    @property
    def is_comparison(self) -> bool:
        """Whether the values are truth values, as for "z > 0 and x < 1"."""
        return self.program[-1] in _COMPARISONS or self.program[-1] in _LOGIC

    def holds(self, points: Tensor) -> Tensor:
        """Truth values (n,) at points (n, 3)."""
        return _as_truth(self._result(points, None)).expand(len(points)).clone()

    def _result(self, points: Tensor, t: float | Tensor | None) -> Tensor:
        """Numbers or truth values, (n,), or () if no coordinate occurs."""
        if "t" in self.variables and t is None:
            raise InputError(f'"{self.text}" depends on t: call it with t=..., a number.')
        stack: list[Tensor] = []
        for item in self.program:
            if not isinstance(item, str):
                stack.append(points.new_tensor(item))
            elif item == "t":
                stack.append(torch.as_tensor(t, dtype=points.dtype, device=points.device))
            elif item in _COLUMN:
                stack.append(points[:, _COLUMN[item]])
            else:
                arity, function = _OPERATIONS[item]
                arguments = stack[-arity:]
                del stack[-arity:]
                stack.append(function(*_converted(item, arguments, points.dtype)))
        return stack[0]

    def __str__(self) -> str:
        return self.text


def _as_truth(values: Tensor) -> Tensor:
    return values if values.dtype == torch.bool else values != 0


def _converted(operation: str, arguments: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The arguments of an operation: truth values for logic and conditions, numbers for all other operations."""
    condition = {"where": 0, "if else": 1}.get(operation)
    logic = operation in _LOGIC
    return [_as_truth(a) if logic or i == condition else a.to(dtype) for i, a in enumerate(arguments)]


@dataclass(frozen=True)
class OverTime:
    """A formula that contains t, as a function of points and time."""

    expression: Expression

    def __call__(self, points: Tensor, time: float) -> Tensor:
        return self.expression(points, t=time)


def as_data(data: Any, name: str, *, time: bool = False) -> Any:
    """Data as solves take them: a formula becomes a function or a number, all else stays as it is.

    name: what messages call the data.
    time: whether a formula may contain t. It then becomes a function of points and time.
    Raises InputError for a formula that cannot be read, and for anything else.

    >>> as_data("2*pi", "the right-hand side")
    6.283185307179586
    """
    if isinstance(data, str):
        try:
            found = parse(data, ("x", "y", "z", "t") if time else ("x", "y", "z"))
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        if "t" in found.variables:
            return OverTime(found)
        constant = None if found.variables else float(found(torch.zeros(1, 3, dtype=torch.float64)))
        return constant if constant is not None and math.isfinite(constant) else found
    if callable(data):
        return data
    try:
        array = torch.as_tensor(data)
    except (TypeError, ValueError, RuntimeError):
        array = None
    if array is None or array.is_complex():
        got = "None" if data is None else f"of type {type(data).__name__}"
        raise InputError(
            f'{name} is {got}; expected a number, a formula such as "sin(5*x) + y", a function of points (n, 3), or '
            "one value for each of domain.points."
        )
    return data


def parse(text: str, variables: Sequence[str] = ("x", "y", "z")) -> Expression:
    """The formula in `text`. variables: those that it may contain, out of x, y, z and t.

    Raises InputError with the position (from 0) of the first thing that does not fit.

    >>> parse("-x^2 + 1e-1")(torch.tensor([[3.0, 0.0, 0.0]]))
    tensor([-8.9000])
    """
    unsupported = set(variables) - {"x", "y", "z", "t"}
    if unsupported:
        raise ValueError(f"variables must be among x, y, z, t, got {sorted(unsupported)}")
    if len(text) > MAX_FORMULA_LENGTH:
        raise InputError(f"the expression has {len(text)} characters, more than the {MAX_FORMULA_LENGTH} allowed.")
    return _Parser(text, tuple(variables)).parse()


@dataclass(frozen=True)
class _Token:
    kind: str  # "number", "name", "symbol" or "end"
    text: str
    position: int


class _Parser:
    def __init__(self, text: str, variables: tuple[str, ...]) -> None:
        self.text = text
        self.variables = variables
        self.tokens = self._tokenise()
        self.index = 0
        self.depth = 0
        self.program: list[float | str] = []

    def parse(self) -> Expression:
        if self.here.kind == "end":
            raise InputError(f'the expression is empty; write one such as "sin(5*x) + y". {self._known()}')
        self._expression(0)
        if self.here.kind != "end":
            self._fail_after_operand()
        used = sorted({item for item in self.program if isinstance(item, str)} & set(self.variables))
        return Expression(self.text, tuple(used), tuple(self.program))

    @property
    def here(self) -> _Token:
        return self.tokens[self.index]

    def _expression(self, least: int) -> None:
        """An operand and every operator after it that binds at least as tightly as `least`."""
        self.depth += 1
        if self.depth > MAX_FORMULA_DEPTH:
            raise self._error(f"more than {MAX_FORMULA_DEPTH} levels of nesting at position {self.here.position}")
        self._operand()
        self._operators(least)
        if least == 0 and self.here.text == "if":
            self._conditional()
        self.depth -= 1

    def _conditional(self) -> None:
        """The rest of `a if c else b`, after a."""
        opening = self._advance()
        self._expression(1)
        if self.here.text != "else":
            raise self._error(f"the 'if' at position {opening.position} has no 'else' (write a if c else b)")
        self._advance()
        self._expression(0)
        self.program.append("if else")

    def _operators(self, least: int) -> None:
        while (precedence := _PRECEDENCE.get(self.here.text, -1)) >= least:
            operator = self._advance().text
            self._expression(precedence if operator == "^" else precedence + 1)
            self.program.append(operator)
            if operator in _COMPARISONS and self.here.text in _COMPARISONS:
                place = f"'{self.here.text}' at position {self.here.position}"
                raise self._error(f"expected one comparison at a time but found {place} (write a < b and b < c)")

    def _operand(self) -> None:
        token = self._advance()
        if token.kind == "number":
            self.program.append(float(token.text))
        elif token.kind == "name":
            self._name(token)
        elif token.text in ("-", "+"):
            self._expression(_SIGN_PRECEDENCE)
            if token.text == "-":
                self.program.append("negate")
        elif token.text == "not":
            self._expression(_COMPARISON_PRECEDENCE)
            self.program.append("not")
        elif token.text == "(":
            self._expression(0)
            self._close(token)
        else:
            found = "the end" if token.kind == "end" else f"'{token.text}'"
            place = f"at position {token.position}"
            raise self._error(f"expected a number, a name or '(' {place} but found {found}")

    def _name(self, token: _Token) -> None:
        called = self.here.text == "("
        place = f"'{token.text}' at position {token.position}"
        if token.text in FUNCTIONS:
            if not called:
                example = ", ".join(["x", "y", "z"][: FUNCTIONS[token.text][0]])
                raise self._error(
                    f"function {place} needs its arguments in parentheses, as in {token.text}({example}),"
                )
            self._call(token)
        elif token.text not in self.variables and token.text not in CONSTANTS:
            raise InputError(f"unknown name {place} in {self._quoted()}; {self._known()}")
        elif called:
            raise self._error(f"{place} is not a function (write * to multiply)")
        else:
            self.program.append(CONSTANTS.get(token.text, token.text))

    def _call(self, function: _Token) -> None:
        opening = self._advance()
        count = 0
        if self.here.text != ")":
            self._expression(0)
            count = 1
            while self.here.text == ",":
                self._advance()
                self._expression(0)
                count += 1
        self._close(opening)
        arity = FUNCTIONS[function.text][0]
        if count != arity:
            place = f"'{function.text}' at position {function.position}"
            wanted = "1 argument" if arity == 1 else f"{arity} arguments"
            raise self._error(f"function {place} takes {wanted}, got {count},")
        self.program.append(function.text)

    def _close(self, opening: _Token) -> None:
        if self.here.kind == "end":
            raise self._error(f"the '(' at position {opening.position} is never closed")
        if self.here.text != ")":
            self._fail_after_operand()
        self._advance()

    def _advance(self) -> _Token:
        token = self.here
        if token.kind != "end":
            self.index += 1
        return token

    def _fail_after_operand(self) -> None:
        token = self.here
        hint = "" if token.kind == "symbol" and token.text != "(" else " (write * to multiply)"
        raise self._error(f"expected an operator at position {token.position} but found '{token.text}'{hint}")

    def _tokenise(self) -> list[_Token]:
        tokens, position = [], 0
        end = len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None or match.lastgroup is None:
                position += len(self.text[position:]) - len(self.text[position:].lstrip())
                raise self._error(f"unexpected character {self.text[position]!r} at position {position}")
            kind = match.lastgroup
            symbol = _SPELLINGS.get(match[kind], match[kind])
            tokens.append(_Token("symbol" if symbol in (*_LOGIC, *_CONDITIONAL) else kind, symbol, match.start(kind)))
            position = match.end()
        return [*tokens, _Token("end", "", len(self.text))]

    def _error(self, what: str) -> InputError:
        return InputError(f"{what} in {self._quoted()}.")

    def _quoted(self) -> str:
        return f'"{self.text}"' if len(self.text) <= 200 else f'"{self.text[:200]}..."'

    def _known(self) -> str:
        return "known: " + ", ".join([*self.variables, *CONSTANTS, *FUNCTIONS, *_LOGIC, *_CONDITIONAL]) + "."
