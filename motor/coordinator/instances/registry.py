"""Which instances exist; snapshots are frozen, a change replaces them whole. Mutable: `_instances`."""

from collections.abc import Iterable

from motor.coordinator.domain.instance import Instance, Role


class InstanceRegistry:
    """The instances the Coordinator may use, by id, in the order they were given."""

    def __init__(self, instances: Iterable[Instance] = ()) -> None:
        self._instances = {instance.id: instance for instance in instances}

    def all(self) -> tuple[Instance, ...]:
        """Return every instance."""
        return tuple(self._instances.values())

    def with_role(self, role: Role) -> tuple[Instance, ...]:
        """Return the instances of one role."""
        return tuple(instance for instance in self._instances.values() if instance.role is role)
