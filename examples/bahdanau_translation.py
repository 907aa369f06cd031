"""Bahdanau attention: "two hundred five" -> 2 0 5. About 10 seconds on one core."""

import torch

from regard.nn import seq2seq

NAMES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
ONES = (NAMES + "fifteen sixteen seventeen eighteen nineteen").split()
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
WORDS = {word: n for n, word in enumerate([*ONES, *TENS, "hundred", "thousand"])}
PAD, BOS, EOS = 10, 11, 12  # after the digits
LIMIT, STEPS = 10_000, 250


def spell(n: int) -> list[str]:
    """A number in words."""
    if n < 20:
        return [ONES[n]]
    if n < 100:
        head, rest = [TENS[n // 10 - 2]], n % 10
    elif n < 1000:
        head, rest = [ONES[n // 100], "hundred"], n % 100
    else:
        head, rest = [*spell(n // 1000), "thousand"], n % 1000
    return head + spell(rest) if rest else head


def translate(numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words; digits with the end mark and padding; the number of words."""
    source = [torch.tensor([WORDS[word] for word in spell(n)]) for n in numbers]
    target = [torch.tensor([*map(int, str(n)), EOS]) for n in numbers]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(source, True), pad(target, True, PAD), torch.tensor([*map(len, source)])


torch.manual_seed(0)
attention = seq2seq.BahdanauAttention(query_dim=64, key_dim=128, hidden=64)
decoder = seq2seq.RecurrentDecoder(13, 32, 64, attention, memory_dim=128)
encoder = seq2seq.RecurrentEncoder(30, 32, 64)
model = seq2seq.EncoderDecoder(encoder, decoder, bos=BOS, eos=EOS, pad=PAD)
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=STEPS)
held_out = set((100 + torch.randperm(LIMIT - 100)[:500]).tolist())
for step in range(1, STEPS + 1):
    drawn = (LIMIT ** torch.rand(64)).int().tolist()  # short numbers as often as long ones
    loss = model.loss(*translate([n for n in drawn if n not in held_out]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
source, target, lengths = translate(sorted(held_out))
for name, search in (("greedy", seq2seq.greedy), ("beam", seq2seq.beam_search)):
    tokens = search(model, source, lengths, max_length=target.shape[1]).tokens[:, 0]
    exact = (tokens == target).all(1).float().mean().item()
    print(f"{name}: {exact:.1%} of {len(target)} numbers that were not trained on")
    assert exact == 1
