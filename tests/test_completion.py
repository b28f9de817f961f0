"""Tab completion: what the command answers to a shell, and what each shell makes of its script in a new home."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctmc.cli import main
from ctmc.cli.app import COMMANDS
from ctmc.cli.plot import FORMATS
from ctmc.comparison.figures import FIGURES
from ctmc.study.answer_figures import ANSWER_FIGURES

_PATIENCE = 120.0
"""Seconds for a shell that shares the machine with other tests."""

_TYPED = {
    "ctmc rer": "ctmc rerate",
    "ctmc build courto": "ctmc build courtois",
    "ctmc build birth_death --dea": "ctmc build birth_death --deaths",
    "ctmc solve --solver bicg": "ctmc solve --solver bicgstab",
    "ctmc solve --solver=bicg": "ctmc solve --solver=bicgstab",
    "ctmc solve m.h5 --solver gmres --rest": "ctmc solve m.h5 --solver gmres --restart",
    "ctmc compare m.h5 --solvers gth,level_r": "ctmc compare m.h5 --solvers gth,level_reduction",
    "ctmc run quick": "ctmc run quickstart",
    "ctmc run my_stu": "ctmc run my_study.toml",
    "ctmc solve a_mod": "ctmc solve a_model.h5",
    "ctmc simulate a_mod": "ctmc simulate a_model.h5",
    "ctmc plot a_model.h5 --figure marg": "ctmc plot a_model.h5 --figure marginals",
}
"""What is typed before the key, and what the line is after it."""


@pytest.fixture
def complete(monkeypatch, capsys):
    """Return what the command answers to bash, names and kinds."""

    def answer(line, *, words=None):
        words = line.split(" ") if words is None else words
        monkeypatch.setenv("_CTMC_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            main([])
        return [tuple(line.split(",", 1)) for line in capsys.readouterr().out.split()]

    return answer


@pytest.mark.parametrize(
    "command", ["solve", "verify", "info", "run", "compare", "simulate", "report", "plot", "convert"]
)
def test_files_are_completed_where_no_name_fits(command, complete):
    assert complete(f"ctmc {command} no_such_na") == [("file", "no_such_na")]


def test_names_in_a_list_are_completed_one_by_one(complete):
    assert complete("ctmc compare m.h5 --solvers gth,gmr") == [("plain", "gth,gmres")]
    assert ("plain", "gth,gmres,auto") in complete("ctmc compare m.h5 --solvers gth,gmres,")


def test_figures_and_their_formats_are_completed(complete):
    assert complete("ctmc plot m.h5 --figure ") == [("plain", name) for name in [*FIGURES, *ANSWER_FIGURES]]
    assert complete("ctmc plot m.h5 --format ") == [("plain", name) for name in FORMATS]


def test_what_takes_a_solver_completes_auto_where_it_takes_it(complete):
    assert complete("ctmc solve m.h5 --solver aut") == [("plain", "auto")]
    assert complete("ctmc optimize fork_join --solver gau") == [("plain", "gauss_seidel")]


def test_an_equals_sign_that_bash_takes_for_a_word_is_none(complete):
    assert complete("", words=["ctmc", "solve", "--solver", "=", "gmr"]) == [("plain", "gmres")]
    assert ("plain", "gmres") in complete("", words=["ctmc", "solve", "--solver", "="])
    assert complete("", words=["ctmc", "solve", "--solver", "=", "gmres", "--rest"]) == [("plain", "--restart")]


def test_every_command_completes_its_flags(complete):
    for command in COMMANDS:
        assert ("plain", "--help") in complete(f"ctmc {command} --"), command


# ---- the shells -------------------------------------------------------------------------------------------------------


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture
def home(tmp_path):
    """Return a new home, and the environment of a user who has nothing else."""
    for name in ("a_model.h5", "my_study.toml"):
        (tmp_path / name).touch()
    own = str(Path(sys.executable).parent)
    return tmp_path, {"HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": "C.UTF-8", "PATH": f"{own}:{os.defpath}"}


def _lines_after_the_key(command, home, environment, typed):
    """Type each line, the key, and a command before the line that prints its words; return what was printed."""
    process, terminal = pty.fork()
    if process == 0:  # the shell
        os.chdir(home)
        os.execvpe(command[0], command, environment)
    shown, found, until = b"", [], time.monotonic() + _PATIENCE
    try:
        for line in typed:
            os.write(terminal, f"{line}\t\x01printf '<%s>' \n".encode())
            while not (printed := re.search(rb"\n\r?((?:<[^<>\r\n]*>)+)", shown)):
                ready, _, _ = select.select([terminal], [], [], max(until - time.monotonic(), 0))
                assert ready, shown
                shown += os.read(terminal, 4096)
            shown = shown[printed.end() :]
            found.append(printed[1].decode()[1:-1].replace("><", " "))
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)
    return found


@needs("bash")
def test_bash_completes(home):
    folder, environment = home
    (folder / ".bashrc").write_text('eval "$(ctmc completion bash)"\n')
    command = ["bash", "--rcfile", str(folder / ".bashrc"), "-i"]
    assert _lines_after_the_key(command, folder, environment, _TYPED) == list(_TYPED.values())


@needs("zsh")
def test_zsh_completes(home):
    folder, environment = home
    (folder / ".zshrc").write_text('eval "$(ctmc completion zsh)"\n')
    assert _lines_after_the_key(["zsh", "-i"], folder, environment, _TYPED) == list(_TYPED.values())


@needs("fish")
def test_fish_completes(home):
    folder, environment = home
    (folder / ".config/fish").mkdir(parents=True)
    (folder / ".config/fish/config.fish").write_text("ctmc completion fish | source\n")
    for line, whole in _TYPED.items():
        script = f"complete -C {json.dumps(line)}"
        found = subprocess.run(["fish", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
        # with an = in the word, fish gives the whole word
        assert whole.split(" ")[-1] in found.stdout.split(), (line, found)
