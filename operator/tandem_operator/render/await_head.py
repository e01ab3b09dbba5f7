"""A worker pod's wait for its Ray head.

`ray start` gives up on a head that is still on its way. KubeRay's own init container
(`wait-gcs-ready`) imports Ray for each look, under a limit of a fifth of a CPU: 13 to 16 seconds of
each new replica's start (measured, KubeRay 1.6.2). A program of the image would not be in those of
an older version, with which a newer operator has to work, so it is bash, as KubeRay's is.
"""

from typing import Final

from tandem_operator.render.settings import ContainerResources

# The greeting of HTTP/2, which gRPC speaks, and a frame of no settings. A head that hangs does not
# answer it, though the kernel accepts the connection.
SCRIPT: Final = r"""
answers() {
    timeout 5 bash -c '
        exec 3<>"/dev/tcp/$FQ_RAY_IP/$0" &&
            printf "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" >&3 &&
            [ "$(head -c 1 <&3 | wc -c)" -eq 1 ]' "$1" 2>/dev/null
}
until answers "$0"; do
    echo "waiting for the Ray head at $FQ_RAY_IP:$0, for $SECONDS s so far"
    sleep 1
done
echo "the Ray head answers at $FQ_RAY_IP:$0"
"""
"""A program for `bash -c` whose $0 is the port of the head's GCS, and FQ_RAY_IP its name.

It ends when a gRPC server answers there, and has no time limit: only a deleted pod stops to need
its head.
"""

RESOURCES: Final = ContainerResources(cpu="1", memory="64Mi")
"""No more than the smallest worker has."""
