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

_CHANGES = {
    "zsh": (
        # without a .zshrc of its own zsh has not set up completion yet
        (
            "\nif [[ $zsh_eval",
            "\n(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }\nif [[ $zsh_eval",
        ),
        # of --option=value only the value is replaced
        ("    local -a response\n", "    local -a response\n    compset -P 1 '--*='\n"),
        ("compadd -U", 'compadd -U -i "$IPREFIX"'),
    ),
    "fish": (
        # of --option=value fish asks for the whole
        (
            "    for completion",
            "    set -l option (string match -r -- '^--[^=]*=' (commandline -ct));\n    for completion",
        ),
        ('string split ","', 'string split -m 1 ","'),  # names in a list have commas
        ("echo $metadata[2]", 'echo "$option$metadata[2]"'),
    ),
}
"""What we change in the scripts of click; `tests/test_completion.py` has each shell use its own."""


def _completion(shell: str) -> int:
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}.")
    # the method of the base class: bash's own first starts a bash to look at its version
    script = ShellComplete.source(kind(cli, {}, "ctmc", "_CTMC_COMPLETE"))
    for old, new in _CHANGES.get(shell, ()):
        script = script.replace(old, new)
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
