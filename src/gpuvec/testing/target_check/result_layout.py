"""Which elements of the results of an environment belong to one agent, or to one element of another index set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.phases import AGENTS, PAIRS

STATE, ENGINE = "state ", "engine "  # precede the names of fields of the state and of the engine's buffers among results


class ResultLayout(NamedTuple):
    """The owners of the elements of results, {name: (E, ...) array}.

    Attributes:
        has_agents: whether rewards, observations and infos of agents have an axis of agents after that of environments.
        set_axes: {field of the state: the number of axes after the first that are those of its index set}.
        first_agents: {field whose second axis is that of agents or of a role: the agent of its first element}.
    """

    has_agents: bool
    set_axes: Mapping[str, int]
    first_agents: Mapping[str, int]

    def num_set_axes(self, name: str, num_axes: int) -> int:
        """Returns how many axes after that of environments are those of an index set; 0 if values belong to the environment.

        Args:
            name: the name of a result, such as "observation" or "state x".
            num_axes: the number of its axes.
        """
        if name.startswith(STATE):
            return self.set_axes.get(name.removeprefix(STATE), 0)
        return int(self.has_agents and num_axes > 1 and not name.startswith(ENGINE))

    def agent(self, name: str, element: tuple[int, ...]) -> int | None:
        """Returns the agent to which an element of a result belongs, None if it belongs to no single agent.

        Args:
            name: the name of the result.
            element: the index of the element, the environment first.
        """
        if name.startswith(STATE):
            first = self.first_agents.get(name.removeprefix(STATE))
            return None if first is None else first + element[1]
        return element[1] if self.num_set_axes(name, len(element)) else None

    def index_of_agent(self, field: str, agent: int, size: int) -> int | None:
        """Returns the index of an agent on the second axis of a field of the state, None if the field has no element of it.

        Args:
            field: the name of the field.
            agent: the agent.
            size: the length of that axis.
        """
        first = self.first_agents.get(field)
        return agent - first if first is not None and 0 <= agent - first < size else None


def make_result_layout(schema: EnvSchema) -> ResultLayout:
    """Returns the owners of the elements of the results of an environment.

    Args:
        schema: the schema of the environment.
    """
    if not isinstance(schema, MultiAgentSchema):
        return ResultLayout(False, {}, {})
    set_axes = {field: len(schema.sets[index_set]) for field, index_set in schema.field_sets.items()}
    if schema.is_single_agent:
        return ResultLayout(False, set_axes, {})
    first_agents = {AGENTS: 0, PAIRS: 0} | {role: part.first_agent for role, part in schema.role_schemas.items()}
    owners = {field: first_agents[name] for field, name in schema.field_sets.items() if name in first_agents}
    return ResultLayout(True, set_axes, owners)
