"""Sampling of actions: one kernel for action, log-probability and entropy."""

from gpuvec.learners.sampling.sampler import Sampler as Sampler
