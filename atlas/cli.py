"""The command line: `atlas list | show | compare | run | race | record | serve ...`.

Exit codes: 0 success, 1 a claim or a run failed, 2 wrong usage, 130 Ctrl-C.
This module does not import torch; the rank processes do.
"""

import importlib
import signal
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from atlas import __version__
from atlas.commands import common
from atlas.taxonomy import TaxonomyError

#: Command -> where its function is. Only those of the command that is called are
#: imported: `atlas run` starts ranks, and pays for nothing that plans or browses.
COMMANDS = {
    "list": "atlas.commands.browse:list_",
    "show": "atlas.commands.show:show",
    "compare": "atlas.commands.compare:compare",
    "run": "atlas.commands.run:run",
    "judge": "atlas.commands.judge:judge",
    "check": "atlas.commands.check:check",
    "meter": "atlas.commands.meter:meter",
    "race": "atlas.commands.race:race",
    "collectives": "atlas.commands.collectives:collectives",
    "compressors": "atlas.commands.compressors:compressors",
    "record": "atlas.commands.record:record",
    "serve": "atlas.commands.serve:serve",
    "plan": "atlas.planner.commands.plan:plan",
    "predict": "atlas.planner.commands.predict:predict",
    "calibrate": "atlas.planner.commands.calibrate:calibrate",
    "accuracy": "atlas.planner.commands.accuracy:accuracy",
    "stats": "atlas.commands.stats:stats",
    "export": "atlas.commands.export:export",
    "new": "atlas.commands.new:new",
}
#: After their first argument, everything belongs to the script that it names.
PASS_ON = ("meter",)
PASSED_ON = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
#: What a command may raise that the reader can mend, and the exit code it means.
EXPECTED = {
    "OracleError": 2,
    "ClaimError": 1,
    "MeasureError": 1,
    "RecordError": 1,
}


class Surface(TyperGroup):
    """Where every expected error becomes its line and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what is not expected here stays a traceback."""
        try:
            return super().invoke(ctx)
        except common.Wrong as wrong:
            common.say(str(wrong))
            raise typer.Exit(wrong.code) from None
        except TaxonomyError as error:
            for problem in error.problems:
                common.say(problem)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rest is tidying up
            raise typer.Exit(130) from None
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            code = next((EXPECTED[n] for n in names if n in EXPECTED), None)
            if code is None or not type(error).__module__.startswith("atlas."):
                raise
            common.say(str(error))
            raise typer.Exit(code) from None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"atlas {__version__}")
        raise typer.Exit


def atlas(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """The Atlas of Distributed Deep Learning: an executable survey.

    Examples:

    \b
    atlas list                             all techniques and what is proven
    atlas show zero-3                      one technique: claims, formulas, records
    atlas list --uses zero-3               the systems that use it
    atlas compare horovod pytorch-ddp      two systems, differences first
    atlas run ring-all-reduce --ranks 4    run it: predicted, measured, verdict
    atlas run ring-all-reduce --dry 1024   count its traffic on 1024 ranks
    atlas check train.py --ranks 4         do 4 ranks do what one process does?
    atlas meter train.py                   what your own script sends, and from where
    atlas plan --list                      the models and clusters to plan for

    Exit codes: 0 success, 1 a claim or a run failed, 2 wrong usage, 130 Ctrl-C.
    """


def made(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line, with these commands."""
    app = typer.Typer(
        cls=Surface,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(atlas)
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        settings = PASSED_ON if name in PASS_ON else {}
        found = getattr(importlib.import_module(module), function)
        app.command(name, context_settings=settings)(found)
    return app


def main() -> None:
    """The console script."""
    first = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    # With one command typer has no subcommands: a second one stays beside it.
    names = {first, "stats"} if first in COMMANDS else set(COMMANDS)
    made(name for name in COMMANDS if name in names)(prog_name="atlas")
