"""The command line: `atlas list | show | compare | run | race | record | serve ...`.

Exit codes: 0 fine, 1 a claim failed or a run did, 2 wrong use, 130 Ctrl-C.
No torch is imported here: the ranks do that, in processes of their own.
"""

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from atlas import __version__
from atlas.commands import (
    accuracy,
    browse,
    calibrate,
    common,
    compare,
    export,
    new,
    plan,
    predict,
    race,
    record,
    run,
    serve,
    show,
    stats,
)
from atlas.knowledge import TaxonomyError
from atlas.oracle.errors import OracleError
from atlas.record import RecordError
from atlas.verdict import ClaimError


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
        except OracleError as error:
            common.say(str(error))
            raise typer.Exit(2) from None
        except (ClaimError, RecordError) as error:
            common.say(str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rest is tidying up
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Surface,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("list")(browse.list_)
app.command("show")(show.show)
app.command("compare")(compare.compare)
app.command("run")(run.run)
app.command("race")(race.race)
app.command("record")(record.record)
app.command("serve")(serve.serve)
app.command("plan")(plan.plan)
app.command("predict")(predict.predict)
app.command("calibrate")(calibrate.calibrate)
app.command("accuracy")(accuracy.accuracy)
app.command("stats")(stats.stats)
app.command("export")(export.export)
app.command("new")(new.new)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"atlas {__version__}")
        raise typer.Exit


@app.callback()
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
    atlas list                             every technique, and what is proven
    atlas show zero-3                      one of them: claims, formulas, records
    atlas list --uses zero-3               the systems that use it
    atlas compare horovod pytorch-ddp      two systems, differences first
    atlas run ring-all-reduce --ranks 4    run it: predicted, measured, verdict
    atlas run ring-all-reduce --dry 1024   count it on 1024 ranks
    atlas plan --list                      models and clusters to plan for

    Exit codes: 0 fine, 1 a claim failed or a run did, 2 wrong use, 130 Ctrl-C.
    """


def main() -> None:
    """The console script."""
    app(prog_name="atlas")
