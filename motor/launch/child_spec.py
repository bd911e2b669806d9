"""What a supervised child is: its command, its environment, how to see that it is ready."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child process.

    Attributes:
        program: What is executed, e.g. an interpreter with its flags.
        arguments: What the program is told; a fork server has the program already and needs only these.
        environment: Added to the environment of the parent.
        url: Base URL, shown to the user.
        ready_paths: The child is ready when each of them answers 200.
        is_vital: Its end is the end of the whole stack; it is never restarted.
    """

    name: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    log_path: Path
    url: str
    ready_paths: tuple[str, ...] = ("/health",)
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_seconds: float = 600.0
    stop_timeout_seconds: float = 15.0
    is_vital: bool = False


class RunningProcess(Protocol):
    """A process that leads its own session and process group."""

    @property
    def pid(self) -> int:
        """Return the process id, which is the group's id too."""

    async def wait(self) -> int:
        """Return the exit code when the process has ended; negative is a signal's number."""


class Launcher(Protocol):
    """A way to start processes."""

    async def launch(self, spec: ChildSpec) -> RunningProcess:
        """Start a process whose output goes to the child's log.

        Raises:
            OSError: It can't be started.
        """
