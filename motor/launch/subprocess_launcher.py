"""Children as ordinary processes."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, STDOUT

from motor.launch.child_spec import ChildSpec, RunningProcess


class SubprocessLauncher:
    """Starts each child as a new process with its own session, so that a terminal's Ctrl-C reaches only the parent."""

    async def launch(self, spec: ChildSpec) -> RunningProcess:
        """Start a process whose output is appended to the child's log.

        Raises:
            OSError: The program can't be executed or the log can't be written.
        """
        with spec.log_path.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *spec.program,
                *spec.arguments,
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                env={**os.environ, **spec.environment},
                start_new_session=True,
            )
