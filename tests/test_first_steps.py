"""What a newcomer meets first: tables in a narrow terminal, the time that compiling takes, and likely mistakes."""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

import ctmc
from ctmc.cli.output import Output
from ctmc.cli.progress import Progress
from ctmc.cli.tables import extremes, print_facts, print_table
from ctmc.solve import failure_message

Q = np.array([[-3.0, 2.0, 1.0], [1.0, -1.5, 0.5], [0.0, 4.0, -4.0]])
UP, LOCAL, DOWN = [[1.0, 0.0], [2.0, 0.0]], [[-6.0, 5.0], [3.0, -12.0]], [[0.0, 0.0], [3.0, 4.0]]
PROSE = "Solve for all of the states, one after the other, until nothing is left to be done"


def on_a_terminal(width: int, function, folder: Path) -> list[str]:
    """Return the lines that a function writes on a terminal of this width, without colors."""
    child, terminal = pty.fork()
    if not child:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        os.environ.update(TERM="xterm")
        os.environ.pop("COLUMNS", None)
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        try:
            function()
            sys.stdout.flush()
        finally:
            os._exit(0)
    seen = b""
    try:
        while chunk := os.read(terminal, 4096):
            seen += chunk
    except OSError:  # the terminal is closed
        pass
    os.waitpid(child, 0)
    os.close(terminal)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r", "").splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 400])
def test_text_in_a_table_is_broken_where_it_finds_no_room(width, tmp_path):
    rows = [["gth", "yes", PROSE], ["a_long_name", "no", "z" * 70]]
    lines = on_a_terminal(width, lambda: print_table(["name", "fine", "text"], rows), tmp_path)
    assert max(map(len, lines)) <= width
    assert sum("name  " in line for line in lines) == 2  # one table: its head, one row
    told = " ".join(" ".join(lines).split())
    assert all(word in told for word in PROSE.split())
    assert "".join(lines).count("z") == 70  # nothing is cut off
    assert (len(lines) == 4) == (width == 400)


@pytest.mark.parametrize(("names", "key"), [(["jobs", "queue_length[0]"], "measure"), (["jobs", "jobs"], "row")])
def test_columns_that_find_no_room_stand_below_beside_the_names(names, key, tmp_path):
    heads = ["measure", *(f"column_{k}" for k in range(9))]
    rows = [[name, *(100.0 * i + k + 1 / 3 for k in range(9))] for i, name in enumerate(names)]
    lines = on_a_terminal(70, lambda: print_table(heads, rows), tmp_path)
    assert max(map(len, lines)) <= 70
    tables = "\n".join(lines).split("\n\n")
    assert len(tables) > 1
    assert [table.split()[0] for table in tables] == [key] * len(tables)
    assert [head for table in tables for head in table.splitlines()[0].split() if head.startswith("column")] == heads[
        1:
    ]


def test_numbers_that_tell_rows_apart_are_repeated_and_rows_that_say_nothing_more_are_left_out(tmp_path):
    heads = ["time", *(f"a_long_name_{k}" for k in range(5))]
    rows = [[0.5, 1.25, 2.5, 3.5, 4.5, 5.5], [2.0, 1.75, 2.75, None, None, None]]
    lines = on_a_terminal(50, lambda: print_table(heads, rows), tmp_path)
    first, *others = "\n".join(lines).split("\n\n")
    assert [table.split()[0] for table in (first, *others)] == ["time"] * (1 + len(others))
    assert [line.split()[0] for line in first.splitlines()[2:]] == ["0.5", "2"]
    assert [line.split()[0] for line in others[-1].splitlines()[2:]] == ["0.5"]
    assert "5.5" in others[-1]


@pytest.mark.parametrize(("done", "left"), [(43_761, True), (4_096, False)])
@pytest.mark.parametrize("width", [72, 80, 200])
def test_the_progress_line_fits_the_terminal(width, done, left, tmp_path):
    def work():
        progress = Progress(Output(), "building supermarket", 1e-9)
        progress.count(done, 182_703, "KiB written")
        progress.close()

    lines = on_a_terminal(width, work, tmp_path)
    line = next(line for line in lines if "of 182,703" in line).rpartition("building supermarket")[2]
    assert line.endswith("KiB written")
    assert ("left" in line) == left  # of the first steps nothing can be said
    assert ("━" in line) == (left and width > 72)


def test_a_solve_that_the_user_stopped_blames_nothing_else():
    chain = ctmc.build("birth_death", births=[1.0] * 40, deaths=[1.5] * 40)
    found = ctmc.solve(ctmc.Stationary(chain), "power_iteration", monitor=lambda *_: True, check=False)
    assert re.fullmatch(
        r"power_iteration: STOPPED at the defect [\d.e-]+\. The user stopped it: start from this answer to go on\.",
        failure_message(found),
    )


def test_long_facts_go_on_under_their_beginning(tmp_path):
    lines = on_a_terminal(50, lambda: print_facts([("rewards", PROSE), ("states", 1000)]), tmp_path)
    assert max(map(len, lines)) <= 50
    assert lines[0].startswith("rewards  Solve")
    assert all(line.startswith(" " * 9) for line in lines[1:-1])
    assert lines[-1] == "states   1,000"
    assert " ".join(" ".join(lines[:-1]).split()) == f"rewards {PROSE}"


@pytest.mark.parametrize(("seconds", "told"), [(2.9, True), (0.5, False)])
def test_the_time_that_compiling_takes_is_told(seconds, told, tmp_path):
    def work():
        progress = Progress(Output(), "solving", 1e-9)
        progress._compiling.on_start(None)
        progress._compiling.seconds = seconds
        progress._compiling.on_end(None)
        progress.close()

    lines = "".join(on_a_terminal(120, work, tmp_path))
    assert "compiling loops, once on this machine" in lines
    assert ("went into compiling loops, which are kept" in lines) == told
    assert not told or "Note: of this time 3 s" in lines


@pytest.mark.parametrize(("length", "shown"), [(30, 30), (31, 2)])
def test_long_vectors_are_shown_by_their_ends(length, shown):
    rows = [["jobs", 5.0], *([f"x[{k}]", float((7 * k) % length)] for k in range(length)), ["y", 1.0]]
    kept, long = extremes(rows, 1)
    assert len(kept) == shown + 2
    assert long == (["x"] if shown == 2 else [])
    assert {0.0, float(length - 1)} <= {number for name, number in kept if name.startswith("x")}


def test_the_facts_behind_an_advice_are_words_of_the_field(capsys, tmp_path):
    from ctmc.cli import main

    ctmc.save(tmp_path / "m.h5", ctmc.build("birth_death", births=[1.0] * 4, deaths=[2.0, 3.0, 4.0, 1e9]))
    assert main(["advise", str(tmp_path / "m.h5"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert main(["advise", str(tmp_path / "m.h5")]) == 0
    shown = dict(re.split(r"  +", line) for line in capsys.readouterr().out.partition("\n\n")[0].splitlines())
    assert float(shown["largest exit rate to least"]) == pytest.approx(facts["stiffness"], rel=1e-2)
    assert float(shown["multiplications of an elimination"]) == facts["elimination"]
    assert shown["weak links looked for"] == "yes"


def test_a_simulation_of_many_servers_is_a_short_table(capsys):
    from ctmc.cli import main

    many = [
        "simulate",
        "supermarket",
        "--service-rates",
        "1",
        "--servers",
        "60",
        "--arrival-rate",
        "40",
        "--choices",
        "2",
    ]
    many += ["--horizon", "20", "--seed", "20250613"]
    assert main(many) == 0
    out, err = capsys.readouterr()
    assert out.count("utilization[") == out.count("queue_length[") == 2
    assert "the least and the largest of utilization, queue_length" in err
    assert main([*many, "--json"]) == 0
    names = [row["measure"] for row in json.loads(capsys.readouterr().out)["estimates"]]
    assert sum(name.startswith("utilization[") for name in names) == 60


MISTAKES = [
    (lambda: ctmc.Generator.from_matrix(Q.T), ctmc.ModelError, "here the columns do: give the transpose"),
    (lambda: ctmc.Generator.from_matrix(np.eye(3) + Q / 5), ctmc.ModelError, "as probabilities do: P - I"),
    (lambda: ctmc.QBD.from_blocks([[0.2]], [[0.5]], [[0.3]]), ctmc.ModelError, "go to QBD.from_discrete_time"),
    (
        lambda: ctmc.solve(ctmc.Stationary(ctmc.QBD.from_blocks(DOWN, LOCAL, UP))),
        ctmc.UnstableError,
        "are they exchanged?",
    ),
    (
        lambda: ctmc.solve(ctmc.Generator.from_matrix(Q)),
        ctmc.ModelError,
        r"such as ctmc.Stationary\(model\)",
    ),
    (
        lambda: ctmc.build("reachable", transitions=lambda state: [], initial=(0, 0), variables=["jobs[0]", "jobs[1]"]),
        ctmc.ModelError,
        r"'jobs\[0\]'; allowed .* queue_length\[3\] for three",
    ),
    (lambda: ctmc.solve(Q), ctmc.ModelError, r"problem is array\(.*such as ctmc.Stationary"),
    (
        lambda: ctmc.Generator.from_matrix(Q, rewards={"cost": [1, 2, 3]}),
        ctmc.ModelError,
        r"'cost' is \[1, 2, 3\]; .*ctmc.Reward",
    ),
    (
        lambda: ctmc.solve(ctmc.Stationary(ctmc.Generator.from_matrix(Q))).expected([1, 2, 3]),
        ctmc.ModelError,
        r"reward is \[1, 2, 3\]; .*model.with_reward",
    ),
]


@pytest.mark.parametrize(("mistake", "kind", "words"), MISTAKES)
def test_a_likely_mistake_is_told_with_what_to_do(mistake, kind, words):
    with pytest.raises(kind, match=words) as caught:
        mistake()
    assert "\n" not in str(caught.value)


def test_a_wrong_number_is_not_taken_for_another_kind_of_matrix():
    wrong = Q.copy()
    wrong[1, 2] = 0.05
    with pytest.raises(ctmc.ModelError, match=r"row 1 .* sum to zero\.$"):
        ctmc.Generator.from_matrix(wrong)
    with pytest.raises(ctmc.ModelError, match=r"sum to zero\.$"):
        ctmc.QBD.from_blocks(UP, [[-6.0, 5.0], [3.0, -11.0]], DOWN)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("queue.prism", "ctmc\nmodule m\nendmodule\n", "'storm --prism FILE --buildfull --exportbuild model.drn'"),
        ("queue.sm", "ctmc\nmodule m\nendmodule\n", "language of PRISM or JANI"),
        ("queue.csv", "-1,1\n2,-2\n", "ctmc.Generator.from_matrix"),
    ],
)
def test_files_of_no_format_are_told_with_the_next_step(name, text, words, tmp_path):
    Path(tmp_path, name).write_text(text)
    with pytest.raises(ctmc.StorageError) as caught:
        ctmc.read(tmp_path / name)
    assert words in str(caught.value)


def test_exploring_without_end_is_told(caplog, monkeypatch):
    import builders._exploration

    clock = iter(range(0, 100_000, 10))
    monkeypatch.setattr(builders._exploration, "monotonic", lambda: next(clock))
    with pytest.raises(ctmc.ModelError, match="max_states = 100"):
        ctmc.build("reachable", transitions=lambda state: [((state[0] + 1,), 1.0)], initial=0, max_states=100)
    told = [record.getMessage() for record in caplog.records if record.name == "ctmc.builders.reachable"]
    assert 2 <= len(told) < 10  # after 20 s, and then whenever the time has doubled
    assert re.fullmatch(r"\d+ states in \d+ s, the latest \(\d+,\); exploring ends at max_states = 100", told[0])
