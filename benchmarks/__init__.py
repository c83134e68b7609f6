"""The benchmarks, which are part of a checkout and not of the installed package.

    cases/        one benchmark per file, a program of its own with `--help`
    multi_gpu.py  the benchmark of several processes, a program like those in cases/
    peers/        the same measurements of other libraries
    tools/        what runs benchmarks, measures, and writes records, ratios, quotations and pictures
    results/      tables, curves and pictures of the recorded runs

This file makes the folder a regular package, so that no installed package of the same name takes precedence.
"""
