"""Configuration of the documentation site. Nothing is fetched while it is built, or read."""

import importlib.metadata
import re

project = "decoct"
author = "The decoct developers"
project_copyright = author
release = importlib.metadata.version("decoct")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
highlight_language = "none"
default_role = "py:obj"

myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_merge_streams = True
nb_output_stderr = "remove"

autodoc_mock_imports = ["pymc", "pytensor", "bambi", "stanli", "formulae"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88  # longer ones have a line for each parameter
napoleon_google_docstring = False
# an entry may be two attributes with one description, which a list of variables cannot have
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False

html_theme = "furo"
html_title = "decoct"
html_static_path = ["_static"]
html_css_files = ["decoct.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False


_ITEM = re.compile(r"\s*([-*+]|\d+[.)]|#\.)\s|\s*(\.\.|>>>)\s")


def _formulas(app, what, name, obj, options, lines):
    """Set the indented formulas of a docstring as text in which signs are just signs.

    reStructuredText reads ‖w‖_0 or |r| as markup, and runs the lines of a quotation together.
    """
    result = []
    before = ""  # the last line that was not blank
    inside = None  # indentation of the paragraph that the formula belongs to
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if inside is not None and line.strip() and indent <= inside:
            inside = None
            result.append("")
        above = len(before) - len(before.lstrip())
        if (
            inside is None
            and line.strip()
            and before.strip()
            and i > 0
            and not lines[i - 1].strip()
            and indent >= above + 4
            and not before.rstrip().endswith("::")
            and not _ITEM.match(before)
        ):
            inside = above
            result += [f"{' ' * above}.. code-block:: text", f"{' ' * above}   :class: formula", ""]
        result.append(line)
        before = line if line.strip() else before
    lines[:] = result


_SHAPE = re.compile(r"(?<=\(\*)\((.*?)\)(?=\*\))|(?<=: )\((.*)\)$")
_as_written = {}


def _keep(app, what, name, obj, options, lines):
    """Remember the docstring of a property; napoleon takes its first colon for a type's."""
    if what in ("property", "attribute") and not any(line.startswith("---") for line in lines):
        _as_written[name] = list(lines)


def _restore(app, what, name, obj, options, lines):
    """Put it back, and set shapes in one pair of brackets."""
    if name in _as_written:
        lines[:] = _as_written.pop(name)
    for i, line in enumerate(lines):
        if line.startswith(":type ") or "(*(" in line:
            lines[i] = _SHAPE.sub(lambda found: found[1] or found[2], line)


def _by_last_name(app, env, node, contnode):
    """Link `GIGA` from wherever it is written, if there is one GIGA; in signatures ours alone."""
    is_ours = node["reftype"] == "class" and node["reftarget"].startswith("decoct.")
    if node["reftype"] != "obj" and not is_ours:
        return None
    python = env.domains.python_domain
    name = node["reftarget"].removeprefix("decoct.").rpartition(".")[2]
    found = [
        known
        for known, entry in python.objects.items()
        if known.rpartition(".")[2] == name and not entry.aliased
    ]
    if len(found) != 1:
        return None
    where = node.get("refdoc", env.docname)
    return python.resolve_xref(env, where, app.builder, "obj", found[0], node, contnode)


_OBJECT = re.compile(r"<class '(?:\w+\.)*(\w+)'>")


def _readable(app, what, name, obj, options, signature, returned):
    """Shorten JAX's own name of its arrays, and write defaults as Python."""
    signature, returned = (
        text
        and _OBJECT.sub(r"\1", text)
        .replace("<factory>", "...")
        .replace("[jaxlib._jax.Array", "[~jax.Array")
        for text in (signature, returned)
    )
    return signature, returned


def setup(app):
    """Connect the readers of docstrings on both sides of napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", _formulas, priority=100)
    app.connect("autodoc-process-docstring", _keep, priority=200)
    app.connect("autodoc-process-docstring", _restore, priority=900)
    app.connect("autodoc-process-signature", _readable)
    app.connect("missing-reference", _by_last_name)
