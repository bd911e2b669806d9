"""Everything here talks to real vLLM processes; they start once per session."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from motor.launch.engine_environment import EngineEnvironmentError

if TYPE_CHECKING:
    from tests.real.stack import PrefillDecode, RealStack, SpareEngine

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as `real`; its time limit leaves out the start of vLLM, which has its own."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def real_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator["RealStack"]:
    """The sidecar and two engines. Without an engine environment the tests fail: they prove the product's core."""
    from tests.real.stack import running_stack

    try:
        with running_stack(tmp_path_factory.mktemp("real-stack")) as stack:
            yield stack
    except EngineEnvironmentError as error:
        pytest.fail(f"real vLLM is missing: {error}", pytrace=False)


@pytest.fixture(scope="session")
def pd_stack(real_stack: "RealStack") -> "PrefillDecode":
    """A prefill and a decode engine with NIXL, started when the first test asks for them."""
    return real_stack.pair()


@pytest.fixture
def spare_engine(real_stack: "RealStack") -> "SpareEngine":
    """An engine like `real_stack.engine` that the test may kill."""
    return real_stack.spare()
