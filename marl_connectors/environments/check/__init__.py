"""``check_env``: a close look at one environment, which no run loads."""
