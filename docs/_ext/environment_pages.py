"""A page for each bundled environment, with a picture: docstring, parameters, spaces and code of its file."""

from __future__ import annotations

import csv
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
from repository_pages import ENVIRONMENTS, GENERATED, PAGES, ROOT, keep

from gpuvec.cli.envs_command import comments_of
from gpuvec.registration import load_env
from gpuvec.spec import MultiAgentEnv

SECTIONS = ("Observation", "Action", "Reward", "Termination", "Parameters", "Source")
"""What the docstring of an environment's module says, in this order."""


def sections_of(docstring: str) -> tuple[str, dict[str, str]]:
    """(what the environment is, {section: text}) of a docstring.

    Raises:
        ValueError: sections are missing, or in another order.
    """
    title, _, body = inspect.cleandoc(docstring).partition("\n\n")
    parts = re.split(r"^([A-Z]\w+): ", body, flags=re.MULTILINE)[1:]
    found = {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    if tuple(found) != SECTIONS:
        raise ValueError(
            f"an environment's docstring has the sections {', '.join(SECTIONS)}; {title!r} has {', '.join(found)}."
        )
    return " ".join(title.partition(": ")[2].split()), found


def _space(space: gym.Space[Any]) -> str:
    if isinstance(space, gym.spaces.Box):
        bounds = ([f"{bound:.4g}" for bound in side.ravel().tolist()] for side in (space.low, space.high))
        low, high = (side[0] if len(set(side)) == 1 else f"[{', '.join(side)}]" for side in bounds)
        return f"`Box({low}, {high}, {space.shape}, {space.dtype})`"
    return f"`{space}`"


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def page(spec: Any, code: str) -> str:
    """The page of a registered environment as MyST; `code` is the path of its file from there."""
    env = load_env(spec.kwargs["env"])
    module = sys.modules[spec.kwargs["env"].partition(":")[0]]
    summary, sections = sections_of(module.__doc__ or "")
    spaces = env.spaces(env.params)
    many = isinstance(env, MultiAgentEnv)
    facts = {"make": f'`gymnasium.make_vec("{spec.id}", num_envs=...)`'}
    if isinstance(env, MultiAgentEnv):
        named = ", ".join(f"`{role}` {count}" for role, count in (env.roles(env.params) if env.roles else {}).items())
        facts["agents"] = f"{env.agents(env.params)}: {named}" if named else str(env.agents(env.params))
    by_role = spaces.items() if isinstance(spaces, dict) else ()
    by_owner = {f" of a {role}": pair for role, pair in by_role} or {" of an agent" * many: spaces}
    for owner, (observation, action) in by_owner.items():
        facts[f"observation{owner}"] = _space(observation)
        facts[f"action{owner}"] = _space(action)
    facts["steps until truncation"] = str(spec.max_episode_steps or "no limit")
    if spec.reward_threshold is not None:
        facts["solved at a mean return of"] = f"{spec.reward_threshold:g}"
    if env.reset_options:
        facts["options of `reset`"] = ", ".join(f"`{name}`" for name in env.reset_options)

    words = comments_of(type(env.params))
    fixed = env.structural if isinstance(env, MultiAgentEnv) else ()
    table = ["| parameter | default | |", "| --- | --- | --- |"]
    for field, value in env.params._asdict().items():
        description = ("; ".join(x for x in (words[field], "fixed when made" * (field in fixed)) if x)).replace("|", "\\|")
        table.append(f"| `{field}` | `{_value(value)}` | {description} |")

    name = spec.id.rpartition("/")[2]
    lines = [f"# {name}", summary[0].upper() + summary[1:]]
    lines.append(f"![A moment of {name}](../../images/env_{name}.png){{width=300px}}")
    lines.append("\n".join(["| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items())]))
    for section, text in sections.items():
        lines += [f"## {section}", text[0].upper() + text[1:]]
        if section == "Parameters":
            lines.append("\n".join(table))
    if played := play_table(name):
        lines += ["## Play without learning", played]
        lines.append("`benchmarks/cases/baselines.py` computes these scores, with 95 % confidence intervals over five seeds.")
    lines += [f"<details><summary>The whole file, <code>{Path(code).name}</code></summary>"]
    lines += [f"```{{literalinclude}} {code}\n:language: python\n```", "</details>"]
    return "\n\n".join(lines) + "\n"


def play_table(name: str = "") -> str:
    """How well play without learning, and trained policies, score in an environment; "" if it was not measured.

    Args:
        name: of the environment; "" for a table of all.
    """
    with (ROOT / "benchmarks/results/baselines.csv").open(newline="") as file:
        plays = [play for play in csv.DictReader(file) if name in ("", play["task"].partition(".")[0])]
    rows = ["| game | play | score | |", "| --- | --- | --- | --- |"] if plays else []
    for task in dict.fromkeys(play["task"] for play in plays):
        of_task = [play for play in plays if play["task"] == task]
        game, details = task.replace(".", ", ").replace("_", " "), f"the score is the {of_task[0]['measure']}"
        for play in of_task:
            details = "; ".join(filter(None, (play["details"], details)))
            rows.append(f"| {game} | {play['play']} | {play['mean']} ± {play['half_width']} | {details} |")
            game = details = ""
        rows += [f"| | trained with tuned settings | {trained} | |" for trained in trained_scores(task)]
    return "\n".join(rows)


def trained_scores(task: str) -> list[str]:
    """The score of trainings in the latest record that has it, with the lowest of all seeds; none if there is none."""
    records = (json.loads(file.read_text()) for file in sorted((ROOT / "gpu-results").glob("*.json")))
    figures = sorted(
        ((r["date"], r["figures"]) for r in records if f"game_training.{task}.ppo.mean" in r["figures"]),
        key=lambda pair: pair[0],
    )
    if not figures:
        return []
    mean, lowest, passed = (figures[-1][1][f"game_training.{task}.ppo.{name}"] for name in ("mean", "lowest", "passed"))
    return [f"{mean['value']:.4g}, the lowest of {passed['details']['seeds']} seeds {lowest['value']:.4g}"]


def table() -> str:
    """What there is, for the page above the others."""
    rows = ["| | environment | agents or roles |", "| --- | --- | --- |"]
    for file, spec in ENVIRONMENTS.items():
        env = load_env(spec.kwargs["env"])
        summary, _ = sections_of(sys.modules[spec.kwargs["env"].partition(":")[0]].__doc__ or "")
        many = "one"
        if isinstance(env, MultiAgentEnv):
            many = ", ".join(f"`{role}`" for role in env.roles(env.params)) if env.roles else str(env.agents(env.params))
        name = spec.id.rpartition("/")[2]
        image = f"![A moment of {name}](images/env_{name}.png){{width=130px}}"
        rows.append(f"| {image} | [{spec.id}](environments/{PAGES[file].name}): {summary} | {many} |")
    return "\n".join(rows) + "\n"


def write(app: Any) -> None:
    """Writes the pages and the tables."""
    for file, spec in ENVIRONMENTS.items():
        place = PAGES[file]
        keep(place, page(spec, os.path.relpath(file, place.parent)))
    keep(GENERATED / "environments.txt", table())
    keep(GENERATED / "baselines.txt", play_table())


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
