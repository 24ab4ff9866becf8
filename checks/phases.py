"""What a run is doing while it prints no step: told from its log."""

import re

# The first lines of each phase, in the order of a start. Read in logs of verl 0.6.0 with vllm-ascend 0.11.0rc1.
STARTING = [
    (re.compile(r"Started a local Ray instance"), "starting the task runner"),
    (re.compile(r"TaskRunner hostname:"), "reading the dataset"),
    (re.compile(r"Total training steps:"), "starting the workers"),
    (re.compile(r"Model config after override|config after override"), "building the model"),
    (re.compile(r"Load(?:ing)? .*(?:checkpoint|weights)|load from dist|start load"), "loading the weights"),
    (re.compile(r"Capturing|capturing|Graph capturing"), "capturing graphs"),
    (re.compile(r"Load from checkpoint folder|Resuming from"), "loading the checkpoint"),
    (re.compile(r"Training from scratch|Training Progress"), "first step"),
]
# One of these stands in every line that begins a phase: of the start, or later.
STARTING_MARKS = (
    "Started a local Ray instance",
    "TaskRunner hostname:",
    "Total training steps:",
    "config after override",
    "checkpoint",
    "weights",
    "load from dist",
    "start load",
    "apturing",
    "Resuming from",
    "Training from scratch",
    "Training Progress",
)
LATER_MARKS = ("local_global_step_folder:", "not registered within the timeout")
SAVING = re.compile(r"local_global_step_folder:")
# Ray tries again for ever, and the run hangs. Read in ray 2.46's raylet (worker_pool.cc).
NO_WORKERS = re.compile(r"workers? of the worker process.* ha(?:s|ve) not registered within the timeout")
PATIENCE = 3  # a machine that is short of cores or memory may bring the message once or twice
FIRST, LAST = "starting Ray", "ending Ray"


class Phases:
    """Follows the log line by line; `now` is the phase in words."""

    def __init__(self, total: int | None = None) -> None:
        self.now = FIRST
        self._total = total
        self._reached = 0
        self._late = 0

    @property
    def started(self) -> bool:
        """Whether the phases of the start are over."""
        return self._reached == len(STARTING)

    def line(self, text: str) -> None:
        """Takes in a line that is no step."""
        if NO_WORKERS.search(text):
            self._late += 1
            if self._late >= PATIENCE:
                self.now = f"Ray's workers do not start ({self._late} times out of time; see the log)"
            return
        if SAVING.search(text):
            self.now = "saving a checkpoint"
            return
        for index in range(self._reached, len(STARTING)):
            pattern, name = STARTING[index]
            if pattern.search(text):
                self.now, self._reached = name, index + 1
                return

    def step(self, number: int) -> None:
        """Takes in a finished step."""
        self._reached = len(STARTING)
        self.now = LAST if number == self._total else f"step {number + 1}"
