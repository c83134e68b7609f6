"""Settings of learners, in files that import no torch: a command line lists them before it needs it."""
