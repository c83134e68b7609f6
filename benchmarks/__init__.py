"""The benchmarks, which are part of a checkout and not of the installed package.

    cases/    one benchmark per file, a program of its own with `--help`
    peers/    the same measurements of other libraries
    tools/    what runs benchmarks, measures, and writes records, ratios, quotations and pictures
    results/  tables, curves and pictures of the recorded runs

This file makes the folder a regular package, so that no installed package of the same name takes precedence.
"""
