"""The output head of a checkpoint whose config.json ties it to the embedding.

The files may say otherwise: fine-tuning has parted the two, or a program has written the one tensor
under the other's name. They are read as transformers 5 does.
"""

from pathlib import Path
from typing import Final, NamedTuple

from tandem_engine.quantization.scheme import HEAD
from tandem_engine.weights.checkpoint import Checkpoint

EMBEDDING: Final = "model.embed_tokens"


class TiedHead(NamedTuple):
    """The embedding and the head that the files of a checkpoint hold."""

    is_tied: bool
    """False: the files hold two different ones."""
    embedding: str
    """Stem of the tensor that is the embedding."""
    disagreement: str = ""
    """A sentence about files that say otherwise than config.json."""


def read_tied_head(folder: Path) -> TiedHead:
    """Look into the files of a checkpoint for the head that config.json ties.

    Two tensors are compared byte by byte, up to the first difference.

    Raises:
        CheckpointError: A file is damaged.
    """
    with Checkpoint.open(folder) as checkpoint:
        held = {stem for stem in (EMBEDDING, HEAD) if f"{stem}.weight" in checkpoint.names()}
        if held == {HEAD}:
            return TiedHead(is_tied=True, embedding=HEAD)
        if len(held) < 2 or checkpoint.is_same(f"{EMBEDDING}.weight", f"{HEAD}.weight"):  # noqa: PLR2004
            return TiedHead(is_tied=True, embedding=EMBEDDING)
    return TiedHead(
        is_tied=False,
        embedding=EMBEDDING,
        disagreement=f"{folder} has an output head of its own, {HEAD}.weight, which is used though "
        "config.json says tie_word_embeddings: true; say false there to silence this.",
    )
