"""What is made of T steps of E rows: advantages, sums of episodes, transitions that are remembered."""
