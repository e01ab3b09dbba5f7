"""Schedules that cannot be: out of range, or parameters that do not go with each other."""

from tandem_operator.crd.schema import INT32_MAX
from tests.unit.operator.crd.forms import SCHEDULE, SPLIT, Bad, wrong_value


def out_of_range() -> list[Bad]:
    """Each number of the schedule, one below its range and one above."""
    ranges = {
        f"{SCHEDULE}.maxPrefillBatchSize": (0, INT32_MAX),
        f"{SCHEDULE}.maxPrefillTokens": (1, 4194304),
        f"{SCHEDULE}.prefillTimeMsPerReq": (0, 1000),
        f"{SCHEDULE}.decodeTimeMsPerReq": (0, 1000),
        f"{SCHEDULE}.maxIterTimes": (1, INT32_MAX),
        f"{SCHEDULE}.maxPreemptCount": (0, INT32_MAX),
        f"{SCHEDULE}.maxQueueDelayMicroseconds": (500, 1000000),
        f"{SCHEDULE}.maxFirstTokenWaitTime": (0, 3600000),
        f"{SCHEDULE}.maxN": (1, 8192),
        f"{SCHEDULE}.prefillExpectedTime": (1, 10000),
        f"{SCHEDULE}.decodeExpectedTime": (1, 10000),
        f"{SPLIT}.splitStartBatchSize": (0, INT32_MAX),
        f"{SPLIT}.prefillChunkSize": (0, 4194304),
        f"{SPLIT}.maxNumPartialPrefills": (1, 64),
        f"{SPLIT}.longPrefillTokenThreshold": (1, 8192),
        f"{SPLIT}.maxLongPartialPrefills": (1, 64),
    }
    choices = {
        f"{SCHEDULE}.prefillPolicyType": "0, 1, 2, 3",
        f"{SCHEDULE}.decodePolicyType": "0, 1, 2, 3",
        f"{SCHEDULE}.stageSelectPolicy": "0, 1, 2",
        f"{SPLIT}.policyType": "0, 4, 5, 6, 7",
    }
    too_small = [
        wrong_value(path, low - 1, f"greater than or equal to {low}", "is too small")
        for path, (low, _) in ranges.items()
    ]
    too_large = [
        wrong_value(path, high + 1, f"less than or equal to {high}", "is too large")
        for path, (_, high) in ranges.items()
        if high < INT32_MAX
    ]
    none_of_them = [
        wrong_value(
            path, 8, "Unsupported value: 8", f"8 is not one of its values; allowed: {allowed}"
        )
        for path, allowed in choices.items()
    ]
    return [*too_small, *too_large, *none_of_them]


def misfits() -> list[Bad]:
    """Parameters of the schedule that do not go with each other."""
    mix = {f"{SCHEDULE}.templateType": "Mix"}
    small = {f"{SCHEDULE}.maxBatchSize": 8}
    return [
        Bad(
            "another strategy than the template's",
            mix | {f"{SCHEDULE}.strategy": "static"},
            f"{SCHEDULE}.strategy",
            "strategy static needs templateType Standard, not Mix; set templateType: Standard",
        ),
        Bad(
            "SplitFuse by name alone",
            {f"{SCHEDULE}.strategy": "splitfuse"},
            f"{SCHEDULE}.strategy",
            "strategy splitfuse needs templateType Mix, not Standard; set templateType: Mix",
        ),
        wrong_value(f"{SCHEDULE}.strategy", "mixed", '"chunked", "splitfuse"', "is not one of its"),
        wrong_value(
            f"{SPLIT}.policyType",
            4,
            "splitFuse.policyType 4 orders the steps of templateType Mix, not Standard; set",
        ),
        Bad(
            "a stage to choose where both are one",
            mix | {f"{SCHEDULE}.stageSelectPolicy": 2},
            f"{SCHEDULE}.stageSelectPolicy",
            "stageSelectPolicy 2 needs strategy continuous, not splitfuse, which leaves no choice",
        ),
        Bad(
            "a stage to choose where they take turns",
            {f"{SCHEDULE}.strategy": "chunked", f"{SCHEDULE}.stageSelectPolicy": 1},
            f"{SCHEDULE}.stageSelectPolicy",
            "stageSelectPolicy 1 needs strategy continuous",
        ),
        Bad(
            "two stage policies",
            {f"{SCHEDULE}.supportSelectBatch": True, f"{SCHEDULE}.stageSelectPolicy": 2},
            f"{SCHEDULE}.supportSelectBatch",
            "supportSelectBatch true means stageSelectPolicy 1, not 2; leave one of the two out",
        ),
        Bad(
            "two orders",
            mix | {f"{SCHEDULE}.prefillPolicyType": 2, f"{SPLIT}.policyType": 4},
            f"{SCHEDULE}.prefillPolicyType",
            "prefillPolicyType 2 and splitFuse.policyType 4 are both an order of requests; leave",
        ),
        Bad(
            "two orders of running requests",
            mix | {f"{SCHEDULE}.decodePolicyType": 3, f"{SPLIT}.policyType": 6},
            f"{SCHEDULE}.decodePolicyType",
            "decodePolicyType 3 and splitFuse.policyType 6 are both an order of requests; leave",
        ),
        Bad(
            "a batch size by MindIE's rule with SplitFuse",
            mix | {f"{SCHEDULE}.dynamicBatchSizeEnable": True},
            f"{SCHEDULE}.dynamicBatchSizeEnable",
            "dynamicBatchSizeEnable needs templateType Standard, not Mix; leave it out, and give",
        ),
        Bad(
            "more choices than rows",
            small | {f"{SCHEDULE}.maxN": 9},
            f"{SCHEDULE}.maxN",
            "maxN 9 is larger than maxBatchSize 8; lower it or raise maxBatchSize",
        ),
        Bad(
            "more swaps than rows",
            small | {"spec.engine.cpuMemSize": 1, f"{SCHEDULE}.maxPreemptCount": 9},
            f"{SCHEDULE}.maxPreemptCount",
            "maxPreemptCount 9 is larger than maxBatchSize 8; lower it or raise maxBatchSize",
        ),
        wrong_value(
            f"{SCHEDULE}.maxPreemptCount",
            1,
            "engine.schedule.maxPreemptCount 1 swaps out to host memory, and engine.cpuMemSize is "
            "0; give engine.cpuMemSize at least 1 (GiB), or leave",
        ),
        Bad(
            "a chunk larger than the step",
            {f"{SCHEDULE}.maxPrefillTokens": 100, f"{SPLIT}.prefillChunkSize": 101},
            f"{SPLIT}.prefillChunkSize",
            "splitFuse.prefillChunkSize 101 is larger than maxPrefillTokens 100; lower it or raise",
        ),
        wrong_value(
            f"{SPLIT}.prefillChunkSize",
            8193,
            "splitFuse.prefillChunkSize 8193 is larger than maxPrefillTokens 8192; lower it or",
        ),
        Bad(
            "more long prefills than prefills",
            {f"{SPLIT}.maxNumPartialPrefills": 2, f"{SPLIT}.maxLongPartialPrefills": 3},
            f"{SPLIT}.maxLongPartialPrefills",
            "maxLongPartialPrefills 3 is larger than maxNumPartialPrefills 2; lower it or raise",
        ),
    ]


def unmet_targets() -> list[Bad]:
    """Schedules under which a target would have no effect."""
    standard = {
        f"{SCHEDULE}.strategy": ("continuous", "continuous"),
        f"{SPLIT}.enabled": (False, "false"),
        f"{SCHEDULE}.stageSelectPolicy": (2, "2"),
        f"{SCHEDULE}.dynamicBatchSizeEnable": (True, "true"),
    }
    return [
        *(
            Bad(
                f"a {name} under Standard",
                {f"spec.slo.{name}.target": "1s", f"{SCHEDULE}.templateType": "Standard"},
                f"{SCHEDULE}.templateType",
                "engine.schedule.templateType Standard cannot meet the targets of slo: its "
                "steps have no budget, and its prompts no order; set templateType: Mix, or leave",
            )
            for name in ("ttft", "tpot")
        ),
        *(
            Bad(
                f"a target beside {path.removeprefix('spec.engine.schedule.')}",
                {"spec.slo.tpot.target": "50ms", path: value},
                path,
                f"{path.removeprefix('spec.')} {shown} needs templateType Standard, which cannot "
                "meet the targets of slo; leave",
            )
            for path, (value, shown) in standard.items()
        ),
    ]
