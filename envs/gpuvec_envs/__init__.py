"""The bundled environments. Importing this package registers them with Gymnasium."""

from gpuvec import register
from gpuvec_envs import (
    acrobot,
    breakout,
    cartpole,
    connect_four,
    continuous_mountain_car,
    epidemic_economy,
    mountain_car,
    pendulum,
    predators,
    rice_n,
    simple_speaker_listener,
    simple_spread,
    tag_continuous,
    tag_grid_world,
)

register("gpuvec/CartPole-v1", cartpole.ENV)
register("gpuvec/Acrobot-v1", acrobot.ENV)
register("gpuvec/MountainCar-v0", mountain_car.ENV)
register("gpuvec/MountainCarContinuous-v0", continuous_mountain_car.ENV)
register("gpuvec/Pendulum-v1", pendulum.ENV)
register("gpuvec/Breakout-v0", breakout.ENV)
register("gpuvec/SimpleSpread-v0", simple_spread.ENV)
register("gpuvec/SimpleSpeakerListener-v0", simple_speaker_listener.ENV)
register("gpuvec/ConnectFour-v0", connect_four.ENV)
register("gpuvec/EpidemicEconomy-v0", epidemic_economy.ENV)
register("gpuvec/Predators-v0", predators.ENV)
register("gpuvec/RICE-N-v0", rice_n.ENV)
register("gpuvec/TagGridWorld-v0", tag_grid_world.ENV)
register("gpuvec/TagContinuous-v0", tag_continuous.ENV)
