"""`python -m tests.npu.pytest_with_torch_npu ARGUMENTS`: runs pytest where torch_npu is loaded.

As a plugin (`-p torch_npu`) pytest would compile it itself, with warnings as errors.
"""

import importlib
import sys

import pytest

if __name__ == "__main__":
    importlib.import_module("torch_npu")
    sys.exit(pytest.main(sys.argv[1:]))
