"""The command line: lamina solve, view, info, fit, train, reproduce, doctor."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from lamina.cli.doctor import doctor
from lamina.cli.learn import fit, train
from lamina.cli.options import GroupedCommand
from lamina.cli.reproduce import reproduce
from lamina.cli.solve import info, sampled, solve
from lamina.cli.view import view
from lamina.errors import InputError, SolveError

__all__ = ["app", "main", "sampled"]

EXAMPLES = """\b
Examples:
  lamina solve heat bunny.obj --gif --out result
  lamina view result
  lamina solve poisson sphere --rhs "-6*x*y" --exact "x*y" --spacing 0.05
"""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would frame the help, and no screen holds it then
    epilog=EXAMPLES,
)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"lamina {version('lamina')}")
        raise typer.Exit


@app.callback()
def _options(
    say: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Solve PDEs on meshes, point clouds, splats, neural fields, built-in shapes."""


app.add_typer(solve, name="solve")
app.command(short_help="Look at a solution in the browser.")(view)
app.command(cls=GroupedCommand, short_help="Say what a surface is, and which grid suits it.")(info)
app.add_typer(fit, name="fit")
app.command(cls=GroupedCommand, short_help="Train the network of an extension operator.")(train)
app.command(short_help="Run the tables of the paper anew.")(reproduce)
app.command(short_help="Versions, devices, and a self-test of ten seconds.")(doctor)


def main() -> None:
    """Run the program; bad input exits with 2, a failed solve with 1, each with one sentence on stderr."""
    try:
        app(prog_name="lamina")
    except InputError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(2)
    except SolveError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(1)
