"""Ranks of these tests are forked from one warm process."""

from tests.ranks import warm_up

warm_up()
