"""What a newcomer may type: each wrong or half-right command line ends with one message that says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import gpuvec

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import COMMANDS, load_command, main
from gpuvec.cli.terminal import fitted_table
from gpuvec.cli.wrong_options import OTHER_NAMES, explain, option_names
from gpuvec.learners.algorithms import ALGORITHMS
from gpuvec.learners.config.setting_types import setting_types

TINY = ["--num-envs", "4", "--num-steps", "8", "--total-steps", "96", "--device", "cpu", "--episodes", "3"]
OWN = "import gpuvec\ngpuvec.register('mine/Pole-v0', 'gpuvec_envs.cartpole:ENV')\n"

# (what was typed, the exit status, words of the message)
WRONG = [
    # Commands.
    ("", 2, "name a command, such as `gpuvec demo`"),
    ("foo", 2, "there is no command 'foo': the commands are train, resume"),
    ("trian", 2, "did you mean `gpuvec train`?"),
    ("Train", 2, "did you mean `gpuvec train`?"),
    ("evaluate CartPole-v1", 2, "did you mean `gpuvec eval`?"),
    ("new_env lunar", 2, "did you mean `gpuvec new-env`?"),
    ("CartPole-v1", 2, "did you mean `gpuvec train CartPole-v1`?"),
    ("--seed 3 train", 2, "the command comes before --seed"),
    ("--env CartPole-v1", 2, "the command comes before --env"),
    # Environments.
    ("train --env Hopper-v5", 1, "Hopper-v5 is an environment of Gymnasium, not of gpuvec"),
    ("train Hopper-v5", 1, "`gpuvec envs` lists those that there are, and module:id names yours."),
    ("train cartpole", 1, "did you mean gpuvec/CartPole-v1?"),
    ("train --env CartPol-v1", 1, "did you mean gpuvec/CartPole-v1?"),
    ("train gpuvec/CartPol-v1", 1, "did you mean gpuvec/CartPole-v1?"),
    ("train CartPole-v7", 1, "did you mean gpuvec/CartPole-v1?"),
    ("train Tag", 1, "did you mean gpuvec/TagContinuous-v0 or gpuvec/TagGridWorld-v0?"),
    ("train zzz", 1, "there is no environment 'zzz'"),
    ("train own.py", 1, "`gpuvec train own:mine/Pole-v0`"),
    ("train nothing.py", 1, "there is no file nothing.py: name an environment by its module and its id"),
    ("train folder", 1, "folder names no environment: give an id, such as CartPole-v1"),
    ("train no_such_module:x/Y-v0", 1, "there is no module 'no_such_module'"),
    ("train own:mine/Pol-v0", 1, "did you mean mine/Pole-v0"),  # others of the process may be as near
    ("train CartPole-v1 --env Pendulum-v1", 2, "train takes one environment, got CartPole-v1 and --env"),
    ("train --seed 3 CartPole-v1", 2, "the environment is the first word, or --env CartPole-v1"),
    ("train env=CartPole-v1", 1, "there is no environment 'env=CartPole-v1'"),
    ("sweep Hopper-v5", 1, "not of gpuvec"),
    ("sweep --env nope", 1, "there is no environment 'nope'"),
    ("check own.py", 2, "`gpuvec check own:mine/Pole-v0`"),
    ("check cartpole", 2, "did you mean gpuvec/CartPole-v1?"),
    ("check CartPole-v1 --targets foo", 2, "the targets are cpu"),
    ("check", 2, "check needs the id of the environment"),
    ("envs cartpole", 1, "did you mean gpuvec/CartPole-v1?"),
    ("envs nomodule", 1, "there is no environment 'nomodule'"),
    ("envs own.py", 1, "`gpuvec envs own:mine/Pole-v0`"),
    # Options of other libraries, misspelled ones, and those of other algorithms.
    ("train --lr 1", 2, "did you mean --learning-rate?"),
    ("train -lr 1", 2, "did you mean --learning-rate?"),
    ("train --lr=1", 2, "did you mean --learning-rate?"),
    ("train --algorithm ddpg --lr 1", 2, "did you mean --actor-learning-rate?"),
    ("train --algo ppo", 2, "did you mean --algorithm?"),
    ("train --envs 8", 2, "did you mean --num-envs?"),
    ("train --n_envs 8", 2, "did you mean --num-envs?"),
    ("train -e CartPole-v1", 2, "did you mean --env?"),
    ("train --env-id CartPole-v1", 2, "did you mean --env?"),
    ("train --total-timesteps 1000", 2, "did you mean --total-steps?"),
    ("train --n-epochs 4", 2, "did you mean --update-epochs?"),
    ("train --clip-range 0.2", 2, "did you mean --clip?"),
    ("train --entropy-coef 0.2", 2, "did you mean --ent-coef?"),
    ("train --learning-rat 0.2", 2, "did you mean --learning-rate"),
    ("train --hiden 64", 2, "did you mean --hidden?"),
    ("train --track", 2, "did you mean --log?"),
    ("train --cuda", 2, "did you mean --device?"),
    ("train --algorithm td3 --policy-noise 0.2", 2, "did you mean --target-sigma?"),
    ("train --algorithm a2c --clip 0.1", 2, "it is a setting of ppo."),
    ("train --tau 0.1", 2, "it is a setting of ddpg and td3."),
    ("train --zzz", 2, "train has no option --zzz."),
    ("eval CartPole-v1 --env CartPole-v1", 2, "eval has no option --env."),
    ("eval CartPole-v1 --deterministic", 2, "did you mean --stochastic?"),
    ("record CartPole-v1 --output x.gif", 2, "did you mean --to?"),
    ("watch CartPole-v1 --overwrite", 2, "did you mean --force?"),
    ("sweep --n-trials 3", 2, "did you mean --trials?"),
    # Values.
    ("train --num-envs x", 2, "--num-envs cannot be x: train takes --num-envs INT|{auto} Number of environments"),
    ("train --num-envs", 2, "gpuvec: --num-envs needs a value. `gpuvec train --help` says more."),
    ("train --num-envs 1e3", 2, "An INT has digits alone, such as 1000000."),
    ("train --total-steps=1e6 --seed 3", 2, "--total-steps cannot be 1e6"),
    ("train --total-steps 1,000,000", 2, "An INT has digits alone"),
    ("train --seed 1.5", 2, "--seed cannot be 1.5"),
    ("train --env", 2, "gpuvec: --env needs a value. `gpuvec train --help` says more."),
    ("train --hidden a b", 2, "--hidden cannot be a b"),
    ("train --log tensorbord", 2, "Expected one of ('tensorboard', 'wandb'"),
    ("train --network Residual", 2, "network must be module:Class or None, got 'Residual'"),
    ("train --network-args width=128", 2, "network_args must be empty without network"),
    ("train --activation rleu", 2, "Expected one of ('tanh', 'relu')"),
    ("train --normalize true", 2, "train does not take true after --normalize: --normalize alone says yes."),
    ("train --params gravity", 2, "--params cannot be gravity"),
    ("train --params gravity=9.8", 2, "A name and its value are two words."),
    ("train --params gravity x", 2, "--params cannot be gravity x"),
    ("train --device cpu --params grvity 3", 1, "did you mean 'gravity'?"),
    ("train seed=3 --device cpu", 1, "there is no environment 'seed=3'"),
    ("train --num-envs 0", 2, "num_envs must be an integer of at least 1"),
    ("train --gamma 1.5", 2, "gamma must be from 0 to 1"),
    ("train --device gpu", 1, "device must be auto, cpu, cuda or cuda:<index>, got 'gpu'."),
    ("train --algorithm sac", 1, "algorithm must be one of ppo, a2c, ddpg, td3, got 'sac'."),
    ("train --algorithm td3 --critics 1", 2, "critics must be 2"),
    ("sweep --param learning_rate", 2, "gpuvec: --param needs 4 values."),
    ("sweep --param learning_rate log 1 x", 2, "--param cannot be learning_rate log 1 x"),
    ("sweep --param hidden log 1 2 --device cpu", 1, "hidden cannot be varied"),
    # Policies, files and folders.
    ("eval", 2, "eval needs a run folder"),
    ("eval nothing", 1, "there is no policy 'nothing'"),
    ("eval cartpole-v1", 1, "did you mean CartPole-v1?"),
    ("eval MountainCar-v0", 1, "`gpuvec train MountainCar-v0` trains one"),
    ("demo TagContinuous-v0", 1, "did you mean TagContinuous-v0-equal or"),
    ("demo nope", 1, "there is no policy 'nope'"),
    ("demo folder", 1, "`gpuvec watch folder` shows folder."),
    ("watch", 1, "name at least one policy"),
    ("watch nothing.html", 1, "there is no file nothing.html: a file *.html is a saved replay"),
    ("watch nothing --live", 1, "there is no folder nothing"),
    ("watch CartPole-v1 --to nowhere/x.html", 1, "there is no folder nowhere for x.html: create it first."),
    ("record CartPole-v1 --to x.avi", 1, "a video is .mp4 or .gif"),
    ("record CartPole-v1 --to nowhere/x.gif", 1, "there is no folder nowhere for x.gif: create it first."),
    ("export CartPole-v1", 2, "export needs --format {safetensors,onnx"),
    ("export CartPole-v1 --format onxx --to x.onnx", 2, "Expected one of ('safetensors', 'onnx'"),
    ("export CartPole-v1 --format onnx --to nowhere/x.onnx", 1, "there is no folder nowhere for x.onnx: create it first."),
    ("resume", 2, "resume needs the run folder"),
    ("resume nothing", 1, "there is no folder nothing"),
    ("resume folder", 1, "folder is not a run folder"),
    ("runs nothing", 1, "there is no folder nothing"),
    ("plot nothing", 1, "there is no curve to draw"),
    ("compare nothing", 1, "there is nothing to compare"),
    ("sweep --resume nothing", 1, "there is no folder nothing"),
    ("train --device cpu --runs own.py", 1, "own.py is a file, and --runs is the folder"),
    ("new-env", 2, "new-env needs the name"),
    ("new-env LunarRover", 1, "such as 'lunar_rover'"),
    ("new-env rover extra", 2, "new-env does not take extra"),
    ("doctor now", 2, "doctor does not take now"),
]  # fmt: skip


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with an environment's file and a folder without runs."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    gym.registry.pop("mine/Pole-v0", None)
    sys.modules.pop("own", None)


@pytest.mark.parametrize(("typed", "status", "words"), WRONG, ids=[case[0] or "nothing" for case in WRONG])
def test_a_wrong_command_line_is_explained(
    typed: str, status: int, words: str, newcomer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(newcomer.rglob("*"))
    assert main(typed.split()) == status
    printed = capsys.readouterr()
    *_, message = [line for line in printed.err.splitlines() if not line.endswith(" ...")]
    assert message.startswith("gpuvec")
    assert words in message
    for inside in ("Traceback", "tyro", "dummy", "<class", "typing.", "Errno", "site-packages", "╭"):
        assert inside not in printed.err
    assert [path for path in sorted(newcomer.rglob("*")) if "__pycache__" not in str(path)] == before


def test_every_name_of_another_library_leads_to_an_option() -> None:
    options = {name for command in COMMANDS for name in option_names(load_command(command))}
    options |= {name.replace("_", "-") for entry in ALGORITHMS.values() for name in setting_types(entry.args_class)}
    assert OTHER_NAMES.keys() <= options
    for option, names in OTHER_NAMES.items():
        assert all(f"--{option}" in explain("train", [option], [f"--{name}"], "") for name in names.split())


@pytest.mark.parametrize(
    "typed", ["train CartPole-v1", "train --env CartPole-v1", "train --env=CartPole", "train gpuvec/CartPole-v1"]
)
def test_an_environment_is_found_by_its_short_name_and_as_the_first_word(
    typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*typed.split(), *TINY, "--runs", str(tmp_path)]) == 0
    title, run, watch, *_, last = capsys.readouterr().out.splitlines()
    (folder,) = tmp_path.iterdir()
    assert title.startswith("PPO on gpuvec/CartPole-v1, 4 environments")
    # The run folder, and the command that shows it, are printed when training begins.
    assert (run, watch) == (f"run        {folder}", f"watch      gpuvec watch {folder}")
    assert last == run


def test_a_sweep_has_a_default_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--num-envs", "4", "--num-steps", "8", "--total-steps", "64", "--hidden", "8", "--device", "cpu"]
    counts = ["--trials", "4", "--halvings", "0", "--confirm", "1", "--confirmation-seeds", "2", "--runs", str(tmp_path)]
    assert main(["sweep", "CartPole-v1", *options, *counts]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "vary       learning_rate log 0.0001 0.03, gamma linear 0.9 0.9995, gae_lambda linear 0.8 1, ent_coef"
    )
    assert "best       gpuvec train --env gpuvec/CartPole-v1" in printed


def test_a_table_wraps_between_words() -> None:
    rows = [("a", "second column"), ("word", "one two three")]
    assert fitted_table(rows, 30) == ["a     second column", "word  one two three"]
    assert fitted_table(rows, 14) == ["a     second", "      column", "word  one two", "      three"]
    assert fitted_table(rows, 9) == ["word", "  second", "    column", "    one", "    two", "    three"]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpuvec {gpuvec.__version__}\n"


@pytest.mark.parametrize("command", [["train", "CartPole-v1"], ["eval", "CartPole-v1"], ["sweep", "CartPole-v1"]])
def test_ctrl_c_ends_with_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuvec.cli.parse_command", lambda name, words: interrupt)
    assert main(command) == 130
    assert capsys.readouterr().err == "gpuvec: interrupted\n"


def test_a_second_ctrl_c_prints_no_traceback(tmp_path: Path) -> None:
    """The first one ends the iteration, which has many steps, and the second one the process."""
    sizes = ["--num-envs", "1024", "--num-steps", "256", "--total-steps", "100000000", "--device", "cpu"]
    words = [sys.executable, "-u", "-m", "gpuvec", "train", "CartPole-v1", *sizes, "--runs", str(tmp_path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("watch "):
                break
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)  # two signals that wait for Python at the same time arrive as one, after which the iteration ends
        os.killpg(process.pid, signal.SIGINT)
        printed = process.stdout.read()
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in printed
    assert "gpuvec: interrupted" in printed or "stopped " in printed


def test_a_reader_that_ends_early_is_no_error() -> None:
    command = f"{sys.executable} -m gpuvec envs | head -1"
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert process.stdout.startswith("environment")
    assert process.stderr == ""
