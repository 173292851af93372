"""What environments may give: judged in one place, for ``check_env``, the smoke test before a run, and the run."""
