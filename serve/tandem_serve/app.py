"""The Serve application: `import_path` of the Serve document points at `build`."""

from ray import serve
from ray.serve import Application

from tandem_serve.api.document import DEPLOYMENT, AppArgs
from tandem_serve.api.ray_env import RETRIES
from tandem_serve.replica import Replica


def build(args: AppArgs) -> Application:
    """The application of one service; Ray checks `args` against their type first."""
    ingress = serve.ingress()(Replica)
    # The smaller of this and what the environment says is what counts; see `retry_env`.
    deployment = serve.deployment(name=DEPLOYMENT, max_constructor_retry_count=RETRIES)(ingress)
    return deployment.bind(args.document())
