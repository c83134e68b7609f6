"""ConnectFour: two players drop pieces into columns in turn, and the first with four in a line wins.

Observation: an image of 6 x 7 pixels with two channels, 0 or 1: the player's own pieces, and those of the other. Row 0 is the
    top row.
Action: the column, 0 to 6, into which the player whose turn it is drops a piece. A column that is full is not allowed.
Reward: 1 for the player who completes a line of four, horizontally, vertically or diagonally, and -1 for the other. A
    player who chooses a full column loses 1, and the other gets 0.
Termination: a line is complete, the board is full, or a player chose a full column.
Parameters: player 0 begins.
Source: the rules of Connect Four (Wexler and Strongin, 1974), as PettingZoo's `connect_four_v3` implements them.
"""

from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Int8s, Ints, Key, MultiAgentEnv, Observation, Time, any_of, assign, each
from gpuvec_envs import pictures

ROWS, COLUMNS = 6, 7
EMPTY = 0
LINE = 4  # pieces in a line that wins


class State(NamedTuple):
    board: Annotated[Int8s, "cells"]  # 0 where it is empty, else 1 plus the player
    column: Ints  # the column that each player chose; that of the waiting one means nothing
    player: int  # whose turn it is
    row: int  # the row of the last piece; -1 if its column was full
    moves: int  # pieces on the board
    has_line: bool  # whether the last piece completes a line


class Params(NamedTuple):
    pass


def reset_cell(cell: tuple[int, int], s: State, key: Key, p: Params) -> None:
    s.board[cell] = EMPTY


def reset_player(i: int, s: State, key: Key, p: Params) -> None:
    s.column[i] = 0


def choose(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.column[i] = action


def find_row(s: State, key: Key, p: Params) -> int:
    """Returns the lowest empty row of the column that was chosen, or -1."""
    column, row = s.column[s.player], ROWS - 1
    while row >= 0 and s.board[row, column] != EMPTY:
        row -= 1
    return row


def drop(cell: tuple[int, int], s: State, key: Key, p: Params) -> None:
    if cell[0] == s.row and cell[1] == s.column[s.player]:
        s.board[cell] = 1 + s.player


def count_pieces(y: int, x: int, dy: int, dx: int, s: State) -> int:
    """Returns how many pieces of one player follow each other from (y, x) on, up to four."""
    piece, count = s.board[y, x], 0
    while count < LINE and 0 <= y < ROWS and 0 <= x < COLUMNS and s.board[y, x] == piece:
        y, x, count = y + dy, x + dx, count + 1
    return count


def begins_line(cell: tuple[int, int], s: State, p: Params) -> bool:
    """Returns whether a line begins at this cell: to the right, downwards, or diagonally downwards."""
    y, x = cell
    if s.board[cell] == EMPTY:
        return False
    lengths = (
        count_pieces(y, x, 0, 1, s),
        count_pieces(y, x, 1, 0, s),
        count_pieces(y, x, 1, 1, s),
        count_pieces(y, x, 1, -1, s),
    )
    return max(lengths) == LINE


def end_turn(s: State, key: Key, p: Params) -> tuple[int, int]:
    return 1 - s.player, s.moves + 1


def reward(i: int, s: State, t: Time, p: Params) -> float:
    moved = i != s.player  # `player` is that of the next step.
    if s.row < 0:
        return -1.0 if moved else 0.0
    if s.has_line:
        return 1.0 if moved else -1.0
    return 0.0


def terminated(i: int, s: State, p: Params) -> bool:
    return s.has_line or s.row < 0 or s.moves == ROWS * COLUMNS


def to_move(s: State, p: Params) -> int:
    return s.player


def allowed(i: int, action: int, s: State, p: Params) -> bool:
    return bool(s.board[0, action] == EMPTY)


def pixel(i: int, cell: tuple[int, int], s: State, t: Time, p: Params) -> tuple[bool, bool]:
    piece = s.board[cell]
    return piece == 1 + i, piece == 2 - i


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0, 1, (2, ROWS, COLUMNS), np.uint8), Discrete(COLUMNS)


def field_ranges(p: Params) -> dict[str, tuple[int, int]]:
    return {"board": (EMPTY, 2), "column": (0, COLUMNS - 1), "player": (0, 1), "row": (-1, ROWS - 1)}


PLAYERS = ("player 0 (red)", "player 1 (yellow)")  # with their colours in the picture


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    mover = int(before.player)
    if s.row < 0:
        return [("loss", f"{PLAYERS[mover]} chooses a full column and loses", (mover,))]
    if s.has_line:
        return [("win", f"{PLAYERS[mover]} completes a line and wins", (mover,))]
    return [("end", "the board is full: a draw", ())] if s.moves == ROWS * COLUMNS else []


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=lambda p: 2,
    sets=lambda p: {"cells": (ROWS, COLUMNS)},
    reset=(reset_player, each("cells", reset_cell)),
    phases=(
        choose, assign("row", find_row), each("cells", drop), any_of("has_line", begins_line, "cells"),
        assign(("player", "moves"), end_turn),
    ),
    reward=reward,
    terminated=terminated,
    observation=lambda p: Observation(pixel=pixel),
    to_move=to_move,
    allowed=allowed,
    field_ranges=field_ranges,
    draw=pictures.connect_four,
    events=events,
    action_names=tuple(f"column {column + 1}" for column in range(COLUMNS)),
    render_fps=2,
)  # fmt: skip
