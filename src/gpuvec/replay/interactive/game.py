"""A game of a person, who acts for one agent of an environment on the CPU, beside a policy or chance; and its server.

The page of the server shows the game, and sends it keys. Time passes only by requests of the page, so a game whose page is
paused or closed waits. One page plays at a time: the one that was the last to begin an episode.

Letters: A agents, N choices of an action, K action components.
"""

from __future__ import annotations

import base64
import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.canvas import Canvas
from gpuvec.errors import ActionError
from gpuvec.registration import registered_envs
from gpuvec.replay.document import TrackWriter
from gpuvec.replay.drawing import encode_drawing
from gpuvec.replay.local_server import CSS, HTML, JAVASCRIPT, JSON, Answer, LocalServer, refusal
from gpuvec.replay.page import BOOT, MODULES
from gpuvec.replay.recording import action_sizes, agent_indices
from gpuvec.spec import Environment, MultiAgentEnv
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.rendering import draw_state

LEFT, RIGHT, UP, DOWN = ("ArrowLeft", "a"), ("ArrowRight", "d"), ("ArrowUp", "w"), ("ArrowDown", "s")
KEYS_OF_WORDS = {
    "left": LEFT, "right": RIGHT, "up": UP, "forward": UP, "down": DOWN, "back": DOWN, "backward": DOWN,
}  # fmt: skip
IDLE_WORDS = {"no", "noop", "none", "nothing", "stay", "idle", "wait"}
COUNTER_CLOCKWISE_WORDS = {"turn", "steer"}  # whose positive values are to the left
SIGNED_NUMBER = re.compile(r"[+-]\d+(?:\.\d+)?(?:e[+-]?\d+)?$")
NUM_DIGITS = 9
PAGE_ID = re.compile(r"[0-9a-f]{32}")
MAX_COMPONENTS = 64  # of an action in a request


class Control(NamedTuple):
    """A choice of one component of an action, which keys and a button of the page select."""

    name: str
    component: int
    value: float
    keys: tuple[str, ...]  # as `KeyboardEvent.key` names them in a browser


class Controls(NamedTuple):
    """All choices of a person."""

    choices: list[Control]
    idle: list[float | None]  # (K,) the value of each component if no key is down; None for that of the last key


def find_controls(space: gym.Space[Any], names: Sequence[str]) -> Controls:
    """Returns the choices of an action space, with keys by the names: arrows for directions, digits for others.

    Args:
        space: of one agent.
        names: those of the choices of an action, of one component after the other; of a continuous action its components.

    Raises:
        ValueError: a continuous action of more than two components, or one without bounds; or several components of which no
            key can choose.
    """
    if isinstance(space, gym.spaces.Box):
        return _continuous_controls(space, names)
    sizes = action_sizes(space)
    starts = np.broadcast_to(np.asarray(space.start), len(sizes)).tolist()  # type: ignore[attr-defined]  # both have it
    choices, idle, first = list[Control](), list[float | None](), 0
    for component, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        of_component, idle_choice = _discrete_controls(names[first : first + size], component, len(sizes))
        # Of many components with many levels, buttons for all would fill the page.
        shown = of_component if len(sizes) == 1 else [control for control in of_component if control.keys]
        choices += [control._replace(value=start + control.value) for control in shown]
        idle.append(None if idle_choice is None else start + idle_choice)
        first += size
    if not choices:
        raise ValueError(
            f"no key can choose among the actions {', '.join(names[:8])}: name their directions, as in 'left', or end the "
            "names with signed numbers, as in 'turn +1'."
        )
    return Controls(choices, idle)


def _continuous_controls(space: gym.spaces.Box, names: Sequence[str]) -> Controls:
    """Keys set a component to one of its bounds; without a key it is 0."""
    low, high = space.low.ravel().astype(float).tolist(), space.high.ravel().astype(float).tolist()
    if len(names) > 2 or not np.isfinite([*low, *high]).all():
        raise ValueError(
            f"a person can play continuous actions of at most two components with bounds, and this one has {len(names)}, from "
            f"{space.low.min()} to {space.high.max()}."
        )
    choices = []
    for component, name in enumerate(names):
        minus, plus = _keys_of_signs(name, component, len(names))
        choices += [
            Control(f"{name} {low[component]:+.3g}", component, low[component], minus),
            Control(f"{name} {high[component]:+.3g}", component, high[component], plus),
        ]
    return Controls(choices, [min(max(0.0, a), b) for a, b in zip(low, high, strict=True)])


def _discrete_controls(names: Sequence[str], component: int, num_components: int) -> tuple[list[Control], int | None]:
    """Returns a control for each choice of a component, and the choice that does nothing, if one does."""
    words = [set(re.findall(r"[a-z]+", name.lower())) for name in names]
    numbers = [float(match[0]) if (match := SIGNED_NUMBER.search(name)) else None for name in names]
    keys: list[tuple[str, ...]] = [()] * len(names)
    idle = next((choice for choice, own in enumerate(words) if own & IDLE_WORDS), None)
    signed = {number: choice for choice, number in enumerate(numbers) if number is not None}
    if signed and min(signed) < 0.0 < max(signed):
        minus, plus = _keys_of_signs(names[signed[max(signed)]], component, num_components)
        keys[signed[min(signed)]], keys[signed[max(signed)]] = minus, plus
        idle = signed[min(signed, key=abs)] if idle is None else idle
    else:
        free = dict(KEYS_OF_WORDS)
        for choice, own in enumerate(words):
            if word := next((word for word in free if word in own), None):
                keys[choice] = free[word]
                free = {other: arrow for other, arrow in free.items() if arrow != keys[choice]}
    if num_components == 1:
        keys = [(*own, str(choice + 1)) if choice < NUM_DIGITS else own for choice, own in enumerate(keys)]
    return [Control(name, component, choice, own) for choice, (name, own) in enumerate(zip(names, keys, strict=True))], idle


def _keys_of_signs(name: str, component: int, num_components: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the keys of the smallest and of the largest value: of two components, the first one has the vertical arrows."""
    if num_components > 1 and component == 0:
        return DOWN, UP
    if component > 1:
        return (), ()
    return (RIGHT, LEFT) if set(re.findall(r"[a-z]+", name.lower())) & COUNTER_CLOCKWISE_WORDS else (LEFT, RIGHT)


if TYPE_CHECKING:
    from gpuvec.learners.policy_files.numpy_policy import NumpyPolicy
    from gpuvec.learners.policy_files.trained_policy import TrainedPolicy


class Others(NamedTuple):
    """Who acts for the agents that the person does not play."""

    text: str  # what the page says of it
    policy: TrainedPolicy | NumpyPolicy | None = None  # None for actions at random
    stochastic: bool = False  # whether its actions are drawn


def require_playable(env: Environment, env_id: str) -> None:
    """Checks that a person can play an environment: it declares the names of its actions, and draws marks.

    Args:
        env: the environment.
        env_id: its id.

    Raises:
        ValueError: it does not; the message lists the bundled environments that do.
    """
    missing = [name for name in ("action_names", "draw") if not getattr(env, name)]
    if missing:
        playable = [name for name, other in registered_envs("gpuvec").items() if other.action_names and other.draw]
        raise ValueError(
            f"{env_id} cannot be played by keys, since it declares no {' and no '.join(missing)}. Those that come with gpuvec "
            f"and can are {', '.join(playable)}; one of your own needs action_names=(...) and draw=... ."
        )


class Game:
    """Episodes that a person plays. It is used by one thread at a time.

    Args:
        env_id: the id of the environment.
        params: its parameters that are not the defaults.
        agent: the number of the person's agent, or a role, of which it is the first agent.
        others: who acts for the other agents.
        seed: that of the first episode; each episode has the next one.

    Raises:
        ValueError: an environment without names of actions, names of another number, or an agent that it does not have.
    """

    def __init__(self, env_id: str, params: Mapping[str, Any], agent: str, others: Others, seed: int) -> None:
        output = "numpy" if others.policy is None else others.policy.output
        options: dict[str, Any] = {"device": "cpu", "output": output, "autoreset_mode": "Disabled", **params}
        envs: Any = gym.make_vec(env_id, 1, **options)
        self._envs = envs
        self._env, self._params, self._others = self._envs.environment, self._envs.params_of_row(0), others
        require_playable(self._env, env_id)
        self._is_multi_agent = isinstance(self._env, MultiAgentEnv)
        self.num_agents: int = self._envs.num_agents if self._is_multi_agent else 1
        self._space: Any = self._envs.single_action_space
        if isinstance(self._space, gym.spaces.Dict):
            raise ValueError(f"{env_id} cannot be played by keys: its roles have action spaces of their own.")
        if self._is_multi_agent:  # the space of all agents, as Gymnasium has it
            self._space = self._env.spaces(self._params)[1]
        self._roles = {role: agent_indices(agents, self.num_agents) for role, agents in self._envs.roles.items()}
        self.agent = self._find_agent(agent)
        self._sizes = action_sizes(self._space)
        self.controls = find_controls(self._space, self._action_names(env_id))
        self._act = None if others.policy is None else others.policy.make_act(self._envs, others.stochastic)
        self._rng = np.random.default_rng(seed)
        self._env_id, self._next_seed, self._best = env_id, seed, -math.inf
        # The first step compiles, which a page should not wait for.
        self.begin_episode()
        self._envs.step(self._actions_of_others())
        self._next_seed = seed
        self.begin_episode()

    def close(self) -> None:
        """Frees the environment."""
        self._envs.close()

    def describe(self) -> dict[str, Any]:
        """Returns what the page shows of the game besides its states, as JSON has it."""
        roles = [role for role, agents in self._roles.items() if self.agent in agents]
        you = f"agent {self.agent}" if not roles else f"{roles[0]}, agent {self.agent}"
        return {
            "env": self._env_id,
            "you": f"You play {you} of {self.num_agents}." if self.num_agents > 1 else "",
            "others": self._others.text if self.num_agents > 1 else "",
            "agent": self.agent if self.num_agents > 1 else None,
            "fps": self._env.render_fps,
            "has_turns": bool(getattr(self._env, "to_move", None)),
            "max_steps": self._envs.spec.max_episode_steps,
            "threshold": self._envs.spec.reward_threshold,
            "controls": [control._asdict() for control in self.controls.choices],
            "idle": self.controls.idle,
        }

    def begin_episode(self) -> None:
        """Begins an episode."""
        obs, infos = self._envs.reset(seed=self._next_seed)
        self._seed, self._next_seed = self._next_seed, self._next_seed + 1
        self._obs, self._infos = obs, infos
        self._last_action: Any = None
        self._num_steps, self._returns, self._ending = 0, np.zeros(self.num_agents), ""

    def step(self, action: Sequence[float] | None) -> None:
        """Takes a step.

        Args:
            action: (K,) of the person; None while it is the turn of another agent.

        Raises:
            ActionError: the episode has ended, or there is no such action, or it is not allowed in this state.
        """
        if self._ending:
            raise ActionError("the episode has ended: begin another one.")
        if action is None and self._is_own_turn:
            raise ActionError("it is your turn: choose an action.")
        if action is not None and not self._is_own_turn:
            raise ActionError("it is the turn of another agent.")
        actions = self._actions_of_others()
        if action is not None:  # A waiting agent's action means nothing.
            self._require_allowed(action)
            row = actions[0] if self._is_multi_agent else actions
            if isinstance(self._space, gym.spaces.Discrete):
                row[self.agent] = int(action[0])
            else:
                for component, value in enumerate(action):  # one by one, as arrays and tensors both take them
                    row[self.agent][component] = value
        self._last_action = np.array(to_host(actions)[0])  # a copy, since a policy may use its memory again
        self._obs, reward, terminated, truncated, self._infos = self._envs.step(actions)
        self._num_steps += 1
        self._returns += np.asarray(to_host(reward), float).reshape(-1)
        if bool(to_host(terminated)[0]) or bool(to_host(truncated)[0]):
            self._best = max(self._best, float(self._returns[self.agent]))
            self._ending = self._describe_ending(bool(to_host(terminated)[0]))

    def frame(self) -> dict[str, Any]:
        """Returns the state of the game, as JSON has it: the scene of one frame of a replay, and the score."""
        tracks = TrackWriter()
        fields = {name: to_host(array)[0] for name, array in self._envs.get_state().items()}
        canvas = draw_state(self._env, fields, self._params, self._last_action)
        if not isinstance(canvas, Canvas):
            raise ValueError(f"{self._env_id} cannot be played: its `draw` returns pixels, and the page shows a gpuvec.Canvas.")
        drawing = encode_drawing([canvas], tracks)
        rewards = tracks.add(np.zeros((1, self.num_agents), np.float32))
        scene = {**drawing, "num_frames": 1, "rewards": rewards}
        others, mask = np.delete(self._returns, self.agent), self._own_mask()
        return {
            "scene": scene,
            "data": base64.b64encode(tracks.data).decode("ascii"),
            "episode_seed": self._seed,
            "steps": self._num_steps,
            "return": _finite(self._returns[self.agent]),
            "mean_return_of_others": _finite(others.mean()) if len(others) else None,
            "best": _finite(self._best),
            "is_your_turn": self._is_own_turn,
            "is_active": self._is_active,
            "ending": self._ending,
            "allowed": [mask is None or bool(mask[self._mask_index(c.component, c.value)]) for c in self.controls.choices],
        }

    @property
    def _is_own_turn(self) -> bool:
        return "to_move" not in self._infos or int(to_host(self._infos["to_move"])[0]) in (-1, self.agent)

    @property
    def _is_active(self) -> bool:
        """Whether the person's agent takes part in the game; in games with turns it does while it waits."""
        if "to_move" in self._infos or "agent_mask" not in self._infos:
            return True
        return bool(to_host(self._infos["agent_mask"])[0, self.agent])

    def _find_agent(self, agent: str) -> int:
        roles = self._roles
        if roles.get(agent):
            return roles[agent][0]
        if agent.isdecimal() and int(agent) < self.num_agents:
            return int(agent)
        names = f", or a role, {', '.join(roles)}" if roles else ""
        raise ValueError(f"agent must be a number from 0 to {self.num_agents - 1}{names}, got {agent!r}.")

    def _action_names(self, env_id: str) -> Sequence[str]:
        declared = self._env.action_names
        names = tuple(declared(self._params) if callable(declared) else declared)
        count = sum(self._sizes) or math.prod(self._space.shape)
        if len(names) != count:
            raise ValueError(f"action_names of {env_id} has {len(names)} names, and there must be {count}.")
        return names

    def _require_allowed(self, action: Sequence[float]) -> None:
        """Raises ActionError unless the person may choose an action in this state."""
        choices, idle = self.controls
        is_known = len(action) == len(idle) and all(
            any(control.component == k and control.value == value for control in choices) or value == idle[k]
            for k, value in enumerate(action)
        )
        if not is_known:
            raise ActionError(f"there is no action {list(action)}: choose one of the controls of the page.")
        mask = self._own_mask()
        if mask is not None and not all(mask[self._mask_index(k, value)] for k, value in enumerate(action)):
            raise ActionError("this action is not allowed now.")

    def _actions_of_others(self) -> Any:
        """Returns actions of all agents, of which the person's is replaced: (1, A), (1, A, K), or of one agent (1,), (1, K)."""
        mask = self._infos.get("action_mask")
        if self._act is not None:
            return self._act(self._obs) if mask is None else self._act(self._obs, mask)
        rows = [self._random_action(None if mask is None else np.asarray(mask)[0, i]) for i in range(self.num_agents)]
        return np.stack(rows)[None] if self._is_multi_agent else np.stack(rows)

    def _random_action(self, mask: NDArray[np.bool_] | None) -> Any:
        """Draws an action of an agent, of those that its mask allows, with equal probabilities."""
        space = self._space
        if isinstance(space, gym.spaces.Box):
            return self._rng.uniform(space.low, space.high).astype(np.float32)
        masks = np.split(np.ones(sum(self._sizes), bool) if mask is None else mask, np.cumsum(self._sizes)[:-1])
        choices = np.array([self._rng.choice(np.flatnonzero(allowed)) for allowed in masks])
        return choices[0] + space.start if isinstance(space, gym.spaces.Discrete) else choices + space.start

    def _mask_index(self, component: int, value: float) -> int:
        start = int(np.broadcast_to(self._space.start, len(self._sizes))[component])
        return sum(self._sizes[:component]) + int(value) - start

    def _describe_ending(self, is_terminated: bool) -> str:
        """Returns how the episode ended, in a few words."""
        own, others = self._returns[self.agent], np.delete(self._returns, self.agent)
        if len(others) == 1 and own + others[0] == 0.0 and is_terminated:
            return "You won" if own > 0.0 else "You lost" if own < 0.0 else "A draw"
        return "The episode has ended" if is_terminated else f"Time is up after {self._num_steps:,} steps"

    def _own_mask(self) -> NDArray[np.bool_] | None:
        """Returns which actions the person may choose, (N,); None if all."""
        mask = self._infos.get("action_mask")
        if mask is None:
            return None
        row: NDArray[np.bool_] = np.asarray(to_host(mask))[0]
        return row[self.agent] if self._is_multi_agent else row


def _finite(value: float) -> float | None:
    """Returns a number as JSON has it: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


class PlayServer(LocalServer):
    """The server of a game. `serve_forever` answers requests until `shutdown`.

    Args:
        game: what is played; this server alone uses it.
        port: of the loopback address; 0 for one that is free.
        fps: steps per second; None for the environment's own speed.

    Raises:
        ServerError: another program uses the port, or this one may not.
    """

    page_files: ClassVar = {
        "/": ("interactive/page/index.html", HTML),
        "/play.js": ("interactive/page/play.js", JAVASCRIPT),
        "/play.css": ("interactive/page/play.css", CSS),
        **{f"/player/{name}.js": (f"player/{name}.js", JAVASCRIPT) for name in (*BOOT, *MODULES)},  # which draw
    }

    def __init__(self, game: Game, port: int, fps: float | None = None) -> None:
        super().__init__(port, secrets.token_urlsafe(32))
        self._game, self._fps, self._page, self._lock = game, fps, "", Lock()

    def answer(self, path: str) -> Answer:
        """Returns the page, or a file of it.

        Args:
            path: of the address, with a leading slash.
        """
        answer = super().answer(path)
        return answer._replace(content=answer.content.replace(b"TOKEN", self.token.encode())) if path == "/" else answer

    def answer_post(self, path: str, body: bytes) -> Answer:
        """Begins an episode for a page, or takes a step.

        `/begin` takes {"page": 32 hexadecimal digits} and answers with the description of the game and its first state; `/step`
        takes {"page": ..., "action": [a number for each component] or null} and answers with the next state.

        Args:
            path: of the address, with a leading slash.
            body: JSON.
        """
        request = _parse(body)
        if path not in ("/begin", "/step"):
            return super().answer_post(path, body)
        if request is None:
            return refusal(HTTPStatus.BAD_REQUEST, "A request is {'page': ..., 'action': numbers or null} in JSON.")
        with self._lock:
            if path == "/begin":
                self._page = request["page"]
                self._game.begin_episode()
                description = self._game.describe()
                description["fps"] = self._fps or description["fps"]
                return _to_answer({"game": description, "frame": self._game.frame()})
            if request["page"] != self._page:
                return refusal(HTTPStatus.CONFLICT, "The game continues in another page.")
            try:
                self._game.step(request.get("action"))
            except ActionError as error:
                return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"{str(error)[0].upper()}{str(error)[1:]}")
            return _to_answer({"frame": self._game.frame()})


def _to_answer(value: dict[str, Any]) -> Answer:
    return Answer(json.dumps(value, allow_nan=False).encode(), JSON)


def _parse(body: bytes) -> dict[str, Any] | None:
    """Returns the request in the body of a POST; None if it is none."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict) or not isinstance(page := request.get("page"), str) or not PAGE_ID.fullmatch(page):
        return None
    action = request.get("action")
    is_action = action is None or (
        isinstance(action, list)
        and len(action) <= MAX_COMPONENTS
        and all(type(value) in (int, float) and abs(value) < math.inf for value in action)
    )
    return request if is_action else None
