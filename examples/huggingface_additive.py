"""BERT with additive attention reads words backwards, is saved and opened again: 10 seconds."""

import tempfile

import torch
from transformers import BertConfig, BertForTokenClassification

from regard.integrations.transformers import attention_layers, load_pretrained, use_score

LETTERS, LENGTH = 12, 8


def batch(size):
    """Words of 5 to 8 letters, padded with 0; the labels are the same letters backwards."""
    lengths = torch.randint(5, LENGTH + 1, (size, 1))
    real = (place := torch.arange(LENGTH)) < lengths
    words = torch.randint(1, LETTERS, (size, LENGTH)) * real
    backwards = words.gather(1, (lengths - 1 - place).clamp(min=0))
    labels = torch.where(real, backwards, -100)  # -100 is left out of the loss
    return {"input_ids": words, "attention_mask": real.long(), "labels": labels}


@torch.no_grad()
def answers(model, given):
    """The likeliest letter at each place."""
    return model.eval()(**given).logits.argmax(-1)


torch.manual_seed(0)
config = BertConfig(
    vocab_size=LETTERS,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=LENGTH,
    num_labels=LETTERS,
    initializer_range=0.1,
)
model = use_score(BertForTokenClassification(config), "additive")
print("layers with additive attention:", [layer.name for layer in attention_layers(model)])
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
for step in range(1, 201):
    loss = model.train()(**batch(64)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

test = batch(500)
found, real = answers(model, test), test["labels"] != -100
accuracy = float((found == test["labels"])[real].float().mean())
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    again = answers(load_pretrained(folder), test)
print(f"letters right: {accuracy:.1%}; the opened model gives the same answers")
assert accuracy > 0.99
assert torch.equal(found[real], again[real])
