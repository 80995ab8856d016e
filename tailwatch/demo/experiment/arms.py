"""The servers that are compared, and the comparisons."""

from __future__ import annotations

from dataclasses import dataclass

BATCH = 48  # of the demo's engine

SMALL_BATCH = 32


@dataclass(frozen=True, slots=True)
class ExperimentArm:
    """One way to run the server. gc: as of install(). key: in files. row: in the table, in the words of the measurement
    that this began with, where each row names what it lacks; name: everywhere else, what it has."""

    key: str
    name: str
    row: str
    gc: str
    fast_sse: bool = False
    batch: int = BATCH

    @property
    def unfrozen(self) -> bool:
        """Whether full collections of the whole heap fall into its window."""
        return self.gc == "observe"


@dataclass(frozen=True, slots=True)
class Question:
    """What does `after` change against `before`? Keys of arms."""

    name: str
    before: str
    after: str


ARMS = (
    ExperimentArm("freeze+sse", "frozen, fast SSE", "freeze + fast SSE", "freeze", fast_sse=True),
    ExperimentArm("freeze", "frozen", "− fast SSE", "freeze"),
    ExperimentArm("neither", "unfrozen", "− freeze − fast SSE", "observe"),
    ExperimentArm(
        "small-batch",
        f"unfrozen, batch {SMALL_BATCH}",
        f"the same with batch {SMALL_BATCH}",
        "observe",
        batch=SMALL_BATCH,
    ),
    ExperimentArm("idle", "idle", "idle", "idle"),
)
BY_KEY = {arm.key: arm for arm in ARMS}
QUESTIONS = (
    Question("the freeze", "neither", "freeze"),
    Question("idle", "neither", "idle"),
    Question("fast SSE, frozen", "freeze", "freeze+sse"),
    Question(f"batch {SMALL_BATCH}, unfrozen", "neither", "small-batch"),
)


def order(block: int) -> tuple[ExperimentArm, ...]:
    """The turns of a block: A B C …, then … C B A, each pair of blocks beginning one further on."""
    start = block // 2 % len(ARMS)
    turned = ARMS[start:] + ARMS[:start]
    return turned if block % 2 == 0 else turned[::-1]
