"""What is estimated from a rollout: advantages, the scale of rewards, statistics of episodes."""
