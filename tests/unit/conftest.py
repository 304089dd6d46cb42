"""How hard the property tests try, and that a busy machine fails none of them."""

from __future__ import annotations

from hypothesis import settings

from tests.conftest import scaled

settings.register_profile("duly", max_examples=scaled(40, 1000), deadline=None, print_blob=True)
settings.load_profile("duly")
