"""What cannot be compared is refused in a sentence, and no file of others is touched."""

import os

import comparison_examples
import pytest
from comparison_examples import STUDY

from ctmc.cli import main
from ctmc.comparison.compare import compare
from ctmc.comparison.files import load_comparison, save_comparison
from ctmc.comparison.settings import Entry, Settings
from ctmc.comparison.studies import entries_of_files
from ctmc.errors import CTMCError, StorageError, StudyError
from ctmc.study.solver_grid import solvers_of

queue = comparison_examples.queue
command = comparison_examples.command
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gmres(restart=20..10)", "restart is 20..10; allowed is a range"),
        ("gmres(restart=0..10)", "restart is 0..10; allowed is a range"),
        ("gauss_seidel(relaxation=0.5..1.5:0)", "allowed is a range"),
        ("gauss_seidel(relaxation=0.0001..1:0.0001)", "more than 1000"),
        ("gmress", "did you mean 'gmres'"),
        ("gmres(restar=3)", "restar"),
        ("", "allowed is 'all', or names"),
        ("chebyshev", "chebyshev does not take stationary problems"),
    ],
)
def test_wrong_solvers_are_refused_in_a_sentence(text, sentence):
    with pytest.raises(CTMCError) as caught:
        solvers_of(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"repeats": 0}, "repeats is 0; allowed is a whole number from 1 to 1000"),
        ({"jobs": 1.5}, "jobs is 1.5"),
        ({"time_limit": -1.0}, "time_limit is -1"),
        ({"tolerances": (2.0,)}, "tolerance is 2.0"),
        ({"levels": (0,)}, "levels has 0"),
        ({"warm": True, "problem": "transient"}, "warm starts belong to stationary"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings, sentence):
    with pytest.raises(StudyError) as caught:
        Settings(("gth",), **settings)
    assert sentence in str(caught.value)


def test_models_that_cannot_be_had_are_rows(tmp_path, queue):
    missing = tmp_path / "missing.h5"
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(queue.read_bytes()[:-100])
    found = compare(list(entries_of_files([str(missing), str(damaged), str(queue)], lambda: None)), "gth")
    assert [run.status for run in found.runs] == ["NO_MODEL", "NO_MODEL", "CONVERGED"]
    assert "missing.h5" in found.runs[0].message
    assert found.complete
    with pytest.raises(StudyError, match="two models have the name 'x'"):
        compare([Entry("x", queue), Entry("x", queue)], "gth")
    with pytest.raises(StudyError, match="needs one or more models"):
        compare([], "gth")


def test_the_output_is_never_somebody_elses_file(tmp_path, queue):
    other = tmp_path / "thesis.h5"
    other.write_text("my only copy")
    with pytest.raises(StudyError, match="never replaced"):
        compare([queue], "gth", other)
    with pytest.raises(StudyError, match="never replaced"):
        compare([queue], "gth", queue)
    assert other.read_text() == "my only copy"
    with pytest.raises(StudyError, match="no folder"):
        compare([queue], "gth", tmp_path / "nowhere" / "found.h5")


def test_a_damaged_comparison_is_no_comparison(tmp_path, queue):
    output = tmp_path / "found.h5"
    found = compare([queue], "gth", output)
    for change in ({"status": "WONDERFUL"}, {"model": "other"}, {"session": 7}):
        import dataclasses

        wrong = dataclasses.replace(found, runs=(dataclasses.replace(found.runs[0], **change),))
        save_comparison(output, wrong)
        with pytest.raises(StorageError, match="is not a whole comparison"):
            load_comparison(output)


def test_names_are_inert_on_the_terminal_and_in_csv(tmp_path, queue, command):
    hostile = tmp_path / "=cmd|' [bold]\x1b[31m<img src=x>.h5"
    os.rename(queue, hostile)
    found = command(hostile, "--solvers", "gth", "-o", tmp_path / "o.h5", "--csv")
    out, news = found.communicate(timeout=250)
    assert found.returncode == 0, news
    assert "\x1b" not in out + news
    assert out.splitlines()[1].startswith("'=cmd|' [bold]\\x1b[31m<img src=x>,gth,")


@pytest.mark.parametrize("place", ["../outside.h5", "/tmp/outside.h5", "link.h5"])
def test_a_study_writes_below_the_current_folder_only(tmp_path, monkeypatch, capsys, place):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    (inside / "link.h5").symlink_to(tmp_path / "elsewhere.h5")
    (inside / "which.toml").write_text(f'output = "{place}"\n{STUDY}')
    assert main(["compare", "which.toml"]) == 2
    error = capsys.readouterr().err
    assert "current folder" in error
    assert sorted(os.listdir(tmp_path)) == ["inside"]
    assert sorted(os.listdir(inside)) == ["link.h5", "which.toml"]
