"""``ctmc completion``: the script that teaches a shell our names."""

from __future__ import annotations

import sys

import click

from ctmc.cli.app import Command, cli, output_of

_USE = {
    "bash": 'eval "$(ctmc completion bash)"     # in ~/.bashrc',
    "zsh": 'eval "$(ctmc completion zsh)"      # in ~/.zshrc',
    "fish": "ctmc completion fish | source     # in ~/.config/fish/config.fish",
}

_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }"
"""A zsh without a .zshrc has no completion of its own yet."""
_VALUE_ONLY = "compset -P 1 '--*='"
"""Of --option=value only the value is replaced."""


def _completion(shell: str) -> int:
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}.")
    # the method of the base class: bash's own first starts a bash to look at its version
    script = ShellComplete.source(kind(cli, {}, "ctmc", "_CTMC_COMPLETE"))
    if shell == "zsh":
        script = script.replace("\nif [[ $zsh_eval_context", f"\n{_COMPINIT}\nif [[ $zsh_eval_context")
        script = script.replace("    local -a response\n", f"    local -a response\n    {_VALUE_ONLY}\n")
        script = script.replace("compadd -U", 'compadd -U -i "$IPREFIX"')
    output = output_of(click.get_current_context())
    if output.json:
        output.document({"shell": shell, "script": script})
    else:
        sys.stdout.write(script.rstrip("\n") + "\n")
    return 0


command = Command(
    "completion",
    callback=_completion,
    params=[click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"]))],
    help="Print the script that completes commands, flags, builders, solvers, problems and studies.\n\n\b\n"
    + "\n".join(_USE.values()),
)
