"""Tests with a model use one thread: two that wait for a busy core are far slower than one."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
