"""Rules for what environments may return. ``check_env``, the smoke test before a run and the run itself share them."""
