"""Property tests of this room: no time limit an example (machines vary), no files left behind."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("analysis", deadline=None, database=None, print_blob=True)
settings.load_profile("analysis")
