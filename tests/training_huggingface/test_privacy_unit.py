"""What a row is: stated where texts may be packed, checked where it can be, and on the card."""

from __future__ import annotations

import pytest
import torch

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.huggingface.plan import unit_of


def test_language_models_must_say_what_a_row_is(tiny, tmp_path):
    with pytest.raises(InvalidInputError, match="privacy_unit is None, but must be 'row' or 'packed row'"):
        tiny.make_trainer(tmp_path, "llama untied", privacy_unit=None)
    assert tiny.make_trainer(tmp_path, "bert").privacy_unit == "row"


@pytest.mark.parametrize("unit", ["row", "packed row"])
def test_the_unit_stands_in_the_card(tiny, tmp_path, unit):
    trainer = tiny.make_trainer(tmp_path, "llama untied", privacy_unit=unit)
    trainer.train()
    card = trainer.card(1e-2)
    assert card.details["privacy_unit"] == unit
    assert any("one packed row is what is protected" in line for line in card.not_covered) == (unit != "row")
    assert f"One training example: a {unit}" in card.statement().markdown()


def test_columns_of_packed_data_are_seen():
    assert unit_of(None, "ForSequenceClassification", ["input_ids"], None, 3) == "row"
    for given in (None, "row"):
        with pytest.raises(InvalidInputError, match="packed row"):
            unit_of(given, "ForSequenceClassification", ["input_ids", "seq_lengths"], None, 3)
    assert unit_of("packed row", "ForCausalLM", ["seq_lengths"], None, 3) == "packed row"


def test_positions_that_begin_anew_are_seen(tiny, tmp_path):
    def packed(rows):
        batch = tiny.Pad(7)(rows)
        batch["position_ids"] = torch.tensor([[0, 1, 2, 0, 1, 2, 3]] * len(rows))
        return batch

    options = {"fixed": True, "data_collator": packed}
    with pytest.raises(RunError, match="begin anew within a row"):
        tiny.make_trainer(tmp_path, "llama untied", privacy_unit="row", **options).train()
    tiny.make_trainer(tmp_path, "llama untied", privacy_unit="packed row", **options).train()


def test_documents_must_lie_in_one_row_by_themselves(tiny, tmp_path):
    ids = list(range(18))
    made = tiny.make_trainer(tmp_path, "llama untied", privacy_unit="document", document_ids=ids)
    assert made.privacy_unit == "document"
    for documents, said in (
        (None, "document_ids is None"),
        (ids[:-1], "document_ids is 17, but must be 18"),
        ([0, *ids[:-1]], r"rows of one document is \[0, 1\]"),
        ([[0, 18], *ids[1:]], "documents in row 0 is 2.*2C"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            tiny.make_trainer(tmp_path, "llama untied", privacy_unit="document", document_ids=documents)
    with pytest.raises(InvalidInputError, match="document_ids"):
        tiny.make_trainer(tmp_path, "llama untied", privacy_unit="row", document_ids=ids)
