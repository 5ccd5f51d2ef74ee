"""LeRobot's protocol between actors and a learner (0.6): methods, and Proctor's own metadata.

service transport.LearnerService: Ready(Empty) -> Empty, SendTransitions(stream Transition) ->
Empty, SendInteractions(stream InteractionMessage) -> Empty, StreamParameters(Empty) -> stream
Parameters.
All messages are chunks (``protocols/formats/protobuf``). Parameters and transitions are torch's
archives, interactions are pickles (``rl/link/payloads``).

Proctor's actors add metadata, which LeRobot's learner ignores: their name and the number of the
first transition of a call. Proctor's learner then answers a call when the transitions are stored.
"""

from __future__ import annotations

SERVICE = "transport.LearnerService"
READY, PARAMETERS = "Ready", "StreamParameters"
TRANSITIONS, INTERACTIONS = "SendTransitions", "SendInteractions"
ACTOR_HEADER, FIRST_HEADER = "proctor-actor", "proctor-first"
"""Metadata of an actor's calls: its name, and the number of the call's first transition."""
POSITION_HEADER = "proctor-position"
"""Metadata in the reply to Ready: stored number, whole episodes and their transitions."""
MAX_NAME = 64
DEFAULT_PORT = 50051
MAX_PAYLOAD_BYTES = 256 * 2**20
"""Default limit of one payload. An episode of 300 steps with two 128x128 cameras has 236 MB."""
MAX_INTERACTION_BYTES = 2**16


def call_path(method: str) -> str:
    """Return the gRPC path of a method."""
    return f"/{SERVICE}/{method}"
