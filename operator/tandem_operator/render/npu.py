"""Selection of a service's NPU profile; pure."""

from tandem_operator.render.desired import RenderError
from tandem_operator.render.npu_profiles import NpuProfile
from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.spec import InferenceService


def npu_profile(service: InferenceService, settings: OperatorSettings) -> NpuProfile | None:
    """Return the NPU profile of `service`; None: it requests no card.

    Raises:
        RenderError: there is no such profile, or a replica requests more cards than a node has.
    """
    requested = service.spec.resources
    if not requested.npu:
        return None
    known = ", ".join(sorted(settings.npu_profiles))
    name = requested.npu_profile or settings.default_npu_profile
    if name is None:
        raise RenderError(
            f"spec.resources.npu is {requested.npu}, and neither spec.resources.npuProfile nor the "
            f"operator's defaultNpuProfile says what kind of node has them; set npuProfile to one "
            f"of: {known}"
        )
    if name not in settings.npu_profiles:
        raise RenderError(
            f"spec.resources.npuProfile '{name}' is not one of the operator's; allowed: {known}; "
            "npuProfiles in the operator's settings adds one"
        )
    profile = settings.npu_profiles[name]
    if requested.npu > profile.cards:
        raise RenderError(
            f"spec.resources.npu {requested.npu} is more than a node of npuProfile '{name}' has, "
            f"{profile.cards}; a replica stays within one node: ask for at most {profile.cards}"
        )
    return profile
