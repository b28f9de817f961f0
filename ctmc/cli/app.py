"""The group of all commands, what they have in common, and how each failure ends."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from ctmc.cli.interrupts import Interrupted, Interrupts
from ctmc.cli.output import Output, write_nowhere
from ctmc.cli.ranks import speaker_for
from ctmc.errors import CTMCError, SolveError, printable

INTERNAL_ERROR = 70
"""Exit code for what should not happen, EX_SOFTWARE of sysexits.h."""

# Each command is imported when it runs, so that --help waits for nothing: name -> module and one line for the help.
COMMANDS = {
    "list": ("listing", "List builders, solvers, problems and file formats."),
    "build": ("build", "Build a model and store it."),
    "convert": ("convert", "Convert a model file to another format."),
    "rerate": ("rerate", "Take a stored model at other rates, without building it again."),
    "info": ("info", "Tell what a file holds."),
    "verify": ("verify", "Verify files: hashes, laws of the models, certificates of the answers."),
    "advise": ("advise", "Tell which solver to take for a stored model, and why."),
    "solve": ("solve", "Solve a stored model and certify the answer."),
    "optimize": ("optimize", "Find the best values of a model's parameters."),
    "report": ("report", "Show a comparison as one page of HTML, or write its runs as a table."),
    "run": ("run", "Run a study: build, solve, verify, and print one table."),
    "compare": ("compare", "Compare solvers on models, each run in a process of its own."),
    "store": ("store", "Look after the models and answers that studies keep."),
    "plot": ("plot", "Draw the figures of a comparison, or of one answer."),
    "simulate": ("simulate", "Simulate a system, or a stored model."),
    "policy": ("policy", "Find the optimal policy of a model with decisions."),
    "mean-field": ("mean_field", "Find the limit of infinitely many servers."),
    "completion": ("completion", "Print the completion script for a shell."),
    "doctor": ("doctor", "Check the installation."),
}


def output_of(context: click.Context) -> Output:
    """Return where this run of the command line writes."""
    found: Output = context.find_root().obj
    return found


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value:
        output = context.find_root().ensure_object(Output)
        setattr(output, str(parameter.name), value if parameter.name != "verbose" else output.verbose + value)
    return value


def common_options(*, csv: bool) -> list[click.Parameter]:
    """Return the options that every command has."""
    options = [
        click.Option(["--json"], is_flag=True, help="Write one JSON document to standard output, and nothing else."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No news and no progress on standard error."),
        click.Option(["-v", "--verbose"], count=True, help="Log what is done to standard error; twice for more."),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
    ]
    if csv:
        options.insert(1, click.Option(["--csv"], is_flag=True, help="Write the table as CSV."))
    for option in options:
        option.expose_value, option.callback, option.is_eager = False, _remember, True
    return list(options)


class Command(click.Command):
    """A command with the common options."""

    def __init__(self, *arguments: Any, csv: bool = False, **known: Any) -> None:
        super().__init__(*arguments, **known)
        self.params = [*self.params, *common_options(csv=csv)]

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Read the arguments; a second value for an option would silently take the place of the first."""
        if not context.resilient_parsing:
            _, _, order = self.make_parser(context).parse_args(args=list(arguments))
            for option in {id(option): option for option in order if order.count(option) > 1}.values():
                if isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count):
                    raise click.UsageError(
                        f"{max(option.opts, key=len)} is given more than once; allowed is once.", context
                    )
        return super().parse_args(context, arguments)


class Commands(click.Group):
    """The group `ctmc`: its commands are imported when they run."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names in the order of use."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"ctmc.cli.{COMMANDS[name][0]}")
        return module.command  # type: ignore[no-any-return]  # every module of a command has one

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; close names are listed for one that does not exist."""
        if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            from ctmc.errors import unknown_name

            raise unknown_name("command", arguments[0], COMMANDS)
        return super().resolve_command(context, arguments)


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from ctmc import __version__

    output = context.find_root().ensure_object(Output)
    if output.json:
        output.document({"version": __version__})
    else:
        click.echo(f"ctmc {__version__}")
    context.exit()


def _help(context: click.Context, **_: Any) -> int:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


cli = Commands(
    "ctmc",
    callback=click.pass_context(_help),
    invoke_without_command=True,
    help="Build, store and solve continuous-time Markov chains; every answer comes with a certificate.",
    epilog="Start with: ctmc run quickstart.  'ctmc COMMAND --help' tells more.",
    params=[
        click.Option(
            ["--version"], is_flag=True, expose_value=False, callback=_version, help="Print the version and leave."
        ),
        *common_options(csv=False),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code; see `ctmc.cli.main`."""
    own = list(arguments)[: arguments.index("--")] if "--" in arguments else list(arguments)
    # Read before click does: its own errors must come out in the same form.
    output = Output(json="--json" in own, debug="--debug" in own)
    if os.environ.get("_CTMC_COMPLETE"):
        with contextlib.suppress(Exception):  # no traceback into the user's prompt
            if os.environ["_CTMC_COMPLETE"] == "bash_complete":
                _join_words()
            cli.main(list(arguments), prog_name="ctmc", standalone_mode=False, obj=output)
        return 1
    _prepare_streams()
    interrupts = Interrupts()
    output.interrupts = interrupts
    output.arguments = list(arguments)
    try:
        with interrupts, _logging(output):
            output.speaker = speaker_for(own)
            code = _run(list(arguments), output)
            _say_nothing_more()
            return output.speaker.leave(code)
    except CTMCError as error:  # there is no MPI to speak through
        return output.problem(type(error).__name__, str(error), 2, error)
    except Interrupted as interrupted:
        return output.failure("Interrupted", "interrupted", interrupted.exit_code)
    except BrokenPipeError:  # the reader has gone, as `head` does
        write_nowhere(sys.stdout)
        return 1
    except OSError as error:
        write_nowhere(sys.stdout)
        return output.problem("StorageError", f"Standard output cannot be written: {_reason(error)}.", 2, error)


def _join_words() -> None:
    """Take out the = that bash makes a word of its own; click looks for the option right before what is completed."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    at = int(os.environ.get("COMP_CWORD", "0"))
    if at < len(words) and "=" in words[1 : at + 1]:
        if words[at] == "=":
            words.insert(at + 1, "")
            at += 1
        kept = [k for k, word in enumerate(words) if word != "=" or k > at]
        os.environ["COMP_WORDS"] = "\n".join(words[k] for k in kept)
        os.environ["COMP_CWORD"] = str(kept.index(at))


def _say_nothing_more() -> None:
    """Flush, and keep colorama, which Numba sets up where it is installed, from writing behind our last line on a terminal."""
    sys.stdout.flush()
    colorama = sys.modules.get("colorama.initialise")
    if colorama is not None:
        atexit.unregister(colorama.reset_all)


def _run(arguments: list[str], output: Output) -> int:
    try:
        result = cli.main(arguments, prog_name="ctmc", standalone_mode=False, obj=output)
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        raise Interrupted(2) from None
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        message = " ".join(error.format_message().split())
        return output.failure("UsageError", f"{message}{hint}", 2, error)
    except BrokenPipeError:
        raise
    except SolveError as error:
        return output.failure("SolveError", str(error), 1, error)
    except CTMCError as error:
        return output.failure(type(error).__name__, str(error), 2, error)
    except MemoryError as error:
        return output.failure("MemoryError", "there is not enough memory; see --memory-limit", 2, error)
    except OSError as error:  # of the system, about a path that nothing above has looked at
        sys.stdout.flush()  # where this fails, it was about standard output, and `run` says so
        return output.failure("StorageError", _of_the_system(error), 2, error)
    except Exception as error:
        message = f"internal error, {type(error).__name__}: {error}; run again with --debug to see where"
        return output.failure("InternalError", message, INTERNAL_ERROR, error)
    except SystemExit as left:  # of a plug-in: the other ranks must not wait for this one
        if output.speaker.ranks.count == 1:
            raise
        code = left.code if isinstance(left.code, int) and left.code else INTERNAL_ERROR
        return output.failure("SystemExit", f"the process was left with {left.code!r}", code, left)


def _of_the_system(error: OSError) -> str:
    """Return what the system has refused as a sentence."""
    if isinstance(error.filename, str | bytes):
        return f"{printable(os.fsdecode(error.filename))} cannot be used: {_reason(error)}."
    try:
        os.getcwd()
    except OSError:
        return "The current folder is no longer there; go to another one."
    return f"The system says: {_reason(error)}; run again with --debug to see where."


def _reason(error: OSError) -> str:
    from ctmc.storage.atomic import failure_reason

    return failure_reason(error)


def _prepare_streams() -> None:
    """Give what was closed (as by ``>&-``) somewhere to write to, and escape what a stream cannot encode."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _logging(output: Output) -> Any:
    """Write the framework's log to standard error as far as -v asks for it; looked at per record, -v being parsed later."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (
                output.speaker.leads
                and record.levelno >= (logging.WARNING, logging.INFO, logging.DEBUG)[min(output.verbose, 2)]
            ):
                output.line(f"{record.name}: {printable(record.getMessage())}")

    logger, handler = logging.getLogger("ctmc"), Handler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
