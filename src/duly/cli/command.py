"""Commands: a function, its examples, and parts whose options it shares with others.

A *part* is a function that turns some options into one value (the session, a topic's settings).
A command names its parts; their options become the command's own, and the command receives
the values. So an option that many commands take is written once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import typer

from .session import session

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


def group(help: str) -> typer.Typer:
    """A group of commands. Alone on the line it shows its help."""
    app = typer.Typer(help=help, invoke_without_command=True)

    @app.callback()
    def alone(ctx: typer.Context) -> None:
        show_help_if_alone(ctx)

    return app


def show_help_if_alone(ctx: typer.Context) -> None:
    """Shows the help of a group that was given no command."""
    if ctx.invoked_subcommand is None:
        text = ctx.get_help()
        if text:
            typer.echo(text)


def command(app: typer.Typer, name: str, *, examples: Sequence[str], **parts: Function) -> Callable[[F], F]:
    """Registers a command that receives its session and the values of its parts by keyword.

    A part named `session` stands for the usual one.
    """

    def register(function: F) -> F:
        whole = with_parts(function, **parts, **({} if "session" in parts else {"session": session}))
        app.command(name, epilog=_epilog(examples))(whole)
        return function

    return register


def with_parts(function: Function, **parts: Function) -> Function:
    """The function with the parameters of its parts in place of their values."""
    own = inspect.signature(function, eval_str=True).parameters.values()
    theirs = {name: list(inspect.signature(part, eval_str=True).parameters.values()) for name, part in parts.items()}

    @wraps(function)
    def run(**given: Any) -> Any:
        for name, part in parts.items():
            given[name] = part(**{parameter.name: given.pop(parameter.name) for parameter in theirs[name]})
        return function(**given)

    merged = [parameter for parameter in own if parameter.name not in parts]
    merged += [parameter for parameters in theirs.values() for parameter in parameters]
    by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in merged]
    run.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in by_keyword}
    return run


def _epilog(examples: Sequence[str]) -> str:
    lines = "\n".join(f"  {example}" for example in examples)
    return f"Example{'' if len(examples) == 1 else 's'}:\n\n{lines}".replace("[", "\\[")
