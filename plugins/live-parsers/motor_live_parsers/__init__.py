"""vLLM plugin that keeps the parsers of streaming derender calls alive between calls.

vLLM finds `register` through the entry point group `vllm.general_plugins`. The wire contract and the settings are in
`docs/live-parsers.md` of the Motor Coordinator.
"""

import logging
import os
import sys

__version__ = "0.1.0"

# A child of vLLM's own logger, because vLLM configures no other. vLLM loads plugins before it configures even that one,
# so what is said here is seen from warning level on.
_logger = logging.getLogger("vllm.motor_live_parsers")

# vLLM loads general plugins in every one of its processes. Only one that serves HTTP has imported this module by then;
# engine and worker processes need no parser, and must not pay for the import of the HTTP server.
_SERVER_MODULE = "vllm.entrypoints.launchers.app"

_installed = False


def register() -> None:
    """Install the live parsers in this process, or say in one log line why not.

    Never raises for an unknown vLLM or a wrong setting: a sidecar without live parsers is slower, not broken.
    """
    global _installed  # noqa: PLW0603 - vLLM may call a plugin more than once in a process
    from motor_live_parsers.settings import Settings

    if _installed or _SERVER_MODULE not in sys.modules:
        return
    try:
        settings = Settings.from_environment(os.environ)
    except ValueError as error:
        _logger.error("motor-live-parsers %s stays out: %s", __version__, error)
        return
    if not settings.enabled:
        _logger.info("motor-live-parsers %s stays out: MOTOR_LIVE_PARSERS_ENABLE is off", __version__)
        return
    from motor_live_parsers.compatibility import find_incompatibility

    if (reason := find_incompatibility()) is not None:
        _logger.warning("motor-live-parsers %s stays out: %s", __version__, reason)
        return
    from motor_live_parsers.patch import install

    install(settings)
    _installed = True
