"""Manifests of whose `spec.runtime` no pod could be made."""

from typing import Any

from tests.unit.operator.crd.forms import RUNTIME, Bad, wrong_value


def misfitting_pods() -> tuple[Bad, ...]:
    """At least one manifest for each rule of `spec.runtime`."""
    return (*_containers(), *_storage(), *_nodes())


def _containers() -> tuple[Bad, ...]:
    """Image, Secrets and environment."""
    return (
        wrong_value(f"{RUNTIME}.image", "", "at least 1 chars long", "at least 1 char"),
        wrong_value(
            f"{RUNTIME}.imagePullPolicy", "always", '"IfNotPresent"', "did you mean 'Always'?"
        ),
        Bad(
            "a secret that is no name",
            {f"{RUNTIME}.imagePullSecrets": ["one", "two_"]},
            f"{RUNTIME}.imagePullSecrets[1]",
            "'two_' is not the name of an object",
        ),
        Bad(
            "a secret twice",
            {f"{RUNTIME}.imagePullSecrets": ["one", "one"]},
            f"{RUNTIME}.imagePullSecrets[1]",
            "Duplicate value",
            "'one' is given 2 times",
        ),
        Bad(
            "a variable of Ray's",
            {f"{RUNTIME}.env": [{"name": "RAY_ADDRESS", "value": "elsewhere"}]},
            f"{RUNTIME}.env[0].name",
            "'RAY_ADDRESS' is set by Tandem; names that begin with RAY_ or TANDEM_ are taken, "
            "but for TANDEM_KERNELS, TANDEM_PIN, TANDEM_THREADS",
        ),
        Bad(
            "a variable of Tandem's",
            {f"{RUNTIME}.env": [{"name": "TANDEM_PIN", "value": "on"}, {"name": "TANDEM_PINS"}]},
            f"{RUNTIME}.env[1].name",
            "'TANDEM_PINS' is set by Tandem",
        ),
        Bad(
            "a variable that no shell could name",
            {f"{RUNTIME}.env": [{"name": "A"}, {"name": "1A"}]},
            f"{RUNTIME}.env[1].name",
            "'1A' is not the name of a variable",
        ),
        Bad(
            "a variable twice",
            {f"{RUNTIME}.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
            f"{RUNTIME}.env[1]",
            "Duplicate value",
            "'A' is given 2 times; keep one",
        ),
        Bad(
            "a variable without a name",
            {f"{RUNTIME}.env": [{"value": "1"}]},
            f"{RUNTIME}.env[0].name",
            "Required value",
            "is missing",
        ),
        Bad(
            "an environment that no object could hold",
            {
                f"{RUNTIME}.env": [
                    {"name": "A", "value": "a" * 32768},
                    {"name": "B", "value": "b" * 32767},
                ]
            },
            f"{RUNTIME}.env",
            "the variables have 65537 characters together, of 65536 at most; mount a ConfigMap",
        ),
    )


def _storage() -> tuple[Bad, ...]:
    """Volumes, and where they are mounted."""
    return (
        Bad(
            "a volume twice",
            {f"{RUNTIME}.volumes": _volumes("a", "a")},
            f"{RUNTIME}.volumes[1]",
            "Duplicate value",
            "'a' is given 2 times",
        ),
        Bad(
            "a volume without a name",
            {f"{RUNTIME}.volumes": [{"emptyDir": {}}]},
            f"{RUNTIME}.volumes[0].name",
            "Required value",
            "is missing",
        ),
        Bad(
            "a volume of two sources",
            {f"{RUNTIME}.volumes": [{"name": "a", "emptyDir": {}, "nfs": {"server": "b"}}]},
            f"{RUNTIME}.volumes[0]",
            "the volume 'a' is not of one source; write one of configMap, csi, ",
        ),
        Bad(
            "a volume without a source",
            {f"{RUNTIME}.volumes": [{"name": "a"}]},
            f"{RUNTIME}.volumes[0]",
            "the volume 'a' is not of one source; write one of configMap, csi, ",
        ),
        Bad(
            "a claim that cannot be",
            {
                f"{RUNTIME}.volumes": [
                    {"name": "a", "persistentVolumeClaim": {"claimName": "A b"}},
                ]
            },
            f"{RUNTIME}.volumes[0].persistentVolumeClaim.claimName",
            "'A b' is not the name of an object",
        ),
        *(
            Bad(
                f"a part of a volume at {path}",
                {
                    f"{RUNTIME}.volumes": _volumes("a"),
                    f"{RUNTIME}.volumeMounts": [
                        {"name": "a", "mountPath": "/x", "subPath": path},
                    ],
                },
                f"{RUNTIME}.volumeMounts[0].subPath",
                f"'{path}' is not a path within a volume",
            )
            for path in ("../x", "/abs", "a/../b", "..")
        ),
        Bad(
            "a part of a volume whose name leads out of it",
            {
                f"{RUNTIME}.volumes": _volumes("a"),
                f"{RUNTIME}.volumeMounts": [
                    {"name": "a", "mountPath": "/x", "subPathExpr": "$(POD)/.."},
                ],
            },
            f"{RUNTIME}.volumeMounts[0].subPathExpr",
            "'$(POD)/..' is not a path within a volume",
        ),
        Bad(
            "two parts of one volume",
            {
                f"{RUNTIME}.volumes": _volumes("a"),
                f"{RUNTIME}.volumeMounts": [
                    {"name": "a", "mountPath": "/x", "subPath": "b", "subPathExpr": "$(POD)"},
                ],
            },
            f"{RUNTIME}.volumeMounts[0].subPathExpr",
            "subPathExpr '$(POD)' stands beside subPath 'b'; write one",
        ),
        Bad(
            "a mount without a path",
            {f"{RUNTIME}.volumes": _volumes("a"), f"{RUNTIME}.volumeMounts": [{"name": "a"}]},
            f"{RUNTIME}.volumeMounts[0].mountPath",
            "Required value",
            "is missing",
        ),
        Bad(
            "a mount of what cannot be a volume",
            {f"{RUNTIME}.volumeMounts": [{"name": "a_b", "mountPath": "/x"}]},
            f"{RUNTIME}.volumeMounts[0].name",
            "'a_b' is not the name of an object",
        ),
        Bad(
            "two mounts at one path",
            {
                f"{RUNTIME}.volumes": _volumes("a", "b"),
                f"{RUNTIME}.volumeMounts": [
                    {"name": "a", "mountPath": "/x"},
                    {"name": "b", "mountPath": "/x"},
                ],
            },
            f"{RUNTIME}.volumeMounts[1]",
            "Duplicate value",
            "'/x' is given 2 times",
        ),
        Bad(
            "a volume whose name no pod may have",
            {f"{RUNTIME}.volumes": _volumes("My_Volume")},
            f"{RUNTIME}.volumes[0].name",
            "'My_Volume' is not the name of an object",
        ),
        *(
            Bad(
                f"a volume at {path}",
                {
                    f"{RUNTIME}.volumes": _volumes("a"),
                    f"{RUNTIME}.volumeMounts": [{"name": "a", "mountPath": path}],
                },
                f"{RUNTIME}.volumeMounts[0].mountPath",
                f"'{path}' is not a mount path; write an absolute path below /",
            )
            for path in ("/", "//", "data", "./data", "/a:b", "/a/../b", "/.", "/a//b", "/a/")
        ),
        Bad(
            "a volume at no path",
            {
                f"{RUNTIME}.volumes": _volumes("a"),
                f"{RUNTIME}.volumeMounts": [{"name": "a", "mountPath": ""}],
            },
            f"{RUNTIME}.volumeMounts[0].mountPath",
            "'' is not a mount path; write an absolute path below /",
        ),
        Bad(
            "a mount of a volume that is not there",
            {
                f"{RUNTIME}.volumes": _volumes("a", "b"),
                f"{RUNTIME}.volumeMounts": [
                    {"name": "a", "mountPath": "/a"},
                    {"name": "c", "mountPath": "/c"},
                ],
            },
            f"{RUNTIME}.volumeMounts",
            "volumeMounts names the volume 'c', which is none of volumes; add it there, or",
        ),
        Bad(
            "a mount without volumes",
            {f"{RUNTIME}.volumeMounts": [{"name": "of-the-operators-settings", "mountPath": "/x"}]},
            f"{RUNTIME}.volumeMounts",
            "names the volume 'of-the-operators-settings', which is none of volumes",
        ),
    )


def _nodes() -> tuple[Bad, ...]:
    """Labels and taints of nodes."""
    return (
        Bad(
            "a toleration of everything with a value",
            {f"{RUNTIME}.tolerations": [{"operator": "Exists", "value": "x"}]},
            f"{RUNTIME}.tolerations[0].value",
            "value 'x' has no meaning with operator Exists",
        ),
        Bad(
            "a toleration of nothing",
            {f"{RUNTIME}.tolerations": [{"effect": "NoSchedule"}]},
            f"{RUNTIME}.tolerations[0].key",
            "key is missing; operator Equal needs one, or set operator: Exists",
        ),
        Bad(
            "patience without an end to it",
            {f"{RUNTIME}.tolerations": [{"operator": "Exists", "tolerationSeconds": 5}]},
            f"{RUNTIME}.tolerations[0].tolerationSeconds",
            "tolerationSeconds 5 has no meaning without effect NoExecute",
        ),
        *(
            Bad(
                f"a node whose label is {key[:20]!r}",
                {f"{RUNTIME}.nodeSelector": {"fine": "yes", key: "yes"}},
                f"{RUNTIME}.nodeSelector",
                "is not the key of a label; use up to 63 letters, digits",
            )
            for key in (
                "",
                "-a",
                "a b",
                "a/b/c",
                "/a",
                "a/",
                "Example.com/a",
                "a" * 64,
                "d" * 254 + "/a",
            )
        ),
        *(
            Bad(
                f"a node with the label's value {value!r}",
                {f"{RUNTIME}.nodeSelector": {"fine": "yes", "pool": value}},
                f"{RUNTIME}.nodeSelector",
                "is not the value of a label; use up to 63 letters, digits",
            )
            for value in ("a b", "-a", "a/b")
        ),
        Bad(
            "a taint that no node can have",
            {f"{RUNTIME}.tolerations": [{"key": "a b", "operator": "Exists"}]},
            f"{RUNTIME}.tolerations[0].key",
            "'a b' is not the key of a taint; use up to 63 letters",
        ),
        Bad(
            "a taint with a value that it cannot have",
            {f"{RUNTIME}.tolerations": [{"key": "a", "value": "b c"}]},
            f"{RUNTIME}.tolerations[0].value",
            "'b c' is not the value of a taint; use up to 63 letters",
        ),
        Bad(
            "negative patience",
            {
                f"{RUNTIME}.tolerations": [
                    {
                        "key": "a",
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": -1,
                    }
                ]
            },
            f"{RUNTIME}.tolerations[0].tolerationSeconds",
            "greater than or equal to 0",
            "is too small",
        ),
        Bad(
            "a label that is a number",
            {f"{RUNTIME}.nodeSelector": {"a": 1}},
            f"{RUNTIME}.nodeSelector.a",
            "must be of type string",
            "expected text",
        ),
    )


def _volumes(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "emptyDir": {}} for name in names]
