"""The documentation site; `python run.py docs` builds it, executes the tutorials and runs the examples in the pages."""

import sys
from pathlib import Path

import gpuvec

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "gpuvec"
release = version = gpuvec.__version__
copyright = "the gpuvec authors"
html_title = f"gpuvec {release}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "environment_pages",
    "field_comments",
    "repository_pages",
    "site_questions",
    "tutorial_pages",
]
exclude_patterns = ["_ext"]
default_role = "literal"

# Pages
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
copybutton_selector = "div:not(.printed) > div.highlight > pre"

# Reference
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["stable_baselines3"]  # whose adapter is documented without it
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!gpuvec).*")]  # what other projects have: their sites are not read here
nitpick_ignore = [("py:class", "gpuvec.learners.config.training_config.A")]  # a type variable
