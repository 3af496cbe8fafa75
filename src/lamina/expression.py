"""Formulas typed by a user, such as sin(5*x) + y^2: parsed by hand, never eval'ed.

    sum     = product (("+" | "-") product)*
    product = signed (("*" | "/") signed)*
    signed  = ("-" | "+") signed | power
    power   = atom [("^" | "**") signed]             so -x^2 = -(x^2), 2^3^2 = 2^(3^2), 2^-x is allowed
    atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"

The parser climbs precedences (Pratt, 1973) and leaves a program in postfix order, so that evaluation is
a loop over a stack of tensors and no text can overflow the interpreter's own stack.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.errors import InputError

MAX_LENGTH = 10_000
MAX_DEPTH = 100

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
}

# The operators are functions as well, under names that no user can type.
_OPERATIONS = FUNCTIONS | {
    "+": (2, torch.add),
    "-": (2, torch.sub),
    "*": (2, torch.mul),
    "/": (2, torch.div),
    "^": (2, torch.pow),
    "negate": (1, torch.neg),
}

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 4}
_SIGN_PRECEDENCE = 3  # looser than ^, tighter than *
_COLUMN = {"x": 0, "y": 1, "z": 2}

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>\*\*|[-+*/^(),]))"
)


@dataclass(frozen=True)
class Expression:
    """A formula in the coordinates of points, and possibly time.

    text: what the user wrote. variables: the names that occur in it, in alphabetical order.
    program: postfix instructions; a float or a variable's name pushes, an operation's name combines.
    """

    text: str
    variables: tuple[str, ...]
    program: tuple[float | str, ...]

    def __call__(self, points: Tensor, *, t: float | Tensor | None = None) -> Tensor:
        """Values (n,) at points (n, 3), in their dtype and on their device; t is needed when it occurs."""
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
                stack.append(function(*arguments))
        # A copy, so that writing into the values of "x" does not move the points.
        return stack[0].expand(len(points)).clone()

    def __str__(self) -> str:
        return self.text


def parse(text: str, variables: Sequence[str] = ("x", "y", "z")) -> Expression:
    """The formula in `text`, over variables that are any of x, y, z, t.

    Raises InputError naming the position (counted from 0) of the first thing that does not fit.

    >>> parse("-x^2 + 1e-1")(torch.tensor([[3.0, 0.0, 0.0]]))
    tensor([-8.9000])
    """
    unsupported = set(variables) - {"x", "y", "z", "t"}
    if unsupported:
        raise ValueError(f"variables must be among x, y, z, t, got {sorted(unsupported)}")
    if len(text) > MAX_LENGTH:
        raise InputError(f"the expression has {len(text)} characters, more than the {MAX_LENGTH} allowed.")
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
        if self.depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels of nesting at position {self.here.position}")
        self._operand()
        while (precedence := _PRECEDENCE.get(self.here.text, -1)) >= least:
            operator = self._advance().text
            self._expression(precedence if operator == "^" else precedence + 1)
            self.program.append(operator)
        self.depth -= 1

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
                example = ", ".join(["x", "y"][: FUNCTIONS[token.text][0]])
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
            symbol = match[kind].replace("**", "^")
            tokens.append(_Token(kind, symbol, match.start(kind)))
            position = match.end()
        return [*tokens, _Token("end", "", len(self.text))]

    def _error(self, what: str) -> InputError:
        return InputError(f"{what} in {self._quoted()}.")

    def _quoted(self) -> str:
        return f'"{self.text}"' if len(self.text) <= 200 else f'"{self.text[:200]}..."'

    def _known(self) -> str:
        return "known: " + ", ".join([*self.variables, *CONSTANTS, *FUNCTIONS]) + "."
