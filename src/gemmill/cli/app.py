"""The application: its help, and how it reports errors."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from gemmill import __version__
from gemmill.cli import output
from gemmill.cli.output import MEANS, Status
from gemmill.library.errors import DeviceError, GemmillError, InstallationError, SettingError, ToolchainError
from gemmill.library.files import os_error_text
from gemmill.runtime.settings import Settings

_CODES = "\n".join(f"  {status:<4} {means}" for status, means in MEANS.items())
HELP = """Generate, compile, select and measure GEMM kernels for NVIDIA Hopper GPUs.

MANIFEST is a manifest file, or the name of a shipped manifest such as bf16. KERNEL is a kernel name, or a manifest with
exactly one config. `gemmill COMMAND --help` describes a command and its options.
"""
EXIT_CODES = f"""\b
Exit codes:
{_CODES}

GEMMILL_DEBUG=1 prints the traceback of an error.
"""
SECTIONS: Mapping[str, Sequence[str]] = {
    "Explore": ("demo", "list", "explain", "select", "shapes", "model", "emit", "diff", "draw", "layout"),
    "Build": ("validate", "build"),
    "Run and measure": ("bench", "profile", "oracle", "report", "roofline", "records", "train"),
    "Ship": ("pack", "key", "lock", "warm"),
    "Serve": ("serve",),
    "Maintain": ("store", "doctor"),
}
"""The sections of `gemmill --help`, each with its commands in order."""


INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("measure", "sweep", "tune", "autotune"), "profile"),
    **dict.fromkeys(("compile", "make", "generate"), "build"),
    **dict.fromkeys(("run", "benchmark", "time", "test", "exec"), "bench"),
    **dict.fromkeys(("info", "describe", "show"), "explain"),
    **dict.fromkeys(("check", "lint"), "validate"),
    **dict.fromkeys(("kernels", "ls", "manifests"), "list"),
    **dict.fromkeys(("choose", "pick", "predict"), "select"),
    **dict.fromkeys(("ptx", "sass", "cubin", "source", "codegen"), "emit"),
    **dict.fromkeys(("import", "convert"), "shapes"),
    **dict.fromkeys(("env", "status", "setup"), "doctor"),
    **dict.fromkeys(("server", "service"), "serve"),
    **dict.fromkeys(("export", "bundle"), "pack"),
    **dict.fromkeys(("cache", "clean"), "store"),
    **dict.fromkeys(("plot", "html", "csv"), "report"),
    **dict.fromkeys(("fit", "learn"), "train"),
    **dict.fromkeys(("completion", "completions", "install-completion"), "--install-completion"),
    "visualize": "draw",
    "help": "--help",
    "version": "--version",
    **dict.fromkeys(("store rm", "store clean", "store delete", "store remove"), "store clear"),
    **dict.fromkeys(("store gc", "store shrink"), "store prune"),
    **dict.fromkeys(("store ls", "store show"), "store list"),
    **dict.fromkeys(("store info", "store size"), "store stats"),
    "store check": "store verify",
    "store upload": "store push",
    **dict.fromkeys(("store fetch", "store download"), "store pull"),
    "key create": "key new",
    "serve start": "serve",
    "serve token create": "serve token new",
}
"""The command for a word that other programs use."""


def _show_each_once() -> Callable[..., None]:
    """A replacement for warnings.showwarning: prints each text once, without its place in the code."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if (text := str(message)) not in shown:
            shown.add(text)
            output.complain(f"warning: {text}")

    return show


class Commands(TyperGroup):
    """A command group that reports each error as a message instead of a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line. Errors in it are printed without control characters, and with --json also as JSON."""
        given = kwargs.get("args", args[0] if args else None)
        with output.only_printable():
            if "--json" not in (sys.argv[1:] if given is None else given):
                return super().main(*args, **kwargs)
            with output.answer_as_json():
                try:
                    status = super().main(*args, **{**kwargs, "standalone_mode": False})
                except typer.Abort:  # Ctrl-C while the command line is parsed
                    output.print_error("interrupted", "interrupted")
                    sys.exit(Status.INTERRUPTED)
                except SystemExit as end:
                    if end.code in (Status.HUNG_UP, Status.TERMINATED):
                        output.print_error("terminated", MEANS[Status(end.code)])
                    raise
                except Exception as error:
                    if not hasattr(error, "format_message"):  # only errors in a command line have it
                        raise
                    error.show()  # type: ignore[attr-defined]
                    output.print_error("usage", error.format_message())
                    sys.exit(Status.USAGE)
                sys.exit(status if isinstance(status, int) else Status.OK)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a word; the error for an unknown one names the command to use."""
        words = [*ctx.command_path.split()[1:], args[0]]
        if args[0] not in self.commands and (meant := INSTEAD.get(" ".join(words))):
            ctx.fail(f"No such command {args[0]!r}; use `gemmill {meant}`")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; report an error as a message on stderr and an exit code."""
        warnings.showwarning = _show_each_once()
        try:
            debug = Settings.read().debug
        except GemmillError as error:
            raise _reported(Status.USAGE, "setting", str(error)) from None
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader closed the pipe, as `head` does
            raise
        except KeyboardInterrupt:
            raise _reported(Status.INTERRUPTED, "interrupted", "interrupted", "") from None
        except Exception as error:
            # typer reports Exit, Abort and usage errors itself.
            is_typer = isinstance(error, typer.BadParameter) or type(error).__module__.startswith(("typer", "click"))
            if debug or is_typer:
                raise
            if isinstance(error, GemmillError):
                end = _reported(_status_of(error), error.code(), str(error))
            elif isinstance(error, OSError):
                end = _reported(Status.WRONG, "system", os_error_text(error))
            else:
                end = _reported(Status.WRONG, "bug", f"{type(error).__name__}: {error}")
                output.complain("This is a bug in gemmill. Set GEMMILL_DEBUG=1 to print the traceback, and report it.")
            raise end from None


_STATUS: Mapping[type[GemmillError], Status] = {
    SettingError: Status.USAGE,
    ToolchainError: Status.MISSING,
    DeviceError: Status.MISSING,
    InstallationError: Status.MISSING,
}
"""Exit codes by the class of an error; others exit with ``WRONG``. A command raises UsageError, which exits with
``USAGE``, for what the command line alone makes wrong, whatever the files contain."""


def _status_of(error: GemmillError) -> Status:
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), Status.WRONG)


def _reported(status: Status, code: str, message: str, prefix: str = "error: ") -> typer.Exit:
    """Print an error, and return the exception that ends the command."""
    output.complain(f"{prefix}{message}")
    output.print_error(code, message)
    return typer.Exit(status)


_JSON = "as_json"
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def _with_options(command: Callable[..., None], *, has_json: bool) -> Callable[..., None]:
    """Replace each parameter that is a dataclass of options by parameters for its fields.

    A command with a result also gets --json (:func:`gemmill.cli.output.is_json`).
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        if group := groups.get(parameter.name):
            kinds = get_type_hints(group, include_extras=True)
            for option in fields(group):
                default = option.default_factory() if option.default_factory is not MISSING else option.default
                default = parameter.empty if default is MISSING else default
                parameters.append(parameter.replace(name=option.name, annotation=kinds[option.name], default=default))
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
    if has_json:
        parameters.append(inspect.Parameter(_JSON, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json))

    @wraps(command)
    def run(**values: Any) -> None:
        values.pop(_JSON, None)
        for name, group in groups.items():
            values[name] = group(**{option.name: values.pop(option.name) for option in fields(group)})
        command(**values)

    keywords = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return run


class Application(typer.Typer):
    """A group of commands. Where a command's parameter is a dataclass of options, its fields become options."""

    def __init__(self, text: str, cls: type[Commands] = Commands, **more: Any) -> None:
        shows_help = not more.get("invoke_without_command", False)
        super().__init__(cls=cls, help=text, rich_markup_mode=None, no_args_is_help=shows_help, **more)

    def command(self, name: str | None = None, *, has_json: bool = True, **more: Any) -> Callable[..., Any]:
        """Register a function as a command of the group; ``has_json`` adds --json."""
        return _registering(super().command(name, **more), has_json=has_json)

    def callback(self, **more: Any) -> Callable[..., Any]:
        """Register a function that runs before the commands of the group, with its own options."""
        return _registering(super().callback(**more), has_json=False)


def _registering(
    register: Callable[..., object], *, has_json: bool
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def registered(function: Callable[..., None]) -> Callable[..., None]:
        register(_with_options(function, has_json=has_json))
        return function

    return registered


class TopCommands(Commands):
    """The commands of `gemmill`, which its help lists in sections."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, by section."""
        return [name for names in SECTIONS.values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each section with their summaries, in aligned columns."""
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - width - 6
                formatter.write_dl(
                    [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names]
                )


app = Application(
    HELP,
    TopCommands,
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"gemmill {__version__}")
        raise typer.Exit


@app.callback()
def gemmill(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Handle the options before a command."""
