"""CEL rules: the pods that replicas run in, and the store that outlives their Ray head."""

from typing import Final

from tandem_operator.crd.cel import Rule
from tandem_operator.crd.name_rules import label_key, secret_name, volume_name
from tandem_serve.api.pods import (
    ENGINE_ENV,
    LABEL_KEY_FORM,
    LABEL_VALUE,
    LABEL_VALUE_FORM,
    LONGEST_ENV,
    MOUNT_PATH,
    REDIS_ADDRESS,
    REDIS_ENV,
    SECRET_KEY,
)


def _redis_credential(name: str) -> tuple[Rule, Rule]:
    """Return the rules of a reference to a value of a Secret."""
    at = f"spec.runtime.gcsFaultToleranceOptions.{name}.valueFrom.secretKeyRef"
    return (
        secret_name(f"{at}.name"),
        Rule(
            at=f"{at}.key",
            rule=f"self.matches(r'^{SECRET_KEY}$')",
            text="'%s' is not a key of a Secret; use up to 253 letters, digits, '-', '.' and '_'",
            values=("self",),
        ),
    )


_LENGTH_OF_ENV: Final = "self.map(e, size(e.name) + (has(e.value) ? size(e.value) : 0)).sum()"
_MOUNTED_NOWHERE: Final = (
    "self.volumeMounts.filter(m, !has(self.volumes) || !self.volumes.exists(v, v.name == m.name))"
)
POD_RULES: Final = (
    secret_name("spec.runtime.imagePullSecrets[]"),
    volume_name("spec.runtime.volumes[]"),
    volume_name("spec.runtime.volumeMounts[]"),
    *_redis_credential("redisUsername"),
    *_redis_credential("redisPassword"),
    Rule(
        at="spec.runtime.gcsFaultToleranceOptions.redisAddress",
        rule=f"self.matches(r'^{REDIS_ADDRESS}$')",
        text="'%s' is not the address of a Redis; write host:port or redis://host:port, such as "
        "redis.storage.svc:6379",
        values=("self",),
    ),
    Rule(
        at="spec.runtime.env",
        rule=f"{_LENGTH_OF_ENV} <= {LONGEST_ENV}",
        text=f"the variables have %d characters together, of {LONGEST_ENV} at most; "
        "mount a ConfigMap or a Secret for what is longer",
        values=(_LENGTH_OF_ENV,),
    ),
    Rule(
        at="spec.runtime.volumeMounts[]",
        rule=f"self.mountPath.matches(r'^{MOUNT_PATH}$') && "
        r"!self.mountPath.matches(r'/\.\.?(/|$)')",
        text="mountPath '%s' is not a mount path; write an absolute path below /, "
        "without ':', '.', '..' and a '/' at its end, such as /data",
        values=("self.mountPath",),
        field=".mountPath",
    ),
    Rule(
        at="spec.runtime",
        rule=f"!has(self.volumeMounts) || {_MOUNTED_NOWHERE}.size() == 0",
        text="volumeMounts names the volume '%s', which is none of volumes; "
        "add it there, or name one that is",
        values=(f"{_MOUNTED_NOWHERE}[0].name",),
        field=".volumeMounts",
        stands_for="RuntimeSpec._mounts_fit",
    ),
    Rule(
        at="spec.runtime.nodeSelector",
        rule=f"self.all(key, {label_key('key')})",
        text=f"a key of it is not the key of a label; {LABEL_KEY_FORM}",
    ),
    Rule(
        at="spec.runtime.nodeSelector",
        rule=f"self.all(key, self[key].matches(r'^{LABEL_VALUE}$'))",
        text=f"a value of it is not the value of a label; {LABEL_VALUE_FORM}",
    ),
    Rule(
        at="spec.runtime.tolerations[].key",
        rule=f"self == '' || ({label_key('self')})",
        text=f"'%s' is not the key of a taint; {LABEL_KEY_FORM}",
        values=("self",),
    ),
    Rule(
        at="spec.runtime.tolerations[].value",
        rule=f"self.matches(r'^{LABEL_VALUE}$')",
        text=f"'%s' is not the value of a taint; {LABEL_VALUE_FORM}",
        values=("self",),
    ),
    Rule(
        at="spec.runtime.env[].name",
        rule="self.matches(r'^[-._a-zA-Z][-._a-zA-Z0-9]*$')",
        text="'%s' is not the name of a variable; use letters, digits, '-', '.' and '_', "
        "no digit first",
        values=("self",),
    ),
    Rule(
        at="spec.runtime.env[].name",
        rule="!self.startsWith('RAY_') && "
        f"(!self.startsWith('TANDEM_') || self in {list(ENGINE_ENV)})",
        text="'%s' is set by Tandem; names that begin with RAY_ or TANDEM_ are taken, but for "
        + ", ".join(ENGINE_ENV),
        values=("self",),
    ),
    Rule(
        at="spec.runtime.env[].name",
        rule=f"!(self in {list(REDIS_ENV)})",
        text="'%s' is set by KubeRay; name the Secret of the Redis in gcsFaultToleranceOptions, "
        "or leave the variable out",
        values=("self",),
    ),
    Rule(
        at="spec.runtime.tolerations[]",
        rule="self.operator != 'Exists' || !has(self.value) || self.value == ''",
        text="value '%s' has no meaning with operator Exists; leave it out or set operator: Equal",
        values=("self.value",),
        field=".value",
        stands_for="Toleration._fits_together",
    ),
    Rule(
        at="spec.runtime.tolerations[]",
        rule="self.operator != 'Equal' || (has(self.key) && self.key != '')",
        text="key is missing; operator Equal needs one, or set operator: Exists",
        field=".key",
        stands_for="Toleration._fits_together",
    ),
    Rule(
        at="spec.runtime.tolerations[]",
        rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        text="tolerationSeconds %d has no meaning without effect NoExecute; "
        "set effect: NoExecute or leave tolerationSeconds out",
        values=("self.tolerationSeconds",),
        field=".tolerationSeconds",
        stands_for="Toleration._fits_together",
    ),
)
