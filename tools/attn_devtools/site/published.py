"""Where the course is published: the one place that names its repository.

Set REPOSITORY and run `make readme` and `make site`; the README's badges and the lessons' links to
Colab and Binder follow. Colab opens the notebooks that `make site` writes into `colab/`, from the
branch SITE_BRANCH, to which the site is pushed.
"""

import json
from urllib.parse import quote

from attn_course.lessons.working_copy import cleared

PLACEHOLDER = "OWNER/REPOSITORY"
REPOSITORY = PLACEHOLDER  # "owner/name" on GitHub, once the course is published
SITE_BRANCH = "gh-pages"
FIRST_LESSON = "00_start_here"
COLAB = "https://colab.research.google.com"
BINDER = "https://mybinder.org"
COPIES = "work"  # where `attn-course lessons` puts a learner's copies
INSTALL_CELL = "install-the-course"


def elsewhere(lesson: str) -> list[tuple[str, str]]:
    """Return where else a lesson opens, once the course is published."""
    return [("Colab", colab_url(lesson)), ("Binder", binder_url(lesson))] if is_published() else []


def is_published() -> bool:
    """Whether REPOSITORY names a repository."""
    return REPOSITORY != PLACEHOLDER


def source_url(path: str) -> str:
    """Return the address of a file of the repository."""
    return f"https://github.com/{REPOSITORY}/blob/HEAD/{path}"


def colab_url(lesson: str) -> str:
    """Return the address that opens a lesson on Colab."""
    return f"{COLAB}/github/{REPOSITORY}/blob/{SITE_BRANCH}/colab/{lesson}.ipynb"


def binder_url(lesson: str) -> str:
    """Return the address that opens a learner's copy of a lesson on Binder."""
    path = quote(f"lab/tree/{COPIES}/{lesson}.ipynb", safe="")
    return f"{BINDER}/v2/gh/{REPOSITORY}/HEAD?urlpath={path}"


def badges() -> str:
    """Return the README's badges and where to clone it, as Markdown; "" before it is published."""
    if not is_published():
        return ""
    images = {
        "Open in Colab": (f"{COLAB}/assets/colab-badge.svg", colab_url(FIRST_LESSON)),
        "Open in Binder": (f"{BINDER}/badge_logo.svg", binder_url(FIRST_LESSON)),
    }
    lines = [f"[![{text}]({image})]({url})" for text, (image, url) in images.items()]
    return "\n".join([*lines, "", f"`git clone https://github.com/{REPOSITORY}`"])


def colab_notebook(text: str) -> str:
    """Return a lesson without outputs, with a first cell that installs the course."""
    notebook = json.loads(cleared(text))
    origin = f"git+https://github.com/{REPOSITORY}"
    install = {
        "cell_type": "code",
        "execution_count": None,
        "id": INSTALL_CELL,
        "metadata": {},
        "outputs": [],
        "source": [
            f'%pip install -q "kernelscope @ {origin}#subdirectory=kernelscope" '
            f'"attn-course @ {origin}"'
        ],
    }
    notebook["cells"].insert(0, install)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
