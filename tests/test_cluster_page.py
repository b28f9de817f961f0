"""What docs/cluster.md and docs/formats.md show is run: programs, job script, conversions; and the recipe is that of .ci/petsc."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import mpi
import numpy as np
import pytest
from pages import HOME, blocks_of

import ctmc
from ctmc.cli import main

CLUSTER = (HOME / "docs" / "cluster.md").read_text(encoding="utf-8")
FORMATS = (HOME / "docs" / "formats.md").read_text(encoding="utf-8")
MODEL = ("supermarket", {"service_rates": [3, 2, 1], "arrival_rate": 4.5, "choices": 2, "capacity": 9})


def blocks(text, language, having=""):
    """Return the blocks of a page in one language that have some words."""
    return [block.text for block in blocks_of(text) if block.language == language and having in block.text]


def needs_petsc(test):
    """Mark a test that starts ranks which import petsc4py."""
    for mark in mpi.needs_mpi("petsc4py"):
        test = mark(test)
    return test


@pytest.fixture
def matrix(tmp_path):
    """Return a model whose matrix, in the width of the PETSc that is here, is model.petsc of the folder."""
    model = ctmc.build(MODEL[0], **MODEL[1])
    asked = "import petsc4py; petsc4py.init([]); from petsc4py import PETSc; print(PETSc.IntType(0).itemsize)"
    width = int(mpi.mpirun(1, "-c", asked).out)
    ctmc.write(tmp_path / "model.petsc", model, "petsc-64" if width == 8 else "petsc")
    return model


@pytest.mark.parametrize("script", blocks(CLUSTER, "bash"))
def test_scripts_are_shell(script):
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_conversions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = ctmc.build(MODEL[0], **MODEL[1])
    ctmc.save("model.h5", model)
    (script,) = blocks(CLUSTER, "bash", "ctmc convert")
    for line in script.splitlines():
        assert main(shlex.split(line, comments=True)[1:]) == 0
    assert "Converted ctmc to petsc-64" in capsys.readouterr().out
    count = model.entries + model.size
    assert os.path.getsize("model.petsc") == 4 * (4 + model.size) + 12 * count
    assert os.path.getsize("wide.petsc") == 8 * (4 + model.size) + 16 * count
    for name in ("model.petsc", "wide.petsc"):
        assert (ctmc.read(name).to_scipy() != model.to_scipy()).nnz == 0


def test_the_recipe_is_the_one_that_is_tested():
    """Packages of apt, versions and settings in the page, twice, and in the script."""
    script = (HOME / ".ci" / "petsc").read_text(encoding="utf-8")
    versions = dict(re.findall(r"\b(petsc|slepc|mpi)=([0-9.]+)", script))
    packages = re.search(r"packages=\((.*)\)", script)[1].split()
    for text in (*blocks(CLUSTER, "bash", "apt-get"), *blocks(CLUSTER, "dockerfile")):
        assert {"petsc": f"petsc4py=={versions['petsc']}", "slepc": f"slepc4py=={versions['slepc']}"}.items() <= {
            name: match[0] for name in versions if (match := re.search(rf"{name}4py==[0-9.]*[0-9]", text))
        }.items()
        assert f"mpi4py=={versions['mpi']}" in text
        assert all(package in text for package in packages)
        for common in (
            "'numpy==2.*'",
            "'cython<3'",
            "'setuptools<81'",
            'CFLAGS="-O1 -g0"',
            "--no-build-isolation --no-deps",
        ):
            assert common in text
            assert common in script


TOOLS = ("bash", "cat", "env", "flock", "grep", "ls", "mkdir", "mktemp", "rm", "timeout", "touch", "mv")


@pytest.mark.parametrize(
    ("programs", "sentence"),
    [
        ({"apt-get": None}, "there is no apt-get"),
        ({"id": "echo 1000", "sudo": "exit 1"}, "apt needs root, and neither root nor sudo without a password is there"),
        ({"apt-get": "exit 100"}, "apt cannot get libpetsc64-real-dev libslepc64-real-dev openmpi-bin within 5 minutes"),
        ({"apt-get": "case $* in *download-only*) ;; *install*) exit 100 ;; esac"}, "apt cannot install libpetsc64-real-dev"),
        ({"ls": "exit 2"}, "PETSc here is not the version 3.18 of Debian 12"),
        ({"ls": "echo /", "mpirun": None}, "apt has installed no mpirun"),
        ({"ls": "echo /", "python": "case $1 in -c) echo tag ;; *) mkdir -p $3/bin && ln -s $PWD/no $3/bin/python ;; esac",
          "no": "echo error >&2; exit 1"}, "pip cannot install what petsc4py is compiled with within 3 minutes"),
        ({"ls": "echo /", "python": "case $1 in -c) echo tag ;; *) mkdir -p $3/bin && ln -s $PWD/no $3/bin/python ;; esac",
          "no": "case $* in *slepc4py*) exit 1 ;; *wheel-dir*) shift 7; touch $2/petsc4py-1.whl ;; esac"},
         "pip cannot compile slepc4py=="),
    ],
)  # fmt: skip
def test_the_recipe_says_why_it_did_not_work(tmp_path, programs, sentence):
    """In the last line, with no words on standard output, and leaves nothing that a later run would take."""
    standing = {name: f'exec {shutil.which(name)} "$@"' for name in TOOLS} | {
        "id": "echo 0",
        "dpkg-query": "echo 1",
        "apt-get": "exit 0",
        "mpirun": "exit 0",
        "python": "exit 1",
        "sudo": "exit 1",
        "ln": f'exec {shutil.which("ln")} "$@"',
    }
    for name, text in {**standing, **programs}.items():
        if text is not None:
            (tmp_path / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
            (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [shutil.which("bash"), str(HOME / ".ci" / "petsc"), "python", str(tmp_path / "lock")],
        cwd=tmp_path, env={"PATH": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(sentence), done.stderr
    assert list((tmp_path / ".cache").rglob("complete")) == []


@needs_petsc
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("more", [[], ["-ksp_type", "gmres", "-pc_type", "asm"]], ids=["as it stands", "with options"])
def test_the_program_of_the_page(tmp_path, matrix, ranks, more):
    (program,) = blocks(CLUSTER, "python")
    solver = 'print(solver.getType(), solver.getPC().getType())\nnp.save(f"part{PETSC.rank}", pi.getArray())\n'
    (tmp_path / "program.py").write_text(
        f"{program}\nimport numpy as np\n{solver.replace('PETSC', 'PETSc.COMM_WORLD')}"
    )
    ended = mpi.mpirun(ranks, "program.py", "model.petsc", *more, cwd=tmp_path)
    assert ended.code == 0, ended
    told = re.search(r"([0-9]+) iterations, \|\|pi Q\|\| = ([0-9.e+-]+)", ended.out)
    assert 5 < int(told[1]) < 200
    assert float(told[2]) < 1e-9
    assert ended.out.count("gmres asm" if more else "bcgs") == ranks
    found = np.concatenate([np.load(tmp_path / f"part{rank}.npy") for rank in range(ranks)])
    exact = ctmc.solve(ctmc.Stationary(matrix), "gth").value
    np.testing.assert_allclose(found, exact, atol=1e-10, rtol=0)


@needs_petsc
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_lines_about_the_format_in_python(tmp_path, matrix, ranks):
    (program,) = blocks(FORMATS, "python")
    shown = "\nvalue = balance.norm(PETSc.NormType.NORM_1)\nPETSc.Sys.Print(repr(value))\n"
    ended = mpi.mpirun(ranks, "-c", program + shown, cwd=tmp_path)
    assert ended.code == 0, ended
    expected = np.abs(matrix.forward(np.full(matrix.size, 1 / matrix.size))).sum()
    assert float(ended.out) == pytest.approx(expected, rel=1e-13)
    assert expected > 0.1


@needs_petsc
def test_the_lines_about_the_format_in_c(tmp_path, matrix):
    found = sorted(Path("/usr/lib/petscdir").glob("petsc64-3*/*-real/lib/pkgconfig/PETSc.pc"))
    if not found or not shutil.which("mpicc") or not shutil.which("pkg-config"):
        pytest.skip("there is no mpicc, no pkg-config, or no PETSc of Debian")
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "PETSc"],
        env={**os.environ, "PKG_CONFIG_PATH": str(found[-1].parent)},
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    (lines,) = blocks(FORMATS, "c")
    (tmp_path / "load.c").write_text(
        "#include <petscmat.h>\nint main(int argc, char **argv) {\nPetscCall(PetscInitialize(&argc, &argv, NULL, NULL));\n"
        + lines
        + "PetscReal norm; PetscCall(MatNorm(Q, NORM_FROBENIUS, &norm));\n"
        'PetscCall(PetscPrintf(PETSC_COMM_WORLD, "%.17g\\n", norm));\nreturn PetscFinalize();\n}\n'
    )
    subprocess.run(["mpicc", "load.c", "-o", "load", *flags], cwd=tmp_path, check=True, timeout=120)
    starts = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    ended = mpi.mpirun(2, "-c", starts, "./load", cwd=tmp_path)
    assert ended.code == 0, ended
    assert float(ended.out) == pytest.approx(np.sqrt((matrix.to_scipy().data ** 2).sum()), rel=1e-13)


STEPS = """#!/usr/bin/env python3
# Stands in for ctmc: says what it was asked, and takes a second and a half to leave a checkpoint.
import os, pathlib, signal, sys, time

def stop(number, frame):
    time.sleep(1.5)
    pathlib.Path("model.checkpoint.h5").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, stop)
pathlib.Path(f"asked{os.environ['OMPI_COMM_WORLD_RANK']}").write_text(" ".join(sys.argv[1:]))
if "--resume" in sys.argv:
    sys.exit(0)
time.sleep(600)
"""


@pytest.mark.mpi
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_the_job_script(tmp_path):
    """SIGTERM to the script: the ranks have time for a checkpoint, the job is put back, and goes on from there."""
    (script,) = blocks(CLUSTER, "bash", "#SBATCH")
    assert "mpirun ctmc" in script
    assert script.count("sigkill_timeout=120") == 2
    shorter = script.replace("mpirun ctmc", "mpirun -n 2 ctmc").replace("sigkill_timeout=120", "sigkill_timeout=3")
    (tmp_path / "job").write_text(shorter)
    (tmp_path / "ctmc" / "bin").mkdir(parents=True)
    (tmp_path / "ctmc" / "bin" / "activate").write_text('PATH="$HOME/ctmc/bin:$PATH"\n')
    (tmp_path / "ctmc" / "bin" / "ctmc").write_text(STEPS)
    (tmp_path / "ctmc" / "bin" / "scontrol").write_text('#!/bin/sh\necho "$@" >> requeued\n')
    for name in ("ctmc", "scontrol"):
        (tmp_path / "ctmc" / "bin" / name).chmod(0o755)
    variables = {
        **os.environ,
        **mpi.ENVIRONMENT,
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "77",
        mpi.PARENT_OF_ALL: "a job",
    }
    job = subprocess.Popen(["bash", "job"], cwd=tmp_path, env=variables, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob("asked*"))) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) != 0
        assert (tmp_path / "model.checkpoint.h5").exists()
        assert (tmp_path / "requeued").read_text() == "requeue 77\n"
        asked = "solve model.h5 --solver petsc_krylov --checkpoint model.checkpoint.h5"
        assert (tmp_path / "asked1").read_text() == asked
        again = subprocess.run(["bash", "job"], cwd=tmp_path, env=variables, timeout=60, check=False)
        assert again.returncode == 0
        assert (tmp_path / "asked1").read_text() == f"{asked} --resume"
        assert (tmp_path / "requeued").read_text() == "requeue 77\n"
    finally:
        mpi.end("a job")
        job.wait()
