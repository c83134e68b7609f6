"""SimpleSpread: agents spread over landmarks and avoid each other on a plane.

Observation: the agent's own velocity and position, the landmarks relative to the agent, the other agents in the order of their
    ids relative to the agent, each as x and y, and two zeros for each of the others, which communicate nothing.
Action: 0 nothing, 1 accelerates left, 2 right, 3 down, 4 up.
Reward: `local_ratio` times minus the number of other agents that the agent overlaps, plus 1 - `local_ratio` times minus the sum
    of the distances between each landmark and the agent nearest to it. All agents share the second part.
Termination: never; an episode is truncated after 25 steps.
Parameters: there are as many landmarks as agents. Agents are discs of mass 1, which repel each other by a force along the line
    through their centres, `contact_force` times the smoothed depth of the overlap, with `contact_margin` as the width of
    the smoothing. Landmarks repel nothing. A reset draws all positions uniformly, x and y from -1 to 1.
Source: the rules of simple_spread_v3 in MPE2, the multi-agent particle environments (Lowe et al., 2017, "Multi-agent
    actor-critic for mixed cooperative-competitive environments"; Mordatch and Abbeel, 2018, "Emergence of grounded
    compositional language in multi-agent populations").
"""

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Bools, Floats, Key, MultiAgentEnv, Observation, Time, each, sum_of, uniform
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_at_least_one, require_finite, require_not_negative, require_positive

LEFT, RIGHT, DOWN, UP = 1, 2, 3, 4  # actions
INFINITY = math.inf
# A thread computes the whole observation of an agent without a loop, up to so many agents; then one thread for each element.
MAX_AGENTS_OF_A_ROW = 8
Vectors = Callable[..., tuple[float, ...]]
"""`vectors(i, s, t, p)` returns a part of the observation of agent i."""


class State(NamedTuple):
    position: Annotated[Floats, "agents", 2]  # x and y [length]
    velocity: Annotated[Floats, "agents", 2]  # [length/s]
    force: Annotated[Floats, "agents", 2]  # on the agent in the last step [length/s^2]
    landmark: Annotated[Floats, "landmarks", 2]  # position [length]
    total_distance: float  # the sum over landmarks of the distance to the nearest agent [length]


class Params(NamedTuple):
    num_agents: int = 3  # and landmarks
    local_ratio: float = 0.5  # weight of the agent's own collisions in its reward, from 0 to 1
    radius: float = 0.15  # of an agent [length]
    acceleration: float = 5.0  # of an action [length/s^2]
    damping: float = 0.25  # fraction of the velocity that is lost in a step, from 0 to 1
    contact_force: float = 100.0  # force for a unit of depth [1/s^2]
    contact_margin: float = 0.001  # [length]
    dt: float = 0.1  # [s]


def agents(p: Params) -> int:
    return p.num_agents


def sets(p: Params) -> dict[str, int]:
    return {"landmarks": p.num_agents}


def reset_agent(i: int, s: State, key: Key, p: Params) -> None:
    for axis in range(2):
        s.position[i, axis] = uniform(key, 2 * i + axis, -1.0, 1.0)
        s.velocity[i, axis], s.force[i, axis] = 0.0, 0.0


def reset_landmark(k: int, s: State, key: Key, p: Params) -> None:
    for axis in range(2):
        s.landmark[k, axis] = uniform(key, 2 * k + axis, -1.0, 1.0)


def distance_between(x: float, y: float) -> float:
    """Returns the length of the difference (x, y) of two positions."""
    return math.sqrt(x * x + y * y)


def softplus(z: float) -> float:
    """Returns log(1 + exp(z)) without overflow."""
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


def contact_force(x: float, y: float, p: Params) -> tuple[float, float]:
    """Returns the force on an agent whose position minus that of another agent is (x, y)."""
    distance = distance_between(x, y)
    depth = softplus((2.0 * p.radius - distance) / p.contact_margin) * p.contact_margin
    # Agents in the same place have no direction in which to repel each other.
    scale = p.contact_force * depth / distance if distance > 0.0 else 0.0
    return scale * x, scale * y


def collide(i: int, s: State, action: int, key: Key, p: Params) -> None:
    """Phase in which each agent adds the forces on it."""
    force_x = p.acceleration if action == RIGHT else -p.acceleration if action == LEFT else 0.0
    force_y = p.acceleration if action == UP else -p.acceleration if action == DOWN else 0.0
    for j in range(p.num_agents):
        if j != i:
            x, y = contact_force(s.position[i, 0] - s.position[j, 0], s.position[i, 1] - s.position[j, 1], p)
            force_x, force_y = force_x + x, force_y + y
    s.force[i, 0], s.force[i, 1] = force_x, force_y


def move(i: int, s: State, action: int, key: Key, p: Params) -> None:
    for axis in range(2):
        velocity = s.velocity[i, axis]
        s.position[i, axis] += velocity * p.dt
        s.velocity[i, axis] = velocity * (1.0 - p.damping) + s.force[i, axis] * p.dt


def nearest_distance(k: int, s: State, p: Params) -> float:
    """Returns the distance between landmark k and the nearest agent."""
    nearest = INFINITY
    for i in range(p.num_agents):
        distance = distance_between(s.position[i, 0] - s.landmark[k, 0], s.position[i, 1] - s.landmark[k, 1])
        nearest = min(nearest, distance)
    return nearest


def reward(i: int, s: State, t: Time, p: Params) -> float:
    num_collisions = 0
    for j in range(p.num_agents):
        distance = distance_between(s.position[i, 0] - s.position[j, 0], s.position[i, 1] - s.position[j, 1])
        if j != i and distance < 2.0 * p.radius:
            num_collisions += 1
    return -s.total_distance * (1.0 - p.local_ratio) - np.float32(num_collisions) * p.local_ratio  # type: ignore[return-value]


def terminated(i: int, s: State, p: Params) -> bool:
    return False


def element(i: int, k: int, s: State, t: Time, p: Params) -> tuple[float]:
    """Returns element k of the observation of agent i."""
    vector, axis = k // 2, k % 2
    if vector == 0:
        return (s.velocity[i, axis],)
    if vector == 1:
        return (s.position[i, axis],)
    landmark = vector - 2
    if landmark < p.num_agents:
        return (s.landmark[landmark, axis] - s.position[i, axis],)
    other = landmark - p.num_agents
    if other < p.num_agents - 1:
        j = other + 1 if other >= i else other
        return (s.position[j, axis] - s.position[i, axis],)
    return (0.0,)


def last_element(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return element(i, 6 * p.num_agents - 1, s, t, p)


def own_vectors(i: int, s: State, t: Time, p: Params) -> tuple[float, ...]:
    return s.velocity[i, 0], s.velocity[i, 1], s.position[i, 0], s.position[i, 1]


def landmark_vector(k: int) -> Vectors:
    """Returns the function of the position of landmark k relative to an agent."""

    def vector(i: int, s: State, t: Time, p: Params) -> tuple[float, ...]:
        return s.landmark[k, 0] - s.position[i, 0], s.landmark[k, 1] - s.position[i, 1]

    return vector


def other_vector(k: int) -> Vectors:
    """Returns the function of the position of the k-th other agent relative to an agent."""

    def vector(i: int, s: State, t: Time, p: Params) -> tuple[float, ...]:
        j = k + 1 if k >= i else k
        return s.position[j, 0] - s.position[i, 0], s.position[j, 1] - s.position[i, 1]

    return vector


def zero_vector(i: int, s: State, t: Time, p: Params) -> tuple[float, ...]:
    return 0.0, 0.0


def concatenate(functions: list[Vectors]) -> Vectors:
    """Returns the function whose result has those of all functions, one after the other."""
    if len(functions) == 1:
        return functions[0]
    middle = len(functions) // 2
    first, second = concatenate(functions[:middle]), concatenate(functions[middle:])

    def both(i: int, s: State, t: Time, p: Params) -> tuple[float, ...]:
        return first(i, s, t, p) + second(i, s, t, p)

    return both


def observation(p: Params) -> Observation:
    others = p.num_agents - 1
    if p.num_agents <= MAX_AGENTS_OF_A_ROW:
        landmarks, positions = (
            map(vector, range(n)) for vector, n in ((landmark_vector, p.num_agents), (other_vector, others))
        )
        return Observation(concatenate([own_vectors, *landmarks, *positions, *[zero_vector] * others]))
    # A neighbor has one feature here, so that a row has the order of the slots: x and y of one vector after the other.
    return Observation(last_element, element, max_neighbors=6 * p.num_agents - 1)


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-np.inf, np.inf, (6 * p.num_agents,)), Discrete(5)


def field_ranges(p: Params) -> dict[str, tuple[float, float]]:
    return dict.fromkeys(("position", "velocity", "landmark"), (-1e6, 1e6))  # whose squares are added


def check(p: Params) -> None:
    require_at_least_one(p, "num_agents")
    require_positive(p, "radius", "contact_margin", "dt")
    require_not_negative(p, "local_ratio", "acceleration", "damping", "contact_force")
    require_finite(p, "radius", "acceleration", "contact_force", "contact_margin", "dt")
    for name in ("local_ratio", "damping"):
        if getattr(p, name) > 1.0:
            raise ValueError(f"{name} is {getattr(p, name)}; it must be at most 1.")


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    """Returns landmarks that agents begin to cover, and agents that begin to overlap."""

    def is_near(state: State, others: Floats, distance: float) -> Bools:
        is_below: Bools = np.linalg.norm(state.position[:, None] - others, axis=2) < distance
        return is_below

    covers = is_near(s, s.landmark, p.radius) & ~is_near(before, before.landmark, p.radius)
    collides = is_near(s, s.position, 2.0 * p.radius) & ~is_near(before, before.position, 2.0 * p.radius)
    return [
        *(("goal", f"agent {i} covers landmark {k}", (int(i),)) for i, k in np.argwhere(covers)),
        *(("loss", f"agents {i} and {j} collide", (int(i), int(j))) for i, j in np.argwhere(np.triu(collides))),
    ]


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    sets=sets,
    reset=(reset_agent, each("landmarks", reset_landmark)),
    phases=(collide, move, sum_of("total_distance", nearest_distance, over="landmarks")),
    reward=reward,
    terminated=terminated,
    observation=observation,
    structural=("num_agents",),
    max_episode_steps=25,
    check=check,
    field_ranges=field_ranges,
    draw=pictures.simple_spread,
    events=events,
    action_names=("nothing", "left", "right", "down", "up"),
    render_fps=10,
)
