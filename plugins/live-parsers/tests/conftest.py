"""The real derenderer of the installed vLLM, with any parser that the tiny model's tokenizer can drive."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.renderers import BaseRenderer, renderer_from_config
from vllm.renderers.online_derenderer import OnlineDerenderer

MODEL_PATH = Path(__file__).parents[3] / "models" / "tiny-qwen3"

MakeDerenderer = Callable[[str | None, str | None], OnlineDerenderer]


@pytest.fixture(scope="session")
def model_path() -> Path:
    return MODEL_PATH


@pytest.fixture(scope="session")
def renderer() -> Iterator[BaseRenderer]:
    model_config = AsyncEngineArgs(model=str(MODEL_PATH), max_model_len=4096).create_model_config()
    renderer = renderer_from_config(VllmConfig(model_config=model_config))
    yield renderer
    renderer.shutdown()


@pytest.fixture(scope="session")
def make_derenderer(renderer: BaseRenderer) -> MakeDerenderer:
    """Makes the derenderer of `--tool-call-parser` and `--reasoning-parser`."""

    def make(tool_parser: str | None, reasoning_parser: str | None) -> OnlineDerenderer:
        return OnlineDerenderer(
            model_config=renderer.model_config,
            renderer=renderer,
            request_logger=None,
            chat_template=None,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
        )

    return make
