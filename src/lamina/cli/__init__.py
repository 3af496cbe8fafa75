"""The command line: lamina solve, info, train, fit."""

from __future__ import annotations

import sys

import typer

from lamina.cli.learn import fit, train
from lamina.cli.solve import info, sampled, solve
from lamina.errors import InputError, SolveError

__all__ = ["app", "main", "sampled"]

app = typer.Typer(
    help="Partial differential equations on surfaces: meshes, point clouds, implicit functions, built-in shapes.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog='Example: lamina solve poisson sphere --rhs "-6*x*y" --exact "x*y" --spacing 0.05',
)
app.add_typer(solve, name="solve")
app.command()(info)
app.command()(train)
app.add_typer(fit, name="fit")


def main() -> None:
    """Run the program; bad input exits with 2, a failed solve with 1, each with one sentence on stderr."""
    try:
        app()
    except InputError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(2)
    except SolveError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(1)
