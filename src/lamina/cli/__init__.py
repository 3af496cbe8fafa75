"""The command line: lamina solve, view, info, fit, paper, doctor."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from lamina.cli.doctor import doctor
from lamina.cli.fit import fit
from lamina.cli.options import GroupedCommand, MovedCommand
from lamina.cli.reproduce import reproduce
from lamina.cli.solve import as_point_cloud, info, solve
from lamina.cli.train import train
from lamina.cli.view import view
from lamina.errors import InputError, SolveError

__all__ = ["app", "as_point_cloud", "main"]

HELP_EXAMPLES = """\b
Examples:
  lamina solve heat bunny.obj --gif --out result
  lamina view result
  lamina solve poisson sphere --rhs "-6*x*y" --exact "x*y" --spacing 0.05
"""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would put frames around the help, which then does not fit on a screen
    epilog=HELP_EXAMPLES,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lamina {version('lamina')}")
        raise typer.Exit


@app.callback()
def _options(
    version_: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Solve PDEs on meshes, point clouds, splats, neural fields, built-in shapes."""


paper = typer.Typer(help="Train the network of the CVPR 2026 paper, and run its tables.", no_args_is_help=True)
paper.command(cls=GroupedCommand, short_help="Train the network of a learned operator.")(train)
paper.command(short_help="Run a table of the paper anew, or all of them.")(reproduce)

app.add_typer(solve, name="solve")
app.command(short_help="Look at a solution in the browser.")(view)
app.command(cls=GroupedCommand, short_help="Print what is known of a surface, and the default grid.")(info)
app.add_typer(fit, name="fit")
app.add_typer(paper, name="paper")
app.command(short_help="Print versions and devices, and run a self-test of ten seconds.")(doctor)
app.command("train", cls=MovedCommand, hidden=True)(train)
app.command("reproduce", cls=MovedCommand, hidden=True)(reproduce)


def main() -> None:
    """Run the program. Bad input exits with 2, a failed solve with 1; each prints one sentence on stderr."""
    try:
        app(prog_name="lamina")
    except InputError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(2)
    except SolveError as error:
        print(f"lamina: {error}", file=sys.stderr)
        sys.exit(1)
