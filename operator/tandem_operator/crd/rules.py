"""CEL rules: checks that a schema cannot express, or not with a helpful message.

Each cross-field check of the pydantic spec has its rule here, with the same message where CEL can
form it; a test compares the two over many manifests. Ranges and choices are the schema's.

Defaults that a rule would take for written values are not filled in: see NOT_FILLED.
No change of a field is impossible (see tandem_serve.api.changes), so no rule compares with the old
object.
"""

from collections.abc import Mapping
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_operator.crd.cel import Rule
from tandem_operator.crd.name_rules import object_name, secret_name
from tandem_operator.crd.pod_rules import POD_RULES
from tandem_operator.crd.slo_rules import HAS_TARGET, IS_MIX, SLO_RULES, of_schedule
from tandem_operator.k8s.names import MAX_NAME_LENGTH
from tandem_serve.api.pods import LONGEST_SUBDOMAIN, SUBDOMAIN

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
be refused for a maxPrefillBatchSize of 50. Nor could anything else be chosen in its place.
"""

_MEMORY: Final = r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?"
_DURATION: Final = r"[0-9]{1,7}(\.[0-9]{1,3})?(ms|s)"
# maxPrefillTokens is not filled in, and a rule may need it all the same.
_PREFILL_TOKENS: Final = (
    "(has(self.maxPrefillTokens) ? self.maxPrefillTokens : "
    f"{ScheduleConfig.model_fields['max_prefill_tokens'].default})"
)
_BATCH_SIZE: Final = (
    "(has(self.maxBatchSize) ? self.maxBatchSize : "
    f"{ScheduleConfig.model_fields['max_batch_size'].default})"
)
# In a URL either may be written as its number.
_SLASH: Final = "(/|%2[fF])"
_POINT: Final = r"(\.|%2[eE])"
WAY_OUT: Final = "file:///absolute/path for a folder of the node, or pvc://claim/path"


def _tiles(at: str, *, low: int, high: int) -> Rule:
    """Return the rule of a multiple of 16, within a range that the schema checks."""
    return Rule(
        at=at,
        rule=f"self < {low} || self > {high} || self % 16 == 0",
        text="%d is not a multiple of 16; use %d or %d",
        values=("self", "self / 16 * 16", "self / 16 * 16 + 16"),
    )


def _at_most_batch_size(name: str) -> Rule:
    """Return the rule of a parameter that, where written, may not exceed maxBatchSize."""
    return Rule(
        at="spec.engine.schedule",
        rule=f"!has(self.{name}) || self.{name} <= {_BATCH_SIZE}",
        text=f"{name} %d is larger than maxBatchSize %d; lower it or raise maxBatchSize",
        values=(f"self.{name}", _BATCH_SIZE),
        field=f".{name}",
        stands_for="ScheduleConfig._fits_batch_size",
    )


def _one_order(name: str) -> Rule:
    """Return the rule that an order of one phase excludes an order of SplitFuse."""
    return Rule(
        at="spec.engine.schedule",
        rule=f"self.{name} == 0 || self.splitFuse.policyType == 0",
        text=f"{name} %d and splitFuse.policyType %d are both an order of requests; "
        "leave one of the two out",
        values=(f"self.{name}", "self.splitFuse.policyType"),
        field=f".{name}",
        stands_for="ScheduleConfig._policies_fit",
    )


def _duration(at: str) -> tuple[Rule, Rule]:
    return (
        Rule(
            at=at,
            rule=f"self.matches(r'^{_DURATION}$')",
            text="'%s' is not a duration; write a number of up to 7 digits (and 3 behind the "
            "point) and a unit, s or ms, such as 500ms or 1.5s",
            values=("self",),
        ),
        Rule(
            at=at,
            rule=r"!self.matches(r'^0+(\.0+)?(ms|s)$')",
            text="'%s' is not a positive duration; give more than 0, such as 50ms",
            values=("self",),
        ),
    )


_NAMES: Final = (
    Rule(
        at="",
        rule=f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && "
        "self.metadata.name.matches(r'^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        text=f"'%s' cannot name a service on Kubernetes; use up to {MAX_NAME_LENGTH} lower-case "
        "letters, digits and '-', a letter first and no '-' last",
        values=("self.metadata.name",),
        field=".metadata.name",
    ),
    Rule(
        at="spec.model.name",
        rule="self.matches(r'^[A-Za-z0-9]([-._A-Za-z0-9]{0,254}[A-Za-z0-9])?$')",
        text="'%s' is not a model name; use up to 256 letters, digits, '-', '.' and '_', "
        "a letter or digit first and last",
        values=("self",),
    ),
    secret_name("spec.server.apiKeysSecret"),
    object_name("spec.resources.npuProfile"),
)

_SOURCE: Final = (
    Rule(
        at="spec.model.source",
        rule="!self.startsWith('/')",
        text="'%s' is a bare path; write file://%s for a folder of the node, or pvc://claim/path",
        values=("self", "self"),
    ),
    Rule(
        at="spec.model.source",
        rule=r"!self.matches(r'^\.\.?(/|$)')",
        text="'%s' is relative to a manifest, whose folder Kubernetes does not know; "
        f"write {WAY_OUT}",
        values=("self",),
    ),
    Rule(
        at="spec.model.source",
        rule=r"self.matches(r'^(file:///|pvc://|/|\.\.?(/|$))')",
        text=f"'%s' is not a source that Kubernetes can mount; write {WAY_OUT}",
        values=("self",),
    ),
    Rule(
        at="spec.model.source",
        rule=rf"!self.matches(r'^file:///{_SLASH}*$') && "
        rf"(!self.startsWith('file:///') || !self.matches(r'{_SLASH}{_POINT}{{2}}({_SLASH}|$)'))",
        text="'%s' names no folder of the node; write file:///absolute/path, without '..'",
        values=("self",),
    ),
    Rule(
        at="spec.model.source",
        rule="!self.startsWith('pvc://') || "
        rf"(self.matches(r'^pvc://{SUBDOMAIN}(/.*)?$') && "
        rf"self.matches(r'^pvc://[^/]{{1,{LONGEST_SUBDOMAIN}}}(/|$)') && "
        r"!self.matches(r'/\.\.(/|$)'))",
        text="'%s' names no folder in a volume claim; write pvc://claim/path: the claim's name in "
        "lower-case letters, digits, '-' and '.', then a path without '..'",
        values=("self",),
    ),
)

_SCHEDULE: Final = (
    _tiles("spec.engine.schedule.cacheBlockSize", low=16, high=128),
    _tiles("spec.engine.schedule.splitFuse.splitChunkTokens", low=16, high=8192),
    Rule(
        at="spec.engine.schedule",
        rule=f"{IS_MIX} || !has(self.splitFuse.enabled) || !self.splitFuse.enabled",
        text="splitFuse.enabled needs templateType Mix, not Standard; "
        "set templateType: Mix or leave splitFuse.enabled out",
        field=".splitFuse.enabled",
        stands_for="ScheduleConfig._fits_template",
    ),
    Rule(
        at="spec.engine.schedule",
        rule=f"!{IS_MIX} || !has(self.splitFuse.enabled) || self.splitFuse.enabled",
        text="templateType Mix needs splitFuse.enabled true, not false; "
        "set templateType: Standard to run without SplitFuse",
        field=".splitFuse.enabled",
        stands_for="ScheduleConfig._fits_template",
    ),
    Rule(
        at="spec.engine.schedule",
        rule=f"!has(self.strategy) || (self.strategy == 'splitfuse') == {IS_MIX}",
        text="strategy %s does not go with templateType %s; set templateType: Mix for splitfuse "
        "and Standard for the others, or leave strategy out",
        values=("self.strategy", f"({IS_MIX} ? 'Mix' : 'Standard')"),
        field=".strategy",
        stands_for="ScheduleConfig._fits_template",
    ),
    Rule(
        at="spec.engine.schedule",
        rule=f"{IS_MIX} || self.splitFuse.policyType == 0",
        text="splitFuse.policyType %d orders the steps of templateType Mix, not Standard; "
        "set templateType: Mix, or prefillPolicyType in its place",
        values=("self.splitFuse.policyType",),
        field=".splitFuse.policyType",
        stands_for="ScheduleConfig._fits_template",
    ),
    Rule(
        at="spec.engine.schedule",
        rule=f"self.stageSelectPolicy == 0 || (!{IS_MIX} && "
        "(!has(self.strategy) || self.strategy == 'continuous'))",
        text="stageSelectPolicy %d needs strategy continuous (the default of templateType "
        "Standard): any other leaves no choice between prefill and decode; "
        "leave one of the two out",
        values=("self.stageSelectPolicy",),
        field=".stageSelectPolicy",
        stands_for="ScheduleConfig._policies_fit",
    ),
    Rule(
        at="spec.engine.schedule",
        rule="self.stageSelectPolicy != 2 || !self.supportSelectBatch",
        text="supportSelectBatch true means stageSelectPolicy 1, not 2; leave one of the two out",
        field=".supportSelectBatch",
        stands_for="ScheduleConfig._policies_fit",
    ),
    _one_order("prefillPolicyType"),
    _one_order("decodePolicyType"),
    Rule(
        at="spec.engine.schedule",
        rule=f"!self.dynamicBatchSizeEnable || !{IS_MIX}",
        text="dynamicBatchSizeEnable needs templateType Standard, not Mix; leave it out, and give "
        "an SLO (spec.slo), by which the budget of every step is chosen",
        field=".dynamicBatchSizeEnable",
        stands_for="ScheduleConfig._policies_fit",
    ),
    _at_most_batch_size("maxPrefillBatchSize"),
    _at_most_batch_size("maxPreemptCount"),
    _at_most_batch_size("maxN"),
    _at_most_batch_size("splitFuse.splitStartBatchSize"),
    Rule(
        at="spec.engine.schedule",
        rule="!has(self.splitFuse.prefillChunkSize) || "
        f"self.splitFuse.prefillChunkSize <= {_PREFILL_TOKENS}",
        text="splitFuse.prefillChunkSize %d is larger than maxPrefillTokens %d; "
        "lower it or raise maxPrefillTokens",
        values=("self.splitFuse.prefillChunkSize", _PREFILL_TOKENS),
        field=".splitFuse.prefillChunkSize",
        stands_for="ScheduleConfig._chunk_fits",
    ),
    Rule(
        at="spec.engine.schedule.splitFuse",
        rule="!has(self.maxLongPartialPrefills) || "
        "self.maxLongPartialPrefills <= self.maxNumPartialPrefills",
        text="maxLongPartialPrefills %d is larger than maxNumPartialPrefills %d; "
        "lower it or raise maxNumPartialPrefills",
        values=("self.maxLongPartialPrefills", "self.maxNumPartialPrefills"),
        field=".maxLongPartialPrefills",
        stands_for="SplitFuseConfig._long_prefills_are_prefills",
    ),
)

_LENGTHS: Final = (
    Rule(
        at="spec.model",
        rule="!has(self.maxSeqLen) || !has(self.maxInputTokenLen) || "
        "self.maxInputTokenLen < self.maxSeqLen",
        text="maxInputTokenLen %d leaves no room for a new token in maxSeqLen %d; "
        "lower it to at most %d or raise maxSeqLen",
        values=("self.maxInputTokenLen", "self.maxSeqLen", "self.maxSeqLen - 1"),
        field=".maxInputTokenLen",
        stands_for="ModelSpec._prompt_leaves_room",
    ),
    Rule(
        at="spec",
        rule="!has(self.model.maxSeqLen) || !has(self.engine.schedule.maxIterTimes) || "
        "self.engine.schedule.maxIterTimes <= self.model.maxSeqLen",
        text="engine.schedule.maxIterTimes %d is larger than model.maxSeqLen %d; "
        "lower it or raise maxSeqLen",
        values=("self.engine.schedule.maxIterTimes", "self.model.maxSeqLen"),
        field=".engine.schedule.maxIterTimes",
        stands_for="InferenceServiceSpec._output_fits",
    ),
    Rule(
        at="spec",
        rule=f"{HAS_TARGET} || {of_schedule(IS_MIX)} || "
        "(has(self.engine.schedule.strategy) && self.engine.schedule.strategy == 'chunked') || "
        "!has(self.model.maxInputTokenLen) || "
        "!has(self.engine.schedule.maxPrefillTokens) || "
        "self.engine.schedule.maxPrefillTokens >= self.model.maxInputTokenLen",
        text="engine.schedule.maxPrefillTokens %d is smaller than model.maxInputTokenLen %d, and "
        "only templateType Mix and strategy chunked cut prompts; raise maxPrefillTokens, lower "
        "maxInputTokenLen or set templateType: Mix",
        values=("self.engine.schedule.maxPrefillTokens", "self.model.maxInputTokenLen"),
        field=".engine.schedule.maxPrefillTokens",
        stands_for="InferenceServiceSpec._prompt_fits_a_step",
    ),
)

_RESOURCES: Final = (
    Rule(
        at="spec",
        rule="self.resources.npu == 0 || self.engine.device != 'cpu'",
        text="resources.npu %d reserves cards, and engine.device cpu computes on none of them; "
        "leave npu and npuProfile out: no device for NPUs is built yet",
        values=("self.resources.npu",),
        field=".resources.npu",
        stands_for="InferenceServiceSpec._cards_compute",
    ),
    Rule(
        at="spec.resources.memory",
        rule=f"self.matches(r'^{_MEMORY}$')",
        text="'%s' is not an amount of memory; "
        "write a number and a unit out of Ki, Mi, Gi, Ti, k, M, G, T, such as 2Gi",
        values=("self",),
    ),
    Rule(
        at="spec.resources.memory",
        rule=f"!self.matches(r'^{_MEMORY}$') || !quantity(self).isLessThan(quantity('1'))",
        text="'%s' is less than one byte of memory; give at least 1",
        values=("self",),
    ),
    Rule(
        at="spec.resources",
        rule="!has(self.npuProfile) || self.npu > 0",
        text="npuProfile '%s' has no meaning while npu is 0; "
        "set npu to the cards of a replica or leave npuProfile out",
        values=("self.npuProfile",),
        field=".npuProfile",
        stands_for="ResourcesSpec._profile_has_cards",
    ),
    Rule(
        at="spec.engine.npuMemSize",
        rule="self != 0",
        text="0 is neither -1 (all that is left) nor a size in GiB; allowed: -1, or 1 or more",
    ),
    Rule(
        at="spec",
        rule="self.engine.npuMemSize < 1 || !isQuantity(self.resources.memory) || "
        "double(self.engine.npuMemSize) * 1073741824.0 < "
        "quantity(self.resources.memory).asApproximateFloat()",
        text="engine.npuMemSize %d (GiB) leaves nothing of resources.memory %s for the weights; "
        "lower it, set -1, or raise resources.memory",
        values=("self.engine.npuMemSize", "self.resources.memory"),
        field=".engine.npuMemSize",
        stands_for="InferenceServiceSpec._cache_fits_the_memory",
    ),
    Rule(
        at="spec",
        rule="self.engine.cpuMemSize == 0 || !isQuantity(self.resources.memory) || "
        "double(self.engine.cpuMemSize + "
        "(self.engine.npuMemSize > 0 ? self.engine.npuMemSize : 0)) * 1073741824.0 < "
        "quantity(self.resources.memory).asApproximateFloat()",
        text="engine.cpuMemSize %d (GiB), with engine.npuMemSize %d, leaves nothing of "
        "resources.memory %s for the weights; lower it or raise resources.memory",
        values=("self.engine.cpuMemSize", "self.engine.npuMemSize", "self.resources.memory"),
        field=".engine.cpuMemSize",
        stands_for="InferenceServiceSpec._host_cache_fits_the_memory",
    ),
    Rule(
        at="spec",
        rule="self.engine.schedule.maxPreemptCount == 0 || self.engine.cpuMemSize > 0",
        text="engine.schedule.maxPreemptCount %d swaps out to host memory, and engine.cpuMemSize "
        "is 0; give engine.cpuMemSize at least 1 (GiB), or leave engine.schedule.maxPreemptCount "
        "out to recompute",
        values=("self.engine.schedule.maxPreemptCount",),
        field=".engine.schedule.maxPreemptCount",
        stands_for="InferenceServiceSpec._swaps_have_a_place",
    ),
)

_SLO: Final = (*_duration("spec.slo.ttft.target"), *_duration("spec.slo.tpot.target"))

RULES: Final = (
    *_NAMES,
    *_SOURCE,
    *_SCHEDULE,
    *_LENGTHS,
    *SLO_RULES,
    *_RESOURCES,
    *_SLO,
    *POD_RULES,
)
