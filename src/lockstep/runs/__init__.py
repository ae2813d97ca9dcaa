"""The run folders of a project: what there is, and what may go. Nothing here imports torch."""
