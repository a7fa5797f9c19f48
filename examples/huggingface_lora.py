"""Fine-tune a classifier with LoRA at ε = 8, and end with the privacy statement.

Needs `pip install '.[huggingface]'`. In earnest, take a model with from_pretrained(...), and your texts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from ballsbins import Key, new_key
from ballsbins.training.huggingface import PrivateTrainer

folder = Path(tempfile.mkdtemp())
new_key().save(folder / "run.key")  # mode 0600; in earnest: ballsbins key run.key

random = np.random.default_rng(0)  # texts of 8 tokens, four fifths of which tell the class
classes = random.integers(0, 2, 1800)
texts = 2 + random.integers(0, 10, (1800, 8)) + 10 * (classes[:, None] ^ (random.random((1800, 8)) < 1 / 5))
rows = [{"input_ids": text, "labels": int(kind)} for text, kind in zip(texts, classes, strict=True)]
train, test = rows[:1600], rows[1600:]

torch.manual_seed(0)
config = BertConfig(
    vocab_size=22, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
lora = LoraConfig(
    r=4, target_modules=["query", "value", "dense"], modules_to_save=["classifier"], lora_alpha=16
)
model = get_peft_model(BertForSequenceClassification(config), lora)

trainer = PrivateTrainer(
    model,
    TrainingArguments(
        str(folder),
        num_train_epochs=5,
        per_device_train_batch_size=25,  # what fits in memory
        gradient_accumulation_steps=2,  # so 50 examples per step, on average
        max_grad_norm=1.0,  # the norm to clip each example's gradient to
        learning_rate=0.02,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=train,
    eval_dataset=test,
    compute_metrics=lambda found: {"accuracy": (found.predictions.argmax(1) == found.label_ids).mean()},
    epsilon=8.0,
    delta=1e-5,
    key=Key.from_file(folder / "run.key"),
    ledger=folder / "run.ledger",
)
trainer.train()
accuracy = trainer.evaluate()["eval_accuracy"]
print(trainer.card(metrics={"accuracy": float(accuracy)}).statement().markdown())
