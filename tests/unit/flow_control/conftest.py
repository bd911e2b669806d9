"""What the tests of the gate share."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.flow_control.desk import NOTHING, Desk


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """A desk at which nothing may be left at the end."""
    desk = Desk()
    yield desk
    assert desk.counts == NOTHING
    assert desk.clock.timers == []
