"""CEL rules: a latency target needs templateType Mix, where steps have a budget."""

from typing import Final

from tandem_operator.crd.cel import Rule

IS_MIX: Final = "(has(self.templateType) && self.templateType == 'Mix')"
"""CEL about the schedule, as it was written."""
HAS_TARGET: Final = "(has(self.slo.ttft) || has(self.slo.tpot))"
"""CEL about the spec."""


def of_schedule(expression: str) -> str:
    """Return an expression about the schedule as one about the spec."""
    return expression.replace("self.", "self.engine.schedule.")


def _needs_standard(name: str, denied: str, value: str) -> Rule:
    """Return the rule of a parameter of templateType Standard, which keeps no latency target.

    Args:
        name: Its path in the schedule.
        denied: CEL: it does not need Standard.
        value: Its value in the sentence; in CEL where it is not always the same.
    """
    is_fixed = value in {"true", "false"}
    return Rule(
        at="spec",
        rule=f"!{HAS_TARGET} || has(self.engine.schedule.templateType) || {of_schedule(denied)}",
        text=f"engine.schedule.{name} {value if is_fixed else '%s'} needs templateType Standard, "
        f"which cannot meet the targets of slo; leave {name} or slo out",
        values=() if is_fixed else (of_schedule(value),),
        field=f".engine.schedule.{name}",
        stands_for="InferenceServiceSpec._slo_has_effect",
    )


SLO_RULES: Final = (
    Rule(
        at="spec",
        rule=f"!{HAS_TARGET} || !{of_schedule('has(self.templateType)')} || {of_schedule(IS_MIX)}",
        text="engine.schedule.templateType Standard cannot meet the targets of slo: its "
        "steps have no budget, and its prompts no order; set templateType: Mix, or leave "
        "templateType or slo out",
        field=".engine.schedule.templateType",
        stands_for="InferenceServiceSpec._slo_has_effect",
    ),
    _needs_standard("strategy", "!has(self.strategy)", "self.strategy"),
    _needs_standard(
        "splitFuse.enabled", "!has(self.splitFuse.enabled) || self.splitFuse.enabled", "false"
    ),
    _needs_standard(
        "stageSelectPolicy", "self.stageSelectPolicy == 0", "string(self.stageSelectPolicy)"
    ),
    _needs_standard("dynamicBatchSizeEnable", "!self.dynamicBatchSizeEnable", "true"),
)
