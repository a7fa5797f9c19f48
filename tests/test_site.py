"""The documentation builds as a site that needs no network, and its generated tables are what the code says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.stem: page.read_text() for page in tmp_path.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= set(pages)
    for name, text in pages.items():
        fetched = re.findall(
            r'<(?:script|img|iframe|link rel="(?:stylesheet|icon)")[^>]*(?:src|href)="([^"]+)"', text
        )
        assert fetched, name
        prose = re.sub(r"<(code|pre|script|nav|head)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert "^{" not in prose, f"{name} has a formula that is not typeset"
        for address in fetched:
            assert not address.startswith(("http:", "https:", "//")), f"{name} fetches {address}"
            assert name == "404" or (tmp_path / re.split("[?#]", address)[0]).exists(), (
                f"{name} misses {address}"
            )


def test_the_matrix_of_samplers_is_what_the_code_says():
    path = ROOT / "docs" / "hooks" / "batch_matrix.py"
    spec = importlib.util.spec_from_file_location("batch_matrix", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text()
    assert module.written(page) == page, f"run: python {path.relative_to(ROOT)}"
    assert module.written(page.replace("4.10602", "4.10601")) == page


def test_the_reference_has_every_name_that_documents_and_scripts_import():
    reference = re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    listed = {name.rpartition(".")[2] for name in reference}
    assert len(reference) == len(set(reference))
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]:
        for module, names in re.findall(
            r"^\+?from (ballsbins[\w.]*) import ([^#\n]+)", path.read_text(), re.MULTILINE
        ):
            if module.startswith("ballsbins.accounting"):
                continue  # pages about the mathematics look inside
            for name in names.split(","):
                whole = f"{module}.{name.strip()}"
                assert name.strip() in listed or any(part.startswith(f"{whole}.") for part in reference), (
                    whole
                )
