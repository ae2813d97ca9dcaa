"""Ranks of these tests are forked from one process that is started first."""

from tests.ranks import warm_up

warm_up()
