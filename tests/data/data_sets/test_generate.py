"""Generated files: the same for the same seed, in the real format, and with a signal that can be learnt."""

import gzip

import numpy as np
import pytest

from ballsbins import InvalidInputError
from ballsbins.data.criteo import DISPLAY_ADS, SPONSORED_SEARCH, generate, prepare

BOTH = pytest.mark.parametrize("form", [DISPLAY_ADS, SPONSORED_SEARCH], ids=lambda form: form.name)


def auc(labels, scores):
    """By counting pairs, the definition."""
    positive, negative = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    below = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
    return below.sum() / (2 * len(positive) * len(negative))


@BOTH
def test_same_seed_same_bytes_and_longer_begins_with_shorter(tmp_path, form):
    texts = {
        (seed, rows): generate(tmp_path / f"{seed}-{rows}", form, rows, seed=seed).path.read_bytes()
        for seed, rows in ((0, 400), (0, 900), (1, 400))
    }
    packed = [generate(tmp_path / f"{i}.gz", form, 400).path.read_bytes() for i in range(2)]
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]) == texts[0, 400]
    assert texts[0, 900].startswith(texts[0, 400])
    assert texts[0, 400] != texts[1, 400]


@BOTH
def test_lines_have_the_format(tmp_path, form):
    made = generate(tmp_path / "a", form, 3000)
    rows = [line.split("\t") for line in made.path.read_text().splitlines()]
    assert len(rows) == made.num_examples == 3000
    assert {len(row) for row in rows} == {len(form.columns)}
    columns = dict(zip(form.columns, zip(*rows, strict=True), strict=True))
    assert columns[form.label].count("1") == made.positives
    assert set(columns[form.label]) == {"0", "1"}
    if form is DISPLAY_ADS:
        assert {len(value) for name in form.buckets for value in columns[name]} == {0, 8}
        assert all(value == "" or int(value) >= -1 for name in form.integers for value in columns[name])
        assert "" in columns["I1"]
    else:
        assert {len(value) for value in columns["user_id"]} == {2, 32}
        assert {len(value) for value in columns["product_title"]} == {2, 32, 65, 98, 131}
        sold = [sale == "1" for sale in columns["Sale"]]
        assert sold == [amount != "-1" for amount in columns["SalesAmountInEuro"]]
        assert [*columns["click_timestamp"]] == sorted(columns["click_timestamp"])


@BOTH
def test_the_signal_can_be_learnt(tmp_path, form):
    """Smoothed rates of every category, added in log-odds, find it on the test part; on permuted labels not."""
    made = generate(tmp_path / "a", form, 30_000, seed=3)
    assert 0.75 < made.best_auc < 0.95
    data = prepare(made.path, tmp_path / "d", form, max_buckets=5000).dataset
    train, test = data.examples("train"), data.examples("test")

    def naive(labels):
        rate, scores = labels.mean(), np.zeros(len(test))
        for place, (_, buckets) in enumerate(data.features.categories):
            seen = np.bincount(train.categories[:, place], minlength=buckets)
            hits = np.bincount(train.categories[:, place], labels, minlength=buckets)
            chance = (hits + 20 * rate) / (seen + 20)
            scores += np.log(chance / (1 - chance))[test.categories[:, place]]
        return auc(test.labels, scores)

    learnt = naive(train.labels)
    assert 0.65 < learnt < made.best_auc
    coins = np.random.default_rng(0).permutation(train.labels)
    # 3000 test examples at least: the standard deviation of an uninformed AUC is below 0.017, five of them 0.085.
    assert abs(naive(coins) - 0.5) < 0.085


@pytest.mark.parametrize("rows", [0, -1, 2.5, True])
def test_bad_sizes_are_refused(tmp_path, rows):
    with pytest.raises(InvalidInputError, match="num_examples"):
        generate(tmp_path / "a", DISPLAY_ADS, rows)
    assert not list(tmp_path.iterdir())
