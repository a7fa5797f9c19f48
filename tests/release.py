"""Check what would be released: build twice, compare, install in clean environments, run tests/smoke.py there.

    python tests/release.py [PYTHON ...] [--lowest] [--extra NAME ...]

The wheel and the sdist are built twice, in different directories, and must agree byte for byte. The wheel is then
installed, without extras, for every interpreter named (this one, if none is), and one that is built from the sdist
for this one; `pip check` must be content. `--lowest` installs the lowest versions that pyproject.toml allows and also
runs the tests of the accountant against them. `--extra` installs the wheel with an extra, in the newest versions
that pip finds, for every interpreter named, and runs some of that extra's tests; `--extra every` is all that are
listed here.
"""

import argparse
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# the accountant's own tests, without those that need an extra: quick, and close to every function of numpy and scipy
LOWEST_TESTS = (
    *("test_bound.py", "test_mechanism.py", "samplers"),
    *(f"accounting/test_{name}.py" for name in ("gaussian", "one_epoch", "epochs", "poisson")),
)
TOOLS = ("pytest", "hypothesis", "filelock")
# some tests of each extra: those that come close to the packages it brings, in a minute or less
EXTRA_TESTS = {
    "plots": ("plots/test_pictures.py",),
    "data": ("batch_files/test_reader.py", "batch_files/test_columns.py", "batch_files/test_build.py"),
    "web": ("web/test_server.py", "web/test_question.py"),
    "parallel": ("monte_carlo/test_run.py", "monte_carlo/test_order_statistics.py"),
    "certify": ("proof/test_one_epoch.py", "proof/test_certificate.py"),
    "jax": ("training_jax/test_clipping.py", "training_jax/test_step.py", "training_jax/test_jax_privacy.py"),
    "torch": (
        "training_torch/test_norms.py",
        "training_torch/test_options.py",
        "training_torch/test_gradient.py",
    ),
}
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def run(*words, **options):
    subprocess.run([str(word) for word in words], check=True, **options)


def environment(folder, python, *packages):
    """A new environment with these packages, and its interpreter."""
    run(python, "-m", "venv", folder)
    made = folder / "bin" / "python"
    run(made, *PIP, "install", *packages)
    run(made, *PIP, "check")
    return made


def lowest():
    """The lowest version of each core dependency that pyproject.toml allows, as requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [line.split(",")[0].replace(">=", "==") for line in project["dependencies"]]


def built(python, folder):
    """The wheel and the sdist, built from a fresh checkout of what is committed."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    run("tar", "-x", "-C", folder, input=archive)
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    run(python, "-m", "build", "--no-isolation", folder, env=os.environ | {"SOURCE_DATE_EPOCH": time},
        stdout=subprocess.DEVNULL)  # fmt: skip
    return {path.name: path for path in (folder / "dist").iterdir()}


def run_tests(python, tests):
    """Run tests against what is installed; new and old versions may warn of what we cannot change here."""
    paths = [ROOT / "tests" / test for test in tests]
    run(python, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=", *paths)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--lowest", action="store_true")
    parser.add_argument("--extra", action="append", default=[], choices=(*EXTRA_TESTS, "every"))
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # what is installed counts, not this directory
    with tempfile.TemporaryDirectory(prefix="ballsbins-release-") as name:
        folder = Path(name)
        builder = environment(folder / "builder", sys.executable, "build", "hatchling>=1.27")
        first, second = (built(builder, folder / place) for place in ("one", "two"))
        for file in sorted(first):
            digests = [hashlib.sha256(made[file].read_bytes()).hexdigest() for made in (first, second)]
            assert digests[0] == digests[1], f"{file} differs from one build to the next"
            print(f"{file}: {first[file].stat().st_size:,} bytes, sha256 {digests[0]}", flush=True)
        wheel, sdist = (
            next(path for name, path in first.items() if name.endswith(end)) for end in (".whl", ".tar.gz")
        )
        smoke = ROOT / "tests" / "smoke.py"
        for number, python in enumerate(options.pythons):
            run(environment(folder / f"wheel{number}", python, wheel), smoke)
        run(environment(folder / "sdist", sys.executable, sdist), smoke)
        if options.lowest:
            made = environment(folder / "lowest", sys.executable, wheel, *lowest(), *TOOLS)
            run(made, smoke)
            run_tests(made, LOWEST_TESTS)
        extras, failed = EXTRA_TESTS if "every" in options.extra else options.extra, []
        for extra, (number, python) in itertools.product(extras, enumerate(options.pythons)):
            print(f"extra {extra}, {python}", flush=True)
            try:
                made = environment(folder / f"{extra}{number}", python, f"{wheel}[{extra}]", *TOOLS)
                run(made, smoke)
                run_tests(made, EXTRA_TESTS[extra])
            except subprocess.CalledProcessError:  # the other extras are still of interest
                failed.append(f"{extra} with {python}")
            shutil.rmtree(folder / f"{extra}{number}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
