"""The run folder's schema: one set of types that the writer and every reader share. Nothing here imports torch.

    run_json.py             run.json             what was asked: settings, recipe, steps, versions, host
    rank_jsonl.py           rank-N.jsonl         what rank N did: a header, a line per step and evaluation, an end line
    fingerprints_jsonl.py   fingerprints.jsonl   the weights at a few steps
    error_json.py           rank-N.error.json    how rank N failed
    result_json.py          result.json          how the run ended, and every rank's figures
    plan_json.py            plan.json            of a comparison's folder: what was to be run

    scalars.py    numbers and text with their ranges, and the bases of all types
    reading.py    bytes into values, or a refusal
    refusal.py    the refusal in words: file, line, field, what was found, what was expected

[Note: schema version] SCHEMA is one number for all files. Decoding is strict: a field that is missing, unknown or out
of range is refused. So every change of fields raises SCHEMA.
"""
