"""Defaults that the API server leaves out."""

from collections.abc import Mapping
from typing import Final

NOT_FILLED: Final[Mapping[str, str]] = {
    "spec.engine.schedule.templateType": ", or Mix with an SLO",
    "spec.engine.schedule.maxBatchSize": ", or fewer where the memory holds no more",
    "spec.engine.schedule.maxPrefillBatchSize": ", or maxBatchSize where that is less",
    "spec.engine.schedule.maxPrefillTokens": "",
    "spec.engine.schedule.maxIterTimes": ", or maxSeqLen with an SLO",
    "spec.engine.schedule.splitFuse.splitStartBatchSize": (
        ", or maxBatchSize where that is less, or 0 with an SLO"
    ),
    "spec.engine.schedule.splitFuse.maxLongPartialPrefills": (
        ", or maxNumPartialPrefills where that is less"
    ),
}
"""Fields whose default the API server leaves out, and how the default's description goes on.

The spec refuses a value that does not fit its neighbours only where the manifest has it; a default
is lowered, or does no harm. Filled in, it would count as written, and `maxBatchSize: 8` alone would
be refused for a maxPrefillBatchSize of 50. Nor could the replica choose another.
"""
