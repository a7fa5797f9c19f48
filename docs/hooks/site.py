"""What the site needs beyond Markdown: files from outside of docs/, under addresses inside the site.

The documents link to pictures in experiments/results/ and benchmarks/, and to scripts in examples/, by paths that are
right in the repository. Here those files become part of the site, and the links follow them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
# A drawing of ours has dark colours when it is the target `#only-dark`; the theme shows one of the two.
DRAWING = re.compile(r"!\[([^\]]*)\]\((assets/\w+\.svg)\)")
KEPT = re.compile(r"(`[^`]*`|\]\([^)]*\)|<[^>]*>)")
POWER = re.compile(r"(?<=[\w)\]|])\^(?:\{([^{}]+)\}|([−+]?[\w∞]+))")
INDEX = re.compile(r"(?<![\w.])([^\W\d_])_(?:\{([^{}]+)\}|([^\W_⁰¹²³⁴-⁹]+))(?![A-Za-z0-9_])")
OUTSIDE = re.compile(r"\]\(\.\./((?:experiments|benchmarks|examples)/[^)#\s]+|[A-Z]+\.(?:md|cff))(#[^)]*)?\)")


def _inside(path: str) -> str:
    """The address within the site of a file of the repository; text is shown by every browser as plain text."""
    return f"files/{path}" if path.endswith((".png", ".svg", ".json")) else f"files/{path}.txt"


def _formulas(text: str) -> str:
    """Raise exponents and lower indices, the innermost first."""
    before = ""
    while text != before:
        before = text
        text = INDEX.sub(r"\1<sub>\2\3</sub>", POWER.sub(r"<sup>\1\2</sup>", text))
    return text


def _typeset(markdown: str) -> str:
    """Typeset formulas in running text; code, headings and links stay as they are."""
    lines, fenced = [], False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if fenced or line.startswith(("#", "    ", "```")):
            lines.append(line)
            continue
        parts = KEPT.split(line)  # at odd places what is kept
        parts[::2] = map(_formulas, parts[::2])
        lines.append("".join(parts))
    return "\n".join(lines)


def on_files(files: Files, *, config: Any) -> Files:
    """Add every file outside of docs/ that a document links to."""
    wanted = {
        match[1]
        for page in files.documentation_pages()
        for match in OUTSIDE.finditer(Path(page.abs_src_path or "").read_text(encoding="utf-8"))
    }
    for path in sorted(wanted):
        files.append(File.generated(config, _inside(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links that leave docs/ lead to copies within the site, show drawings in both themes, typeset formulas."""
    markdown = OUTSIDE.sub(lambda match: f"]({_inside(match[1])})", markdown)
    return DRAWING.sub(r"![\1](\2#only-light)\n![\1](\2#only-dark)", _typeset(markdown))
