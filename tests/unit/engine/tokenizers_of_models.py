"""Tokenizers with the structure that those of public models have in tokenizer.json."""

from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from tandem_engine.text.vocabulary import byte_of_symbol

SPACE = "\u2581"
WORDS = ["the", "cat", "sat", "on", "Hello", "world", "naïve", "日本", "né", "x"]
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def sentencepiece_vocab(*, has_bytes: bool) -> dict[str, int]:
    """Control tokens, bytes, words with and without a space before them, characters."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if has_bytes else []
    words = [mark + word for word in WORDS for mark in (SPACE, "")]
    chars = sorted({char for word in WORDS for char in word})
    symbols = ["<unk>", "<s>", "</s>", *bytes_, SPACE, SPACE * 4, *words, *chars, "!", "\u00e9!"]
    return {symbol: token for token, symbol in enumerate(dict.fromkeys(symbols))}


def bpe_with_byte_fallback(*, strips: bool) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab=sentencepiece_vocab(has_bytes=True),
            merges=[],
            unk_token="<unk>",  # noqa: S106
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] * strips)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def llama2() -> Tokenizer:
    tokenizer = bpe_with_byte_fallback(strips=True)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return tokenizer


def mistral() -> Tokenizer:
    tokenizer = bpe_with_byte_fallback(strips=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    return tokenizer


def gemma() -> Tokenizer:
    tokenizer = bpe_with_byte_fallback(strips=False)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    return tokenizer


def byte_level_bpe(words: list[str]) -> Tokenizer:
    symbol_of = {byte: symbol for symbol, byte in byte_of_symbol().items()}
    vocab = dict(byte_of_symbol())
    for word in words:
        symbol = "".join(symbol_of[byte] for byte in word.encode())
        vocab.setdefault(symbol, len(vocab))
    half_ones = [bytes([0xE6, 0x97]), b" " + bytes([0xF0, 0x9F]), bytes([0x98, 0x80]) + b"!"]
    for data in half_ones:
        vocab["".join(symbol_of[byte] for byte in data)] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_level_words(split: str) -> pre_tokenizers.PreTokenizer:
    """Return what cuts a text by a pattern, and writes the bytes of each piece as symbols."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def qwen() -> Tokenizer:
    tokenizer = byte_level_bpe([mark + word for word in WORDS for mark in (" ", "")])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = byte_level_words(QWEN_SPLIT)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = qwen()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    first = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        "<|begin_of_text|> $A", None, [("<|begin_of_text|>", first)]
    )
    return tokenizer


def t5() -> Tokenizer:
    vocab = [(symbol, -1.0) for symbol in sentencepiece_vocab(has_bytes=False)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["<s>", "</s>", "<extra_id_0>"])
    return tokenizer


def word_piece() -> Tokenizer:
    """Of a kind that has to see tokens beside each other: BERT's."""
    symbols = ["[UNK]", "[CLS]", "[SEP]", *WORDS, *(f"##{word}" for word in WORDS), "!", ","]
    vocab = {symbol: token for token, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))  # noqa: S106
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


def bytes_and_metaspace() -> Tokenizer:
    """Byte fallback before Metaspace, as some converted SentencePiece models have it."""
    tokenizer = bpe_with_byte_fallback(strips=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def entry(content: str, **flags: bool) -> dict[str, Any]:
    """One token of added_tokens_decoder."""
    names = ("lstrip", "normalized", "rstrip", "single_word", "special")
    return {"content": content, **dict.fromkeys(names, False), **flags}


def added_tokens_decoder(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokens of tokenizer.json as transformers 4 saved them to its settings."""
    return {
        str(number): entry(token.content, special=token.special)
        for number, token in tokenizer.get_added_tokens_decoder().items()
    }


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "Llama 2": llama2,
    "Mistral": mistral,
    "Gemma": gemma,
    "Qwen": qwen,
    "Llama 3": llama3,
    "T5": t5,
}
OTHER_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "WordPiece": word_piece,
    "ByteFallback and Metaspace": bytes_and_metaspace,
}
