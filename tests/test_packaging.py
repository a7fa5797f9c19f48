"""What a release says of itself: dependencies are those that are imported, licences go with ours, versions agree.

    python tests/test_packaging.py > requirements/LICENSES.md

writes the list of licences anew, from what is installed here.
"""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import ballsbins

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]

# where a module has another name than its distribution
DISTRIBUTIONS = {"flint": "python-flint"}
# imported, but not declared: one of ours needs it, or a user who wants it has it
NOT_DECLARED = {
    "py4j": "pyspark cannot do without it",
    "fsspec": "only for addresses that pyarrow does not know; who has such a store has it",
}
# declared, but not imported
NOT_IMPORTED = {"peft": "the model that a user brings is made by it; its versions are checked"}
# what the metadata of a package may say; each lets an Apache-2.0 program depend on it
COMPATIBLE = re.compile(
    r"(Apache|MIT|BSD|0BSD|ISC|PSF|Python Software Foundation|Zlib|CC0|BSL-1\.0|CNRI-Python|MPL-2\.0)"
)
# copyleft, for libraries: nothing of it is part of our wheel, and nothing of ours of it
LINKED_ONLY = {"python-flint": "LGPL-3.0-or-later"}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements):
    """Names of the distributions; an extra that names extras of ours has theirs too."""
    found = set()
    for one in map(Requirement, requirements):
        if one.name == PROJECT["name"]:
            for extra in one.extras:
                found |= names(PROJECT["optional-dependencies"][extra])
        else:
            found.add(normal(one.name))
    return found


CORE = names(PROJECT["dependencies"])
EXTRAS = {extra: names(wanted) for extra, wanted in PROJECT["optional-dependencies"].items()}


def imported(path):
    """Modules that a file imports, anywhere in it, each with the extra it names if it names one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module, None
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "load",
            "Later",
        ):
            extra = next((k.value for k in node.keywords if k.arg == "extra"), None)
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value, extra.value if isinstance(extra, ast.Constant) else None


@cache
def used():
    """Distribution → extras under which it is asked for by name, over all sources."""
    found = {}
    for path in SOURCES:
        for module, extra in imported(path):
            top = module.partition(".")[0]
            if top not in sys.stdlib_module_names and top != PROJECT["name"] and top not in NOT_DECLARED:
                found.setdefault(normal(DISTRIBUTIONS.get(top, top)), set()).add(extra)
    return found


def test_what_is_imported_is_declared_and_what_is_declared_is_imported():
    declared = CORE.union(*EXTRAS.values())
    assert set(used()) == declared - set(NOT_IMPORTED)


def test_an_error_names_an_extra_that_has_what_is_missing():
    for name, extras in used().items():
        for extra in extras - {None}:
            assert name in EXTRAS[extra], f"{name} is not in the extra {extra}"


def test_the_core_imports_no_extra():
    """Every module of the accountant, the samplers, the report and the command line loads without any extra."""
    extra = set().union(*EXTRAS.values()) - CORE
    modules = {
        next((m for m, d in DISTRIBUTIONS.items() if d == name), name.replace("-", "_")) for name in extra
    }
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}: raise ImportError("not in the core: " + name)
sys.meta_path.insert(0, Refuse())
import pkgutil, importlib, ballsbins
for part in ("accounting", "samplers", "report", "cli"):
    package = importlib.import_module("ballsbins." + part)
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."): importlib.import_module(one.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_is_all_extras():
    assert EXTRAS["all"] == set().union(*EXTRAS.values())


def licence(name):
    """What the metadata of a distribution says of its licence."""
    data = distribution(name).metadata
    kinds = [
        c.rpartition("::")[2].strip() for c in data.get_all("Classifier") or [] if c.startswith("License ::")
    ]
    return (
        data.get("License-Expression") or " AND ".join(kinds) or (data.get("License") or "").splitlines()[0]
    )


def needed(requirements, found):
    """Every distribution that these requirements install here, with its licence."""
    for one in map(Requirement, requirements):
        name = normal(one.name)
        if (
            name in found
            or name == PROJECT["name"]
            or (one.marker and not one.marker.evaluate({"extra": ""}))
        ):
            continue
        try:
            found[name] = licence(name)
        except PackageNotFoundError:  # a marker of another platform
            continue
        needed(distribution(name).requires or [], found)
    return found


def licences():
    core = needed(PROJECT["dependencies"], {})
    return core, needed(
        [one for wanted in PROJECT["optional-dependencies"].values() for one in wanted], dict(core)
    )


def table():
    core, everything = licences()
    lines = [
        "# Licences of what ballsbins depends on",
        "",
        "ballsbins is Apache-2.0. Its wheel contains nothing of these packages; pip installs them beside it. All are",
        "permissive, but for two: python-flint (extra `certify`) is MIT and contains FLINT, LGPL-3.0-or-later; tqdm,",
        "which Opacus and Hugging Face need, is MPL-2.0 and MIT. Any program may use both. Listed are the versions",
        "tested; `python tests/test_packaging.py` prints it, and a test compares.",
        "",
        "| Package | Licence, as its metadata says | Needed by |",
        "|---|---|---|",
    ]
    for name, kind in sorted(everything.items()):
        lines.append(f"| {name} | {kind} | {'core' if name in core else 'an extra'} |")
    return "\n".join(lines)


def test_licences_are_listed_and_compatible():
    listed = (ROOT / "requirements" / "LICENSES.md").read_text()
    _, everything = licences()
    for name, kind in everything.items():
        parts = re.split(r" AND | OR ", kind)
        unknown = [part for part in parts if not COMPATIBLE.match(part) and LINKED_ONLY.get(name) != part]
        assert not unknown, f"{name}: {kind}"
        assert f"| {name} | {kind} |" in listed, f"{name}: {kind} is not in requirements/LICENSES.md"


@pytest.mark.parametrize("kind", ["GPL-3.0-only", "LGPL-3.0-or-later", "AGPL-3.0", "Proprietary", ""])
def test_the_check_of_licences_can_fail(kind):
    assert not COMPATIBLE.match(kind)


def test_the_citation_and_the_changelog_name_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == ballsbins.__version__
    assert cited["license"] == PROJECT["license"]
    heading = f"## {cited['version']} ({cited['date-released']})"
    assert heading in (ROOT / "CHANGELOG.md").read_text().splitlines()


def test_the_python_versions_declared_are_the_ones_tested():
    """tests/release.py ran with these; another one is declared after it has run there."""
    names = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    assert names == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11,<3.14"


@pytest.mark.slow
def test_an_installed_ballsbins_works_without_extras():
    """The smoke tests that tests/release.py runs from the wheel, here from the source."""
    subprocess.run([sys.executable, str(ROOT / "tests" / "smoke.py")], check=True)


if __name__ == "__main__":
    print(table())
