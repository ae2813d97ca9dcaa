"""The page that an error names, also where it comes from another process."""

from __future__ import annotations

import pickle

import pytest

from lockstep.cli_help import page_of
from lockstep.errors import BadInput, BadRecipe
from lockstep.lanes.schedule import check_lanes
from lockstep.launch.start import sendable
from lockstep.train.synchronise import check_sync_batchnorm


def test_a_refusal_names_the_page_of_what_raised_it() -> None:
    with pytest.raises(BadInput) as refusal:
        check_lanes(4, 8, 64)
    assert page_of(refusal.value) == "lockstep docs bits"
    with pytest.raises(BadInput) as refusal:
        check_sync_batchnorm("dp", 2, 2)
    assert page_of(refusal.value) == "lockstep docs sync-batchnorm"


def test_a_refusal_from_another_process_names_the_same_page() -> None:
    with pytest.raises(BadInput) as refusal:
        check_lanes(4, 8, 64)
    sent: BadInput = pickle.loads(pickle.dumps(sendable(refusal.value)))
    assert (str(sent), page_of(sent)) == (str(refusal.value), "lockstep docs bits")
    assert type(sendable(BadRecipe("no"))) is BadRecipe
