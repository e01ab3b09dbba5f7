"""`python -m benchmarks.prompt_logprobs`."""

from benchmarks.prompt_logprobs.cli import main

main()
