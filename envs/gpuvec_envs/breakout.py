"""Breakout: a paddle keeps a ball in play, which breaks the bricks of a wall.

Observation: an image of 10 x 10 pixels with four channels, 0 or 1: the paddle, the ball, the ball's last place, and the bricks.
Action: 0 stays, 1 moves the paddle left, 2 right.
Reward: 1 for each broken brick.
Termination: the ball arrives in the paddle's row and meets neither the paddle nor the place of the paddle after the move.
Parameters: the wall has `brick_rows` rows. It is built again when the ball arrives in the last row and no brick is left.
Source: the rules of Breakout in MinAtar (Young and Tian, 2019, "MinAtar: an Atari-inspired testbed for thorough and
    reproducible reinforcement learning experiments"), without sticky actions, as gymnax (Lange, 2022) implements them.
"""

from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Bools, Key, SingleAgentEnv, randint
from gpuvec_envs import pictures

SIZE = 10  # rows and columns
LAST = SIZE - 1  # the row of the paddle, and the last column
LEFT, RIGHT = 1, 2  # actions
UP_LEFT, UP_RIGHT, DOWN_RIGHT, DOWN_LEFT = 0, 1, 2, 3  # directions of the ball
FIRST_ROW = 3  # of the ball


class State(NamedTuple):
    ball_y: int  # row
    ball_x: int  # column
    direction: int
    paddle_x: int
    last_y: int  # the ball's place before the last step
    last_x: int
    in_brick: bool  # whether the ball's last place had a brick, so that the next one does not break
    bricks: Annotated[Bools, "world", SIZE, SIZE]


class Params(NamedTuple):
    brick_rows: int = 3


def mirror_x(direction: int) -> int:
    """Returns the direction after a bounce off a side wall."""
    return direction ^ 1


def mirror_y(direction: int) -> int:
    """Returns the direction after a bounce off the ceiling, a brick or the paddle."""
    return 3 - direction


def reverse(direction: int) -> int:
    """Returns the direction after a bounce off the edge of the paddle."""
    return (direction + 2) % 4


def build_wall(s: State, p: Params) -> None:
    for y in range(SIZE):
        for x in range(SIZE):
            s.bricks[y, x] = 1 <= y <= p.brick_rows


def reset(s: State, key: Key, p: Params) -> State:
    build_wall(s, p)
    from_right = randint(key, 0, 0, 2) == 1
    x, direction = (LAST, DOWN_LEFT) if from_right else (0, DOWN_RIGHT)
    return State(FIRST_ROW, x, direction, SIZE // 2 - 1, FIRST_ROW, x, False, s.bricks)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    paddle_x = max(s.paddle_x - 1, 0) if action == LEFT else min(s.paddle_x + 1, LAST) if action == RIGHT else s.paddle_x
    direction = s.direction
    x = s.ball_x + (1 if UP_RIGHT <= direction <= DOWN_RIGHT else -1)
    y = s.ball_y + (1 if direction >= DOWN_RIGHT else -1)
    if x < 0 or x > LAST:
        x = min(max(x, 0), LAST)
        direction = mirror_x(direction)
    hits_ceiling = y < 0
    if hits_ceiling:
        y = 0
        direction = mirror_y(direction)

    reward, terminated = 0.0, False
    meets_brick = not hits_ceiling and s.bricks[y, x]
    if meets_brick and not s.in_brick:
        reward = 1.0
        s.bricks[y, x] = False
        y, direction = s.ball_y, mirror_y(direction)
    if not meets_brick and y == LAST:
        if not any_brick(s):
            build_wall(s, p)
        if s.ball_x == paddle_x:
            y, direction = s.ball_y, mirror_y(direction)
        elif x == paddle_x:
            y, direction = s.ball_y, reverse(direction)
        else:
            terminated = True
    return State(y, x, direction, paddle_x, s.ball_y, s.ball_x, meets_brick, s.bricks), reward, terminated


def any_brick(s: State) -> bool:
    # Without branches a GPU loads several cells at once.
    any_cell = False
    for y in range(SIZE):
        for x in range(SIZE):
            any_cell |= s.bricks[y, x]
    return any_cell


def observe(cell: tuple[int, int], s: State, p: Params) -> tuple[bool, bool, bool, bool]:
    y, x = cell
    is_paddle = y == LAST and x == s.paddle_x
    is_ball = y == s.ball_y and x == s.ball_x
    is_trail = y == s.last_y and x == s.last_x
    return is_paddle, is_ball, is_trail, s.bricks[cell]


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0, 1, (4, SIZE, SIZE), np.uint8), Discrete(3)


def field_ranges(p: Params) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(("ball_y", "ball_x", "paddle_x", "last_y", "last_x"), (0, LAST)) | {"direction": (0, DOWN_LEFT)}


def check(p: Params) -> None:
    if not 1 <= p.brick_rows <= SIZE - 4:
        raise ValueError(
            f"brick_rows is {p.brick_rows}; it must be from 1 to {SIZE - 4}, so that the ball has room below the wall."
        )


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    has_bricks, had_bricks = bool(np.any(s.bricks)), bool(np.any(before.bricks))
    changes = (
        (had_bricks and not has_bricks, ("goal", "the last brick breaks", ())),
        (has_bricks and not had_bricks, ("start", "the wall is built again", ())),
        (s.ball_y == LAST, ("loss", "the ball is lost", ())),
    )
    return [event for has_happened, event in changes if has_happened]


ENV = SingleAgentEnv(
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    spaces=spaces,
    cuda_c="cuda_c/breakout.cu",
    max_episode_steps=1000,
    field_ranges=field_ranges,
    check=check,
    draw=pictures.breakout,
    events=events,
    action_names=("stay", "left", "right"),
    render_fps=10,
)
