"""From a text file to a prepared data set: values, splits, malformed lines, wrong files, and nothing half done."""

import gzip
import json
import math
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from ballsbins import InvalidInputError
from ballsbins.data.criteo import DISPLAY_ADS, SPONSORED_SEARCH, generate, prepare
from ballsbins.data.criteo.formats import bucket_ids
from ballsbins.data.dataset import Dataset

EMBEDDING, WIDTH, LAYERS = 48, 598, 3  # appendix C of the paper


def all_splits(dataset):
    parts = [dataset.examples(split) for split in dataset.sizes]
    return [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels", "integers", "categories")
    ]


def same(left, right):
    return left.sizes == right.sizes and all(
        np.array_equal(a, b) for a, b in zip(all_splits(left), all_splits(right), strict=True)
    )


def write(path, lines):
    path.write_bytes("".join(lines).encode())
    return path


@pytest.fixture
def ten(tmp_path, ads_line):
    """Ten lines of display ads whose first integer is the line number."""
    return [ads_line(label=str(i % 2), I1=str(i), C1=f"{i:08x}") for i in range(10)]


def test_values_of_a_line(tmp_path, ads_line):
    first = ads_line(label="1", I1="0", I2="-3", I3="41", C1="68fd1e64", C26="0b153874")
    file = write(tmp_path / "a.txt", [first] + [ads_line()] * 9)
    examples = prepare(file, tmp_path / "a", DISPLAY_ADS).dataset.examples("train")
    assert examples.labels[0] == 1
    assert examples.integers[0, :3] == pytest.approx([0.0, 0.0, math.log(42.0)], rel=1e-6)
    assert np.all(examples.integers[0, 3:] == -1.0)  # missing is told apart from 0
    assert np.all(examples.categories[0, 1:25] == 0)
    for place, text in ((0, "68fd1e64"), (25, "0b153874")):
        name = f"C{place + 1}"
        wanted = bucket_ids(pa.array([text]), DISPLAY_ADS.buckets[name], salt="ballsbins", feature=name)
        assert examples.categories[0, place] == wanted[0] > 0
    other = prepare(file, tmp_path / "b", DISPLAY_ADS, salt="another").dataset.examples("train")
    assert other.categories[0, 25] != examples.categories[0, 25]


def test_chronological_split_is_by_line(tmp_path, ten):
    dataset = prepare(write(tmp_path / "a.txt", ten), tmp_path / "a", DISPLAY_ADS).dataset
    assert dict(dataset.sizes) == {"train": 8, "validation": 1, "test": 1}
    numbers = [np.expm1(dataset.examples(split).integers[:, 0]).round().tolist() for split in dataset.sizes]
    assert numbers == [[0, 1, 2, 3, 4, 5, 6, 7], [8], [9]]


def test_search_leaves_out_outcomes_and_price(tmp_path, search_line):
    lines = [
        search_line(Sale="1", product_price=str(i), SalesAmountInEuro="9", user_id=f"U{i}") for i in range(50)
    ]
    dataset = prepare(write(tmp_path / "s", lines), tmp_path / "d", SPONSORED_SEARCH).dataset
    names = [name for name, _ in dataset.features.categories]
    assert len(names) == 19
    assert not dataset.features.integers
    assert not {"Sale", "SalesAmountInEuro", "time_delay_for_conversion", "product_price"} & set(names)
    _, _, categories = all_splits(dataset)
    assert np.all(categories[:, :-1] == 0)  # −1 is missing; only the user is there
    assert np.all(categories[:, -1] > 0)


def test_random_split_is_random_seeded_and_by_line(tmp_path, search_line):
    lines = [search_line(click_timestamp=str(i)) for i in range(4000)]
    file = write(tmp_path / "s", lines)
    first, again, other = (
        prepare(file, tmp_path / name, SPONSORED_SEARCH, seed=seed, block_bytes=size).dataset
        for name, seed, size in (("a", 0, 2**24), ("b", 0, 9000), ("c", 1, 2**24))
    )
    assert same(first, again)
    assert first.sizes != other.sizes
    # Binomial(4000, 0.8): ±130 is 5.1 standard deviations, a false alarm below 4e-7.
    assert abs(first.num_examples("train") - 3200) < 130
    broken = write(tmp_path / "t", [*lines[:7], "malformed\n", *lines[8:]])
    skipped = prepare(broken, tmp_path / "d", SPONSORED_SEARCH).dataset
    kept = {int(n) for n in first.examples("test").categories[:, 0]}
    assert {
        int(n) for n in skipped.examples("test").categories[:, 0]
    } <= kept  # the others stay where they were


@pytest.mark.parametrize("form", [DISPLAY_ADS, SPONSORED_SEARCH], ids=lambda form: form.name)
def test_gzip_blocks_line_ends_and_header_make_no_difference(tmp_path, form):
    file = generate(tmp_path / "a.tsv", form, 500).path
    text = file.read_bytes()
    plain = prepare(file, tmp_path / "plain", form).dataset
    variants = {
        "gz": gzip.compress(text),
        "crlf": text.replace(b"\n", b"\r\n"),
        "no-newline": text[:-1],
        "marked": b"\xef\xbb\xbf" + text,
    }
    for name, raw in variants.items():
        (tmp_path / name).write_bytes(raw)
        assert same(plain, prepare(tmp_path / name, tmp_path / f"{name}.d", form).dataset), name
    assert same(plain, prepare(file, tmp_path / "blocks", form, block_bytes=3000).dataset)
    if form.chronological:
        write(tmp_path / "header", ["\t".join(form.columns), "\n", text.decode()])
        assert same(plain, prepare(tmp_path / "header", tmp_path / "header.d", form).dataset)
        (tmp_path / "mark").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "header").read_bytes())
        assert same(plain, prepare(tmp_path / "mark", tmp_path / "mark.d", form).dataset)


def test_malformed_lines_are_counted_numbered_and_skipped(tmp_path, ten, ads_line):
    lines = [*ten]
    lines[1] = "a\tb\n"
    lines[3] = "\n"
    lines[4] = ads_line(I5="many")
    lines[6] = ads_line(C7="not hex!")
    lines[7] = ads_line(I1="99999999999999999999")
    lines *= 3  # and over several blocks
    file = write(tmp_path / "a.txt", lines)
    done = prepare(file, tmp_path / "a", DISPLAY_ADS, block_bytes=300)
    assert done.bad_lines.count == 15
    reasons = dict(done.bad_lines.described)
    assert reasons[2] == "2 fields in place of 40"
    assert reasons[4] == "1 field in place of 40"
    assert reasons[5] == "I5 is 'many', not an integer of at most 18 digits"
    assert reasons[7] == "C7 is 'not hex!', not 8 hexadecimal digits"
    assert "I1 is '99999999999999999999'" in reasons[8]
    assert sum(done.dataset.sizes.values()) == 15
    assert done.dataset.public_facts["malformed_lines"] == 15
    with pytest.raises(InvalidInputError, match=r"line 2 .*2 fields in place of 40.*--on-bad-line skip"):
        prepare(file, tmp_path / "b", DISPLAY_ADS, on_bad_line="fail")
    content = write(tmp_path / "c.txt", [*ten[:4], ads_line(I5="x"), *ten[5:]])
    with pytest.raises(InvalidInputError, match=r"line 5 .*I5 is 'x', not an integer"):
        prepare(content, tmp_path / "b", DISPLAY_ADS, on_bad_line="fail")


@pytest.mark.parametrize("text", ["9223372036854775807", "0x1f", "+1", " 1", "1.0"])
def test_a_line_is_judged_by_itself_whatever_else_its_block_has(tmp_path, ten, ads_line, text):
    for name, other in (("alone", ads_line()), ("beside", ads_line(I1="many"))):
        file = write(tmp_path / name, [*ten, ads_line(I2=text), other, *ten])
        done = prepare(file, tmp_path / f"{name}.d", DISPLAY_ADS)
        assert f"I2 is {text!r}, not an integer" in dict(done.bad_lines.described)[11]


def test_a_carriage_return_within_a_line_is_malformed(tmp_path, ten, ads_line, search_line):
    file = write(tmp_path / "a", [*ten, ads_line(C3="0a1b\r2c3"), ads_line(), "a\rb\n", *ten])
    done = prepare(file, tmp_path / "a.d", DISPLAY_ADS)
    assert dict(done.bad_lines.described) == {
        11: "a carriage return within the line",
        13: "1 field in place of 40",
    }
    file = write(tmp_path / "b", [search_line()] * 30 + [search_line(product_title="a\rb")])
    assert prepare(file, tmp_path / "b.d", SPONSORED_SEARCH).bad_lines.described[0].number == 31


def test_bytes_that_are_no_text_are_skipped_or_hashed(tmp_path, ten, ads_line):
    """In a category of sponsored search any bytes are a value; in display ads they are malformed."""
    file = tmp_path / "a.txt"
    file.write_bytes("".join(ten).encode() + ads_line(C3="\udcff" * 8).encode("utf-8", "surrogateescape"))
    done = prepare(file, tmp_path / "a", DISPLAY_ADS)
    assert done.bad_lines.count == 1
    assert done.bad_lines.described[0].number == 11


@pytest.mark.parametrize("label", ["2", "", "-1", "1.0", "yes"])
def test_a_label_other_than_0_or_1_ends_the_run(tmp_path, ten, ads_line, label):
    file = write(tmp_path / "a.txt", [*ten, ads_line(label=label)])
    with pytest.raises(InvalidInputError, match=r"the label 'label' in line 11 .*must be 0 or 1"):
        prepare(file, tmp_path / "a", DISPLAY_ADS)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_another_file_is_refused_with_advice(tmp_path, search_line, ads_line, ten):
    search = write(tmp_path / "s", [search_line()] * 20)
    with pytest.raises(InvalidInputError, match=r"23 fields in place of 40.*--format sponsored-search"):
        prepare(search, tmp_path / "d", DISPLAY_ADS)
    (tmp_path / "t").write_bytes(b"train.txt" + b"\0" * 600)
    with pytest.raises(InvalidInputError, match="archive"):
        prepare(tmp_path / "t", tmp_path / "d", DISPLAY_ADS)
    write(tmp_path / "empty", [])
    with pytest.raises(InvalidInputError, match="not empty"):
        prepare(tmp_path / "empty", tmp_path / "d", DISPLAY_ADS)
    (tmp_path / "cut.gz").write_bytes(gzip.compress("".join(ten).encode())[:-20])
    with pytest.raises(InvalidInputError, match="broken gzip"):
        prepare(tmp_path / "cut.gz", tmp_path / "d", DISPLAY_ADS)
    with pytest.raises(InvalidInputError, match="No such file"):
        prepare(tmp_path / "none", tmp_path / "d", DISPLAY_ADS)
    names = "\t".join(DISPLAY_ADS.columns).replace("I7", "clicks") + "\n"
    with pytest.raises(InvalidInputError, match=r"column 8 in the header .*'clicks'.*'I7'"):
        prepare(write(tmp_path / "h", [names, *ten]), tmp_path / "d", DISPLAY_ADS)
    with pytest.raises(InvalidInputError, match=r"for validation is 0.*3 lines"):
        prepare(write(tmp_path / "few", ten[:3]), tmp_path / "d", DISPLAY_ADS)
    assert not list(tmp_path.glob(".*")), "something half done was left behind"


def test_nothing_is_overwritten(tmp_path, ten):
    file = write(tmp_path / "a.txt", ten)
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidInputError, match="Nothing is overwritten"):
        prepare(file, tmp_path / "out", DISPLAY_ADS)
    with pytest.raises(InvalidInputError, match="Nothing is overwritten"):
        generate(file, DISPLAY_ADS, 10)
    with pytest.raises(InvalidInputError, match="directory that exists"):
        prepare(file, tmp_path / "no" / "out", DISPLAY_ADS)


@pytest.mark.parametrize(
    ("form", "millions", "integers"),
    [(DISPLAY_ADS, 85, 13), (SPONSORED_SEARCH, 57, 0)],
    ids=lambda x: str(x)[:12],
)
def test_default_buckets_give_the_papers_model_size(form, millions, integers):
    tables = EMBEDDING * sum(form.buckets.values())
    inputs = EMBEDDING * len(form.buckets) + integers
    dense = inputs * WIDTH + WIDTH + (LAYERS - 1) * (WIDTH * WIDTH + WIDTH) + WIDTH + 1
    assert tables + dense == pytest.approx(millions * 1e6, rel=0.005)


def test_max_buckets_limits_every_table(tmp_path, ten):
    dataset = prepare(write(tmp_path / "a", ten), tmp_path / "d", DISPLAY_ADS, max_buckets=100).dataset
    sizes = dict(dataset.features.categories)
    assert sizes["C3"] == 100
    assert sizes["C9"] == 16
    assert dataset.examples("train").categories.max() < 100


def test_vocabulary_is_of_the_training_part_and_said_not_to_be_covered(tmp_path, ads_line):
    values = ["aaaaaaaa"] * 4 + ["bbbbbbbb"] * 3 + ["", "cccccccc", "aaaaaaaa"]
    lines = [ads_line(C1=value) for value in values]
    file = write(tmp_path / "a.txt", lines)
    dataset = prepare(file, tmp_path / "d", DISPLAY_ADS, categories="vocabulary").dataset
    assert dict(dataset.features.categories)["C1"] == 4  # missing, unknown, a, b
    assert dataset.examples("train").categories[:, 0].tolist() == [2, 2, 2, 2, 3, 3, 3, 0]
    assert dataset.examples("validation").categories[:, 0].tolist() == [1]  # only the validation part has c
    assert dataset.examples("test").categories[:, 0].tolist() == [2]
    assert "not cover" in dataset.not_covered[0]
    assert not prepare(file, tmp_path / "h", DISPLAY_ADS).dataset.not_covered
    short = prepare(file, tmp_path / "e", DISPLAY_ADS, categories="vocabulary", max_buckets=3).dataset
    assert short.examples("train").categories[:, 0].tolist() == [2, 2, 2, 2, 1, 1, 1, 0]
    assert not list((tmp_path / "d").rglob("*.ids"))
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "dataset.json",
        "test",
        "train",
        "validation",
    ]


def test_facts_are_saved(tmp_path, ten):
    done = prepare(write(tmp_path / "a.txt", ten), tmp_path / "d", DISPLAY_ADS).dataset
    saved = json.loads((tmp_path / "d" / "dataset.json").read_text())
    assert saved["facts"]["integers"] == "log(1 + max(x, 0)); missing is -1"
    assert saved["facts"]["format"] == "display-ads"
    assert Dataset.open(tmp_path / "d") == done


MEMORY = """
import resource, sys
from pathlib import Path
from ballsbins.data.criteo import prepare
from ballsbins.data.criteo import DISPLAY_ADS
folder = Path(sys.argv[1])
peak = []
for name in ("small", "large"):
    prepare(folder / name, folder / (name + ".d"), DISPLAY_ADS, block_bytes=2**20)
    peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(*peak)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    """The second file is 25 times as large, and 36 MB as text; the peak may not grow by half of that."""
    piece = generate(tmp_path / "small", DISPLAY_ADS, 6000).path.read_bytes()
    with open(tmp_path / "large", "wb") as file:
        for _ in range(25):
            file.write(piece)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    small, large = map(int, done.stdout.split())
    assert large - small < 18_000  # kB
