"""What is fuzzed, by name."""

from __future__ import annotations

from tests.fuzz.checkpoint_files import Checkpoint
from tests.fuzz.environments import Environment
from tests.fuzz.kind import Fuzzed
from tests.fuzz.ragged_files import RaggedFile
from tests.fuzz.report_folders import Report
from tests.fuzz.resumed_folders import Resume
from tests.fuzz.site_profiles import SiteProfile

KINDS: dict[str, type[Fuzzed]] = {
    one.name: one for one in (Report, Checkpoint, Resume, RaggedFile, Environment, SiteProfile)
}
