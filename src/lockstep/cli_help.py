"""What helps a person at the command line: where to begin, groups of commands, examples, and the page for an error."""

from __future__ import annotations

from lockstep.doc_pages import COMMAND
from lockstep.errors import LockstepError, RunFailed

BEGIN = """\
Lockstep trains one PyTorch model on many workers: one recipe, every way, the same bits, measured.

Begin here:
    lockstep compare mlp                 a built-in model, trained every way that runs here, side by side
    lockstep init                        write a small recipe to change; `lockstep init train.py`: from your script
    lockstep compare recipe.py           the same table and page for your model
    lockstep run recipe.py --workers 4   train it one way
    lockstep doctor                      what this machine has, and who started this process
    lockstep docs                        all pages; `lockstep docs 1` is the first chapter of the guide

`lockstep --help` lists all commands, `lockstep COMMAND --help` what each can do, with examples.
`lockstep --install-completion` completes options in your shell.
"""

PANELS = {
    "Begin": ("init", "compare", "docs", "doctor", "selftest", "fit"),
    "Train": ("run", "launch", "notebook"),
    "On a cluster": ("sbatch", "requeue", "jobs", "stats"),
    "After a run": ("runs", "report", "export", "clean"),
    "Measure": ("bench",),
}
"""Commands by what they are for; one that is in none is shown under `MORE`."""
MORE = "More"

EXAMPLES = {
    "init": ("lockstep init", "lockstep init train.py", "lockstep init train.py --out my_recipe.py"),
    "compare": (
        "lockstep compare",
        "lockstep compare recipe.py --workers 1,2,4",
        "lockstep compare recipe.py --strategies single,ddp,torch-ddp --steps 50 --repeats 3",
        "lockstep compare recipe.py --peers --out comparison",
    ),
    "fit": ("lockstep fit recipe.py --memory 2GiB", "lockstep fit recipe.py --workers 2,4 --lanes 8"),
    "run": (
        "lockstep run recipe.py --workers 4",
        "lockstep run recipe.py --workers 8 --launcher srun --nodes 2 --checkpoint-every 500",
        "lockstep run --resume runs/20260101-120000-recipe-ddp",
    ),
    "sbatch": ("lockstep sbatch recipe.py --nodes 2 --gpus-per-node 4 --time 2:00:00 --dry-run",),
    "jobs": ("lockstep jobs",),
    "stats": ("lockstep stats runs/20260101-120000-recipe-ddp", "lockstep stats 4711 --watch"),
    "launch": (
        "lockstep launch --workers 4 train.py --its-own-flags",
        "lockstep launch --workers 4 --launcher torchrun -m package.train",
    ),
    "runs": ("lockstep runs", "lockstep runs elsewhere"),
    "report": ("lockstep report runs/20260101-120000-compare-mlp", "lockstep report runs/a runs/b --out both"),
    "export": ("lockstep export runs/20260101-120000-recipe-ddp model.safetensors",),
    "clean": ("lockstep clean --failed --older-than 30", "lockstep clean --failed --older-than 30 --yes"),
    "docs": ("lockstep docs", "lockstep docs 5", "lockstep docs failures"),
    "doctor": ("lockstep doctor", "lockstep doctor --device cuda", "srun -N2 -n2 lockstep doctor"),
    "selftest": ("lockstep selftest", "lockstep selftest --device cuda --workers 4 --json"),
}
"""Lines to type, by command."""

PAGES = {
    "lockstep.notebook": "notebooks",
    "lockstep.kernelspec": "notebooks",
    "lockstep.cli_notebook": "notebooks",
    "lockstep.world.worker_device": "accelerators",
    "lockstep.train.determinism": "accelerators",
    "lockstep.cluster": "slurm-jobs",
    "lockstep.cli_sbatch": "slurm-jobs",
    "lockstep.cli_jobs": "slurm-jobs",
    "lockstep.recipe": "recipes",
    "lockstep.first_recipe": "recipes",
    "lockstep.cli_init": "recipes",
    "lockstep.train.recipe_trust": "failures",
    "lockstep.train.checkpoint": "checkpoints",
    "lockstep.train.resume": "checkpoints",
    "lockstep.train.export": "checkpoints",
    "lockstep.train.best_metric": "evaluation",
    "lockstep.train.evaluat": "evaluation",
    "lockstep.train.failure": "failures",
    "lockstep.train.synchronise": "sync-batchnorm",
    "lockstep.train.stage_check": "model-parallelism",
    "lockstep.stages": "model-parallelism",
    "lockstep.shards": "model-parallelism",
    "lockstep.fit": "my-model-does-not-fit",
    "lockstep.world": "launchers",
    "lockstep.lanes": "bits",
    "lockstep.data": "data",
    "lockstep.nn.sync_batchnorm": "sync-batchnorm",
    "lockstep.nn": "ddp",
    "lockstep.comm": "shm",
    "lockstep.peers": "peers",
    "lockstep.process_wide": "process-wide",
    "lockstep.launch.start": "recipes",
    "lockstep.launch": "launchers",
    "lockstep.report": "report",
    "lockstep.comparison": "compare",
    "lockstep.cli_compare": "compare",
}
"""The page that helps, by the beginning of the name of the module that raised; the first that fits."""


def panel_of(command: str) -> str:
    """Return the group that a command is shown in."""
    return next((panel for panel, names in PANELS.items() if command in names), MORE)


def example_lines(command: str | None) -> str:
    """Return the lines to type for a command, as its help ends with them."""
    lines = EXAMPLES.get(command or "", ())
    return "".join(["Examples:\n", *(f"  {line}\n" for line in lines), "\n"]) if lines else ""


def page_of(error: LockstepError) -> str | None:
    """Return what shows the page that helps with an error: that of the innermost part of Lockstep that has one."""
    if isinstance(error, RunFailed):
        return f"{COMMAND} failures"
    for module in reversed(error.modules()):
        for prefix, page in PAGES.items():
            if module.startswith(prefix):
                return f"{COMMAND} {page}"
    return None


def with_page(message: str, page: str | None) -> str:
    """Return an error's text with the page that helps: on the same line, or below a traceback."""
    if page is None or page in message:
        return message
    return f"{message}\nhelp: {page}" if "\n" in message else f"{message} (help: {page})"
