"""Structured logs on standard error; prompts, outputs and token ids never get there."""

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Literal

import structlog

CONTENT_KEYS = frozenset(
    {
        "prompt",
        "prompts",
        "messages",
        "input",
        "text",
        "content",
        "reasoning",
        "reasoning_content",
        "tools",
        "arguments",
        "body",
        "delta",
        "chunk",
        "output",
        "token_ids",
        "prompt_token_ids",
        "semantic_token_ids",
        "physical_token_ids",
        "output_token_ids",
    }
)
"""Names that content would come under; the processor below takes their values out, whoever logs them. A prompt's
number in its batch is `prompt_index`."""


def configure_logging(level: str, format: Literal["json", "console"]) -> None:  # noqa: A002 - the setting's name
    """Set up the process's logs.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        format: One JSON object a line, or columns for a person.
    """
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            withhold_content,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger that names its module."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(module=name)
    return logger


@contextmanager
def bind_request(**values: Any) -> Iterator[None]:
    """Bind values, `request_id` for one, to every line that the block and its tasks log."""
    with structlog.contextvars.bound_contextvars(**values):
        yield


def withhold_content(logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Replace the value of any key that would hold content."""
    for key in CONTENT_KEYS & event.keys():
        event[key] = "<withheld>"
    return event
