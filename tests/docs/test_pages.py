"""Documents: guides are short, and every relative link leads to a page and a heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MOST_WORDS, MOST_WORDS_EXPLAINED = 700, 950

GUIDES = [
    "bambi",
    "can_i_trust_it",
    "clusters",
    "evidence",
    "experiments_dpgmm",
    "experiments_hilbert",
    "experiments_sparse_vi",
    "gallery",
    "hierarchical",
    "hilbert",
    "how_it_works",
    "is_a_coreset_for_me",
    "limits",
    "loo",
    "numpyro",
    "predicting",
    "prior_sensitivity",
    "pymc",
    "samplers",
    "scale",
    "sparse_vi",
    "stan",
    "streams",
    "which_construction",
]
SHORT = [DOCS / f"{name}.md" for name in GUIDES] + sorted(DOCS.glob("tutorials/*.md"))
EXPLANATIONS = sorted(DOCS.glob("explanation/*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    """Return a page without front matter and fenced blocks."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    return re.sub(r"^(```+).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", SHORT, ids=name_of)
def test_guides_are_short(page):
    assert len(prose_of(page).split()) <= MOST_WORDS


@pytest.mark.parametrize("page", EXPLANATIONS, ids=name_of)
def test_explanations_are_short(page):
    assert len(prose_of(page).split()) <= MOST_WORDS_EXPLAINED


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_dead = not target.exists()
        if anchor and target.suffix == ".md" and not is_dead:
            is_dead = anchor not in anchors_of(target)
        if is_dead:
            dead.append(link)
    assert not dead
