"""tandem-tiny in a form that four ranks can share, with the answers of the original.

Its 6 query heads can be cut in two only. Here each of the 2 KV heads has a fourth query head: a
copy of the third, so that no row has a larger value than before, whose columns of the output
projection are zeros.
"""

import json
import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny import TINY

HEAD_DIM: Final = 32
KV_HEADS: Final = 2
HEADS: Final = 6
WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"


def write_four_shares(folder: Path) -> Path:
    """Write it into a new folder, and return that."""
    shutil.copytree(TINY, folder)
    config = json.loads((folder / CONFIG).read_text())
    config["num_attention_heads"] = HEADS + KV_HEADS
    (folder / CONFIG).write_text(json.dumps(config))
    weights = load_file(TINY / WEIGHTS)
    save_file({name: _more_heads(name, each) for name, each in weights.items()}, folder / WEIGHTS)
    return folder


def _more_heads(name: str, weight: Tensor) -> Tensor:
    if name.endswith("q_proj.weight"):
        groups = weight.view(KV_HEADS, HEADS // KV_HEADS * HEAD_DIM, -1)
        more = torch.cat([groups, groups[:, -HEAD_DIM:]], dim=1)
        return more.reshape(-1, weight.shape[1])
    if name.endswith("o_proj.weight"):
        groups = weight.view(len(weight), KV_HEADS, -1)
        zeros = groups.new_zeros(len(weight), KV_HEADS, HEAD_DIM)
        return torch.cat([groups, zeros], dim=2).reshape(len(weight), -1)
    return weight
