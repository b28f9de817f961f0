"""What must not go wrong, kind by kind: what is tried, how it must end, and the tests that try it.

`test_fault_table.py` looks that each test is there.  ``python tests/fault_table.py`` writes the table into `docs/security.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
HEADING = "## What is tried"


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes
    ----------
    tried : str
    end : str
        How it must end; REFUSED stands for one sentence, exit code 2, no traceback, and no file new or changed.
    tests : tuple of str
        ``file::function``, and ``[text]`` behind it where a row of the test's own table is meant: text that stands in its file,
        or in one that it takes its rows from.
    """

    tried: str
    end: str
    tests: tuple[str, ...]


REFUSED = "refused"
SAME = "refused, or the same numbers"
OLD_OR_NEW = "the old file or the new one, whole"


def _fault(tried: str, end: str, *tests: str) -> Fault:
    return Fault(tried, end, tests)


OURS, COMMANDS = "container_hostile::test_hostile_file_is_refused", "command_faults::test_hostile_files_of_ours"
EVERY_READER, NONE = "faults::test_no_reader_takes_a_fault", "storage::test_what_is_not_a_generator_is_refused"
OTHERS = "command_faults::test_hostile_files_of_other_programs"

AREAS: dict[str, tuple[Fault, ...]] = {
    "Files of this project": (
        _fault("HDF5 of another program, or without something that ours have", REFUSED, f"{OURS}[foreign]", f"{OURS}[manifest missing]", f"{COMMANDS}[foreign]"),
        _fault("a newer version of the format", f"{REFUSED}, with both versions", f"{OURS}[schema version newer]", "storage_faults::test_versions_that_are_not_known_are_said_to_be_so"),
        _fault("a file cut at 200 places", REFUSED, "container_damage::test_truncation_at_each_of_200_offsets"),
        _fault("a bit, some bytes, a sector changed at random", SAME, "container_damage::test_damage_is_noticed[one_bit]", "container_damage::test_damage_is_noticed[zeroed_block]", "faults::test_damaged_files_are_the_same_or_refused", "storage::test_two_thousand_damaged_model_files"),
        _fault("arrays in another file: external storage, external links, virtual arrays", f"{REFUSED}, and the other file is not opened", f"{OURS}[external storage]", f"{OURS}[external link]", f"{OURS}[virtual]", f"{OURS}[virtual from itself]", "container_hostile::test_the_watch_would_notice", f"{EVERY_READER}"),
        _fault("links in a circle, groups in themselves, 10,000 deep, more objects than anyone needs", f"{REFUSED}, after a bounded walk", f"{OURS}[soft link cycle]", f"{OURS}[group within itself]", f"{OURS}[deep groups]", f"{OURS}[many links]", f"{COMMANDS}[many links]"),
        _fault("2^40 elements claimed, none stored", f"{REFUSED}, before anything is allocated", f"{OURS}[2^40 elements]", f"{OURS}[2^60 elements]", f"{COMMANDS}[2^40 elements]"),
        _fault("a chunk of two megabytes that inflates to two gigabytes", f"{REFUSED}, below 300 MB", f"{OURS}[bomb]", f"{COMMANDS}[bomb]"),
        _fault("an honest file that shrinks several hundred times", "read", "container_hostile::test_honest_file_that_shrinks_a_lot"),
        _fault("a filter that only a plug-in has", f"{REFUSED}, and no plug-in is loaded", "container_hostile::test_filter_plugin_is_not_loaded", f"{OURS}[unknown filter]"),
        _fault("indices out of range, unsorted, doubled, on the diagonal; pointers that do not ascend or fit", f"{REFUSED}, naming the row", NONE, "storage_faults::test_rows_on_the_disk_that_are_none_are_not_opened", "storage_faults::test_coded_rows_on_the_disk_that_are_none_are_not_opened"),
        _fault("other types: big-endian, half precision, objects, references, records", REFUSED, f"{OURS}[big-endian]", f"{OURS}[objects]", f"{OURS}[references]", f"{OURS}[records]", NONE),
        _fault("rates that are NaN, infinite, zero or negative; exit rates that are not their sums", f"{REFUSED}, naming the transition", NONE, "verify::test_a_model_is_verified_without_room_for_it"),
        _fault("content changed under hashes that are right", "a generator, or refused", "faults::test_forged_files_are_models_or_refused", NONE),
        _fault("parameters or arrays edited, the hashes left", REFUSED, f"{OURS}[manifest edited]", f"{OURS}[manifest and digest edited]", f"{OURS}[array edited]", f"{OURS}[arrays exchanged]"),
        _fault("a manifest of a million brackets, doubled keys, NaN, 1e400, lone surrogates, 500 MB", REFUSED, f"{OURS}[brackets]", f"{OURS}[doubled keys]", f"{OURS}[1e400]", f"{OURS}[lone surrogate]", f"{OURS}[manifest of 500 MB]"),
        _fault("an answer that claims CONVERGED and is not, or has another length", "named by `ctmc verify`, exit code 1", "verify::test_a_false_answer_is_named", "verify::test_the_command", "store_answers::test_a_stored_answer_that_does_not_stand_up_to_the_check_is_solved_again"),
        _fault("a builder or a function named in a file", "nothing is imported without --allow-code", "storage::test_a_function_named_in_a_file_is_not_imported"),
        _fault("a folder, pipe, device, socket, link to itself, empty or unreadable file in place of one", REFUSED, "container_paths::test_path_is_refused", "container_paths::test_unreadable_file", "cli_bad_input::test_what_is_no_model_file", f"{COMMANDS}[link to itself]"),
        _fault("names with new lines, escapes, markup, 255 bytes, no UTF-8", "they work, and are shown escaped", "container_paths::test_file_name_works_and_is_shown_escaped", "cli_bad_input::test_strange_file_names_work_and_are_shown_escaped"),
        _fault("variants whose parent is gone, another, or not below", REFUSED, "store_faults::test_a_variant_that_is_none_is_refused"),
        _fault("a file that changes, or becomes shorter, while it is read", REFUSED, "foreign_hdf5::test_a_file_that_becomes_shorter_while_it_is_read_is_noticed", "text_faults::test_a_file_that_changes_while_it_is_read", "petsc_format::test_a_file_that_changes_while_it_is_read", "container_reading::test_read_error_is_a_sentence"),
        _fault("a file of one kind where another is wanted, for each command", REFUSED, "command_faults::test_files_of_the_wrong_kind"),
    ),
    "Files of other programs": (
        _fault("UMB: archives below a megabyte that inflate to hundreds", f"{REFUSED}, below the limit", "umb::test_bombs", f"{OTHERS}[umb: a member that inflates to 600 MB]"),
        _fault("UMB: members that lead out, links, devices, pipes, doubled names", f"{REFUSED}, nothing is unpacked", "umb::test_special_members", "umb::test_names_of_members", f"{OTHERS}[umb: a name that leads out]"),
        _fault("UMB: an index that claims 2^63 states, or does not fit its members", f"{REFUSED}, before they are read", "umb::test_an_index_that_lies"),
        _fault("UMB: bytes changed at random", "a model, or refused", "umb::test_mutations"),
        _fault("DRN: a bomb of one endless line", REFUSED, f"{OTHERS}[drn: a bomb of one line]", "text_faults::test_a_long_word_that_is_no_number_is_refused_at_once", "text_faults::test_compressed_files_that_end_too_early_or_never"),
        _fault("tables of transitions with more or fewer rows than announced, out of order, with another program's head", f"{REFUSED}, with the line", "text_faults::test_rows_that_are_wrong", "text_faults::test_a_fault_is_a_sentence", f"{OTHERS}[tra: more rows than announced]"),
        _fault("Matrix Market: 2^62 rows; patterns, complex and symmetric matrices", f"{REFUSED}, or right", "text_faults::test_what_a_matrix_holds", f"{OTHERS}[matrix market: a size beyond counting]", f"{OTHERS}[matrix market: a pattern]"),
        _fault("MATLAB: sizes that overflow, objects, damage that crashes the reader", f"{REFUSED}; the reader is a process of its own", "matlab_chains::test_mutations", "matlab_chains::test_hdf5_that_leads_elsewhere_or_claims_too_much", "matlab_chains::test_variables_that_do_not_fit", "formats::test_a_child_that_fails_is_a_sentence", f"{OTHERS}[matlab: damaged]"),
        _fault("NPZ: pickled objects, sizes that are claimed", f"{REFUSED}, nothing is unpickled", "formats::test_npz_unpickles_nothing", "formats::test_npz_sizes_are_looked_at_first", f"{OTHERS}[npz: Python objects]"),
        _fault("GraphML: entities, depth, size", REFUSED, "formats::test_graphml_without_entities", "formats::test_graphml_limits", f"{OTHERS}[graphml: entities]"),
        _fault("PETSc: sizes beyond counting, indices out of range", REFUSED, "petsc_format::test_files_that_are_refused", "petsc_format::test_sizes_are_looked_at_before_anything_is_allocated", f"{OTHERS}[petsc: a size beyond counting]"),
    ),
    "Studies and the command line": (
        _fault("wrong keys, doubled keys, wrong types in a study", f"{REFUSED}, with key and line", "study::test_a_bad_study_is_one_sentence_and_nothing_is_written"),
        _fault("`module:function` in a study", "nothing is imported without --allow-code", "study::test_code_in_a_study_is_not_imported_unless_allowed", "cli_bad_input::test_code_runs_only_when_allowed"),
        _fault("`numpy.py`, `solvers` and the like beside a study", "not imported", "study::test_names_of_modules_beside_the_study_are_left_alone", "cli_processes::test_what_lies_in_the_current_folder_is_not_imported", "formats::test_the_child_imports_nothing_from_the_current_folder"),
        _fault("output that leads out of the folder, or stands on what is not ours", f"{REFUSED}, nothing is overwritten", "study::test_a_symbolic_link_does_not_lead_a_study_out_of_the_folder", "study::test_what_is_not_ours_is_never_replaced", "comparison_refusals::test_the_output_is_never_somebody_elses_file", "container_writing::test_foreign_file_is_never_replaced"),
        _fault("a sweep of 10^12 points, models beyond all memory", f"{REFUSED}, before anything is made", "sweep::test_a_sweep_is_counted_before_it_is_made", "command_faults::test_more_than_can_be_counted", "memory::test_builders_ask_first"),
        _fault("two runs with the same output at once", "one runs; the other is told host and process", "study::test_two_runs_with_the_same_output", "comparison_isolation::test_the_same_output_at_once", "store_processes::test_four_processes_build_a_model_once"),
        _fault("names that are markup, formulas, escapes", "inert in terminal, CSV, LaTeX, HTML, pictures", "study::test_names_stay_inert", "report::test_nothing_in_a_file_is_markup", "report::test_no_cell_of_csv_is_a_formula", "report::test_latex_shows_names_as_they_are", "report_browser::test_hostile_names_are_text", "report_browser::test_what_a_figure_holds_does_not_run", "comparison_refusals::test_names_are_inert_on_the_terminal_and_in_csv", "solution::test_html_summary_is_escaped"),
        _fault("--json where a solve fails", "one JSON document, news apart, exit code 1", "cli_solve::test_failed_solve_is_one_document_one_line_and_exit_code_1", "cli_solve::test_json_errors_are_documents_too"),
        _fault("a clock that is set back, time zones, locales with commas", "the same numbers", "command_faults::test_a_clock_that_is_set_back", "command_faults::test_a_locale_with_commas", "cli_processes::test_numbers_do_not_depend_on_time_zone_or_locale"),
        _fault("another package of our name first on the path", f"{REFUSED}, naming both places", "cli_processes::test_another_package_of_our_name_is_named_with_both_places"),
        _fault("paths that are too long, empty, folders, devices, below a file; a current folder that is gone", REFUSED, "command_faults::test_odd_paths", "command_faults::test_a_current_folder_that_is_gone"),
        _fault("numbers that are none, or beyond all floats and integers", "taken, or refused", "command_faults::test_numbers_that_are_none", "command_faults::test_numbers_of_a_study_that_no_float_can_be", "cli_bad_input::test_bad_input_is_one_sentence_and_exit_code_2"),
        _fault("standard output full, closed, or left by its reader", "one sentence; news that nobody can read stop nothing", "command_faults::test_output_that_cannot_be_written", "cli_processes::test_a_reader_that_leaves_is_no_error"),
        _fault("no home, no terminal, no temporary folder, variables without sense", "the same numbers", "command_faults::test_an_environment_without_sense"),
    ),
    "Long runs": (
        _fault("kill -9 at any step of build, solve, run, compare, report, prune", f"{OLD_OR_NEW}; the next run goes on, nothing is left over", "faults::test_a_killed_writer_leaves_the_old_file_or_the_new_one", "checkpoints::test_kill_at_any_moment_leaves_a_whole_file", "container_writing::test_killed_writer", "store_processes::test_when_the_one_who_builds_is_killed_another_takes_over", "store_upkeep::test_a_prune_that_dies_anywhere_leaves_whole_files"),
        _fault("the k-th write, flush, rename fails (no room, quota, disk error), for every k", f"{REFUSED}; {OLD_OR_NEW}", "container_writing::test_failure_of_each_step_leaves_the_old_file", "faults::test_each_step_of_a_writer_fails_once", "checkpoints::test_a_disk_that_fails_ends_no_solve", "comparison_isolation::test_a_full_disk_loses_nothing"),
        _fault("a disk that takes so many bytes of a file, for every command that writes and every format", f"{REFUSED}; the old files whole", "command_faults::test_a_disk_that_takes_so_many_bytes"),
        _fault("each large allocation fails in turn", REFUSED, "faults::test_each_allocation_of_a_writer_fails_once", "container_reading::test_failing_allocation_is_a_sentence", "memory::test_solvers_ask_first"),
        _fault("Ctrl-C once, twice; SIGTERM, SIGHUP, SIGUSR1", "a checkpoint, exit code 128 + signal, the cursor visible; twice: at once, files whole", "checkpoints::test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on", "checkpoints::test_the_second_ctrl_c_leaves_at_once_and_the_file_is_whole", "cli_processes::test_the_first_signal_stops_at_the_next_step_and_keeps_the_answer", "cli_processes::test_the_second_signal_leaves_at_once", "cli_processes::test_progress_on_a_terminal_and_the_cursor_after_ctrl_c"),
        _fault("SIGTERM, and SIGKILL 30 seconds later", "a checkpoint stands", "checkpoints::test_a_kill_after_a_termination_finds_a_checkpoint"),
        _fault("the checkpoint of another model, solver, option, version; a damaged one", REFUSED, "checkpoints::test_the_checkpoint_of_another_question_is_refused", "checkpoints::test_another_version_is_refused", "checkpoints::test_every_part_of_a_question_counts", "checkpoints::test_damaged_checkpoints_give_a_sentence_or_what_they_held"),
        _fault("stores that cannot be written, file systems without locks or links", "what is there is read", "store_processes::test_a_store_that_cannot_be_written_is_read", "container_writing::test_file_system_without_hard_links_and_locks", "store_faults::test_a_store_that_cannot_be_made_or_written_is_named"),
        _fault("solvers of others that crash, eat memory, never end, fork, write without end, lie", "a row each, no process left", "comparison::test_whatever_a_solver_does_is_a_row", "comparison_isolation::test_a_parent_that_is_ended_leaves_no_process_and_a_whole_file", "comparison_isolation::test_a_warden_that_is_killed_costs_one_row"),
        _fault("workers of a run that die, or outlive it", "a row, or done again; no process left", "parallel::test_two_processes_give_the_rows_of_one_and_one_that_dies_is_a_row", "parallel::test_when_the_parent_is_killed_its_workers_end_and_the_next_run_goes_on"),
        _fault("a solve that goes on from a checkpoint", "defects within a small factor, expectations to 1e-10", "checkpoints::test_resumed_is_as_good_as_uninterrupted", "checkpoints::test_questions_about_time_go_on"),
        _fault("1, 2, 4 threads", "the same bits", "threads::test_answers_have_the_same_bits_for_any_number_of_threads", "container::test_content_and_chunks_do_not_depend_on_threads"),
    ),
    "Ranks of MPI": (
        _fault("one rank raises, leaves, is killed, crashes, in build or solve; with a thread that lives on", "the job ends with its sentence and code", "ranks::test_a_rank_that_fails_ends_the_job"),
        _fault("what all ranks, or only the first one, meet", f"{REFUSED}, said once", "ranks::test_what_all_ranks_meet_is_said_once", "ranks::test_what_only_the_first_rank_meets_is_said_once", "shared::test_a_damaged_file_is_refused_by_who_reads_it"),
        _fault("1 to 4 ranks, more ranks than rows", "the answer of one process", "ranks::test_what_is_built_is_the_same", "ranks::test_what_is_solved_is_the_same", "ranks::test_more_ranks_than_rows"),
        _fault("a checkpoint of 4 ranks taken up by 3", "it goes on", "ranks::test_stopped_on_four_ranks_goes_on_with_three"),
        _fault("SIGTERM to mpirun", "a checkpoint", "ranks::test_a_signal_to_mpirun_leaves_a_checkpoint"),
        _fault("more than 2^31 entries for a PETSc of 32 bits", f"{REFUSED}, before anything is made", "ranks::test_too_narrow_numbers_are_refused_beforehand"),
    ),
}  # fmt: skip


def section() -> str:
    """Return the section of the page, from its heading on."""
    parts = [
        f"{HEADING}\n\n*Refused* is one sentence on standard error, exit code 2, no traceback, no file new or changed, within two seconds and 300 MB. Tests are\n"
        "functions of `tests/test_FILE.py`, written as FILE::function, where a row of their table is meant with its name.\n"
    ]
    for area, faults in AREAS.items():
        rows = [
            f"| {fault.tried} | {fault.end} | {', '.join(f'`{test}`' for test in fault.tests)} |" for fault in faults
        ]
        parts.append(
            "\n".join(
                [f"**{area}**\n", "| what is tried | how it must end | tests |", "| --- | --- | --- |", *rows, ""]
            )
        )
    return "\n".join(parts) + "\n"


def page_with(section: str, page: str) -> str:
    """Return the page with the section in the place of the one that it has."""
    head, _, rest = page.partition(HEADING)
    following = rest.find("\n## ")
    return head + section + rest[following + 1 :]


if __name__ == "__main__":
    PAGE.write_text(page_with(section(), PAGE.read_text()))
