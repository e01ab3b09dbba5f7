"""Train the tiny chat model from nothing, and check a saved one.

The whole recipe is here: a byte-level tokenizer, a small Qwen3 model, an endless stream of
seeded random conversations (see questions.py), and a schedule that fills the minutes you give.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from questions import KINDS, Conversation, Message, draw_seen, held_out, turn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.autograd import backward
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

EPILOG = """\
examples:
  python train.py --minutes 45 --out .     train, and replace the checkpoint in this folder
  python train.py --minutes 2 --out trial  see that it runs and that the loss falls
  python train.py --evaluate .             check a checkpoint on 500 held-out conversations

The minutes do not include compiling before and the last check after, a few minutes in all.
The questions are drawn from the seed, but the learning rate follows the clock, so two runs
give models of like quality and not the same bytes.  Needs torch, transformers and a C++ compiler.
"""

# One byte is one token, so any text goes in and comes out unchanged.
END_OF_TEXT, SYSTEM, USER, ASSISTANT, END = (
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
RESERVED = [f"<|reserved_{i}|>" for i in range(11)]  # fills the vocabulary up to 272 = 17 * 16
SPECIALS = [END_OF_TEXT, SYSTEM, USER, ASSISTANT, END, *RESERVED]

# The names of the roles are the names of the tokens: a turn costs two tokens beside its text.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# (rows, tokens in a row): short rows teach first questions, long ones teach many turns.
# The cost of a step is about the same for each.
SHAPES = ((16, 128), (16, 128), (16, 128), (5, 448))
# These take the longest to learn, so they come up more often.
SLOW_KINDS = ("add", "subtract", "count", "count", "day", "day", "month", "month")
TRAINING_KINDS = (*KINDS, *SLOW_KINDS)
SYSTEM_TEXTS = ("Answer briefly.", "You are a helpful assistant.", "Give only the answer.")
SYSTEM_SHARE = 0.1  # of the rows start with a system message, so that one does no harm
IGNORED = -100  # cross_entropy leaves out positions with this label


def make_tokenizer() -> Any:
    """Build a tokenizer with one token for each byte, plus the tokens that mark turns."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    fast: Any = PreTrainedTokenizerFast  # transformers is typed only in part
    return fast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Any) -> Any:
    """Build the model with random weights: 1.6 million parameters, embeddings tied."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=512,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns conversations into rows of tokens and labels.

    Encoding each message by itself is much faster than the chat template, and gives the same
    tokens because bytes never merge.
    """

    tokenizer: Any

    def message(self, message: Message) -> tuple[list[int], list[int]]:
        """Label the assistant's words alone, with the token that ends its turn."""
        role: int = self.tokenizer.convert_tokens_to_ids(f"<|{message['role']}|>")
        body: list[int] = self.tokenizer.backend_tokenizer.encode(message["content"] + END).ids
        learnt = message["role"] == "assistant"
        return [role, *body], [IGNORED, *(body if learnt else [IGNORED] * len(body))]

    def row(self, rng: random.Random, length: int) -> tuple[list[int], list[int]]:
        """Chat about unrelated questions until the row is full; the last turn may be cut."""
        tokens: list[int] = []
        labels: list[int] = []
        messages: list[Message] = []
        if rng.random() < SYSTEM_SHARE:
            messages.append({"role": "system", "content": rng.choice(SYSTEM_TEXTS)})
        while len(tokens) < length:
            messages += turn(draw_seen(rng, TRAINING_KINDS))
            for message in messages:
                more_tokens, more_labels = self.message(message)
                tokens += more_tokens
                labels += more_labels
            messages = []
        return tokens[:length], labels[:length]

    def batches(self, rng: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches for ever, going around the shapes."""
        while True:
            for rows, length in SHAPES:
                pairs = [self.row(rng, length) for _ in range(rows)]
                tokens, labels = zip(*pairs, strict=True)
                yield torch.tensor(tokens), torch.tensor(labels)


class Muon:
    """Momentum whose update is made orthogonal, for the matrices inside the layers.

    It needs about half the steps of AdamW here.  torch.optim.Muon does the same in bfloat16 and
    one matrix at a time; on a processor without bfloat16 arithmetic that took as long as the
    model itself, so this one works in float32 on all matrices of a shape at once.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], momentum: float = 0.95) -> None:
        by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        self.groups = list(by_shape.values())
        self.averages = [torch.zeros(len(g), *g[0].shape) for g in self.groups]
        self.momentum = momentum

    @torch.no_grad()
    def step(self, rate: float, decay: float = 0.05) -> None:
        """Move every matrix by about `rate` in each direction, shrinking it a little first."""
        for group, average in zip(self.groups, self.averages, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            average.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(average, self.momentum))
            scale = max(1.0, group[0].shape[0] / group[0].shape[1]) ** 0.5
            for parameter, change in zip(group, update, strict=True):
                parameter.mul_(1 - rate * decay).sub_(change, alpha=rate * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """Set all singular values near one, by five Newton-Schulz steps (Jordan et al., 2024)."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def schedule(progress: float) -> float:
    """Rise fast, stay for a third, then fall to zero; the fall brings the last few per cent."""
    return min(1.0, progress / 0.02, (1.0 - progress) / 0.65)


class Trainer:
    """Holds the model, its compiled loss and its two optimizers."""

    def __init__(self, model: Any, muon_rate: float, adam_rate: float) -> None:
        self.model = model
        inside = [p for n, p in model.named_parameters() if n.endswith("_proj.weight")]
        others = [p for n, p in model.named_parameters() if not n.endswith("_proj.weight")]
        self.muon = Muon(inside)
        self.adam = torch.optim.AdamW(others, lr=adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.rates = muon_rate, adam_rate
        self.loss = torch.compile(self._loss, dynamic=False)

    def _loss(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        loss: Tensor = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss

    def warm_up(self, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        """Compile for every shape before the clock starts; nothing is learnt."""
        for _ in SHAPES:
            backward(self.loss(*next(batches)))
        self.model.zero_grad()

    def step(self, tokens: Tensor, labels: Tensor, progress: float) -> float:
        """Learn from one batch, with the learning rates that belong to this moment."""
        loss = self.loss(tokens, labels)
        backward(loss)
        torch.nn.utils.clip_grad_norm_(self.adam.param_groups[0]["params"], 1.0)
        factor = schedule(progress)
        self.adam.param_groups[0]["lr"] = self.rates[1] * factor
        self.adam.step()
        self.muon.step(self.rates[0] * factor)
        self.model.zero_grad()
        return float(loss.detach())


def generate(model: Any, tokenizer: Any, messages: list[Message]) -> str:
    """Answer greedily, as a server does at temperature 0."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    answer = output[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(answer, skip_special_tokens=True))


def report(model: Any, tokenizer: Any, conversations: list[Conversation]) -> list[str]:
    """Print the share of exact answers, whole and by kind; return a line for each wrong one."""
    asked = Counter(conversation.kind for conversation in conversations)
    right: Counter[str] = Counter()
    wrong: list[str] = []
    for conversation in conversations:
        answer = generate(model, tokenizer, conversation.messages)
        if answer == conversation.answer:
            right[conversation.kind] += 1
        else:
            question = conversation.messages[-1]["content"]
            wrong.append(f"{question!r} gave {answer!r}, not {conversation.answer!r}")
    kinds = "  ".join(f"{kind} {right[kind]}/{asked[kind]}" for kind in sorted(asked))
    share = right.total() / len(conversations)
    print(f"exact answers: {share:.1%} of {len(conversations)} held-out  ({kinds})", flush=True)
    return wrong


def evaluate(folder: Path, count: int, seed: int) -> None:
    """Check a checkpoint as it lies on disk, in bfloat16.

    One short question at a time leaves a second thread only waiting, so there is one.
    """
    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for line in report(model.eval(), tokenizer, held_out(count, seed)):
        print("  wrong:", line)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the checkpoint in bfloat16, leaving the model in training as it is."""
    rounded: Any = copy.deepcopy(model).to(torch.bfloat16)
    rounded.generation_config.update(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    rounded.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    # Readers written before transformers 5 know these by their older names.
    amend(folder / "config.json", rope_theta=10000.0, torch_dtype="bfloat16")
    amend(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def amend(file: Path, **changes: object) -> None:
    """Set some values of a JSON file and keep the others."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def train(arguments: argparse.Namespace) -> None:
    """Train for the given time, checking at every third of it, and leave a checkpoint."""
    torch.manual_seed(arguments.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    if arguments.start:
        model = Qwen3ForCausalLM.from_pretrained(arguments.start, dtype=torch.float32)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; compiling", flush=True)
    trainer = Trainer(model, arguments.muon_rate, arguments.adam_rate)
    batches = Encoder(tokenizer).batches(random.Random(arguments.seed))
    trainer.warm_up(batches)

    start, seconds = time.monotonic(), arguments.minutes * 60
    step, average, next_check = 0, 0.0, 1 / 3
    while (progress := (time.monotonic() - start) / seconds) < 1.0:
        loss = trainer.step(*next(batches), progress)
        step += 1
        average += (loss - average) / min(step, 100)
        if step % 100 == 0:
            left = seconds * (1 - progress) / 60
            print(f"step {step}  loss {average:.4f}  {left:.1f} minutes left", flush=True)
        if progress >= next_check:
            next_check += 1 / 3
            report(model, tokenizer, held_out(60, seed=1))
            save(model, tokenizer, arguments.out)
    save(model, tokenizer, arguments.out)
    evaluate(arguments.out, arguments.count, 0)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train a 1.6-million-parameter chat model that answers exact questions, "
        "or check a saved one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=45, help="how long to train (45)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="checkpoint folder (out)")
    parser.add_argument("--start", type=Path, metavar="DIR", help="go on from this checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is drawn (0)")
    parser.add_argument("--muon-rate", type=float, default=0.015, help="for matrices (0.015)")
    parser.add_argument("--adam-rate", type=float, default=3e-3, help="for the rest (0.003)")
    parser.add_argument("--threads", type=int, default=0, help="processor threads (torch's own)")
    parser.add_argument("--evaluate", type=Path, metavar="DIR", help="only check this checkpoint")
    parser.add_argument("--count", type=int, default=500, help="held-out questions to ask (500)")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.evaluate:
        evaluate(arguments.evaluate, arguments.count, arguments.seed)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
